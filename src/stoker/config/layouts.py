"""Row formats: the name of each and the keys that recognise it. Reading rows is the engine's.

A built-in format is an entry of `FORMATS` here and a reader in `rows/formats.py`. Other packages add formats by the
entry point group `stoker.formats`: their names come from package metadata, only `prepare` loads them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticKnownError

from stoker import plugins

AUTO = "auto"


@dataclass(frozen=True)
class RowFormat:
    """One way to lay out a row."""

    name: str
    keys: tuple[tuple[str, ...], ...]
    """Alternatives: a row that has every key of one of them is recognised."""
    needs_template: bool = False
    """Whether its rows can be read only with a chat template."""

    def match(self, row: Collection[str]) -> tuple[str, ...] | None:
        """The keys by which a row is recognised, if it is."""
        return next((keys for keys in self.keys if all(key in row for key in keys)), None)


PAIRS = (("prompt", "completion"), ("question", "answer"), ("query", "response"), ("prompt", "response"))
FORMATS = (
    RowFormat("messages", (("messages",),), needs_template=True),
    RowFormat("sharegpt", (("conversations",),), needs_template=True),
    RowFormat("alpaca", (("instruction", "output"),)),
    RowFormat("prompt_completion", PAIRS),
    RowFormat("text", (("text",),)),
)
"""The built-in formats, in the order they are tried."""
BUILT_IN = {one.name: one for one in FORMATS}


def recognise(row: Collection[str]) -> tuple[RowFormat, tuple[str, ...]] | None:
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
    own = ("/".join(f"`{key}`" for key in one.keys[0]) for one in FORMATS)
    return [*own, *(one.choice for one in plugins.offered(plugins.FORMATS).values())]
