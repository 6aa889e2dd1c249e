"""Stoker: train, fine-tune and serve language models on rented or borrowed GPUs.

The names below are its Python API, and all of it; each is loaded when it is first used. See docs/how-to/python.md.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "StokerError",
    "StokerErrors",
    "__version__",
    "compare",
    "load",
    "open",
    "plan",
    "prepare",
    "train",
]

if TYPE_CHECKING:
    from stoker.api.handle import open_run as open  # noqa: A004  # as `stoker.open`, beside `stoker.load`
    from stoker.api.loading import load
    from stoker.api.planning import compare, plan
    from stoker.api.preparation import prepare
    from stoker.api.start import train
    from stoker.errors import StokerError, StokerErrors

_HOMES = {
    "StokerError": "stoker.errors:StokerError",
    "StokerErrors": "stoker.errors:StokerErrors",
    "compare": "stoker.api.planning:compare",
    "load": "stoker.api.loading:load",
    "open": "stoker.api.handle:open_run",
    "plan": "stoker.api.planning:plan",
    "prepare": "stoker.api.preparation:prepare",
    "train": "stoker.api.start:train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(types.ModuleType):
    """`stoker.plan` is the function, also after the room of that name was imported and bound to its package."""

    @property
    def plan(self) -> Any:
        return __getattr__("plan")

    @plan.setter
    def plan(self, room: types.ModuleType) -> None:
        """The import system finds the room in `sys.modules`; the name stays the function's."""


sys.modules[__name__].__class__ = _Package
