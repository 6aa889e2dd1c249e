"""Typer's usage errors in our words. They are `typer.exceptions.TyperException`, the base that typer exports."""

import difflib
import re
import sys
from typing import Any

from stoker import messages
from stoker.errors import StokerError

_SIGNS: tuple[tuple[str, str], ...] = (
    (r"No such option: (?P<name>\S+)", "usage.option"),
    (r"No such command '(?P<name>[^']*)'", "usage.command"),
    (r"unexpected extra arguments?(?:\(s\))? \((?P<name>.*)\)", "usage.extra"),
    (r"Option '(?P<name>[^']*)' requires", "usage.value"),
    (r"Missing (?:parameter|argument|option):? '?(?P<name>[\w-]+)", "usage.missing"),
    (r"Invalid value for '?(?P<name>[\w-]+)'?: (?P<value>.+)", "usage.bad"),
)
_TYPES = {"int": "type.whole", "float": "type.number"}
_LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def asks_for_help(error: Any) -> bool:
    """Whether there was no argument at all: typer then raises the help page."""
    return type(error).__name__ == "NoArgsIsHelpError"


def explain(error: Any) -> StokerError:
    """The error for a command line that cannot be read."""
    command = error.ctx.command_path if error.ctx else _typed()
    said = error.format_message()
    for sign, key in _SIGNS:
        if found := re.search(sign, said):
            problem = _wrong_value(error, found) if key == "usage.bad" else messages.text(key, name=found["name"])
            near = _nearest(found["name"], key, error)
            problem += messages.text("usage.nearest", nearest=near[0]) if near else ""
            return StokerError("STK506", problem=problem, command=command, choices=near)
    return StokerError("STK506", problem=said, command=command)


def _typed() -> str:
    """The command as it was typed: typer does not say it where an option lacks its value."""
    words = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return " ".join(["stoker", *words])


def _wrong_value(error: Any, found: re.Match[str]) -> str:
    """Typer says what a value should be, not what it is; pydantic, which read it for typer, knows both."""
    from pydantic import ValidationError  # not needed for `stoker --help`

    name, cause = found["name"], error.__cause__
    if not isinstance(cause, ValidationError):
        return messages.text("usage.bad", name=name, value=found["value"])
    details = cause.errors()[0]
    limits = [f"{_LIMITS[key]} {limit}" for key, limit in details.get("ctx", {}).items() if key in _LIMITS]
    kind = _TYPES[details["type"].partition("_")[0]] if not limits else "usage.limit"
    expected = messages.text(kind, limit="".join(limits))
    return messages.text("usage.bad_value", name=name, value=details["input"], expected=expected)


def _nearest(name: str, key: str, error: Any) -> list[str]:
    if key == "usage.command":
        known = list(error.ctx.command.commands)
    elif key == "usage.option":
        known = [option for parameter in error.ctx.command.params for option in parameter.opts]
    else:
        return []
    return difflib.get_close_matches(name, known, n=1)
