"""How functions that print nothing say something: a key of the catalogue and its fields, to whoever listens."""

import logging
from collections.abc import Mapping, Sequence
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


def pipeline_progress(event: Mapping[str, Any]) -> str:
    """The stage of `data.pipeline` that is worked on."""
    return messages.text("prepare.pipeline_progress", stage=event["stage"], done=event["done"])


def pipeline_steps(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many documents each step of `data.pipeline` dropped; blocks that only read or write say nothing new."""
    blocks = [(block["block"], block["counts"]) for stage in stages for block in stage["blocks"]]
    return [
        messages.text("prepare.pipeline_step", step=name, total=f"{of['total']:,}", dropped=f"{of.get('dropped', 0):,}")
        for name, of in blocks
        if "forwarded" in of or "dropped" in of
    ]
