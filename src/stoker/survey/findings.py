"""What a survey found in the rows, as `data/report.json` has it under `survey`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stoker.rows import row_files
from stoker.rows.row_files import Record

Kind = Literal["exact", "words", "near"]
"""Equal to the last character, by words (case and sentence marks aside), or nearly."""
KINDS: tuple[Kind, ...] = ("exact", "words", "near")


class _SurveyPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class NamedRow(_SurveyPart):
    """Where a row is."""

    file: str
    row: int
    record: bool = False
    """Whether `row` counts records, not lines."""

    def __str__(self) -> str:
        """`a.jsonl:2`."""
        return row_files.place(self.file, Record(self.row) if self.record else self.row)


class RowGroup(_SurveyPart):
    """A row and others that are like it, of which the first few are named."""

    first: NamedRow
    others: list[NamedRow]
    count: int
    """Of all others."""
    kind: Kind | None = None
    """How the first of the others is like it; None where they contradict it."""


class Duplicates(_SurveyPart):
    """Rows of a split that an earlier row of it makes superfluous."""

    rows: dict[Kind, int]
    tokens: int
    """What the rows have after truncation."""
    share: float
    """Of the split's tokens."""
    groups: int
    places: list[RowGroup]

    @property
    def count(self) -> int:
        """All rows."""
        return sum(self.rows.values())


class Leaks(_SurveyPart):
    """Rows of train that stand in eval, too."""

    rows: dict[Kind, int]
    tokens: int
    eval_rows: int
    """Rows of eval that have such a copy."""
    places: list[RowGroup]
    """First an eval row, then its copies in train."""

    @property
    def count(self) -> int:
        """All rows of train."""
        return sum(self.rows.values())


class Contradictions(_SurveyPart):
    """Equal prompts with different answers, duplicates aside."""

    prompts: int
    rows: int
    places: list[RowGroup]


class OddRow(_SurveyPart):
    """A row that is unlike the others."""

    place: NamedRow
    why: str
    """The script; of a length `long` or `short`."""
    tokens: int


class Scripts(_SurveyPart):
    """In which script rows are, by most of their letters."""

    rows: dict[str, int]
    main: str
    odd: int
    """Rows in scripts that hardly any row is in."""
    places: list[OddRow]


class Lengths(_SurveyPart):
    """Tokens of rows before anything is cut."""

    median: int
    low: int
    high: int
    """Rows outside are odd: three times the quartiles' distance, by factors."""
    longest: int
    odd: dict[str, int]
    """`short` and `long` rows."""
    places: list[OddRow]
    histogram: list[tuple[int, int]]
    """Upper ends, in steps of the fourth root of two, and rows."""


class KeptByLength(_SurveyPart):
    """What another `data.length` would keep of rows that are truncated."""

    length: int
    rows: float
    """Share of rows that stay whole."""
    tokens: float
    """Share of their tokens."""
    asked: bool = False
    """Whether it is the run file's."""


class BadReason(_SurveyPart):
    """Bad rows of one reason."""

    reason: str
    """A key of the catalogue."""
    text: str
    """The reason in words, of the first of them."""
    count: int
    places: list[NamedRow]
    """Of the first few."""


class Survey(_SurveyPart):
    """All of it; a part that was not looked for is None."""

    policy: Literal["keep", "drop"]
    """`data.duplicates`."""
    rows: dict[str, int]
    """Rows by split, bad ones aside."""
    skipped: str | None = None
    """Why rows were not compared: a key of the catalogue."""
    near_skipped: str | None = None
    """Why only equal rows were looked for."""
    limit: int = 0
    """What `skipped` or `near_skipped` names."""
    bad: list[BadReason] = []
    """Rows that were skipped (`data.on_bad_row: skip`)."""
    uncompared: int = 0
    """Running texts too long to be compared as one row."""
    dropped_rows: int = 0
    dropped_tokens: int = 0
    duplicates: dict[str, Duplicates] | None = None
    """By split."""
    leaks: Leaks | None = None
    contradictions: Contradictions | None = None
    scripts: Scripts | None = None
    lengths: Lengths | None = None
    kept_by_length: list[KeptByLength] = []


def read(report: dict[str, Any]) -> Survey | None:
    """The survey of a prepared set, by its report (`data/report.json`); None in reports of earlier versions."""
    found = report.get("survey")
    return Survey.model_validate(found) if found else None
