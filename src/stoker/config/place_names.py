"""Names of places: the built-in ones and those of installed packages. Reads package metadata only; loads no place.

A new built-in place is listed here and in `places/registry.py`.
"""

from typing import Any

from pydantic_core import PydanticKnownError

from stoker import plugins

BUILT_IN = ("local", "ssh", "slurm", "kaggle", "colab", "sky")
NAMED_BY_ON = ("kaggle", "sky")
"""Places that `--on` names directly; the others are reached through a host."""
WITH_OPTIONS = ("slurm", "kaggle", "sky")
"""Places with a block of options of their own in `native`."""


def check(value: Any) -> Any:
    """Accept a built-in name, else one that an installed package provides."""
    if value in BUILT_IN or (isinstance(value, str) and value in plugins.offered(plugins.PLACES)):
        return value
    raise PydanticKnownError("literal_error", {"expected": ", ".join(_shown())})


def takes_options(name: str) -> bool:
    """Whether `native` may have a block of this name."""
    return name in WITH_OPTIONS or name in plugins.offered(plugins.PLACES)


def _shown() -> list[str]:
    """All names; those of a package with the package."""
    return [*(f"`{name}`" for name in BUILT_IN), *(one.choice for one in plugins.offered(plugins.PLACES).values())]
