"""Money so far and at the end, where a price is known; what became of the machine; `stoker settle` by hand."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from made_runs import CommandLine, ago, attempt, end, make_run, step, training, write_events

from stoker.api.run_progress import RunProgress
from stoker.launch import training as processes
from stoker.rundir.layout import RunDir
from stoker.terminal.progress import progress_line

COST = {"price_per_hour": 1.8, "billed_devices": 2, "currency": "CNY"}


def make_priced(runs: Path, *, running: bool = True) -> Path:
    folder = make_run(runs, "medical")
    seconds = {"spent_seconds": 3600.0, "beat": ago(seconds=0)}
    (folder / "plan.json").write_text(json.dumps({"cost": COST, "after": "stay"}))
    (folder / "supervisor.json").write_text(json.dumps({"pid": 1, "state": "running", **seconds}))
    steps = [step(number, 3.0, seconds=10.0) for number in range(1, 81)]
    write_events(folder, attempt(440), *steps, *([] if running else [end("done", 80)]))
    return folder


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "running_pid", lambda _: 1)


@pytest.mark.usefixtures("running")
def test_the_progress_line_says_money_so_far_and_at_the_end(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour at 2 x 1.80, and 360 steps of 10 s to go."""
    monkeypatch.setenv("STOKER_LANG", "en")
    progress = RunProgress(RunDir(make_priced(runs)))
    progress.update()
    assert progress_line(progress).endswith("left · 3.60 CNY so far, 7.20 CNY expected in total")


@pytest.mark.usefixtures("running")
def test_without_a_price_no_money_is_said(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    folder = make_priced(runs)
    (folder / "plan.json").write_text(json.dumps({"cost": None}))
    progress = RunProgress(RunDir(folder))
    progress.update()
    assert progress_line(progress).endswith(" left")
    assert progress.spent is None


def test_the_page_and_json_have_it_too(stoker: CommandLine, runs: Path) -> None:
    folder = make_priced(runs, running=False)
    settled = {"state": "waiting", "reason": "", "copy": "nowhere", "spent_seconds": 7200.0, "beat": ago(seconds=0)}
    (folder / "settled.json").write_text(json.dumps(settled))
    assert "7.20 CNY so far, 7.20 CNY expected in total" in stoker("watch", "medical", "--once").out
    facts = json.loads(stoker("watch", "medical", "--json").out)
    assert facts["money"] == {"so_far": 7.2, "at_end": 7.2, "currency": "CNY"}  # the machine was on while it waited
    assert facts["settled"]["state"] == "waiting"


@pytest.mark.parametrize("running", [True, False])
def test_money_at_the_end_is_not_said_while_the_time_left_is_unknown(
    stoker: CommandLine, runs: Path, *, running: bool
) -> None:
    """Started again and no step yet, or killed with its supervisor: what is left to do still costs."""
    folder = make_priced(runs)
    if running:
        write_events(folder, attempt(440))
    with training(folder) if running else nullcontext():
        page = stoker("watch", "medical", "--once").out
        assert json.loads(stoker("watch", "medical", "--json").out)["money"]["at_end"] is None
    assert "3.60 CNY so far" in page
    assert "expected in total" not in page


def test_a_warning_stands_on_the_page(stoker: CommandLine, runs: Path) -> None:
    folder = make_priced(runs)
    write_events(folder, {"event": "warning", "reason": "money", "spent_seconds": 80.0, "limit_seconds": 100.0})
    with training(folder):
        assert "most of the budget is spent" in stoker("watch", "medical", "--once").out


def test_settle_says_where_there_is_nothing_to_settle(stoker: CommandLine, runs: Path) -> None:
    make_priced(runs)
    outcome = stoker("settle", "medical")
    assert outcome.code == 0
    assert "nothing to settle" in outcome.err


def test_a_warning_reaches_the_users_command(
    stoker: CommandLine, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_priced(runs)
    plan = {"cost": COST, "after": "stay", "limits": {"money_seconds": 4500.0}}
    (folder / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setenv("STOKER_NOTIFY_COMMAND", f"tee {tmp_path / 'news'}")
    assert stoker("settle", "medical", "--warning", "money").code == 0
    assert "about 15 min are left" in (tmp_path / "news").read_text()
