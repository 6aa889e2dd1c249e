"""Text of others, made harmless for a terminal: events, logs and names may come from a stranger or another machine.

Colours are dropped. Every other character that a terminal obeys is shown instead (`␛`); line ends and tabs stay.
"""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 controls, and those that turn the direction of text."""
_PICTURES = {
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "␡",
}


def plain(text: str) -> str:
    """The text without anything that moves a cursor, sets a title, asks the terminal or runs backwards."""
    if not _OBEYED.search(text):
        return text
    return _COLOUR.sub("", text.replace("\r\n", "\n")).translate(_PICTURES)


def json_plain(text: str) -> str:
    """The same for JSON: such a character is written by its number, and the value stays."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def last_state(line: str) -> str:
    """What a terminal would show in the end of a line that a progress bar has rewritten."""
    body = line.rstrip("\r\n")
    return body.rpartition("\r")[2] + ("\n" if line.endswith("\n") else "")
