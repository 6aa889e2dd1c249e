"""The page of `--help`, in the user's language. Typer parses and names parameters; a `help=` is a message's key.

Typer's own page has English headings and counts every character as one cell, which breaks Chinese lines.
"""

import shutil
from collections.abc import Mapping
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup

from stoker import messages
from stoker.terminal.wrapping import pad, wrap

_WIDEST = 80
_COMMAND = 8
"""Cells of the longest command: the sentences of all groups begin in one column."""


class HelpCommand(TyperCommand):
    """A command whose help is in the catalogue."""

    def get_help(self, ctx: Any) -> str:
        """Called by typer for `--help`."""
        arguments = [argument for argument in self.params if _is_argument(argument)]
        spelt = "".join(f" {spelling(one)}" if one.required else f" [{spelling(one)}]" for one in arguments)
        options = [_row(option) for option in self.params if not _is_argument(option)]
        return _page(
            messages.text("help.usage", command=ctx.command_path, arguments=spelt),
            self.help,
            {"help.arguments": [_row(argument) for argument in arguments], "help.options": [*options, _help_row()]},
        )


class HelpGroup(TyperGroup):
    """A group of commands whose help is in the catalogue."""

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Names of commands by the heading they are listed under; others follow under a heading of their own."""

    def get_help(self, ctx: Any) -> str:
        """Called by typer for `--help`, and where there is no argument at all."""
        shown = {name: messages.text(one.help or "") for name, one in self.commands.items() if not one.hidden}
        sections = {
            heading: [(name, shown.pop(name)) for name in names if name in shown]
            for heading, names in self.groups.items()
        }
        usage = messages.text("help.usage", command=ctx.command_path, arguments=messages.text("help.usage.commands"))
        options = [*(_row(option) for option in self.params), _help_row()]
        return _page(usage, self.help, {"help.options": options, **sections, "help.commands": list(shown.items())})


def spelling(parameter: Any) -> str:
    """`RUN`, `--json` or `--card VALUE`."""
    if _is_argument(parameter):
        return str(parameter.metavar or parameter.name.upper())
    flag = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return flag if parameter.is_flag else f"{flag} {parameter.metavar or 'VALUE'}"


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _row(parameter: Any) -> tuple[str, str]:
    notes = []
    if parameter.required:
        notes.append(messages.text("help.required"))
    elif parameter.default not in (None, "", False):
        notes.append(messages.text("help.default", value=parameter.default))
    return spelling(parameter), messages.text(parameter.help) + "".join(f"  [{note}]" for note in notes)


def _help_row() -> tuple[str, str]:
    return "--help", messages.text("help.help")


def _page(usage: str, key: str | None, sections: dict[str, list[tuple[str, str]]]) -> str:
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    lines = [*wrap(usage, width), "", *(f"  {line}" for line in wrap(messages.text(key or ""), width - 2))]
    for heading, rows in sections.items():
        if rows:
            lines += ["", messages.text(heading), *_two_columns(rows, width)]
    return "\n".join(lines)


def _two_columns(rows: list[tuple[str, str]], width: int) -> list[str]:
    left = max(_COMMAND, *(len(spelt) for spelt, _ in rows))
    lines = []
    for spelt, sentence in rows:
        first, *rest = wrap(sentence, width - left - 4)
        lines += [f"  {pad(spelt, left)}  {first}", *(" " * (left + 4) + line for line in rest)]
    return lines
