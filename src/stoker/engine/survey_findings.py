"""What the surveyed rows show once it is known which of them are held back for eval, and how many tokens each has.

A row is a duplicate of the earliest row of its split that stays and that it is like; so every row that is left out has
a row in the set that says the same, and a chain of small changes does not swallow what is no longer alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.engine.row_facts import NO_SCRIPT, SCRIPTS
from stoker.engine.survey_pass import Skipped, SurveyedRows
from stoker.survey.findings import (
    KINDS,
    Contradictions,
    Duplicates,
    KeptByLength,
    Kind,
    Leaks,
    Lengths,
    NamedRow,
    OddRow,
    RowGroup,
    Scripts,
    Survey,
)

_SHOWN = 10
_SHOWN_OTHERS = 4
_ODD_SCRIPT_SHARE = 0.02
"""Of all rows: a script that fewer are in is odd."""
_FEWEST_ROWS = 50
"""Rows from which on some can be called odd."""
_FENCE = 3.0
_LEAST_SPREAD = 1.5
"""Quartiles' ratio below which the fences do not come closer."""
_STEPS_PER_OCTAVE = 4


@dataclass(frozen=True)
class Relations:
    """Which rows are like which: by row, the row it is like (-1 for none) and in which way (index of `KINDS`)."""

    copy_of: np.ndarray
    copy_kind: np.ndarray
    leak_of: np.ndarray
    """Of rows of train: a row of eval."""
    leak_kind: np.ndarray

    @property
    def superfluous(self) -> np.ndarray:
        """Rows that `data.duplicates: drop` leaves out, those of eval aside."""
        return (self.copy_of >= 0) | (self.leak_of >= 0)


def relations(rows: SurveyedRows, held: np.ndarray) -> Relations:
    """Duplicates within each split, and rows of train that are in eval.

    Args:
        rows: All rows.
        held: Whether each of them is of eval.
    """
    count = len(rows.groups)
    found = Relations(*(np.full(count, value, dtype) for value, dtype in ((-1, np.int64), (0, np.uint8)) * 2))
    _find_leaks(rows, held, found)
    for split in (False, True):  # a row that leaves train for eval's sake stands for no other one
        _find_copies(rows, (rows.groups >= 0) & (held == split) & (found.leak_of < 0), found)
    return found


def _find_copies(rows: SurveyedRows, own: np.ndarray, found: Relations) -> None:
    at = np.flatnonzero(own)
    firsts = _first_of_group(rows, at)
    first = firsts[rows.groups[at]]
    copies = at[first != at]
    found.copy_of[copies] = firsts[rows.groups[copies]]
    known = np.zeros(len(own), dtype=bool)  # equal to an earlier row, to the last character
    known[at] = True
    known[at[np.unique(rows.facts.exact[at], return_index=True)[1]]] = False
    found.copy_kind[copies] = np.where(known[copies], KINDS.index("exact"), KINDS.index("words"))
    near = np.sort(firsts[rows.near[(firsts[rows.near] >= 0).all(axis=1)]], axis=1)
    for earlier, later in near[np.lexsort((near[:, 0], near[:, 1]))].tolist():
        if found.copy_of[later] < 0 and found.copy_of[earlier] < 0:
            found.copy_of[later] = earlier
            found.copy_kind[later] = KINDS.index("near")
    root = found.copy_of[found.copy_of[copies]]
    found.copy_of[copies] = np.where(root >= 0, root, found.copy_of[copies])


def _find_leaks(rows: SurveyedRows, held: np.ndarray, found: Relations) -> None:
    train, eval_ = (np.flatnonzero((rows.groups >= 0) & (held == split)) for split in (False, True))
    if not len(eval_):
        return
    firsts = _first_of_group(rows, eval_)
    near = firsts.copy()
    for one, other in (rows.near.T, rows.near.T[::-1]):
        at = (firsts[other] >= 0) & (near[one] < 0)
        near[one[at][::-1]] = firsts[other[at]][::-1]
    groups = rows.groups[train]
    found.leak_of[train] = near[groups]
    exact = np.isin(rows.facts.exact[train], rows.facts.exact[eval_])
    kinds = np.where(firsts[groups] < 0, KINDS.index("near"), KINDS.index("words"))
    found.leak_kind[train] = np.where(exact, KINDS.index("exact"), kinds)


def _first_of_group(rows: SurveyedRows, at: np.ndarray) -> np.ndarray:
    """By group its first row among some rows, -1 where it has none there."""
    firsts = np.full(rows.num_groups, -1, dtype=np.int64)
    firsts[rows.groups[at][::-1]] = at[::-1]
    return firsts


# ---- the report


def skipped(why: Skipped, counts: dict[str, int]) -> Survey:
    """The survey of data that was not surveyed, which leaves nothing out."""
    return Survey(policy="keep", rows=counts, skipped=why.reason, limit=why.limit)


