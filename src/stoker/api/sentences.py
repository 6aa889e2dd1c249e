"""How functions that print nothing say something: a key of the catalogue and its fields, to whoever listens."""

import logging
from collections.abc import Sequence
from typing import Any

from stoker import messages

_LISTED = 5


def to_log(key: str, /, **fields: Any) -> None:
    """Into the log named `stoker`: for Python programs, which decide themselves what is shown."""
    logging.getLogger("stoker").info(messages.text(key, **fields))


def listed(names: Sequence[str]) -> list[str]:
    """Names for a sentence; of many the first, and how many more."""
    more = [f"+ {len(names) - _LISTED}"] if len(names) > _LISTED else []
    return [*(f"`{name}`" for name in names[:_LISTED]), *more]
