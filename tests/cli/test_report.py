"""`stoker report`: the page of a run by its name, also of one that failed; and at the end of `stoker train`."""

import json
from pathlib import Path

import pytest
import reported_run
from made_runs import CommandLine

from stoker.api.run_progress import RunProgress
from stoker.cli import report_command, train_command


@pytest.mark.parametrize("end", ["done", "failed", None])
def test_the_path_of_the_page_is_printed(stoker: CommandLine, runs: Path, end: str | None) -> None:
    reported_run.make(runs, end=end)
    outcome = stoker("report", "medical")
    assert outcome.code == 0
    assert Path(outcome.out.strip()).read_text(encoding="utf-8").endswith("</html>\n")


def test_json_has_the_plan_beside_what_was_measured(stoker: CommandLine, runs: Path) -> None:
    reported_run.make(runs)
    found = json.loads(stoker("report", "medical", "--json").out)
    assert Path(found["path"]).is_file()
    assert {one["name"] for one in found["plan"]} >= {"tokens_per_second", "time_seconds"}


def test_a_run_without_a_plan_has_a_page(stoker: CommandLine, runs: Path) -> None:
    reported_run.make(runs).plan_file.unlink()
    assert json.loads(stoker("report", "medical", "--json").out)["plan"] is None


def test_an_unknown_run_is_named(stoker: CommandLine) -> None:
    assert "STK501" in stoker("report", "nobody").err


@pytest.mark.parametrize(("language", "word"), [("en", "Curves"), ("zh", "曲线")])
def test_the_page_is_in_the_reader_s_language(stoker: CommandLine, runs: Path, language: str, word: str) -> None:
    reported_run.make(runs)
    text = Path(stoker("report", "medical", language=language).out.strip()).read_text(encoding="utf-8")
    assert word in text


def test_training_leaves_a_page(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = reported_run.make(runs)
    progress = RunProgress(run_dir)
    progress.update()
    assert train_command._ended(run_dir, 0, progress) == 0
    assert (run_dir.path / "report.html").is_file()
    assert "report.html" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_said_and_nothing_else_changes(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = reported_run.make(runs)
    (run_dir.path / "report.html").mkdir()
    report_command.keep(run_dir)
    assert capsys.readouterr().err.strip()
