"""Speed against the bare Trainer: ratios of alternating pairs on the same machine, with bootstrap intervals.

    same       ours against a plain `Trainer` on the same packed rows, same arrangement  (bar: >= 0.98)
    default    ours as planned here against a padded `Trainer`, rows of skewed length    (bar: >= 1.8)
    ddp        two processes against a plain `Trainer`'s DDP, LoRA (exact); ddp_full: all weights  (bar: >= 0.97)
    fsdp2      two processes against a plain loop around `fully_shard`, LoRA (exact)      (bar: >= 0.97)
    start      command to first step, ours against a bare script that packs the same rows (bar: <= 1.15);
               start_prepared: where `stoker prepare` has run before                      (bar: <= 1.1)
               start_early: ours against itself with a trainer that starts after preparing (bar: < 1)

Every run is a process of its own. `same` and `default` fork from one that has torch imported; their figures are real
tokens per wall second and per processor second (with one thread, what a busy machine cannot blur), after the first
step. Usage: python benchmarks/overhead.py [--pairs 20] [--only same] [--out FILE]
"""

import argparse
import datetime
import functools
import importlib
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "invariant")]

ROWS = 1500
LENGTH = 1024
BATCH = 4
STEPS = 6
PADDED_STEPS = 24
RANKS = 2
MEDIAN_TOKENS, P99_TOKENS = 108, 801
PACES = ("tokens_per_wall_second", "tokens_per_processor_second")
TEXT = ROOT / "src/stoker/config/recipes/text/shakespeare.txt"


