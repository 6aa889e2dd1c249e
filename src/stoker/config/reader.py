"""Reads YAML with 1.2 semantics, remembering the line of every key.

`1e-4` is a number, `no` is text, duplicate keys are refused; so are anchors and tags, which a run file has
no use for and which make a small file expand without bound. Knows nothing of what the keys mean.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stoker.errors import StokerError, StokerErrors

KeyPath = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}


@dataclass(frozen=True)
class Document:
    """A parsed file: its values, and the line on which each key path stands."""

    name: str
    values: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """`file:line: a.b.c` for a key path, or for the nearest parent that is in the file."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        dotted = dotted_path(path)
        return f"{self.name}:{line}: {dotted}" if dotted else f"{self.name}:{line}"


def dotted_path(path: KeyPath) -> str:
    """`("data", "train", 0, "path")` as `data.train[0].path`."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{part}" if out else part
    return out


def read_text(path: Path) -> str:
    """A run file's text; UTF-8 only, with or without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise StokerError("STK101", path=path) from error
    except IsADirectoryError as error:
        raise StokerError("STK119", path=path) from error
    except UnicodeDecodeError as error:
        raise StokerError("STK117", path.name, byte=error.start) from error


def parse(text: str, name: str) -> Document:
    """Parse YAML text; every structural problem is raised at once."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise StokerError("STK102", f"{name}:{line}", problem=problem) from error
    document = Document(name, {})
    if root is None:
        return document
    problems: list[StokerError] = []
    values = _convert(root, (), document, problems, set())
    if problems:
        raise StokerErrors(problems)
    return Document(name, values, document.lines)


def scalar(text: str) -> Any:
    """A plain scalar by YAML 1.2's core schema."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _convert(node: yaml.Node, path: KeyPath, document: Document, problems: list[StokerError], seen: set[int]) -> Any:
    document.lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in seen:
        problems.append(StokerError("STK114", document.where(path)))
        return None
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        return _convert_mapping(node, path, document, problems, seen)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, i), document, problems, seen) for i, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    if not node.tag.startswith("tag:yaml.org,2002:"):
        problems.append(StokerError("STK114", document.where(path)))
        return None
    return node.value if node.style else scalar(node.value)


def _convert_mapping(
    node: yaml.MappingNode, path: KeyPath, document: Document, problems: list[StokerError], seen: set[int]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(StokerError("STK102", f"{document.name}:{line}", problem="a key must be plain text"))
            continue
        key = key_node.value
        here = (*path, key)
        if key in out:
            first = document.lines[here]
            problems.append(StokerError("STK103", f"{document.name}:{line}: {dotted_path(here)}", key=key, first=first))
            continue
        document.lines[here] = line
        out[key] = _convert(value_node, here, document, problems, seen)
    return out
