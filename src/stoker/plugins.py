"""What installed packages add to Stoker by entry points: places, stores, recipes, formats, objectives.

Names, packages and versions are read from package metadata; a plugin's own code runs only in `Plugin.load`. Which type
a plugin has to be is for the caller to check, who then raises `Plugin.broken`.
"""

from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from stoker import env
from stoker.errors import StokerError

PLACES = "stoker.places"
STORES = "stoker.stores"
RECIPES = "stoker.recipes"
FORMATS = "stoker.formats"
OBJECTIVES = "stoker.objectives"


@dataclass(frozen=True)
class Plugin:
    """One name in one group, and the package that provides it."""

    name: str
    group: str
    package: str
    version: str
    entry_point: EntryPoint
    others: tuple[str, ...] = ()
    """Further packages that provide the same name; then none of them can be used."""

    @property
    def title(self) -> str:
        """For lists and messages: the name with its package."""
        return f"{self.name} ({self.source})"

    @property
    def choice(self) -> str:
        """For lists of what a person can type: the name in backticks, with its package."""
        return f"`{self.name}` ({self.source})"

    @property
    def source(self) -> str:
        """The package with its version."""
        return f"{self.package} {self.version}"

    def load(self) -> Any:
        """Import the object that the entry point names.

        Raises:
            StokerError: STK123 where several packages provide the name, STK124 where the import fails.
        """
        if self.others:
            raise StokerError("STK123", name=self.name, group=self.group, packages=list(self._packages()))
        try:
            return self.entry_point.load()
        except Exception as error:  # someone else's code may raise anything
            raise self.broken(f"{type(error).__name__}: {error}") from error

    def broken(self, reason: str) -> StokerError:
        """The error for a plugin that cannot be used."""
        fields = {"name": self.name, "group": self.group, "package": self.package, "version": self.version}
        return StokerError("STK124", **fields, reason=env.without_secrets(reason))

    def _packages(self) -> list[str]:
        return [self.package, *self.others]


def offered(group: str) -> dict[str, Plugin]:
    """Every name that installed packages provide in a group, sorted; nothing is imported."""
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for one in entry_points(group=group):
        found[one.name].append(one)
    return {name: _plugin(group, name, found[name]) for name in sorted(found)}


def _plugin(group: str, name: str, found: list[EntryPoint]) -> Plugin:
    first, *others = sorted(found, key=_package)
    version = first.dist.version if first.dist else "?"
    return Plugin(name, group, _package(first), version, first, tuple(map(_package, others)))


def _package(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist else "?"
