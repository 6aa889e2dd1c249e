"""What `stoker train` shows: three lines of what will happen, then a bar, and a label for every wait."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import reported_run
from made_runs import CommandLine, attempt, checkpoint, end, evaluation, make_run, step, write_events
from rich.cells import cell_len
from rich.console import Console, Group

from stoker.api.run_progress import RunProgress
from stoker.cli import prepare_command
from stoker.config import load
from stoker.report import outlook
from stoker.rundir import files
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.terminal import console, plan_pages, train_screen
from stoker.terminal.train_screen import TrainScreen


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal of 80 columns that keeps what was drawn."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, height=24, highlight=False, markup=False)
    monkeypatch.setattr(console, "stderr", screen)
    return screen


def drawn(screen: Console, progress: RunProgress, events: list[dict[str, Any]]) -> str:
    """What is shown of a run that was started just now, and to which this happened since."""
    with TrainScreen(progress) as one, screen.capture() as shown:
        write_events(progress.run_dir.path, *events)
        progress.update()
        one.show()
    return shown.get()


def started(runs: Path, *events: dict[str, object]) -> RunProgress:
    folder = make_run(runs, "medical")
    write_events(folder, *events)
    progress = RunProgress(RunDir(folder))
    progress.update()
    return progress


SOME_STEPS = [step(number, 4.0 - number / 40) for number in range(1, 41)]


def test_a_bar_has_step_loss_speed_time_left_and_the_last_save(runs: Path, terminal: Console) -> None:
    said = drawn(terminal, started(runs), events=[attempt(160), *SOME_STEPS, evaluation(40, 3.5), checkpoint(40)])
    for word in (
        "40/160",
        "25.0 %",
        "4 min 00 s left",
        "loss 3.0000",
        "eval 3.5000",
        "4,000 tokens/s",
        "saved step 40",
    ):
        assert word in said
    assert "━" in said


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(
    runs: Path, terminal: Console, monkeypatch: pytest.MonkeyPatch, language: str, width: int
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    terminal.width = width
    slow = [{**one, "wait_seconds": 1.9} for one in SOME_STEPS]
    progress = started(runs, attempt(1_000_000), *slow, evaluation(40, 3.5), checkpoint(40))
    plain = Console(file=io.StringIO(), width=500, highlight=False)
    with plain.capture() as shown:
        plain.print(Group(*TrainScreen(progress)._lines()))
    lines = [line.rstrip() for line in shown.get().splitlines()]
    assert len(lines) >= 3
    assert max(map(cell_len, lines)) <= width


def test_a_fact_stays_on_one_line() -> None:
    facts = ["loss 3.0000", "4,000 tokens/s", "已保存第 40 步"]
    assert train_screen._joined(facts, 30) == ["loss 3.0000 · 4,000 tokens/s", "已保存第 40 步"]
    assert train_screen._joined(facts, 27) == ["loss 3.0000", "4,000 tokens/s", "已保存第 40 步"]
    assert train_screen._joined(facts, 80) == [" · ".join(facts)]


@pytest.mark.parametrize(
    ("before", "events", "label"),
    [
        ([], [], "loading torch and the model"),
        ([], [attempt(160)], "before the first step: loading, then rehearsing"),
        ([], [attempt(160), {"event": "rehearsal", "part": "step", "seconds": 2.0}], "done: longest batch"),
        ([], [attempt(40), *SOME_STEPS, end("done", 40)], "the supervisor is finishing"),
        ([attempt(160), *SOME_STEPS, end("stopped", 40)], [], "loading torch and the model"),
    ],
)
def test_a_wait_has_a_label(
    runs: Path, terminal: Console, monkeypatch: pytest.MonkeyPatch, before: list, events: list, label: str
) -> None:
    monkeypatch.setattr("stoker.terminal.train_screen._LABEL_SECONDS", 0.0)
    progress = started(runs, *before)
    progress.recent.clear()  # of an earlier attempt, as the supervisor's start has it
    assert label in " ".join(drawn(terminal, progress, events=events).split())


def test_an_eval_that_is_due_has_a_label_and_one_that_is_done_has_none(
    runs: Path, terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.terminal.train_screen._LABEL_SECONDS", 0.0)
    made = reported_run.planned()
    counts = made.steps.model_copy(update={"per_epoch": 40, "total": 160})
    intervals = made.intervals.model_copy(update={"evaluate": "epoch"})
    progress = started(runs)
    plan = made.model_copy(update={"steps": counts, "intervals": intervals})
    files.write_json(progress.run_dir.plan_file, plan.model_dump())
    assert "evaluating after step 40" in drawn(terminal, progress, [attempt(160), *SOME_STEPS])
    assert "evaluating" not in drawn(terminal, progress, [evaluation(40, 3.0)])


def test_without_a_terminal_there_are_plain_lines(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = started(runs)
    with TrainScreen(progress) as screen:
        write_events(progress.run_dir.path, attempt(160), *SOME_STEPS)
        progress.update()
        screen.show()
    said = capsys.readouterr().err
    assert said.startswith("step 40/160 · epoch 1.00 · loss 3.0000 · 4,000 tokens/s")
    assert "\x1b" not in said


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_will_happen_is_three_lines_and_the_reasons_are_behind_a_flag(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch, language: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    run, made = load.load("scratch_tiny").run, reported_run.planned()
    sure = made.model_copy(update={"fits": "yes", "safe": None, "estimated": []})
    plan_pages.show_outlook(run, sure, RunDir(runs / "medical"), why=False)
    brief = capsys.readouterr().out.splitlines()
    assert len(brief) == 3
    assert "2.5" not in brief[0]
    assert "CNY" in brief[1]
    assert "medical/artifacts/final" in brief[2]
    plan_pages.show_outlook(run, sure, RunDir(runs / "medical"), why=True)
    whole = capsys.readouterr().out
    assert "batch.micro" in whole
    assert "batch.micro" not in "".join(brief)


def report(bad: int = 0, **survey: Any) -> Report:
    """Of 300 rows, some of which cannot be used."""
    split = {"sequences": 271, "segments": 271, "tokens": 9000, "trained_tokens": 4000, "longest": 64}
    split |= {"longest_segment": 64, "shards": [], "files": {}}
    counts = {"rows_read": 300, "bad_rows": bad, "truncated_rows": 0, "length_histogram": {}, "detected": []}
    shares = {"pack_efficiency": 0.9, "unigram_entropy": 1.0, "packed": False, "length": 64, "vocab": 300}
    found = {"policy": "keep", "rows": {"train": 285}, **survey}
    said = {"digest": "d", "key": "", "objective": "sft", **counts, **shares, "train": split, "survey": found}
    return Report.model_validate(said)


def copies(count: int, **more: Any) -> dict[str, Any]:
    return {"rows": {"exact": count}, "tokens": 9, "places": [], **more}


SPLIT = {"share": 0.1, "groups": 1}
NO_COPIES = {"duplicates": {"train": copies(0, **SPLIT)}, "leaks": copies(0, eval_rows=0)}
ROWS_FOUND = [
    (report(), []),
    (report(**NO_COPIES), []),
    (report(survey=None), []),
    (report(15, **NO_COPIES), ["15 of 300 rows cannot be used and are left out"]),
    (report(1), ["1 of 300 rows cannot be used and is left out"]),
    (
        report(15, duplicates={"train": copies(50, **SPLIT), "eval": copies(3, **SPLIT)}, leaks=copies(1, eval_rows=1)),
        ["15 of 300", "50 training rows repeat an earlier one", "1 training row stands in eval, too"],
    ),
    (
        report(policy="drop", dropped_rows=60, duplicates={"train": copies(50, **SPLIT)}),
        ["60 rows that repeat others or stand in eval, too, are left out"],
    ),
]


@pytest.mark.parametrize(("found", "parts"), ROWS_FOUND)
def test_what_is_the_matter_with_the_rows_is_one_line_and_only_where_something_is(
    found: Report, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = outlook.rows_found(found)
    assert len(said) == bool(parts)
    assert "".join(said).count("; ") == max(0, len(parts) - 1)
    assert all(part in said[0] for part in parts)
    assert all("`stoker prepare`" in line for line in said)
    monkeypatch.setenv("STOKER_LANG", "zh")
    chinese = outlook.rows_found(found)
    assert len(chinese) == len(said)
    assert [re.findall(r"\d+", part.partition(" of ")[0]) for part in parts] == [
        re.findall(r"\d+", part)[-1:] for line in chinese for part in line.split("；")
    ]


def test_the_line_about_the_rows_stands_in_what_train_says(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, made = load.load("scratch_tiny").run, reported_run.planned()
    said: dict[int, list[str]] = {}
    for bad in (0, 15):
        monkeypatch.setattr("stoker.report.outlook.prepared.read_report", lambda _, bad=bad: report(bad))
        plan_pages.show_outlook(run, made, RunDir(runs / "medical"), why=False)
        said[bad] = capsys.readouterr().out.splitlines()
    assert [line for line in said[15] if line not in said[0]] == outlook.rows_found(report(15))


def test_a_run_that_may_not_fit_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = reported_run.planned().model_copy(update={"fits": "tight", "safe": None})
    plan_pages.show_outlook(load.load("scratch_tiny").run, made, RunDir(runs / "medical"), why=False)
    assert "not certain" in capsys.readouterr().out


@pytest.mark.parametrize(("language", "pace"), [("en", "250 rows/s"), ("zh", "每秒 250 行")])
def test_a_preparation_says_its_pace_since_it_was_seen_first(
    monkeypatch: pytest.MonkeyPatch, language: str, pace: str
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    clock = iter([90.0, 92.0, 100.0, 104.0])
    monkeypatch.setattr(prepare_command.time, "monotonic", lambda: next(clock))
    shown: list[str] = []

    class Line(console.StatusLine):
        def show(self, line: str) -> None:
            shown.append(line)

    line = prepare_command._ProgressLine(Line())
    for done in (1000, 1500):
        line.take({"event": "surveying", "done_rows": done})
    assert pace in shown.pop()
    assert pace not in shown.pop()
    for done in (5000, 6000):  # goes on with a pass that was interrupted
        line.take({"event": "prepare", "done_rows": done, "rows": 9000, "tokens": 70})
    assert pace not in shown[0]
    assert pace in shown[1]
