"""The pass over the sources before they are tokenised: the facts of every row, and which rows are nearly the same.

Files are read as the preparing pass reads them, by as many processes, in their order. Memory is bounded by the rows
that are compared at most; what is larger is a corpus, for which `data.pipeline` is made.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from stoker.config.run import Run
from stoker.engine import near_duplicates, row_facts, sources, tokenise
from stoker.engine.row_facts import RowFacts, Surveyor
from stoker.engine.sources import Input
from stoker.engine.tokenise import Rows
from stoker.errors import StokerError
from stoker.rows import row_files
from stoker.rows.formats import Layout

MOST_BYTES = 4 << 30
MOST_ROWS = 4_000_000
_ALIKE_ANSWERS = 0.5
"""Words that different answers to one prompt must have in common, or they contradict each other."""


@dataclass(frozen=True)
class SurveyedRows:
    """All rows of the sources, in the order of the preparing pass; a text file is one."""

    facts: RowFacts
    files: list[tuple[str, bool]]
    """Name, and whether rows are numbered by records."""
    file_of: np.ndarray
    source_of: np.ndarray
    unit_of: np.ndarray
    """The row's number within its source, from 0: what its draws are seeded with."""
    groups: np.ndarray
    """Rows with the same words have the same number; -1 for a row that is not compared."""
    num_groups: int
    near: np.ndarray
    """Pairs of groups that are nearly the same, the earlier first."""
    near_skipped: str | None = None


@dataclass(frozen=True)
class Skipped:
    """Why there is no survey: a key of the catalogue, and the limit it names."""

    reason: str
    limit: int = 0


@dataclass
class _Gathered:
    parts: list[RowFacts] = field(default_factory=list)
    files: list[tuple[str, bool]] = field(default_factory=list)
    """Name, and whether it is running text."""
    places: list[tuple[int, int]] = field(default_factory=list)
    """For each part its source and file."""


def survey(
    run: Run,
    inputs: list[Input],
    *,
    has_template: bool,
    workers: int,
    on_rows: Callable[[int], None] = lambda _: None,
) -> SurveyedRows | Skipped:
    """Read all rows and compare them; where a row or file cannot be read, the preparing pass is the one to say so.

    Args:
        run: What was asked.
        inputs: Its files.
        has_template: Whether its tokenizer has a chat template.
        workers: Processes that read.
        on_rows: Told how many rows were read, now and then.
    """
    if sum(file.size_bytes for one in inputs for file in one.files) > MOST_BYTES:
        return Skipped("survey.skipped.bytes", MOST_BYTES >> 30)
    gathered, rows = _Gathered(), 0
    surveyor = Surveyor(has_template=has_template)
    try:
        with closing(tokenise.in_order(surveyor, _batches(run, inputs, gathered), workers)) as made:
            for facts in made:
                _, is_text = gathered.files[gathered.places[len(gathered.parts)][1]]
                if run.data.on_bad_row == "stop" and not is_text and not facts.is_usable.all():
                    return Skipped("survey.skipped.problem")
                gathered.parts.append(facts)
                rows += len(facts.numbers)
                on_rows(rows)
                if rows > MOST_ROWS:
                    return Skipped("survey.skipped.rows", MOST_ROWS)
    except StokerError:
        if run.data.duplicates == "drop":
            raise  # a hub that answers again when the pass asks would leave nothing out
        return Skipped("survey.skipped.problem")
    return _compared(gathered) if rows else Skipped("survey.skipped.problem")


def _batches(run: Run, inputs: list[Input], gathered: _Gathered) -> Iterator[Rows]:
    """All rows; of running text its first block, which is all of it or too much to be compared."""
    for source, one in enumerate(inputs):
        for file in one.files:
            gathered.files.append((file.label, file.is_text))
            layout: Layout | None = None
            for batch in sources.batches(file, run.data.length):
                layout = layout or row_files.layout(run, file, row_files.values(batch.rows))
                gathered.places.append((source, len(gathered.files) - 1))
                yield Rows(batch.rows[:1] if file.is_text else batch.rows, layout, file.is_text)
                if file.is_text:
                    break


def _compared(gathered: _Gathered) -> SurveyedRows:
    sizes = [len(part.numbers) for part in gathered.parts]
    source_of, file_of = (
        np.repeat(np.array(column, dtype=np.int32), sizes)
        for column in zip(*gathered.places[: len(gathered.parts)], strict=True)
    )
    records = {file for (_, file), part in zip(gathered.places, gathered.parts, strict=False) if part.records}
    files = [(label, number in records) for number, (label, _) in enumerate(gathered.files)]
    facts = row_facts.joined(gathered.parts)
    gathered.parts.clear()
    firsts, groups = _groups(facts)
    too_many = int(facts.counts.sum(dtype=np.int64)) > near_duplicates.MOST_PAIRS
    near = np.empty((0, 2), dtype=np.int64) if too_many else _near(facts, firsts)
    return SurveyedRows(
        facts=replace(facts, pairs=facts.pairs[:0].copy()),  # nothing asks for them again, and the pass is long
        files=files,
        file_of=file_of,
        source_of=source_of,
        unit_of=np.arange(len(source_of)) - np.searchsorted(source_of, source_of),
        groups=groups,
        num_groups=len(firsts),
        near=near,
        near_skipped="survey.near_skipped" if too_many else None,
    )


def _groups(facts: RowFacts) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each group of rows with the same words, in order, and the group of each row."""
    usable = np.flatnonzero(facts.is_usable)
    _, first, inverse = np.unique(facts.words[usable], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    groups = np.full(len(facts.words), -1, dtype=np.int64)
    groups[usable] = rank[inverse]
    return usable[first[order]], groups


def _near(facts: RowFacts, firsts: np.ndarray) -> np.ndarray:
    """Pairs of groups that are nearly the same, by the first row of each."""
    is_first = np.zeros(len(facts.words), dtype=bool)
    is_first[firsts] = True
    counts = facts.counts.astype(np.int64)
    found, shares = near_duplicates.find(counts[firsts], facts.pairs[np.repeat(is_first, counts)])
    one, other = firsts[found[:, 0]], firsts[found[:, 1]]
    answered = (facts.answers[one] != 0) & (facts.answers[other] != 0)
    same = facts.answers[one] == facts.answers[other]
    return found[~answered | same | _answers_agree(facts, one, other, shares)]


def _answers_agree(facts: RowFacts, one: np.ndarray, other: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Whether the answers have enough in common, even if all that differs between the rows is in them.

    A long question with a short answer that differs, such as a label, is another example and no duplicate.
    """
    words = facts.lengths[one].astype(np.int64) + facts.lengths[other]
    answers = facts.answer_lengths[one].astype(np.int64) + facts.answer_lengths[other]
    shared = (answers - words * (1 - shares) / (1 + shares)) / 2
    agree: np.ndarray = shared >= _ALIKE_ANSWERS * (answers - shared)
    return agree