def make_inputs(folder: Path) -> None:
    """A random Qwen2 (6.5M weights) with a BPE tokenizer, and instruction rows of skewed length, from real text."""
    import math

    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    core = ByteLevelBPETokenizer()
    core.train(files=[str(TEXT)], vocab_size=4096, special_tokens=["<pad>", "<eos>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core._tokenizer, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    words = TEXT.read_text(encoding="utf-8").split()
    generator = random.Random(0)
    sigma = math.log(P99_TOKENS / MEDIAN_TOKENS) / 2.326
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(ROWS):
            count = max(8, int(generator.lognormvariate(math.log(MEDIAN_TOKENS / 1.35), sigma)))
            start = generator.randrange(len(words) - count) if count < len(words) else 0
            picked = words[start : start + count]
            cut = max(2, count // 4)
            row = {"prompt": " ".join(picked[:cut]), "completion": " ".join(picked[cut:])}
            file.write(json.dumps(row) + "\n")


def run_file(folder: Path, name: str, pack: str, where: str, method: str = "{method: lora, rank: 16}") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"""
name: {name}
model: base
data: {{train: rows.jsonl, length: {LENGTH}, pack: {pack}}}
tune: {method}
train: {{batch: {BATCH}, steps: {STEPS}, learning_rate: 1e-4}}
where: {{{where}}}
""",
        encoding="utf-8",
    )
    return path


def prepared(folder: Path, name: str, pack: str, where: str, **more: str) -> Any:
    """A run directory with data and plan, made by the product's own doors."""
    return planned(run_file(folder, name, pack, where, **more))


def planned(path: Path, data: Path | None = None) -> Any:
    """The same from a run file, perhaps with data that was prepared for another of its kind."""
    from stoker.config import load
    from stoker.launch import plan_inputs
    from stoker.plan.make import make_plan
    from stoker.rundir import files, layout

    loaded = load.load(str(path))
    if data:
        shutil.copytree(data, layout.runs_folder() / str(loaded.run.name) / "data", dirs_exist_ok=True)
    else:
        subprocess.run([sys.executable, "-m", "stoker", "prepare", str(path), "--json"], check=True, stdout=-3)
    run_dir = layout.create(loaded)
    plan = make_plan(plan_inputs.inputs(loaded, run_dir, plan_inputs.machine(None, loaded.run)))
    files.write_json(run_dir.plan_file, plan.model_dump())
    return run_dir


SEVERAL = (("ddp", "ddp", "lora"), ("ddp_full", "ddp", "full"), ("fsdp2", "fsdp2", "lora"))
EARLY = "start_early"
STARTS = {"start": "ratio <= 1.15", "start_prepared": "ratio <= 1.1", EARLY: "ratio < 1"}
PARTS = ["same", "default", *STARTS, *(name for name, _, _ in SEVERAL)]
IN_TURN = """
import runpy
from stoker.launch import early_start
early_start.begin = lambda *_: None
runpy.run_module("stoker", run_name="__main__")
"""

Marks = list[tuple[float, float]]
"""Wall and processor seconds at the end of each step."""


def mark(marks: Marks) -> None:
    marks.append((time.perf_counter(), time.process_time()))


def note(folder: Path, marks: Marks, **more: Any) -> None:
    """Leave what a process measured, and the most memory it had: of a GPU, else of main memory."""
    import torch

    main = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    peak = torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else main
    (folder / "marks.json").write_text(json.dumps({"marks": marks, "peak_bytes": peak, **more}))


def noted(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "marks.json").read_text())


def pace(folder: Path, tokens: list[int]) -> tuple[float, float]:
    """Real tokens per wall second and per processor second, after the first step."""
    marks = noted(folder)["marks"]
    wall, processor = (marks[-1][i] - marks[0][i] for i in (0, 1))
    return sum(tokens[1:]) / wall, sum(tokens[1:]) / processor


def quiet(run_dir: Any, name: str) -> None:
    with (run_dir.path / name).open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def ours(run_dir: Any) -> tuple[float, float]:
    """One training process of ours."""
    import tiny_run

    from stoker.rundir import events

    for rest in (run_dir.checkpoints, run_dir.artifacts):
        shutil.rmtree(rest, ignore_errors=True)
    run_dir.events_file.unlink(missing_ok=True)

    plan = json.loads(run_dir.plan_file.read_text())

    def work(rank: int) -> int:
        from stoker.engine import callbacks, train

        quiet(run_dir, "ours.log")
        marks: Marks = []
        plain = callbacks.Recorder.on_step_end

        def on_step_end(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            mark(marks)

        callbacks.Recorder.on_step_end = on_step_end  # type: ignore[method-assign]  # in this child only
        code = train.main(run_dir.path)
        if rank == 0:
            note(run_dir.path, marks)
        return code

    start = tiny_run.in_children if plan["strategy"] == "single" else tiny_run.in_ranks
    codes = start(plan["batch"]["devices"], work)
    assert set(codes) == {0}, (run_dir.path / "ours.log").read_text()[-2000:]
    steps = [event for event in events.read(run_dir.events_file) if event["event"] == "step"]
    return pace(run_dir.path, [step["tokens"] for step in steps])


def representative(rows: list[Any], count: int) -> list[Any]:
    """Rows evenly spread over the lengths, in the shuffle whose padding is nearest to the whole set's."""
    ordered = sorted(rows, key=lambda row: sum(map(len, row)))
    taken = [ordered[i * len(ordered) // count] for i in range(count)]
    whole = real_share(random.Random(7).sample(rows, len(rows)))
    shuffles = [random.Random(seed).sample(taken, count) for seed in range(100)]
    return min(shuffles, key=lambda one: abs(real_share(one) - whole))


def real_share(rows: list[Any]) -> float:
    """Real tokens over padded tokens of batches of rows."""
    lengths = [sum(map(len, row)) for row in rows]
    batches = [lengths[i : i + BATCH] for i in range(0, len(lengths), BATCH)]
    return sum(lengths) / sum(len(batch) * max(batch) for batch in batches)


def bare(run_dir: Any, *, padded: bool) -> tuple[float, float]:
    """One process of a plain Trainer over the same prepared rows: packed, or one row a line and padded."""
    import bare as yardstick
    import tiny_run

    taken = representative(yardstick.read_rows(run_dir.data / "train"), BATCH * (PADDED_STEPS if padded else STEPS))

    def work() -> int:
        import torch

        quiet(run_dir, "bare.log")
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        marks: Marks = []
        model = yardstick.build_model(run_dir.folder() / "base", "lora", {"r": 16, "lora_alpha": 32}, seed=42)
        micro = BATCH if padded else 1
        out = run_dir.path / "bare"
        options = {"extra": [clock(marks)], "masked": padded, "learning_rate": 1e-4}
        yardstick.losses(model, taken, out, micro, BATCH // micro, 42, **options)
        note(run_dir.path, marks)
        return 0

    code = tiny_run.in_child(work)
    assert code == 0, (run_dir.path / "bare.log").read_text()[-2000:]
    return pace(run_dir.path, step_tokens(taken))


def bare_ranks(run_dir: Any, method: str) -> tuple[float, float]:
    """Two processes of a plain Trainer, which accelerate wraps in DDP, over the same packed rows."""
    import bare as yardstick

    def train(rank: int, rows: list[Any], marks: Marks) -> None:
        model = yardstick.build_model(run_dir.folder() / "base", method, {"r": 16, "lora_alpha": 32}, seed=42)
        options = {"extra": [clock(marks)], "learning_rate": 1e-4, "ddp_find_unused_parameters": False}
        yardstick.losses(model, rows, run_dir.path / "bare", 1, BATCH // RANKS, 42, **options)

    return in_ranks(run_dir, train)


def bare_shards(run_dir: Any) -> tuple[float, float]:
    """Two processes of a plain loop around torch's `fully_shard`: accelerate has no FSDP on a processor."""
    import bare as yardstick

    def train(rank: int, rows: list[Any], marks: Marks) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard

        model = yardstick.build_model(run_dir.folder() / "base", "lora", {"r": 16, "lora_alpha": 32}, seed=42)
        for module in model.modules():
            if type(module).__name__ == "Qwen2DecoderLayer":
                fully_shard(module)
        fully_shard(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0, fused=True)
        for first in range(0, len(rows), BATCH):
            for row in rows[first + rank : first + BATCH : RANKS]:
                (model(**yardstick.collate([row])).loss / (BATCH // RANKS)).backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            mark(marks)

    return in_ranks(run_dir, train)


def in_ranks(run_dir: Any, train: Callable[[int, list[Any], Marks], None]) -> tuple[float, float]:
    """Train in two joined processes over rows of the prepared set; the first one's pace."""
    import bare as yardstick
    import tiny_run

    rows = representative(yardstick.read_rows(run_dir.data / "train"), BATCH * STEPS)

    def work(rank: int) -> int:
        import torch

        quiet(run_dir, "bare.log")
        torch.set_num_threads(1)
        join(rank)
        marks: Marks = []
        train(rank, rows, marks)
        if rank == 0:
            note(run_dir.path, marks)
        return 0

    codes = tiny_run.in_ranks(RANKS, work)
    assert set(codes) == {0}, (run_dir.path / "bare.log").read_text()[-2000:]
    return pace(run_dir.path, step_tokens(rows))


def join(rank: int) -> None:
    import torch.distributed as dist

    store = Path(os.environ["STOKER_RENDEZVOUS"]) / "bare"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)


def clock(marks: Marks) -> Any:
    """A callback that notes the end of each step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            mark(marks)

    return Clock()


def step_tokens(rows: list[Any]) -> list[int]:
    """Real tokens of each step over rows in order."""
    return [sum(len(s) for row in rows[i : i + BATCH] for s in row) for i in range(0, len(rows), BATCH)]


def first_step_ours(folder: Path, name: str, *, is_prepared: bool, in_turn: bool = False) -> float:
    """Seconds from the command to the end of the first step; `in_turn`: the trainer starts after preparing."""
    path = run_file(folder, name, "true", "")
    stoker = [sys.executable, *(["-c", IN_TURN] if in_turn else ["-m", "stoker"])]
    if is_prepared:
        subprocess.run([*stoker, "prepare", str(path)], stdout=-3, stderr=-3, check=True)
    started = time.time()
    process = subprocess.Popen([*stoker, "train", str(path)], stdout=-3, stderr=-3)
    events_file = folder / "runs" / name / "events.jsonl"
    while process.poll() is None:
        if events_file.exists() and '"event": "step"' in events_file.read_text(encoding="utf-8"):
            break
        time.sleep(0.02)
    elapsed = time.time() - started
    process.wait()
    return elapsed


def first_step_bare(folder: Path) -> float:
    """The same for `benchmarks/bare_packed.py`."""
    started = time.time()
    with subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks/bare_packed.py"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=-3,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("first step"):
                break
        elapsed = time.time() - started
        process.terminate()
    return elapsed


def first_steps(folder: Path, name: str, count: int) -> dict[str, Any]:
    """Our command against the bare script, or against itself with a trainer that starts after preparing."""
    early = functools.partial(first_step_ours, folder, is_prepared=name == "start_prepared")
    in_turn = functools.partial(first_step_ours, folder, is_prepared=False, in_turn=True)
    found = pairs(
        count,
        lambda n: (early(f"{name}-{n}"),),
        lambda n: (in_turn(f"in-turn-{n}") if name == EARLY else first_step_bare(folder),),
    )
    return summary(found, STARTS[name], ("wall_seconds",))


Figure = tuple[float, ...]


def pairs(count: int, left: Callable[[int], Figure], right: Callable[[int], Figure]) -> list[tuple[Figure, Figure]]:
    """Alternating pairs; which side goes first alternates too."""
    found = []
    for number in range(count):
        if number % 2:
            second = right(number)
            found.append((left(number), second))
        else:
            first = left(number)
            found.append((first, right(number)))
        print(f"  {number + 1}/{count}  {found[-1]}", file=sys.stderr, flush=True)
    return found


def ratio(found: list[tuple[Figure, Figure]], figure: int) -> dict[str, Any]:
    """Median ratio of the pairs with a bootstrap 95 % interval."""
    ratios = [a[figure] / b[figure] for a, b in found]
    generator = random.Random(0)
    boots = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return {
        "ratio_median": round(statistics.median(ratios), 4),
        "interval_95": [round(boots[250], 4), round(boots[9750], 4)],
        "ours_median": statistics.median(a[figure] for a, _ in found),
        "bare_median": statistics.median(b[figure] for _, b in found),
    }


def summary(found: list[tuple[Figure, Figure]], bar: str, figures: tuple[str, ...]) -> dict[str, Any]:
    by_figure = {name: ratio(found, number) for number, name in enumerate(figures)}
    return {"bar": bar, "pairs": len(found), **by_figure, "values": found}


def several(folder: Path, name: str, strategy: str, method: str, count: int) -> dict[str, Any]:
    """Two processes of each side."""
    where = f"micro: 1, arrange: rows, strategy: {strategy}, processes: {RANKS}"
    run_dir = prepared(folder, name, "true", where, method=f"{{method: {method}}}")
    other = bare_shards if strategy == "fsdp2" else functools.partial(bare_ranks, method=method)
    return summary(pairs(count, lambda _: ours(run_dir), lambda _: other(run_dir)), "ratio >= 0.97", PACES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/overhead.json")
    parser.add_argument("--threads", default="2")
    options = parser.parse_args()
    wanted = options.only or PARTS
    os.environ["OMP_NUM_THREADS"] = options.threads
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' machines keep compiled modules
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "versions": {name: version(name) for name in ("stoker", "torch", "transformers", "peft", "accelerate")},
        "work": f"Qwen2 6.5M, LoRA r16, length {LENGTH}, {ROWS} rows, median ~{MEDIAN_TOKENS} tokens",
        "results": json.loads(options.out.read_text())["results"] if options.out.exists() else {},
    }

    def keep(name: str, result: dict[str, Any]) -> None:
        report["results"][name] = {**result, "date": report["date"], "threads": options.threads}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        make_inputs(folder)
        if set(wanted) - STARTS.keys():
            for module in ("peft", "transformers", "stoker.engine.train"):
                importlib.import_module(module)  # once, before the children fork
        if "same" in wanted:
            run_dir = prepared(folder, "same", "true", "micro: 1, arrange: rows")
            found = pairs(options.pairs, lambda _: ours(run_dir), lambda _: bare(run_dir, padded=False))
            keep("same", summary(found, "ratio >= 0.98", PACES))
        if "default" in wanted:
            packed, plain = prepared(folder, "packed", "true", ""), prepared(folder, "plain", "false", "")
            found = pairs(options.pairs, lambda _: ours(packed), lambda _: bare(plain, padded=True))
            import bare as yardstick

            rows = yardstick.read_rows(plain.data / "train")
            shares = {
                "real_share_of_padded_sample": real_share(representative(rows, BATCH * PADDED_STEPS)),
                "real_share_of_padded_set": real_share(random.Random(7).sample(rows, len(rows))),
            }
            keep("default", {**summary(found, "ratio >= 1.8", PACES), **shares})
        for name, strategy, method in SEVERAL:
            if name in wanted:
                keep(name, several(folder, name, strategy, method, options.pairs))
        for name in STARTS:
            if name in wanted:
                keep(name, first_steps(folder, name, options.pairs))
    tell(report["results"])


def tell(results: dict[str, Any]) -> None:
    """One line per figure."""
    for name, result in results.items():
        for figure in (*PACES, "wall_seconds"):
            if figure in result:
                low, high = result[figure]["interval_95"]
                median = result[figure]["ratio_median"]
                print(
                    f"{name} {figure}: {median:.3f} [{low:.3f}, {high:.3f}], {result['bar']}, {result['pairs']} pairs"
                )


if __name__ == "__main__":
    main()
