"""What a reward is in a run file: `train.grpo.rewards`, a list. It is computed in `stoker.rewards`.

Each entry has exactly one of the keys in `KINDS`; `conflicts` checks that, and patterns and schemas.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from stoker.config import values
from stoker.config.kinds import Duration, NotTruth
from stoker.config.reader import Document, KeyPath
from stoker.config.section import NonEmpty, Section
from stoker.errors import StokerError

KINDS = ("exact", "regex", "valid_json", "length", "code", "function", "verifiers")
"""What a reward can be."""
OWN_CODE = ("code", "function", "verifiers")
"""Kinds that execute what is not Stoker's: what the model wrote, what the user wrote, what others wrote."""
EXAMPLES = {
    "": "`[{exact: {column: answer}}, {function: 'rewards.py:brevity', weight: 0.5}]`",
    "[]": "`{exact: {column: answer}}`",
    ".exact": "`{column: answer}`",
    ".exact.column": "`answer`",
    ".exact.pattern": r"`'answer: (\d+)'`",
    ".regex": "`{pattern: '^<think>'}`",
    ".regex.pattern": "`^<think>`",
    ".valid_json": "`{column: schema}`, `{fits: {type: object}}`",
    ".valid_json.fits": "`{type: object}`",
    ".valid_json.column": "`schema`",
    ".length": "`{target: 400}`",
    ".length.target": "`400`",
    ".code": "`{tests: test_list}`",
    ".code.tests": "`test_list`",
    ".function": "`'rewards.py:brevity'`",
    ".verifiers": "`{environment: gsm8k}`",
    ".verifiers.environment": "`gsm8k`",
    ".verifiers.args": "`{task: {strict: true}}`",
    ".timeout": "`30s`",
}
"""How the words of a reward are written, by what follows `train.grpo.rewards`."""
_CALL_SECONDS = 5.0
_FUNCTION_SECONDS = 30.0


class Exact(Section):
    """1 where the answer equals a column of the row, else 0."""

    column: NonEmpty
    """The column with the right answer. White space at its ends does not count; everything else does."""
    pattern: NonEmpty | None = None
    """A regular expression (Python's) that finds the answer in the completion: its last match, there the first group.
    Default: the whole completion is the answer."""


class Regex(Section):
    """1 where a pattern is found in the completion, else 0."""

    pattern: NonEmpty
    """A regular expression (Python's), searched anywhere in the completion; `^` and `$` are its ends."""


class ValidJson(Section):
    """1 where the completion is JSON, and fits a schema if there is one; else 0."""

    fits: dict[str, Any] | None = None
    """The JSON Schema that it must fit. Default: any JSON will do."""
    column: NonEmpty | None = None
    """The column with a row's own JSON Schema, in place of `fits`."""


class Length(Section):
    """1 at a length, falling evenly to 0 at none and at twice as much."""

    target: Annotated[int, Field(ge=1, le=10_000_000), NotTruth]
    """The length in characters."""
    within: Annotated[int, Field(ge=0, le=10_000_000), NotTruth] = 0
    """How far from it still counts as 1."""


class Code(Section):
    """1 where the completion's code passes the row's tests, else 0."""

    tests: NonEmpty
    """The column with Python statements that fail when the code is wrong (`assert add(1, 2) == 3`), as text or list."""


class Verifiers(Section):
    """What an environment of the package `verifiers` gives for the completion."""

    environment: NonEmpty
    """Its id; its package is installed in the environment of the tool `verifiers`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Options of its taskset, by the names they have there."""


class Reward(Section):
    """One reward: exactly one of the kinds, and its weight."""

    exact: Exact | None = None
    """The answer equals a column of the row."""
    regex: Regex | None = None
    """A pattern is found in the completion."""
    valid_json: ValidJson | None = None
    """The completion is JSON, and fits a schema."""
    length: Length | None = None
    """The completion has about this length."""
    code: Code | None = None
    """The completion's code passes the row's tests."""
    function: Annotated[str, Field(pattern=r"^.+\.py:[^\W\d]\w*$")] | None = None
    """Your own function, `rewards.py:name`: a file beside the run file, and its name there. It is called as TRL calls
    reward functions."""
    verifiers: Verifiers | None = None
    """An environment of the package `verifiers` that scores single answers."""
    weight: Annotated[float, Field(ge=-1000, le=1000), NotTruth] = 1.0
    """What the reward is multiplied by before all are added."""
    fallback: Annotated[float, Field(ge=-1000, le=1000), NotTruth] = 0.0
    """What counts as the reward where it could not be computed, which is reported."""
    timeout: Duration | None = None
    """How long it may take: a `function` for a batch (default `30s`), the others for one completion (`5s`)."""
    memory: Annotated[str, Field(pattern=values.SIZE_PATTERN)] = "4 GB"
    """How much memory (address space) each of its processes may use."""
    isolation: Literal["sandbox", "none"] = "sandbox"
    """Where `code`, `function` and `verifiers` run: in a sandbox of bubblewrap, without network, your files and your
    keys; or, with `none`, as any program of yours, with all of them."""

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return self.kinds[0]

    @property
    def kinds(self) -> list[str]:
        """All that are given; a valid reward has one."""
        return [kind for kind in KINDS if self.options(kind) is not None]

    def options(self, kind: str) -> Any:
        """What the file says under this kind."""
        return getattr(self, kind)

    @property
    def timeout_seconds(self) -> float:
        """How long one call may take."""
        if self.timeout is not None:
            return values.duration_seconds(self.timeout)
        return _FUNCTION_SECONDS if self.kind == "function" else _CALL_SECONDS

    @property
    def memory_bytes(self) -> int:
        """The limit of each process."""
        return values.size_bytes(self.memory)

    @property
    def file(self) -> str | None:
        """The file of a function, as the run file names it."""
        return self.function.rpartition(":")[0] if self.function else None

    @property
    def name(self) -> str:
        """What it is called where nothing else is: a function by its name, the others by their kind."""
        return self.function.rpartition(":")[2] if self.function else self.kind

    @property
    def column(self) -> str | None:
        """The column of the rows that it needs; of a function that is not known."""
        if self.kind == "code":
            column: str = self.options("code").tests
            return column
        return getattr(self.options(self.kind), "column", None)


Rewards = Annotated[list[Reward], Field(min_length=1)]
"""`train.grpo.rewards`."""


def conflicts(rewards: list[Reward], document: Document, path: KeyPath) -> list[StokerError]:
    """What is wrong with each reward by itself.

    Args:
        rewards: As the file has them.
        document: The file.
        path: Where they are in it.
    """
    return [one for place, reward in enumerate(rewards) for one in _problems(reward, document, (*path, place))]


def _problems(reward: Reward, document: Document, path: KeyPath) -> list[StokerError]:
    if len(reward.kinds) != 1:
        choices = [f"`{kind}`" for kind in KINDS]
        return [StokerError("STK457", document.where(path), count=len(reward.kinds), choices=choices)]
    options = reward.options(reward.kind)
    found = []
    pattern = getattr(options, "pattern", None)
    if pattern and (reason := _not_a_pattern(pattern)):
        where = document.where((*path, reward.kind, "pattern"))
        found.append(StokerError("STK458", where, pattern=pattern, reason=reason))
    if isinstance(options, ValidJson) and options.fits is not None and options.column is not None:
        found.append(StokerError("STK459", document.where((*path, "valid_json"))))
    return found


def _not_a_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return ""
