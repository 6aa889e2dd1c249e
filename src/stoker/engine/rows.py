"""Values of a row, read with a reason where they cannot be used. Knows nothing of formats."""

from typing import Any

from stoker import messages

Row = dict[str, Any]

MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Keys of what is no text."""


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


def wrong_type(key: str, expected: str) -> BadRow:
    """The reason of a value that is of another type."""
    return BadRow("row.wrong_type", key=key, expected=messages.text(f"type.{expected}"))
