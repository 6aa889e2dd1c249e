"""`--help` of every command, in both languages."""

import io
import re
from typing import Any

import pytest
import typer
from made_runs import CommandLine
from rich.cells import cell_len
from rich.console import Console

from stoker import messages
from stoker.cli.command_groups import GroupedCommands
from stoker.cli.main import app
from stoker.errors import StokerError
from stoker.terminal import console
from stoker.terminal.wrapping import wrap

GROUP = typer.main.get_group(app)
PAGES = {
    "": GROUP,
    **GROUP.commands,
    **{f"hosts {name}": one for name, one in GROUP.commands["hosts"].commands.items()},
}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", PAGES, ids=lambda name: name or "stoker")
def test_help_is_in_the_users_language_and_fits_80_columns(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str, language: str
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = stoker(*name.split(), "--help", language=language)
    page = shown.out
    assert shown.code == 0
    said = "".join(page.split())
    for key in [PAGES[name].help, *(parameter.help for parameter in PAGES[name].params)]:
        assert "".join(messages.CATALOGUES[language][key].split()) in said
    assert max(cell_len(line) for line in page.splitlines()) <= 80
    if language == "zh":
        assert not any(word in page for word in ("Usage", "Options", "Show", "default"))


def _ungrouped(commands: dict[str, Any]) -> set[str]:
    grouped = [name for names in GroupedCommands.groups.values() for name in names]
    assert len(grouped) == len(set(grouped))
    return {name for name, one in commands.items() if not one.hidden} ^ set(grouped)


def test_every_command_is_listed_under_what_people_do_with_it() -> None:
    assert _ungrouped(GROUP.commands) == set(), "name it in cli/command_groups.py"
    assert _ungrouped({**GROUP.commands, "new": GROUP.commands["train"]}) == {"new"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_first_page_has_a_heading_for_each_group_and_no_sentence_cut_off(
    stoker: CommandLine, language: str
) -> None:
    page = stoker("--help", language=language).out
    lines = page.splitlines()
    for heading, names in GroupedCommands.groups.items():
        start = lines.index(messages.CATALOGUES[language][heading])
        listed = [line.split()[0] for line in lines[start + 1 :] if re.match("  [a-z]", line)]
        assert tuple(listed[: len(names)]) == names
    assert messages.CATALOGUES[language]["help.commands"] not in page
    assert not any(line.rstrip().endswith(("...", "…")) for line in lines[1:])


def test_a_chinese_line_ends_between_characters_and_never_before_punctuation() -> None:
    text = "放不放得下、要多久（见 `stoker plan run.yaml`），以及理由。"
    for width in range(26, 64):
        lines = wrap(text, width)
        assert "".join("".join(lines).split()) == "".join(text.split())
        assert all(cell_len(line) <= width for line in lines)
        assert not any(line[0] in "，。、）" or line[-1] == "（" for line in lines)
        assert any("`stoker plan run.yaml`" in line for line in lines)


def test_a_number_and_its_unit_stay_in_one_line() -> None:
    text = (
        "整个租用过程要 4 小时 37 分（准备环境 +4 分），共 9.15 CNY、1,024 步；the whole takes 4 h 37 min and 23.1 GiB"
    )
    for width in range(12, 70):
        lines = wrap(text, width)
        for amount in ("4 小时", "37 分", "+4 分", "9.15 CNY", "1,024 步", "4 h", "37 min", "23.1 GiB"):
            assert any(amount in line for line in lines), (width, amount)


def test_a_bracket_stays_with_what_it_closes() -> None:
    text = "memory 15.5 GiB (at most 24 min 27 s); then `stoker plan`, or (see 4 h): the end."
    for width in range(12, 80):
        assert not any(line[0] in "),;:." for line in wrap(text, width)), width


def test_talk_and_errors_end_lines_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [f"`choice{number}`" for number in range(30)]
    error = StokerError("STK108", "--sort", given="`x`", choices=options, nearest="")
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=60, soft_wrap=True)
    monkeypatch.setattr(console, "stderr", screen)
    monkeypatch.setenv("STOKER_LANG", "en")
    console.show_error(error)
    console.talk("run.named", name="run-a52a08", asked="翻译")
    lines = screen.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 60
    for word in [*options, "`run-a52a08`", f"hint: {error.hint.split()[0]}"]:
        assert any(word in line for line in lines), word


def test_a_narrow_terminal_gets_a_narrow_page(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    page = stoker("--help").out
    assert max(cell_len(line) for line in page.splitlines()) <= 60
