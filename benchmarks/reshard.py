"""A checkpoint of any strategy and number of processes loads into any other: every bit of it, in bounded memory.

    matrix    runs train two steps and commit; each checkpoint is loaded by every other (strategy, processes). What the
              ranks then hold, put together in their order, is compared byte for byte with what the source's ranks held
              when they saved: weights, buffers, optimizer state and its options.
    memory    a model large enough to measure. A rank's share: bytes of weights and optimizer state that it holds once
              all is loaded, never more than the larger of source's and target's. Its peak: the most anonymous memory
              beyond the least before (RssAnon, looked at from outside every few milliseconds) from its start until
              all is loaded; pages of the mapped checkpoint are the kernel's cache and are not counted.
              Bar: peak <= 1.3 x share. Control: the model built whole and the Trainer's own loading must exceed it.
    saving    by how much processes grow as a checkpoint is put together; starting: the peak of a new run. No bar.
Real processes with gloo, forked from one that has torch imported. Usage: python benchmarks/reshard.py [--out FILE]
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import processor  # noqa: E402
import tiny_run  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from memory_watch import MemoryWatch, anonymous_bytes  # noqa: E402
from tiny_run import replaced, said  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from stoker.engine import models  # noqa: E402
from stoker.engine.exact import local  # noqa: E402
from stoker.engine.trainer import ExactTrainer  # noqa: E402
from stoker.rundir.layout import RunDir  # noqa: E402

BAR = 1.3
SEEN = 0.9
"""A peak below the share would mean that memory was taken unseen."""
GROUPS = [("single", 1), ("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 3), ("fsdp2", 4)]
"""Strategy and processes. Three do not divide the rows of any weight here."""
TUNES = {"full": "{method: full}", "lora": "{method: lora, rank: 2}"}
"""Rank 2 on three and four processes: some hold no row of an adapter."""
SHAPE = "{shape: llama, layers: 2, width: 64, heads: 2, tied: true}\ntokenizer: {train: bpe, vocab: 301}"
CONTROL = ("fsdp2", 4)
"""Where the whole model is larger than a share with its optimizer state."""
AT_START = "_prepare_for_training"
ROWS = tiny_run.random_rows(48, seed=1, longest=48)
Held = dict[str, Any]


def make(folder: Path, model: str, tune: str, group: tuple[str, int]) -> RunDir:
    """A run directory, or the one that is there with a plan for other processes."""
    strategy, count = group
    text = f"""
