"""`stoker recipes` through the door people use."""

import json
from pathlib import Path

import pytest
from made_runs import CommandLine
from rich.cells import cell_len

from stoker.rundir import layout
from stoker.terminal import recipe_table


def test_a_run_that_cannot_be_named_as_its_file_says_its_name_until_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_LANG", "zh")
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    Path("翻译.yaml").write_text("model: m\ndata: {train: a}\n", encoding="utf-8")
    run_file = recipe_table.named("翻译.yaml", [])
    said = capsys.readouterr().err
    assert f"`{run_file.run.name}`" in said
    assert "`翻译`" in said.replace("\n", "")
    layout.create(run_file)
    recipe_table.named("翻译.yaml", [])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_a_recipe_is_for_is_one_sentence_and_whole_in_80_columns(stoker: CommandLine, language: str) -> None:
    sentences = [row["for"] for row in json.loads(stoker("recipes", "--json", language=language).out)]
    assert not [one for one in sentences if one.endswith((".", "。", "；", "，")) or "。" in one]
    shown = stoker("recipes", language=language).out
    assert max(map(cell_len, shown.splitlines())) <= 80
    assert [one for one in sentences if "".join(one.split()) not in "".join(shown.split())] == []
