"""PyYAML's complaints in our words: the line on which the mistake was made, and what it was. Knows no keys."""

import re

import yaml

from stoker import messages
from stoker.errors import StokerError

_SIGNS: tuple[tuple[str, str, bool], ...] = (
    (r"quoted scalar; found unexpected end", "yaml.quote", True),
    (r"while parsing a flow", "yaml.bracket", True),
    (r"unknown escape", "yaml.escape", False),
    (r"found character '\\t'", "yaml.tab", False),
    (r"found character '(.)'", "yaml.character", False),
    (r"the node content, but found '(.)'", "yaml.character", False),
    (r"scanning an (?:alias|anchor)", "yaml.reference", True),
    (r"mapping values", "yaml.colon", False),
    (r"sequence entries", "yaml.dash", False),
    (r"but found '<scalar>'", "yaml.after_quote", False),
    (r"<block end>", "yaml.indent", False),
    (r"could not find expected ':'", "yaml.no_colon", True),
    (r"another document|<document start>", "yaml.document", False),
)
"""What PyYAML says, the sentence we say, and whether the fault lies where the construct began."""

_FULL_WIDTH = dict(zip("：，｛｝［］“”‘’", ":,{}[]\"\"''", strict=True))
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|#.*")
_KEY = r"\s*(?:- )?[^\W\d][\w.-]*"
_NO_SPACE = re.compile(_KEY + r":[^\s/:]")
_WIDE_COLON = re.compile(_KEY + "：")


def invalid(where: str, problem: str) -> StokerError:
    """The error of a line that is no YAML; a full-width mark has its remedy in its sentence."""
    wide = any(f"`{mark}`" in problem for mark in _FULL_WIDTH)
    return StokerError(
        "STK102", where, problem=problem, advice=messages.text("advice.retype" if wide else "advice.yaml")
    )


def explain(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """The line (from 1) and the sentence for what PyYAML refused."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return line, messages.text("yaml.control", code=f"U+{error.character:04X}")
    assert isinstance(error, yaml.MarkedYAMLError)
    assert error.problem_mark is not None
    line = error.problem_mark.line + 1
    here, above = _line(text, line), _line(text, line - 1)
    if sentence := mistyped(here) or _full_width(_QUOTED.sub("", here)):
        return line, sentence
    if sentence := mistyped(above):
        return line - 1, sentence
    return _by_sign(error, line)


def mistyped(text: str) -> str:
    """The sentence for text that was probably meant as `key: value`; else empty."""
    if _WIDE_COLON.match(text):
        return _full_width("：")
    return messages.text("yaml.space") if _NO_SPACE.match(text) else ""


def wide_inside(text: str) -> str:
    """The sentence for unquoted text in braces or brackets with a full-width mark: it was meant as YAML's own."""
    return next((_full_width(mark, "yaml.full_width_inside") for mark in "：，" if mark in text), "")


def in_wide_quotes(text: str) -> str:
    """The sentence for text in quotes that are none to YAML; empty where there are no such."""
    return _full_width(text[0]) if text and text[0] in "“‘" and text[-1] in "”’" else ""


def _full_width(text: str, key: str = "yaml.full_width") -> str:
    for character, plain in _FULL_WIDTH.items():
        if character in text:
            return messages.text(key, character=character, plain=plain)
    return ""


def _by_sign(error: yaml.MarkedYAMLError, line: int) -> tuple[int, str]:
    said = f"{error.context or ''}; {error.problem or ''}"
    for sign, key, at_start in _SIGNS:
        if found := re.search(sign, said):
            began = error.context_mark.line + 1 if at_start and error.context_mark else line
            return began, messages.text(key, character="".join(found.groups()))
    return line, error.problem or said


def _line(text: str, number: int) -> str:
    """Line `number`, counted from 1; empty outside of the text."""
    lines = text.splitlines()
    return lines[number - 1] if 1 <= number <= len(lines) else ""
