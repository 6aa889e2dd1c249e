"""`--help` of every command, in both languages."""

import io

import pytest
import typer
from made_runs import CommandLine
from rich.cells import cell_len
from rich.console import Console

from stoker import messages
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
