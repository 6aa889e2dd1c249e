"""What a command prints with `--json` when it fails, as a type: `stoker schema --errors` prints its JSON Schema."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ErrorDetails(_Part):
    """One problem, as `StokerError.as_dict` has it."""

    code: str = Field(pattern=r"^STK\d{3}$")
    """Names the kind of problem; it never changes. docs/reference/errors.md lists all."""
    message: str
    """What happened, in the user's language."""
    hint: str
    """What to do about it, in the user's language."""
    where: str
    """Its place as people read it; empty where it has none."""
    file: str | None
    """The file that is wrong."""
    line: int | None
    """Its line, or its row."""
    key: str | None
    """The key of the run file, or the flag."""
    choices: list[str]
    """What may stand there instead, the closest first."""
    fields: dict[str, Any]
    """The values in the sentences, by name."""
    errors: list["ErrorDetails"] = []
    """Where several problems were found at once: all of them. The error itself is the first."""


class ErrorAnswer(_Part):
    """The one JSON object on stdout of a command that failed."""

    ok: Literal[False]
    """No other answer has `ok: false`."""
    exit_code: int
    """1: the user can fix it. 2: a fault of Stoker's. The process exits with the same number."""
    error: ErrorDetails
    """Why."""
    result: Any = None
    """What was found out all the same, such as which copies `verify` compared."""


class ToolAnswer(BaseModel):
    """What every tool of `stoker mcp` returns."""

    ok: bool
    """Whether there is a result; else there is an error."""
    exit_code: int
    """What the command exited with: 0 done, 75 stopped with a committed checkpoint, 1 and 2 as for errors."""
    result: Any = None
    """What the command prints with `--json`."""
    error: ErrorDetails | None = None
    """What went wrong."""
    digest: str | None = None
    """Of a plan: what `train` has to be given as `plan_digest`."""
    said: list[str] = []
    """The last lines of what the command said to people."""