def findings(
    rows: SurveyedRows,
    tokens: np.ndarray,
    held: np.ndarray,
    left_out: np.ndarray | None,
    *,
    cut_at: int | None,
    cut_away: Sequence[int] = (),
) -> Survey:
    """All that was found.

    Args:
        rows: All rows.
        tokens: Of each row before anything is cut; 0 for a row that could not be used.
        held: Whether each row is of eval.
        left_out: Whether `data.duplicates: drop` left each row out; None where duplicates are kept.
        cut_at: The length that prompts with answers are truncated to; None where they are split.
        cut_away: Tokens of the rows that were not used because nothing trained is left of them at that length.
    """
    rows = _without(rows, tokens == 0)
    related = relations(rows, held)
    kept = np.where(rows.facts.has_answer & (cut_at is not None), np.minimum(tokens, cut_at or 0), tokens)
    used = tokens > 0
    gone = used & (left_out if left_out is not None else False)
    shown = _Shown(rows, tokens)
    splits = {"train": used & ~held, "eval": used & held}
    return Survey(
        policy="keep" if left_out is None else "drop",
        rows={name: int(own.sum()) for name, own in splits.items()},
        near_skipped=rows.near_skipped,
        uncompared=int((used & ~rows.facts.is_usable).sum()),
        dropped_rows=int(gone.sum()),
        dropped_tokens=int(kept[gone].sum()),
        duplicates={name: _duplicates(shown, related, own, kept) for name, own in splits.items() if own.any()},
        leaks=_leaks(shown, related, kept) if held.any() else None,
        contradictions=_contradictions(shown, related),
        scripts=_scripts(shown, used),
        lengths=_lengths(shown, used) if used.any() else None,
        kept_by_length=_kept_by_length(tokens[used & rows.facts.has_answer], cut_at, cut_away),
    )


def _without(rows: SurveyedRows, unusable: np.ndarray) -> SurveyedRows:
    """The rows, of which some turned out not to be usable."""
    return SurveyedRows(**{**vars(rows), "groups": np.where(unusable, -1, rows.groups)})


class _Shown:
    """Rows as the report names them."""

    def __init__(self, rows: SurveyedRows, tokens: np.ndarray) -> None:
        self.rows = rows
        self.tokens = tokens

    def place(self, row: int) -> NamedRow:
        file, is_record = self.rows.files[self.rows.file_of[row]]
        return NamedRow(file=file, row=int(self.rows.facts.numbers[row]), record=is_record)

    def odd(self, row: int, why: str) -> OddRow:
        return OddRow(place=self.place(row), why=why, tokens=int(self.tokens[row]))

    def groups(self, like: np.ndarray, at: np.ndarray, kinds: np.ndarray | None) -> tuple[int, list[RowGroup]]:
        """Rows `at` by the row they are like: how many such groups, and the first of them, largest first."""
        first, counts = np.unique(like[at], return_counts=True)
        largest = np.argsort(-counts, kind="stable")[:_SHOWN]
        return len(first), [self._group(int(first[one]), at[like[at] == first[one]], kinds) for one in largest]

    def _group(self, first: int, others: np.ndarray, kinds: np.ndarray | None) -> RowGroup:
        return RowGroup(
            first=self.place(first),
            others=[self.place(row) for row in others[:_SHOWN_OTHERS].tolist()],
            count=len(others),
            kind=None if kinds is None else KINDS[kinds[others[0]]],
        )


def _by_kind(kinds: np.ndarray) -> dict[Kind, int]:
    return {name: int((kinds == number).sum()) for number, name in enumerate(KINDS)}


def _duplicates(shown: _Shown, related: Relations, own: np.ndarray, kept: np.ndarray) -> Duplicates:
    at = np.flatnonzero(own & (related.copy_of >= 0))
    groups, places = shown.groups(related.copy_of, at, related.copy_kind)
    tokens, every = int(kept[at].sum()), int(kept[own].sum())
    return Duplicates(
        rows=_by_kind(related.copy_kind[at]), tokens=tokens, share=tokens / max(1, every), groups=groups, places=places
    )


def _leaks(shown: _Shown, related: Relations, kept: np.ndarray) -> Leaks:
    at = np.flatnonzero(related.leak_of >= 0)
    eval_rows, places = shown.groups(related.leak_of, at, related.leak_kind)
    return Leaks(rows=_by_kind(related.leak_kind[at]), tokens=int(kept[at].sum()), eval_rows=eval_rows, places=places)


def _contradictions(shown: _Shown, related: Relations) -> Contradictions:
    first_row, other = contradictions(shown.rows, related)
    prompts, places = shown.groups(first_row, other, None)
    return Contradictions(prompts=prompts, rows=len(other) + prompts, places=places)


