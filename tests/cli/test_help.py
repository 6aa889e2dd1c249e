"""`--help` of every command, in both languages."""

import pytest
import typer
from made_runs import CommandLine
from rich.cells import cell_len

from stoker import messages
from stoker.cli.main import app
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


def test_a_narrow_terminal_gets_a_narrow_page(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    page = stoker("--help").out
    assert max(cell_len(line) for line in page.splitlines()) <= 60
