"""Lines of at most so many terminal cells, for text that mixes Chinese with Latin words."""

import re

from rich.cells import cell_len

_OPEN, _WIDE, _CLOSE = r"[（《「]*", r"[\u2e80-\uffef]", r"[，。；：、？！）》」),.;:!?]*"
_UNITS = r"(?:小时|分钟|词元|分|秒|天|步|轮|次|张|块|个|周|行|条|(?:GiB|GB|MB|CNY|USD|TFLOPS|min|h|s)(?![A-Za-z]))"
_AMOUNT = rf"[+<~-]?\d[\d.,]* {_UNITS}"
_PIECE = re.compile(rf"{_OPEN}(?:`[^`]*`|{_AMOUNT}|{_WIDE}|[^\s`\u2e80-\uffef]+|`){_CLOSE}\s*")
"""A Chinese character, a Latin word or a number with its unit, with the punctuation that may not be parted from it."""


def wrap(text: str, width: int) -> list[str]:
    """Break `text` at spaces and between Chinese characters, never before a closing punctuation mark."""
    lines = [""]
    for piece in _PIECE.findall(text):
        if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def pad(text: str, width: int) -> str:
    """`text` and spaces up to `width` cells."""
    return text + " " * (width - cell_len(text))