def contradictions(rows: SurveyedRows, related: Relations) -> tuple[np.ndarray, np.ndarray]:
    """By row the first with its prompt, and the rows whose answer is another than that one's; duplicates are none."""
    facts = rows.facts
    at = np.flatnonzero((rows.groups >= 0) & facts.has_answer & ~related.superfluous)
    _, first, inverse = np.unique(facts.prompts[at], return_index=True, return_inverse=True)
    first_row = np.full(len(facts.prompts), -1, dtype=np.int64)
    first_row[at] = at[first][inverse]
    return first_row, at[facts.answers[at] != facts.answers[first_row[at]]]


def _scripts(shown: _Shown, used: np.ndarray) -> Scripts:
    counts = np.bincount(shown.rows.facts.scripts[used], minlength=len(SCRIPTS))
    every = counts.sum() - counts[SCRIPTS.index(NO_SCRIPT)]
    rare = (counts < _ODD_SCRIPT_SHARE * every) & (np.arange(len(SCRIPTS)) != SCRIPTS.index(NO_SCRIPT))
    odd = np.flatnonzero(used & rare[shown.rows.facts.scripts]) if every >= _FEWEST_ROWS else np.empty(0, np.int64)
    named = [(int(row), SCRIPTS[shown.rows.facts.scripts[row]]) for row in odd[:_SHOWN]]
    return Scripts(
        rows={SCRIPTS[number]: int(counts[number]) for number in np.argsort(-counts, kind="stable") if counts[number]},
        main=SCRIPTS[int(counts[1:].argmax()) + 1] if counts[1:].any() else NO_SCRIPT,
        odd=len(odd),
        places=[shown.odd(row, script) for row, script in named],
    )


def _lengths(shown: _Shown, used: np.ndarray) -> Lengths:
    tokens = shown.tokens[used]
    quarter, median, three = np.quantile(tokens, [0.25, 0.5, 0.75], method="nearest")
    spread = max(three / max(quarter, 1), _LEAST_SPREAD) ** _FENCE
    low, high = int(quarter / spread), int(three * spread)
    enough = len(tokens) >= _FEWEST_ROWS
    odd = {"long": np.flatnonzero(used & (shown.tokens > high)), "short": np.flatnonzero(used & (shown.tokens < low))}
    odd = {name: at if enough else at[:0] for name, at in odd.items()}
    return Lengths(
        median=int(median),
        low=low,
        high=high,
        longest=int(tokens.max()),
        odd={name: len(at) for name, at in odd.items()},
        places=[shown.odd(row, name) for name, at in odd.items() for row in _most_odd(shown, name, at)],
        histogram=_histogram(tokens),
    )


def _most_odd(shown: _Shown, name: str, at: np.ndarray) -> list[int]:
    order = np.argsort(-shown.tokens[at] if name == "long" else shown.tokens[at], kind="stable")
    return [int(row) for row in at[order[: _SHOWN // 2]]]


def _histogram(tokens: np.ndarray) -> list[tuple[int, int]]:
    """Rows by length, in steps of equal ratio."""
    steps = np.ceil(np.log2(np.maximum(tokens, 1)) * _STEPS_PER_OCTAVE - 1e-9).astype(np.int64)
    counts = np.bincount(steps)
    first = int(np.flatnonzero(counts)[0])
    return [(int(2 ** (step / _STEPS_PER_OCTAVE)), int(counts[step])) for step in range(first, len(counts))]


def _kept_by_length(tokens: np.ndarray, asked: int | None, cut_away: Sequence[int]) -> list[KeptByLength]:
    """The lengths among which one chooses: powers of two from where half of the rows fit to where all do.

    Rows of which nothing trained is left at the length that is asked are lost there, and at shorter ones.
    """
    if asked is None or not len(tokens):
        return []
    lost = np.asarray(cut_away, dtype=np.int64)
    ordered = np.sort(np.concatenate([tokens, lost]))
    top = int(ordered[-1])
    powers = [2**power for power in range(6, 32) if np.median(ordered) <= 2**power < 2 * top]
    lengths: Iterable[int] = sorted({*powers[:7], *powers[-1:], asked})
    return [_kept(ordered, length, len(lost) if length <= asked else 0, asked=length == asked) for length in lengths]


def _kept(ordered: np.ndarray, length: int, lost: int, *, asked: bool) -> KeptByLength:
    """What a length keeps; so many of the rows that are longer leave nothing."""
    whole = int(np.searchsorted(ordered, length, side="right"))
    tokens = int(np.minimum(ordered, length).sum(dtype=np.int64)) - lost * length
    return KeptByLength(
        length=length,
        rows=whole / len(ordered),
        tokens=tokens / int(np.sum(ordered, dtype=np.int64)),
        asked=asked,
    )
