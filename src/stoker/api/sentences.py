"""How functions that print nothing say something: a key of the catalogue and its fields, to whoever listens."""

import logging
from collections.abc import Sequence
from typing import Any

from stoker import messages


def to_log(key: str, /, **fields: Any) -> None:
    """Into the log named `stoker`: for Python programs, which decide themselves what is shown."""
    logging.getLogger("stoker").info(messages.text(key, **fields))


def listed(names: Sequence[str]) -> list[str]:
    """Names for a sentence, each as it is written; of many the first, and how many more."""
    return messages.shortened([f"`{name}`" for name in names])
