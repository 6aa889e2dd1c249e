"""A draft as the text of a run file: each value with its origin, then what was not carried over, as comments."""

import json
import re
from typing import Any

from stoker import messages
from stoker.config.reader import scalar
from stoker.migrate.draft import LOST, Draft, KeyOutcome, Written, beside

_SECTIONS = ("data", "tune", "train", "save", "where", "native")
_PLAIN = re.compile(r"[A-Za-z0-9./][\w./%-]*( [\w./%-]+)*")


def compose(draft: Draft, source: str) -> str:
    """The run file."""
    header = _text("migrate.file.header", path=source, dialect=draft.dialect)
    lines = [f"# {header}", ""]
    lines += [_line(key, draft.written[key]) for key in ("name", "model", "tokenizer") if key in draft.written]
    for section in _SECTIONS:
        written = draft.written.items()
        inside = {key.partition(".")[2]: one for key, one in written if key.startswith(f"{section}.")}
        if inside:
            lines += ["", f"{section}:", *_inside(inside)]
    lines += _account(draft)
    return "\n".join(lines) + "\n"


def _inside(words: dict[str, Written]) -> list[str]:
    """The lines of a section: its own words, then its blocks."""
    lines: list[str] = []
    blocks: dict[str, list[str]] = {}
    for key, one in words.items():
        block, _, name = key.partition(".")
        if name:
            blocks.setdefault(block, []).append(f"    {_line(name, one)}")
        else:
            lines.append(f"  {_line(key, one)}")
    return lines + [line for block, options in blocks.items() for line in (f"  {block}:", *options)]


def _account(draft: Draft) -> list[str]:
    """Every key that has no line of its own above, with the reason."""
    lines, besides = [], beside(draft.findings)
    settled = [one for one in draft.findings if one not in besides]
    for heading, findings in (
        ("migrate.file.left", [one for one in settled if one.outcome in LOST]),
        ("migrate.file.beside", besides),
        ("migrate.file.decided", [one for one in settled if one.outcome == "decided"]),
        ("migrate.file.own", [one for one in settled if one.outcome == "own"]),
        ("migrate.file.equal", [one for one in settled if one.outcome == "equal"]),
    ):
        found = sorted(findings, key=lambda one: one.line)
        if found:
            lines += ["", f"# {_text(heading)}", *(f"#   {describe(one)}" for one in found)]
    return lines


def describe(finding: KeyOutcome) -> str:
    """`line 12, template: the reason`."""
    reason = _text(finding.reason, **finding.fields)
    if not finding.line:
        return _text("migrate.key.absent", key=finding.key, reason=reason)
    return _text("migrate.key", key=finding.key, line=finding.line, reason=reason)


def _line(key: str, one: Written) -> str:
    comment = _text(one.source, **one.fields)
    return f"{key}: {_yaml(one.value)}" + (f"  # {comment}" if comment else "")


def _text(key: str, /, **fields: Any) -> str:
    return " ".join(messages.text(key, **fields).split())


def _yaml(value: Any) -> str:
    """A value in one line, as YAML 1.2 reads it back."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml(key)}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_yaml(inner) for inner in value) + "]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    plain = _PLAIN.fullmatch(value) and scalar(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)
