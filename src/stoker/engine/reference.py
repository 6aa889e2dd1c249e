"""What a model thinks of every answer before it is trained, for objectives that compare with that.

Computed once, in a pass of its own before training, by the weights that training starts with (of an adapter: without
it), so that no second model is on the card. It lies beside the prepared data:

    data/reference/index.json    what it is computed of, how many rows are, and at last the digests of the whole files
    data/reference/train.bin     float32, for each row the log-probabilities of its answers
    data/reference/eval.bin      the same for the eval rows, where there are any
    data/reference/train_mismatched.bin, eval_mismatched.bin    the same of answers to other prompts, for `kto`

A pass that was ended goes on where it stopped: rows are written in order, synced, then counted in the index.
"""

import contextlib
import gc
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.engine import fsdp, guard, models, streaming
from stoker.engine.dataset import ROWS, Arrangement, InOrder, MicroBatch, Mismatched, StepItem
from stoker.engine.known_rows import KnownRows
from stoker.engine.objective import DESIRED, DIVERGENCE, REFERENCE, answer_log_probs
from stoker.engine.opened import Opened
from stoker.errors import StokerError
from stoker.rundir import file_check, files, in_place, training_words
from stoker.rundir.prepared import Report, Split

_FORMAT = 1
_BYTES = 4
_COMMIT_SECONDS = 5.0
"""Between two writes: what a kill can cost."""
_INDEX = "index.json"
MISMATCHED = "_mismatched"
"""Ends the name of a table: of the prompts of that split with answers of other rows."""


def told(inputs: dict[str, Any], table: torch.Tensor | None, divergence: torch.Tensor | None = None) -> dict[str, Any]:
    """The inputs of an objective, with what is known of their rows and of all rows of the step."""
    if ROWS not in inputs:
        return inputs
    assert table is not None
    rest = {name: value for name, value in inputs.items() if name != ROWS}
    known = {REFERENCE: table[inputs[ROWS][:, 0]]}
    return {**rest, **known, **({DIVERGENCE: divergence} if DESIRED in inputs else {})}


def stored(data: Path, report: Report, split: str) -> torch.Tensor:
    """The table of a split, of a run that has trained.

    Raises:
        StokerError: STK442, if it is not there, or not that of this set.
    """
    index = _index(data / "reference")
    wanted: Split | None = getattr(report, split.removesuffix(MISMATCHED))
    path = data / "reference" / f"{split}.bin"
    if index.get("data") != report.digest or wanted is None or not _is_whole(path, index):
        raise StokerError("STK442", path=path)
    return torch.from_numpy(np.fromfile(path, "<f4").reshape(wanted.sequences, -1))


def known(opened: Opened, arrangement: Arrangement, is_asked_to_stop: Callable[[], bool]) -> Opened | None:
    """The run with what its objective must know of all rows; None where a stop came before it was computed.

    Raises:
        StokerError: STK443, if training starts with weights that are no model of their own.
    """
    if not arrangement.objective.reference:
        return opened
    origin = training_words.origin(opened.words)
    if origin and origin["weights_only"]:  # it does not start with the base weights
        raise StokerError("STK443", run=origin["run"])
    ranks, folder, about = opened.ranks, opened.run_dir.data / "reference", _about(opened)
    index = _index(folder) if ranks.first else {}
    splits = _tables(opened.report, arrangement)
    done = about.items() <= index.items() and all(_is_whole(folder / f"{name}.bin", index) for name in splits)
    if not any(ranks.follow([done])):
        if ranks.first:
            _begin(folder, about, index, [f"{name}.bin" for name in splits])
        ended = _compute(opened, arrangement, splits, is_asked_to_stop)
        gc.collect()  # its model
        if opened.plan.device == "cuda":
            torch.cuda.empty_cache()
        if not ended:
            return None
        if ranks.first:
            digests = {f"{name}.bin": files.sha256(folder / f"{name}.bin") for name in splits}
            files.write_json(folder / _INDEX, {**_index(folder), "files": digests})
    tables = {name: _shared(opened, folder / f"{name}.bin", split, arrangement) for name, split in splits.items()}
    digest = hashlib.sha256(b"".join(table.numpy().tobytes() for table in tables.values())).hexdigest()
    # It decides the bits of a step.
    return replace(opened, reference=tables, fingerprint={**opened.fingerprint, "reference": digest})


def _tables(report: Report, arrangement: Arrangement) -> dict[str, Split]:
    """The split of which there is a table, by the table's name."""
    splits = {"train": report.train, **({"eval": report.eval} if report.eval else {})}
    if not arrangement.objective.labels:
        return splits
    return {**splits, **{f"{name}{MISMATCHED}": split for name, split in splits.items()}}


# ---- files


def _about(opened: Opened) -> dict[str, Any]:
    """What the values follow from, rounding aside."""
    run, plan = opened.run, opened.plan
    model = [run.model_dump(mode="json", include={"model"}), run.train.seed, plan.native.quantization]
    return {
        "format": _FORMAT,
        "data": opened.report.digest,
        "base": opened.fingerprint["base"],
        "model": hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest(),
    }


def _index(folder: Path) -> dict[str, Any]:
    found = file_check.read_json(folder / _INDEX)
    return found if isinstance(found, dict) else {}


def _is_whole(path: Path, index: dict[str, Any]) -> bool:
    wanted = index.get("files", {}).get(path.name)
    return wanted is not None and path.is_file() and files.sha256(path) == wanted


