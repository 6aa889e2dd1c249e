"""Tiny real runs for the engine's tests: a random model, a hand-made prepared set, a run directory with its plan.

Training runs in forked children of a process that has torch imported already, so a run takes a second and a real
SIGKILL hits a real process.
"""

import gc
import hashlib
import importlib
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from tqdm import auto, std

from stoker.config import load, mixing, objectives
from stoker.config.load import RunFile
from stoker.engine import mixed_order
from stoker.facts import own_code
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan
from stoker.rows import order
from stoker.rundir import events, files, inputs, layout, prepared
from stoker.rundir.layout import RunDir

VOCAB = 97

# tqdm's own lock is one for all forked processes: whoever is killed with it in hand stops the others for good. Set
# before anything draws a bar, and for both classes: one that has drawn already has a lock of its own.
for _bar in (std.tqdm, auto.tqdm):
    _bar.set_lock(threading.RLock())

# Imported here once, so that a forked child starts to train at once.
for _module in (
    "stoker.engine.train",
    "peft",
    "bitsandbytes",
    "transformers.models.llama.modeling_llama",
    "torch.utils.tensorboard",
):
    importlib.import_module(_module)
own_code.digest()  # kept: no child reads the sources again


def make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(3, VOCAB)} | {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)


def make_base_model(
    folder: Path, seed: int = 0, dropout: float = 0.0, width: int = 64, layers: int = 2, kv_heads: int = 2
) -> Path:
    """A random llama saved as a trained model would be."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        attention_dropout=dropout,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def random_rows(count: int, seed: int, longest: int, segments: int = 1) -> list[list[np.ndarray]]:
    """Sequences of learnable text (each token follows from the one before, mostly); lengths are skewed."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        row = []
        for _ in range(int(generator.integers(1, segments + 1))):
            length = int(np.clip(generator.lognormal(2.5, 0.6), 4, longest // segments))
            tokens = np.empty(length, dtype=np.int32)
            tokens[0] = generator.integers(3, VOCAB)
            for i in range(1, length):
                jump = generator.integers(3, VOCAB) if generator.random() < 0.1 else tokens[i - 1] * 5 + 7
                tokens[i] = 3 + jump % (VOCAB - 3)
            tokens[0] = ~tokens[0]
            if length > 6 and generator.random() < 0.5:
                tokens[1:3] = ~tokens[1:3]
            row.append(tokens)
        rows.append(row)
    return rows


class Undesired(list[np.ndarray]):
    """A row whose answer is judged to be a bad one."""


def write_split(folder: Path, rows: list[list[np.ndarray]], together: int = 1, *, asks: bool = False) -> dict[str, Any]:
    """One shard in the prepared format, written independently of the product's writer; `asks`: rows are prompts."""
    shard = folder / "shard-00000"
    shard.mkdir(parents=True)
    flat = [segment for row in rows for segment in row]
    tokens = np.concatenate(flat)
    segment_offsets = np.cumsum([0] + [len(s) for s in flat])
    row_offsets = np.cumsum([0] + [len(r) for r in rows])
    trained = [sum(int((s >= 0).sum()) for s in row) for row in rows]
    (shard / "tokens.bin").write_bytes(tokens.astype("<i4").tobytes())
    (shard / "segments.bin").write_bytes(struct.pack(f"<{len(segment_offsets)}q", *segment_offsets))
    (shard / "rows.bin").write_bytes(struct.pack(f"<{len(row_offsets)}q", *row_offsets))
    judged = [~count if isinstance(row, Undesired) else count for row, count in zip(rows, trained, strict=True)]
    (shard / "trained.bin").write_bytes(struct.pack(f"<{len(judged)}i", *judged))
    if asks:
        texts = [" ".join(f"w{~token}" for token in row[0]) for row in rows]
        lines = [json.dumps({"prompt": text, "row": {"prompt": text}}) + "\n" for text in texts]
        (shard / "columns.jsonl").write_text("".join(lines))
    names = [f"{folder.name}/shard-00000/{path.name}" for path in sorted(shard.iterdir())]
    return {
        "sequences": len(rows),
        "segments": len(flat),
        "tokens": len(tokens),
        "trained_tokens": sum(trained),
        "longest": max(sum(map(len, row)) if together == 1 else together * max(map(len, row)) for row in rows),
        "longest_segment": max(map(len, flat)),
        "shards": ["shard-00000"],
        "files": {name: files.sha256(folder.parent / name) for name in names},
    }


def write_prepared(
    run_file: RunFile,
    data: Path,
    rows: list[list[np.ndarray]],
    eval_rows: list[list[np.ndarray]],
    sizes: Sequence[int] = (),
) -> None:
    make_tokenizer(data / "tokenizer")
    asked = objectives.facts(run_file.run.train.objective)
    options = {"together": asked.segments, "asks": asked.prompts}
    train = write_split(data / "train", rows, **options) | {"sources": _sources(run_file, rows, sizes)}
    evaluation = write_split(data / "eval", eval_rows, **options) if eval_rows else None
    digest = hashlib.sha256(json.dumps(train["files"], sort_keys=True).encode()).hexdigest()
    report = {
        "digest": digest,
        "key": prepared.key_of(run_file.run, inputs.facts(run_file.run, run_file.folder)),
        "length": run_file.run.data.length,
        "packed": run_file.run.data.pack,
        "vocab": VOCAB,
        "objective": "sft",
        "detected": [],
        "rows_read": len(rows),
        "bad_rows": 0,
        "truncated_rows": 0,
        "length_histogram": {},
        "pack_efficiency": 1.0,
        "unigram_entropy": 0.0,
        "train": train,
        "eval": evaluation,
    }
    prepared.write_report(data, prepared.Report.model_validate(report))


def _sources(run_file: RunFile, rows: list[list[np.ndarray]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The sources of a mixture, as the report names them."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    named = zip(mixing.names(run_file.run.data), firsts, sizes, strict=False)
    return [
        {
            "name": name,
            "first": first,
            "sequences": size,
            "tokens": sum(len(segment) for row in rows[first : first + size] for segment in row),
        }
        for name, first, size in named
    ]


def make_run(
    folder: Path,
    text: str,
    rows: list[list[np.ndarray]],
    eval_rows: list[list[np.ndarray]] = (),
    sets: tuple[str, ...] = (),
    sizes: Sequence[int] = (),
) -> RunDir:
    """A run directory ready to train: run file, prepared set, plan for this machine's CPU.

    Of a mixture, `sizes` are the sequences of its sources, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(text)
    if not (folder / "rows.jsonl").exists():
        (folder / "rows.jsonl").write_text("{}\n")
    run_file = load.load(str(path), list(sets))
    os.environ["STOKER_RUNS"] = str(folder / "runs")
    run_dir = layout.create(run_file)
    if not (run_dir.data / "report.json").exists():
        write_prepared(run_file, run_dir.data, rows, list(eval_rows), sizes)
    plan(run_dir, run_file)
    return run_dir


def plan(run_dir: RunDir, run_file: RunFile) -> None:
    """Plan a run for this machine, its data being there."""
    made = make_plan(plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(None, run_file.run)))
    files.write_json(run_dir.plan_file, made.model_dump())


def rewrite(run_dir: RunDir, old: str, new: str) -> None:
    """Change the run file of a run directory, in the manifest that Stoker reads and in the copy for people."""
    text = run_dir.run_file.read_text().replace(old, new)
    run_dir.run_file.write_text(text)
    layout.record(run_dir, text=text)


def fork() -> int:
    """`os.fork`; the child does not look through what is there now, which would copy all its pages.

    DTensor's caches hold a mesh with its rank: of a test that pretended to be the first of two, they would make every
    child the first one.
    """
    gc.freeze()
    pid = os.fork()
    if pid:
        gc.unfreeze()
    else:
        _clear_sharding_prop_cache()
    return pid


def in_child(work: Callable[[], int]) -> int:
    """Run `work` in a forked child; its exit code, or minus the signal that ended it."""
    (code,) = in_children(1, lambda rank: work())  # one rank
    return code


def in_children(count: int, work: Callable[[int], int], grace_seconds: float = 0) -> list[int]:
    """Run `work(rank)` in that many forked children at once; their exit codes.

    If one fails, the others are ended: at once, or asked to first, as torchrun does.
    """
    pids = []
    for rank in range(count):
        pid = fork()
        if pid == 0:
            code = 70
            try:
                code = work(rank)
            finally:
                os._exit(code)
        pids.append(pid)
    codes: dict[int, int] = {}
    failed_at = None
    while len(codes) < count:  # by number: this process may have other children
        ended = {pid: os.waitpid(pid, os.WNOHANG) for pid in pids if pid not in codes}
        new = {pid: os.waitstatus_to_exitcode(status) for pid, (done, status) in ended.items() if done}
        codes |= new
        if failed_at is None and any(code not in (0, 75) for code in new.values()):
            failed_at = time.monotonic()
            _signal(set(pids) - codes.keys(), signal.SIGTERM if grace_seconds else signal.SIGKILL)
        if failed_at is not None and grace_seconds and time.monotonic() > failed_at + grace_seconds:
            _signal(set(pids) - codes.keys(), signal.SIGKILL)
        if not new:
            time.sleep(0.01)
    return [codes[pid] for pid in pids]


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def in_ranks(count: int, work: Callable[[int], int], grace_seconds: float = 0) -> list[int]:
    """The same as the ranks of one training that meet over loopback."""
    meeting = tempfile.mkdtemp()

    def as_rank(rank: int) -> int:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= {key: str(value) for key, value in ranks.items()}
        os.environ |= {"STOKER_RENDEZVOUS": meeting, "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
        return work(rank)

    codes = in_children(count, as_rank, grace_seconds)
    shutil.rmtree(meeting, ignore_errors=True)
    return codes


def train(run_dir: RunDir, kill_after: int | None = None, stop_after: int | None = None) -> int:
    """Train in children, one per rank; optionally SIGKILL or SIGTERM them when step `kill_after`/`stop_after` ended."""
    plan = files.read_json(run_dir.plan_file)
    start = in_children if plan["strategy"] == "single" else in_ranks
    codes = start(plan["batch"]["devices"], trainer(run_dir, kill_after, stop_after))
    return next((code for code in codes if code), 0)


def trainer(run_dir: RunDir, kill_after: int | None = None, stop_after: int | None = None) -> Callable[[int], int]:
    """The training program as a forked child runs it, by rank."""

    def work(rank: int) -> int:
        import logging

        with (run_dir.path / ("child.log" if rank == 0 else f"child{rank}.log")).open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  # pytest has its own
        logging.disable(logging.WARNING)
        from stoker.engine import callbacks
        from stoker.engine import train as program

        at = kill_after or stop_after
        if at:
            number = signal.SIGKILL if kill_after else signal.SIGTERM
            plain = callbacks.Schedule.on_step_end

            def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
                if state.global_step == at:
                    self._saver.join()  # what was saved before is committed, however busy the machine
                    os.kill(os.getpid(), number)
                return plain(self, args, state, control, **kwargs)

            callbacks.Schedule.on_step_end = on_step_end  # only in this child
        import traceback

        try:
            return program.main(run_dir.path)
        except BaseException:
            traceback.print_exc()
            raise

    return work


@contextmanager
def replaced(owner: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """In the children that are forked meanwhile, another function, which is given the plain one."""
    plain = getattr(owner, name)
    setattr(owner, name, lambda *words, **options: by(plain, *words, **options))
    try:
        yield
    finally:
        setattr(owner, name, plain)


def said(run_dir: RunDir) -> str:
    """The end of what each child printed."""
    return "\n".join(log.read_text()[-3000:] for log in sorted(run_dir.path.glob("child*.log")))


def losses(run_dir: RunDir) -> dict[int, str]:
    """Hex of every step's loss: the last line of a step counts."""
    return {step: float(event["loss"]).hex() for step, event in sorted(events.steps(run_dir.events_file).items())}


def sequences(run_dir: RunDir) -> dict[int, list[int]]:
    """The sequence ids of each step: those the order function gives, which the events' checksums confirm."""
    run, report = run_dir.run(), prepared.read_report(run_dir.data)
    assert report is not None
    ordered = mixed_order.of(run, report, run.train.rows)
    found = {}
    for step, event in sorted(events.steps(run_dir.events_file).items()):
        found[step] = ordered.sequences(step - 1)
        assert (event["sequences"], event["order"]) == (len(found[step]), order.check(found[step]))
    return found


def weights_sha(folder: Path) -> str:
    """SHA-256 over all weight files of a model folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != "state.safetensors":
            digest.update(path.read_bytes())
    return digest.hexdigest()
