"""Reads YAML with 1.2 semantics, remembering the line of every key.

`1e-4` is a number, `no` is text, duplicate keys are refused; so are anchors and tags, which a run file has
no use for and which make a small file expand without bound. Knows nothing of what the keys mean.
"""

import codecs
import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stoker import messages
from stoker.config import syntax
from stoker.errors import StokerError, StokerErrors

KeyPath = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_LARGEST_BYTES = 1 << 20
"""A larger file is data that was named by mistake, and YAML reads it for hours."""
_DEEPEST = 30
"""Nesting beyond this is no run file, and would exhaust Python's stack."""
_LARGEST_INTEGER = 1 << 64
_LONGEST_NUMBER = 400
"""Characters; a float has at most 309 digits before its point."""
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Document:
    """A parsed file: its values, and the line of each key path."""

    name: str
    values: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    given_by: str = "--set"
    """How overrides were given."""

    def where(self, path: KeyPath) -> str:
        """`file:line: a.b.c` for a key path, or for the nearest parent that is in the file.

        A key that an override gave has no line (0); that is named instead.
        """
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        dotted = dotted_path(path)
        if line == 0:
            inside = dotted.removeprefix(dotted_path(known)).lstrip(".")
            return f"{self.given_by} {dotted_path(known)}" + (f": {inside}" if inside else "")
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
    if path.is_dir():
        raise StokerError("STK119", path=path)
    if path.stat().st_size > _LARGEST_BYTES:
        raise StokerError("STK118", path.name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StokerError("STK121", path=path, reason=error.strerror) from error
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        advice = encoding_advice(content[:2], path)
        raise StokerError("STK117", f"{path.name}:{line}", byte=error.start + 1, advice=advice) from error


def encoding_advice(start: bytes, path: Path, *, among_others: bool = False) -> str:
    """How to make a file UTF-8, as a line for the shell.

    Args:
        start: Its first two bytes, which may be UTF-16's mark.
        path: The file.
        among_others: Whether it is read because it lies in a folder, as its copy would be.
    """
    is_utf16 = start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    stem, _, suffixes = shown.name.partition(".")
    old, new = shlex.quote(str(shown)), shlex.quote(str(shown.with_name(f"{stem}-utf8.{suffixes}".rstrip("."))))
    convert = f"iconv -f {'UTF-16' if is_utf16 else 'GBK'} -t UTF-8"
    zipped = path.name.lower().endswith(".gz")
    command = f"gzip -dc {old} | {convert} | gzip > {new}" if zipped else f"{convert} {old} > {new}"
    advice = messages.text("advice.utf16" if is_utf16 else "advice.gbk", command=command)
    return messages.text("advice.old_file", advice=advice, old=shown) if among_others else advice


def parse(text: str, name: str) -> Document:
    """Parse YAML text; every structural problem is raised at once."""
    try:
        loader = _Loader(text, name)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        line, problem = syntax.explain(error, text)
        raise syntax.invalid(f"{name}:{line}", problem) from error
    problems = loader.problems + [
        syntax.invalid(f"{name}:{node.start_mark.line + 1}", sentence)
        for node in _inside(root)
        if not node.style and (sentence := syntax.wide_inside(node.value))
    ]
    document = Document(name, {})
    values = _convert(root, (), document, problems) if root and not problems else {}
    if problems:
        raise StokerErrors(problems)
    return Document(name, values, document.lines)


class _Loader(yaml.SafeLoader):
    """Notes anchors, aliases and tags anywhere in the file; refuses endless nesting."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.problems: list[StokerError] = []
        self._name = name
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
        where = f"{self._name}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            self.problems.append(StokerError("STK114", where))
            self.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
            return yaml.ScalarNode("", "")
        if event.anchor or event.tag:
            self.problems.append(StokerError("STK114", where))
        event.anchor = None  # noted above; PyYAML would stop at the second of one name
        self._depth += isinstance(event, yaml.CollectionStartEvent)
        if self._depth > _DEEPEST:
            raise syntax.invalid(where, messages.text("yaml.deep"))
        node = super().compose_node(parent, index)
        self._depth -= isinstance(event, yaml.CollectionStartEvent)
        return node


def _inside(node: yaml.Node | None, *, flow: bool = False) -> Iterator[yaml.ScalarNode]:
    """Every scalar in braces or brackets."""
    if isinstance(node, yaml.ScalarNode) and flow:
        yield node
    if isinstance(node, yaml.CollectionNode):
        for child in node.value:
            for one in child if isinstance(node, yaml.MappingNode) else [child]:
                yield from _inside(one, flow=flow or bool(node.flow_style))


def scalar(text: str) -> Any:
    """A plain scalar by YAML 1.2's core schema; an OverflowError for a number that no key can mean."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return _bounded(text, lambda: int(text, 0) if text[:2] in ("0o", "0x") else int(text))
    if _FLOAT.fullmatch(text):
        return _bounded(text, lambda: float(text))
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _bounded(text: str, read: Callable[[], float]) -> float:
    """The number; Python refuses to read or write thousands of digits, and a float ends in infinity."""
    number = read() if len(text) <= _LONGEST_NUMBER else math.inf
    if math.isinf(number) or (isinstance(number, int) and abs(number) > _LARGEST_INTEGER):
        raise OverflowError(messages.text("yaml.number", number=f"{text[:_SHOWN_DIGITS]}..."))
    return number


def _convert(node: yaml.Node, path: KeyPath, document: Document, problems: list[StokerError]) -> Any:
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _convert_mapping(node, path, document, problems)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, i), document, problems) for i, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    try:
        return node.value if node.style else scalar(node.value)
    except OverflowError as error:
        problems.append(syntax.invalid(document.where(path), str(error)))
        return None


def _convert_mapping(
    node: yaml.MappingNode, path: KeyPath, document: Document, problems: list[StokerError]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{document.name}:{key_node.start_mark.line + 1}"
        key = key_node.value
        if not isinstance(key, str) or key != key.strip():
            # YAML takes plain spaces off a key; what is left is a wide or no-break one.
            sentence = messages.text("yaml.space_character" if isinstance(key, str) else "yaml.key")
            problems.append(syntax.invalid(where, sentence))
            continue
        here = (*path, key)
        if key in out:
            first = document.lines[here]
            problems.append(StokerError("STK103", f"{where}: {dotted_path(here)}", key=key, first=first))
            continue
        document.lines[here] = key_node.start_mark.line + 1
        out[key] = _convert(value_node, here, document, problems)
    return out
