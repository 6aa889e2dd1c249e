"""What `stoker init` proposes for the data it has seen: length, packing, batch and passes, each with its reason.

The aim is a training of a sensible number of optimizer steps: a hundred or more where the rows allow it, never fewer
than a plan would remark on, unless there are too few rows. Pure arithmetic.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

from stoker import messages
from stoker.launch.data_look import DataLook
from stoker.rows.training_length import FEWEST_STEPS, MOST_EPOCHS

EVAL = "5%"
FEW_LONGER = "init.length.few_longer"
"""Why a length leaves out a few rows."""
_TRAINED = 0.95
"""Share of the rows that are not held out by `EVAL`."""
_COVERED, _MOST = 0.99, 0.95
_FAR = 4
"""So many times longer than most rows, and the longest few decide nothing: every row would pay for them in memory."""
_LENGTHS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Powers of two and half-way between; beyond, the memory of a long sequence is a decision of its own."""
_RUNNING = (2048, 1024, 512, 256)
"""Lengths of pieces that running text is cut into, the best first."""
_UNSEEN_LENGTH = 1024
_BATCHES = (64, 32, 16, 8, 4)
_SMALLER = (4, 2, 1)
_TRY_BATCHES = (8, 4, 2, 1)
"""A quick try should be over soon."""
_WORTH_PACKING = 0.8
"""Packed over unpacked sequences, below which packing saves enough."""
_LEAST_PACKED_BATCH = 8
_ENOUGH_STEPS = 100
_LEAST_STEPS = FEWEST_STEPS + 2
"""Somewhat more than a plan remarks on: which rows are held out is drawn, so their number is not known exactly."""
_TRY_STEPS = 50
_MANY_ROWS = 50_000
_MANY_TOKENS = 20_000_000


@dataclass(frozen=True)
class Remark:
    """A sentence of the catalogue, for a comment of the run file."""

    key: str
    fields: dict[str, Any]

    @property
    def text(self) -> str:
        """The sentence, on one line."""
        return " ".join(messages.text(self.key, **self.fields).split())


@dataclass(frozen=True)
class Proposal:
    """Values for the run file, and why each."""

    length: int
    pack: bool
    batch: int
    epochs: int
    steps: int | None
    """Of a quick try; a full training goes by epochs."""
    total: int | None
    """Optimizer steps; None where the data was not seen."""
    why: dict[str, Remark]
    """By the word of the run file."""


@dataclass(frozen=True)
class StarterQuestion:
    """What a proposal is for."""

    splits: bool
    """Rows that are too long are cut into pieces, not truncated: all of their tokens are trained."""
    scratch_length: int | None
    """The length of a model from scratch; None for one that is trained already."""
    context: int | None
    """Longest sequence that the model was made for, where known."""
    full: bool
    """A full training, not a quick try."""
    by_row: bool = False
    """Of answers, which are not packed and trained once."""


def percent(share: float) -> str:
    """A share that is never said to be larger than it is."""
    return f"{math.floor(100 * share)} %"


def propose(question: StarterQuestion, seen: DataLook | None) -> Proposal:
    """Length, packing, batch and passes for this data; the usual ones where it was not seen."""
    if seen is None or not seen.lengths:
        return _unseen(question)
    length, why_length = _length(question, seen)
    epochs = _epochs(question, seen)
    packed = _trained(seen.packed(length, splits=question.splits))
    single = _trained(seen.rows)
    pack, why_pack = _pack(question, seen, length, epochs, packed, single)
    if question.by_row:
        pack, why_pack, epochs = False, Remark("init.file.pairs", {}), 1
    sequences = packed if pack else single
    complete = _full(sequences, epochs)
    batch, epochs, steps = complete if question.full else _try(sequences)
    per_epoch = _steps(sequences, batch)
    total = steps or epochs * per_epoch
    why = {"data.length": why_length, "data.pack": why_pack}
    passes = complete[1]
    why |= _why_steps(question, batch=batch, epochs=passes, per_epoch=per_epoch, total=total, pack=pack)
    return Proposal(length, pack, batch, epochs, steps, total, why)


def _unseen(question: StarterQuestion) -> Proposal:
    length = min(question.scratch_length or _UNSEEN_LENGTH, question.context or _UNSEEN_LENGTH)
    epochs = 10 if question.scratch_length else 1 if question.by_row else 3
    words = ("data.length", "data.pack", "train.batch", "train.epochs" if question.full else "train.steps")
    keys = ("init.unseen.length", "init.unseen.pack", "init.unseen.batch", "init.unseen.passes")
    why = {word: Remark(key, {}) for word, key in zip(words, keys, strict=True)}
    steps = None if question.full else _TRY_STEPS
    if question.by_row:
        why["data.pack"] = Remark("init.file.pairs", {})
    return Proposal(length, pack=not question.by_row, batch=16, epochs=epochs, steps=steps, total=None, why=why)


# ---- length


