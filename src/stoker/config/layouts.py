"""Row formats: the name of each and the keys that recognise it. Reading rows is the engine's.

A built-in format is an entry of `FORMATS` here and a reader in `engine/formats.py`. Other packages add formats by the
entry point group `stoker.formats`: their names come from package metadata, only `prepare` loads them.
"""

from collections.abc import Collection
from dataclasses import dataclass

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


def is_known(name: object) -> bool:
    """Whether `data.format` may be this; package metadata is read only for a name that is not built in."""
    if not isinstance(name, str):
        return False
    return name == AUTO or name in BUILT_IN or name in plugins.offered(plugins.FORMATS)


def choices() -> list[str]:
    """Every value of `data.format`, in backticks; those of other packages with the package."""
    others = plugins.offered(plugins.FORMATS).values()
    return [*(f"`{name}`" for name in (AUTO, *BUILT_IN)), *(one.choice for one in others)]


def recognised_keys() -> str:
    """The keys that recognise each built-in format, then the formats of other packages."""
    own = ("/".join(f"`{key}`" for key in one.keys[0]) for one in FORMATS)
    return ", ".join([*own, *(one.choice for one in plugins.offered(plugins.FORMATS).values())])
