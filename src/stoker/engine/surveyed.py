"""A preparing pass and its survey: which rows it leaves out, and at its end what was found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stoker import messages
from stoker.config.run import Run
from stoker.engine import row_counts, survey_findings, survey_pass
from stoker.engine.bad_rows import BadRows
from stoker.engine.row_counts import RowCounts
from stoker.engine.sources import Input
from stoker.engine.survey_pass import Skipped, SurveyedRows
from stoker.errors import StokerError
from stoker.survey.findings import Survey

IsHeld = Callable[[int, int], bool]
"""Whether a row is drawn for eval, by its source and its number in there."""


class PassSurvey:
    """The survey of one pass."""

    def __init__(self, run: Run, data: Path, found: SurveyedRows | Skipped, counts: tuple[int, int]) -> None:
        self._run = run
        self._found = found
        self._left_out: np.ndarray | None = None
        is_counted = isinstance(found, SurveyedRows) and row_counts.has(data, counts[0])
        self._counts = RowCounts(data, *counts) if is_counted else None

    @property
    def last(self) -> int:
        """What is stored of the newest row."""
        return self._counts.last if self._counts else 0

    def leave_out(self, inputs: list[Input], is_held: IsHeld) -> None:
        """Decide what `data.duplicates: drop` leaves out, for rows that are split like this."""
        if self._run.data.duplicates == "keep":
            return
        if isinstance(self._found, Skipped):
            if self._found.limit:
                raise StokerError("STK351", reason=messages.text(self._found.reason, limit=self._found.limit))
            return  # a row or file that cannot be read: the pass itself says which
        if self._found.near_skipped:
            raise StokerError("STK351", reason=messages.text(self._found.near_skipped))
        split = np.array([one.split == "eval" for one in inputs])
        held = split[self._found.source_of]
        places = zip(self._found.source_of.tolist(), self._found.unit_of.tolist(), strict=True)
        held |= np.fromiter((is_held(*place) for place in places), dtype=bool, count=len(held))
        self._left_out = survey_findings.relations(self._found, held).superfluous & ~held

    def leaves_out(self, row: int) -> bool:
        """Whether a row, by its number in the pass, is left out."""
        return self._left_out is not None and row < len(self._left_out) and bool(self._left_out[row])

    def count(self, tokens: int, *, held: bool, is_row: bool) -> None:
        """Count the tokens of a row, or of more of a text."""
        if self._counts:
            self._counts.add(tokens, held=held, is_row=is_row)

    def commit(self) -> None:
        """Write what was counted."""
        if self._counts:
            self._counts.commit()

    def finish(self, rows: dict[str, int], bad: BadRows) -> dict[str, Any]:
        """What was found, for the report; `rows` by split where they were not surveyed."""
        found = self._findings(rows, bad.cut_away(self._run.data.length))
        return found.model_copy(update={"bad": bad.by_reason()}).model_dump()

    def _findings(self, rows: dict[str, int], cut_away: list[int]) -> Survey:
        if isinstance(self._found, Skipped):
            return survey_findings.skipped(self._found, rows)
        if self._counts is None:  # the pass was begun by one that could not compare its rows
            return survey_findings.skipped(Skipped("survey.skipped.problem"), rows)
        tokens, held = self._counts.arrays()
        cut_at = None if self._run.train.objective == "pretrain" else self._run.data.length
        return survey_findings.findings(self._found, tokens, held, self._left_out, cut_at=cut_at, cut_away=cut_away)

    def remove(self) -> None:
        """Delete what was counted; only when nobody resumes the pass any more."""
        if self._counts:
            self._counts.remove()


def of_pass(
    run: Run,
    data: Path,
    inputs: list[Input],
    counts: tuple[int, int],
    *,
    has_template: bool,
    workers: int,
    on_rows: Callable[[int], None],
) -> PassSurvey:
    """Survey the rows of a pass.

    Args:
        run: The run.
        data: The folder of the set.
        inputs: Its sources.
        counts: How many rows the pass has read when it resumes, and what it stored of the last one.
        has_template: Whether the tokenizer has a chat template.
        workers: Processes that read rows.
        on_rows: Told how many rows were read, now and then.
    """
    found = survey_pass.survey(run, inputs, has_template=has_template, workers=workers, on_rows=on_rows)
    return PassSurvey(run, data, found, counts)
