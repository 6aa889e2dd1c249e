"""How functions that print nothing say something: a key of the catalogue and its fields, to whoever listens."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from stoker import messages

Tell = Callable[..., None]
"""Called with a key of the message catalogue and its fields."""
_LISTED = 5


def to_log(key: str, /, **fields: Any) -> None:
    """Into the log named `stoker`: for Python programs, which decide themselves what is shown."""
    logging.getLogger("stoker").info(messages.text(key, **fields))


def listed(names: Sequence[str]) -> str:
    """Names in one line; of many the first, and how many more."""
    more = [f"+ {len(names) - _LISTED}"] if len(names) > _LISTED else []
    return ", ".join([*(f"`{name}`" for name in names[:_LISTED]), *more])