model: {model}
data: {{train: rows.jsonl, length: 48, pack: true}}
tune: {TUNES[tune]}
train: {{learning_rate: 1e-2, warmup: 0, batch: 12, exact: false}}
save: {{every: 2 steps, keep: 2}}
where: {{gpus: 0, micro: 1, arrange: rows, strategy: {"auto" if count == 1 else strategy}, processes: {count}}}
"""
    return tiny_run.make_run(folder, text, ROWS)


# ---- what a rank holds


def held(trainer: ExactTrainer) -> Held:
    """This rank's part of everything that training needs, by name."""
    parameters = dict(trainer.model.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    optimizer = trainer.optimizer.optimizer
    found: dict[str, Any] = {**parameters, **dict(trainer.model.named_buffers())}
    for parameter, state in optimizer.state.items():
        found |= {f"{names[id(parameter)]}/{field}": torch.as_tensor(value) for field, value in state.items()}
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {
        "tensors": {name: local(tensor.detach()).contiguous() for name, tensor in found.items()},
        "sharded": sorted(name for name, tensor in found.items() if isinstance(tensor, DTensor)),
        "options": json.dumps(options, sort_keys=True, default=str),
    }


def put_together(parts: list[Held]) -> Held:
    """The ranks' parts as one: rows in the order of ranks; what every rank has whole must be the same everywhere."""
    tensors = {}
    for name in parts[0]["tensors"]:
        pieces = [part["tensors"][name] for part in parts]
        if name in parts[0]["sharded"]:
            tensors[name] = torch.cat(pieces)
        else:
            assert all(raw(piece) == raw(pieces[0]) for piece in pieces), name
            tensors[name] = pieces[0]
    return {"tensors": tensors, "options": parts[0]["options"]}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def differences(one: Held, other: Held) -> list[str]:
    """Names of what is not the same to the bit."""
    left, right = one["tensors"], other["tensors"]
    found = sorted(left.keys() ^ right.keys())
    for name in left.keys() & right.keys():
        same = (left[name].dtype, left[name].shape) == (right[name].dtype, right[name].shape)
        if not same or raw(left[name]) != raw(right[name]):
            found.append(name)
    return found + ([] if one["options"] == other["options"] else ["options"])


# ---- real processes, looked at


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def source(folder: Path, model: str, tune: str, group: tuple[str, int]) -> Held:
    """Train until a checkpoint of step 2 is committed; what the ranks held when they saved it."""
    run_dir = make(folder, model, tune, group)

    def saving(plain: Any, trainer: ExactTrainer, *words: Any) -> None:
        torch.save(held(trainer), folder / f"held-{rank()}.pt")
        plain(trainer, *words)

    with replaced(ExactTrainer, "_save_checkpoint", saving):
        code = tiny_run.train(run_dir, kill_after=3)
    assert code == -9, said(run_dir)
    return put_together(collected(folder, group[1]))


def loaded(folder: Path, model: str, tune: str, group: tuple[str, int]) -> Held:
    """The newest checkpoint of a run directory, loaded by other processes; what they hold."""
    run_dir = make(folder, model, tune, group)

    def loading(plain: Any, trainer: ExactTrainer, path: str) -> None:
        plain(trainer, path)
        torch.save(held(trainer), folder / f"held-{rank()}.pt")
        leave()

    with replaced(ExactTrainer, "_load_optimizer_and_scheduler", loading):
        code = tiny_run.train(run_dir)
    assert code == 0, said(run_dir)
    return put_together(collected(folder, group[1]))


def leave() -> None:
    """End this process, all others here too."""
    if dist.is_initialized():
        dist.barrier()
    os._exit(0)


def collected(folder: Path, count: int) -> list[Held]:
    paths = [folder / f"held-{number}.pt" for number in range(count)]
    parts = [torch.load(path, weights_only=True) for path in paths]
    for path in paths:
        path.unlink()
    return parts


# ---- matrix


def pairs(groups: list[tuple[str, int]]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    return [(one, other) for one in groups for other in groups if one != other]


def matrix(
    folder: Path, model: str, tune: str, asked: list[tuple[tuple[str, int], tuple[str, int]]]
) -> Iterator[dict[str, Any]]:
    """Every pair (source, target) asked for, with what differs after it."""
    sources: dict[tuple[str, int], Held] = {}
    for one, other in asked:
        begun = folder / f"{tune}-{one[0]}-{one[1]}"
        if one not in sources:
            sources[one] = source(begun, model, tune, one)
        moved = folder / "moved"
        shutil.copytree(begun, moved)
        found = differences(sources[one], loaded(moved, model, tune, other))
        shutil.rmtree(moved)
        tensors = len(sources[one]["tensors"])
        yield {"tune": tune, "from": list(one), "to": list(other), "tensors": tensors, "different": found}


# ---- memory


def big_model(folder: Path, width: int, layers: int, dtype: torch.dtype = torch.float32) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=tiny_run.VOCAB,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder


def measured(
    folder: Path, model: str, tune: str, group: tuple[str, int], until: str = "_load_optimizer_and_scheduler"
) -> list[dict[str, Any]]:
    """Each rank's share and peak, in bytes, once the Trainer has come through this method of its own."""
    run_dir = make(folder, model, tune, group)

    def coming_to(plain: Any, trainer: ExactTrainer, *words: Any) -> None:
        plain(trainer, *words)
        share = sum(tensor.nbytes for tensor in held(trainer)["tensors"].values())
        (folder / f"share-{os.getpid()}").write_text(str(share))
        leave()

    with replaced(ExactTrainer, until, coming_to), MemoryWatch() as watch:
        code = tiny_run.train(run_dir)
    assert code == 0, said(run_dir)
    rows = []
    for pid, peak in watch.growth.items():
        share = int((folder / f"share-{pid}").read_text())
        ratio = round(peak / share, 3)
        rows.append({"share_bytes": share, "peak_bytes": peak, "ratio": ratio, "looks": watch.looks[pid]})
    assert len(rows) == group[1]
    assert all(row["ratio"] > SEEN for row in rows), rows
    return rows


def whole_first(plain: Any, run: Any, plan: Any, folder: Path, checkpoint: Path | None, base: str, ranks: Any) -> Any:
    """The control: every rank builds the whole model as alone, and the Trainer loads its weights whole."""
    del checkpoint, ranks
    model = plain(run, plan, folder, None, base)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def memory(
    folder: Path, model: str, tune: str, begun: tuple[str, int], targets: list[tuple[str, int]]
) -> dict[str, Any]:
    """Peaks of loading one large checkpoint by several groups, and the control."""
    saved = saving(folder, model, tune, begun)
    rows, controls = [], []
    for group in targets:
        move = {"tune": tune, "from": list(begun), "to": list(group)}
        rows.append({**move, "ranks": measured(folder, model, tune, group)})
        if group == CONTROL:
            with replaced(models, "build", whole_first):
                controls.append({**move, "ranks": measured(folder, model, tune, group)})
    return {"loading": rows, "controls": controls, "saving": {"tune": tune, "of": list(begun), "ranks": saved}}


def starting(folder: Path, kinds: dict[str, str]) -> list[dict[str, Any]]:
    """Peaks of a new run until its weights are shared out and its optimizer is made, which has no state yet."""
    return [
        {"model": kind, "to": list(CONTROL), "ranks": measured(folder / kind, model, "full", CONTROL, AT_START)}
        for kind, model in kinds.items()
    ]


def saving(folder: Path, model: str, tune: str, group: tuple[str, int]) -> list[dict[str, Any]]:
    """Train until a checkpoint is committed; by how much each rank grew as it was put together."""
    run_dir = make(folder, model, tune, group)

    def copying(plain: Any, trainer: ExactTrainer, writers: Any) -> Any:
        before = anonymous_bytes()
        copied = plain(trainer, writers)
        row = {"rank": rank(), "copied_bytes": copied.bytes, "grown_bytes": anonymous_bytes() - before}
        (folder / f"saving-{rank()}.json").write_text(json.dumps(row))
        return copied

    with replaced(ExactTrainer, "copied", copying):
        code = tiny_run.train(run_dir, kill_after=3)
    assert code == -9, said(run_dir)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("saving-*.json"))]