def _begin(folder: Path, about: dict[str, Any], index: dict[str, Any], names: list[str]) -> None:
    """Keep what a pass of the same model over the same rows has done; what is of another, or damaged, starts anew."""
    folder.mkdir(exist_ok=True)
    same = about.items() <= index.items()
    rows = {name: index.get("rows", {}).get(name, 0) if same else 0 for name in names}
    if same and "files" in index:
        rows = {name: count if _is_whole(folder / name, index) else 0 for name, count in rows.items()}
    files.write_json(folder / _INDEX, {**about, "rows": rows})


def _shared(opened: Opened, path: Path, split: Split, arrangement: Arrangement) -> torch.Tensor:
    """A table on every rank, from the first one's file: other machines do not have it."""
    table = torch.zeros(split.sequences, arrangement.together)
    if opened.ranks.first:
        table = torch.from_numpy(np.fromfile(path, "<f4").reshape(table.shape))
    return opened.ranks.gather(table)


# ---- the pass


def _compute(
    opened: Opened, arrangement: Arrangement, splits: dict[str, Split], is_asked_to_stop: Callable[[], bool]
) -> bool:
    """Compute and write what is missing; whether it came to its end."""
    opened.pulse.mark = "reference"
    try:
        with _model(opened) as log_probs:
            for name, split in splits.items():
                rows = streaming.open_split(opened.run_dir, name.removesuffix(MISMATCHED), split)
                if name.endswith(MISMATCHED):
                    rows = Mismatched(rows, arrangement.length)
                items = InOrder(rows, arrangement, opened.plan.batch.effective, opened.ranks)
                if not _compute_split(opened, name, items, split, log_probs, is_asked_to_stop):
                    return False
    except (RuntimeError, MemoryError) as error:
        if guard.is_out_of_memory(error):
            raise StokerError("STK408", reason=str(error).partition("\n")[0]) from error
        raise
    return True


def _compute_split(
    opened: Opened,
    name: str,
    items: InOrder,
    split: Split,
    log_probs: Callable[[MicroBatch], torch.Tensor],
    is_asked_to_stop: Callable[[], bool],
) -> bool:
    ranks, batch = opened.ranks, opened.plan.batch.effective
    path = opened.run_dir.data / "reference" / f"{name}.bin"
    (first,) = ranks.follow([_done_items(path, split.sequences, batch, items.together) if ranks.first else 0])
    waiting: list[torch.Tensor] = []
    written = time.monotonic()
    for number in range(first, len(items)):
        waiting.append(ranks.gather(_item(items[number], log_probs, items.together)))
        last = number == len(items) - 1
        (stop,) = ranks.anyone([is_asked_to_stop()])
        if last or stop or time.monotonic() - written > _COMMIT_SECONDS:
            done = min((number + 1) * batch, split.sequences)
            if ranks.first:
                _append(path, torch.cat(waiting))
                _count(path, done)
            opened.events.write("reference", split=name, done=done, of=split.sequences)
            waiting, written = [], time.monotonic()
        if stop:
            return False
    return True


def _item(item: StepItem, log_probs: Callable[[MicroBatch], torch.Tensor], together: int) -> torch.Tensor:
    """The values of one batch's rows, as far as this rank computes them; zeros elsewhere."""
    values = torch.zeros(len(item.sequences), together)
    for turn, micro in enumerate(item.micro_batches):
        found = log_probs(micro).view(-1, together).cpu()
        if turn < len(item.numbers):
            values[micro[ROWS][:, 0] - item.sequences[0]] = found
    return values


def _done_items(path: Path, sequences: int, batch: int, together: int) -> int:
    """Whole batches that are counted and in the file; what follows them there is cut off."""
    with in_place.appending(path, path.parents[1]) as file:
        there = os.fstat(file.fileno()).st_size // (_BYTES * together)
        rows: int = min(_index(path.parent)["rows"][path.name], there)
        if rows < sequences:
            rows -= rows % batch  # which may have been another one
        os.ftruncate(file.fileno(), _BYTES * together * rows)
    _count(path, rows)
    return -(-rows // batch)


def _count(path: Path, rows: int) -> None:
    index = _index(path.parent)
    files.write_json(path.parent / _INDEX, {**index, "rows": {**index["rows"], path.name: rows}})


def _append(path: Path, values: torch.Tensor) -> None:
    with in_place.appending(path, path.parents[1]) as file:
        file.write(values.numpy().astype("<f4").tobytes())
    files.sync_file(path)


@contextlib.contextmanager
def _model(opened: Opened) -> Iterator[Callable[[MicroBatch], torch.Tensor]]:
    """The weights that training starts with, on their devices: from a micro batch to its log-probabilities."""
    plan, ranks, device = opened.plan, opened.ranks, opened.device
    model = models.build(opened.run, plan, opened.run_dir.folder(), None, opened.fingerprint["base"], ranks)
    if plan.strategy == "fsdp2":
        fsdp.shard(model, plan)
    elif not plan.native.quantization:  # bitsandbytes has put it there
        model.to(device)
    rows = KnownRows(model, plan.attention)
    beat = guard.Heartbeat(opened.run_dir.heartbeat_file if ranks.first else None)

    def log_probs(micro: MicroBatch) -> torch.Tensor:
        beat.beat()
        there = {name: value.to(device) for name, value in micro.items() if name not in (ROWS, DESIRED)}
        with opened.autocast():
            return answer_log_probs(model, rows.told(there))[0]

    bare = model.disable_adapter() if hasattr(model, "disable_adapter") else contextlib.nullcontext()
    with models.evaluating(model), bare:
        yield log_probs