def _length(question: StarterQuestion, seen: DataLook) -> tuple[int, Remark]:
    bound = question.scratch_length or question.context or _LENGTHS[-1]
    if question.splits:
        return _piece(question, seen, bound)
    most, all_but_few = (seen.covering(share) * seen.spread for share in (_MOST, _COVERED))
    few_are_far = all_but_few > max(_LENGTHS[0], _FAR * most)
    wanted = most if few_are_far else all_but_few
    length = min(bound, next((one for one in _LENGTHS if one >= wanted), _LENGTHS[-1]))
    fields = {
        "covered": percent(seen.within(length)),
        "longest": f"{seen.lengths[-1]:,.0f}",
        "bound": f"{bound:,}",
    }
    if wanted <= length and few_are_far:
        return length, Remark(FEW_LONGER, fields)
    if wanted <= length:
        return length, Remark("init.length.covers", fields)
    key = "init.length.context" if length == question.context else "init.length.cut"
    return length, Remark(key, fields)


def _piece(question: StarterQuestion, seen: DataLook, bound: int) -> tuple[int, Remark]:
    """The longest piece of running text that leaves enough steps."""
    if question.scratch_length:
        return question.scratch_length, Remark("init.length.scratch", {})
    epochs, able = _epochs(question, seen), [one for one in _RUNNING if one <= bound] or [bound]
    enough = [one for one in able if _batch(_trained(seen.packed(one, splits=True)), epochs)]
    length = (enough or able[-1:])[0]
    key = "init.length.pieces" if length == able[0] else "init.length.shorter_pieces"
    return length, Remark(key, {"tokens": f"{seen.tokens:,}", "pieces": f"{seen.packed(length, splits=True):,}"})


# ---- packing


def _pack(
    question: StarterQuestion, seen: DataLook, length: int, epochs: int, packed: int, single: int
) -> tuple[bool, Remark]:
    fields = {"rows": f"{seen.rows:,}", "packed": f"{packed:,}", "length": f"{length:,}"}
    if question.splits:
        return True, Remark("init.pack.pieces", fields)
    if packed > _WORTH_PACKING * single:
        return False, Remark("init.pack.full", fields)
    if (_batch(packed, epochs) or 0) < _LEAST_PACKED_BATCH:
        return False, Remark("init.pack.few", {**fields, "steps": epochs * _steps(packed, _LEAST_PACKED_BATCH)})
    return True, Remark("init.pack.short", fields)


# ---- batch and passes


def _epochs(question: StarterQuestion, seen: DataLook) -> int:
    """Passes before the number of steps is looked at."""
    if question.scratch_length:
        return 10 if seen.tokens < _MANY_TOKENS else 3
    if question.splits:
        return 2 if seen.tokens < _MANY_TOKENS else 1
    return 3 if seen.rows < _MANY_ROWS else 2


def _full(sequences: int, epochs: int) -> tuple[int, int, None]:
    """Batch and passes of a full training: enough steps, else the fewest by smaller batches and more passes."""
    if batch := _batch(sequences, epochs):
        return batch, epochs, None
    for batch, passes in itertools.product(_SMALLER, range(epochs, MOST_EPOCHS + 1)):
        if passes * _steps(sequences, batch) >= _LEAST_STEPS:
            return batch, passes, None
    return 1, MOST_EPOCHS, None


def _try(sequences: int) -> tuple[int, int, int]:
    """Batch and steps of a quick try: a pass over the data at most."""
    batch = next((one for one in _TRY_BATCHES if _steps(sequences, one) >= _LEAST_STEPS), _TRY_BATCHES[-1])
    return batch, 1, min(_TRY_STEPS, _steps(sequences, batch))


def _why_steps(
    question: StarterQuestion, *, batch: int, epochs: int, per_epoch: int, total: int, pack: bool
) -> dict[str, Remark]:
    counts = {"batch": batch, "epochs": epochs, "per_epoch": f"{per_epoch:,}", "total": f"{total:,}"}
    counts |= {"fewest": FEWEST_STEPS, "share": percent(total / per_epoch)}
    few = total < FEWEST_STEPS
    whole = "init.steps.only" if epochs == 1 else "init.steps.pass"
    if question.full:
        word, key = "train.epochs", "init.epochs.few" if few else "init.epochs.enough"
    else:
        enough = whole if total == per_epoch else "init.steps.enough"
        word, key = "train.steps", "init.steps.few" if few else enough
    counted = "init.batch.packed" if pack else "init.batch.rows"
    return {"train.batch": Remark(counted, counts), word: Remark(key, counts)}


def _batch(sequences: int, epochs: int) -> int | None:
    """The largest batch that leaves enough steps."""
    return next((one for one in _BATCHES if epochs * _steps(sequences, one) >= _ENOUGH_STEPS), None)


def _steps(sequences: int, batch: int) -> int:
    """Of one pass."""
    return -(-sequences // batch)


def _trained(count: int) -> int:
    """Without those that are held out, at least one."""
    return max(1, min(count - 1, round(_TRAINED * count)))