def worst(rows: list[dict[str, Any]]) -> float:
    return max(one["ratio"] for row in rows for one in row["ranks"])


def least(rows: list[dict[str, Any]]) -> float:
    return min(max(one["ratio"] for one in row["ranks"]) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/reshard.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reshard-") as made:
        folder = Path(made)
        base = tiny_run.make_base_model(folder / "base", width=72)
        rows = [row for tune in TUNES for row in matrix(folder / "base-runs", str(base), tune, pairs(GROUPS))]
        shapes = [(("single", 1), ("fsdp2", 2)), (("fsdp2", 2), ("fsdp2", 3)), (("fsdp2", 2), ("ddp", 2))]
        rows += [{**row, "tune": "shape"} for row in matrix(folder / "shape-runs", SHAPE, "full", shapes)]
        big = str(big_model(folder / "big", asked.width, asked.layers))
        half = str(big_model(folder / "half", asked.width, asked.layers, torch.bfloat16))
        peaks = [
            memory(folder / "big-single", big, "full", ("single", 1), [("single", 1), ("fsdp2", 2), ("fsdp2", 4)]),
            memory(folder / "big-fsdp2", big, "full", ("fsdp2", 2), [("ddp", 2), ("fsdp2", 2), ("fsdp2", 4)]),
            memory(folder / "big-lora", big, "lora", ("ddp", 2), [("fsdp2", 2), ("fsdp2", 4)]),
        ]
        starts = starting(folder / "starts", {"fp32 files": big, "bf16 files, trained in fp32": half})
    loading, controls = ([row for one in peaks for row in one[key]] for key in ("loading", "controls"))
    stated = {"saving": [one["saving"] for one in peaks], "starting": starts}
    different = [row for row in rows if row["different"]]
    report = {
        "what": "checkpoints loaded by another strategy and number of processes: every bit, and peak memory",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": f"just reshard --width {asked.width} --layers {asked.layers}",
        "bars": {
            "pairs": {"bar": 12, "exact": len(rows) - len(different), "of": len(rows), "met": not different},
            "peak_to_share": {"bar": BAR, "worst": worst(loading), "met": worst(loading) <= BAR},
            "controls_beyond": {"bar": BAR, "least": least(controls), "met": least(controls) > BAR},
        },
        "pairs": rows,
        "memory": {"loading": loading, "controls": controls, **stated},
        "seconds": round(time.monotonic() - began),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True), "load": os.getloadavg()}
        | processor.facts(),
        "versions": {name: version(name) for name in ("torch", "transformers", "safetensors", "peft", "accelerate")},
    }
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["bars"], indent=1))
    return 0 if all(bar["met"] for bar in report["bars"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
