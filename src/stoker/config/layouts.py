"""Row formats: the name of each and the keys that recognise it. Reading rows is the engine's.

A built-in format is an entry of `FORMATS` here and a reader in `rows/formats.py`. Other packages add formats by the
entry point group `stoker.formats`: their names come from package metadata, only `prepare` loads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticKnownError

from stoker import plugins

AUTO = "auto"
_VERDICTS = {"true": True, "false": False}
_WORDS = {*_VERDICTS, "good", "bad", "yes", "no", "chosen", "rejected", "好", "坏"}
_NUMBERS = {"1", "1.0", "0", "0.0", "-1", "-1.0"}


def verdict(label: Any) -> bool | None:
    """Whether an answer is a good one, by a `label` of true or false, in a table as text; None of anything else."""
    return _VERDICTS.get(str(label).strip().lower())


def is_verdict(label: Any, *, numbers: bool = True) -> bool:
    """Whether a `label` judges an answer, whether or not as it must be written; numbers may be classes instead."""
    return (word := str(label).strip().lower()) in _WORDS or (numbers and word in _NUMBERS)


@dataclass(frozen=True)
class RowFormat:
    """One way to lay out a row."""

    name: str
    keys: tuple[tuple[str, ...], ...]
    """Alternatives: a row that has every key of one of them is recognised."""
    needs_template: bool = False
    """Whether its rows can be read only with a chat template."""
    judged: str | None = None
    """A key that must judge besides, true or false: with other values it is a column that means something else."""

    def match(self, row: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The keys by which a row is recognised, if it is."""
        found = next((keys for keys in self.keys if all(key in row for key in keys)), None)
        if found is None or self.judged is None:
            return found
        given = row.get(self.judged)
        judges = is_verdict(given) if "completion" in found else verdict(given) is not None
        return (*found, self.judged) if judges else None


PAIRS = (
    *(("prompt", "completion"), ("question", "answer"), ("query", "response"), ("prompt", "response")),
    *(("prompt", "answer"), ("question", "response")),
)
PREFERENCE = "preference"
LABELLED = "labelled"
PROMPT = "prompt"
"""How an objective that generates answers reads rows of any format; `data.format` does not name it."""
FORMATS = (
    RowFormat(PREFERENCE, (("chosen", "rejected"), ("input", "preferred_output", "non_preferred_output"))),
    RowFormat(LABELLED, (("prompt", "completion"), ("messages",), ("conversations",)), judged="label"),
    RowFormat("messages", (("messages",),), needs_template=True),
    RowFormat("sharegpt", (("conversations",),), needs_template=True),
    RowFormat("alpaca", (("instruction", "output"),)),
    RowFormat("prompt_completion", PAIRS),
    RowFormat("text", (("text",),)),
)
"""The built-in formats, in the order they are tried."""
BUILT_IN = {one.name: one for one in FORMATS}


def recognise(row: Mapping[str, Any]) -> tuple[RowFormat, tuple[str, ...]] | None:
    """The first built-in format that a row's keys match, and those keys."""
    return next(((one, keys) for one in FORMATS if (keys := one.match(row))), None)


def check(value: Any) -> Any:
    """Accept `auto` or a built-in name, else one that an installed package provides."""
    known = (AUTO, *BUILT_IN)
    if value in known or (isinstance(value, str) and value in plugins.offered(plugins.FORMATS)):
        return value
    others = plugins.offered(plugins.FORMATS).values()
    choices = [*(f"`{name}`" for name in known), *(one.choice for one in others)]
    raise PydanticKnownError("literal_error", {"expected": ", ".join(choices)})


def recognised_keys() -> list[str]:
    """The keys that recognise each built-in format, then the formats of other packages."""
    known = ((*one.keys[0], *([one.judged] if one.judged else [])) for one in FORMATS)
    own = ("/".join(f"`{key}`" for key in keys) for keys in known)
    return [*own, *(one.choice for one in plugins.offered(plugins.FORMATS).values())]
