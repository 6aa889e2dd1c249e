"""Values of a row, read with a reason where they cannot be used. Knows nothing of formats."""

import json
from typing import Any

from stoker import messages
from stoker.config import layouts

Row = dict[str, Any]

MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Keys of what is no text."""
_ANSWERS = {"completion", "answer", "response", "output", "messages", "conversations"}
_DEEPEST = 100
"""Levels of a call's arguments or a tool's schema."""


WHOLE_FILE = ("row.json_file", "row.json_layout", "row.header", "row.separator")
"""Reasons that are a file's: none of its rows can be read."""


class BadRow(Exception):
    """A row that cannot be used, and why."""

    def __init__(self, reason: str, **fields: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fields = fields

    @property
    def text(self) -> str:
        """The reason in the user's language."""
        return messages.text(self.reason, **self.fields)


def refuse_media(given: Row) -> None:
    """A row or message with anything but text in it: what is ignored would be missed in the answer."""
    for key in MEDIA:
        if given.get(key):
            raise BadRow("row.media", key=key)


def refuse_preferences(row: Row) -> None:
    """A row that compares or judges answers: trained as it is, it would teach the bad ones too."""
    for key in ("chosen", "rejected"):
        if row.get(key):
            raise BadRow("row.preference", key=key)
    given = row.get("label")
    if given is None or _ANSWERS.isdisjoint(row):
        return
    if layouts.verdict(given) is not None:
        raise BadRow("row.preference", key="label")
    if layouts.is_verdict(given, numbers="completion" in row):
        raise BadRow("row.label_word", label=json.dumps(given, ensure_ascii=False))


def label(row: Row) -> bool:
    """Whether the answer of a judged row is a good one."""
    given = row.get("label")
    if (good := layouts.verdict(given)) is not None:
        return good
    if layouts.is_verdict(given):
        raise BadRow("row.label_value", label=json.dumps(given, ensure_ascii=False))
    raise BadRow("row.no_label")


def value(row: Row, key: str, kind: type, expected: str) -> Any:
    """The value of a key, of one type."""
    if key not in row:
        raise BadRow("row.missing_key", key=key)
    if not isinstance(row[key], kind):
        raise wrong_type(key, expected)
    return row[key]


def text(row: Row, key: str) -> str:
    """A text that must be there and say something."""
    return filled(key, value(row, key, str, "text"))


def filled(key: str, given: Any) -> str:
    """A text that says something."""
    found = checked(key, given)
    if not found.strip():
        raise BadRow("row.empty", key=key)
    return found


def checked(key: str, given: Any) -> str:
    """Text that can be written as UTF-8: JSON can smuggle in half of a surrogate pair."""
    if not isinstance(given, str):
        raise wrong_type(key, "text")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise BadRow("row.not_unicode", key=key) from None
    return given


def from_json(key: str, given: str) -> Any:
    """What a text says as JSON; a ValueError where it is none."""
    try:
        return json.loads(given)
    except RecursionError:
        raise _too_deep(key) from None


def check_json(key: str, given: Any) -> None:
    """Require a value that templates can write: of whole characters, not nested without end."""
    if _deeper(given, _DEEPEST):
        raise _too_deep(key)
    checked(key, json.dumps(given, ensure_ascii=False, default=str))


def _deeper(given: Any, levels: int) -> bool:
    inner = given.values() if isinstance(given, dict) else given if isinstance(given, list) else ()
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def _too_deep(key: str) -> BadRow:
    return BadRow("row.too_deep", key=key, count=_DEEPEST)


def wrong_type(key: str, expected: str) -> BadRow:
    """The reason of a value that is of another type."""
    return BadRow("row.wrong_type", key=key, expected=messages.text(f"type.{expected}"))
