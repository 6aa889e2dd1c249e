"""`stoker watch`: one page and JSON from events made by hand; the live page in a real terminal of 80 columns."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_runs import (
    CommandLine,
    ago,
    attempt,
    checkpoint,
    end,
    evaluation,
    make_run,
    step,
    training,
    write_events,
)
from rich.cells import cell_len

from stoker.doctor import activity
from stoker.doctor.activity import GpuLoad
from stoker.supervise import processes
from stoker.terminal import console, keyboard, loss_chart, progress

ERROR = {
    "event": "error",
    "program": "train",
    "error": {"code": "STK405", "where": "", "fields": {"step": 3, "loss": "nan"}},
}


def make_running(runs: Path, **fields: object) -> Path:
    folder = make_run(runs, "medical")
    falling = [step(number, 5 - number / 40, **fields) for number in range(1, 81)]
    write_events(folder, attempt(160), *falling, evaluation(80, 3.125), checkpoint(80, at=ago(seconds=200)))
    return folder


def page(text: str) -> dict[str, str]:
    """The page's rows by label."""
    rows = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def test_a_training_that_was_killed_with_its_supervisor_is_interrupted_and_not_failed(
    stoker: CommandLine, runs: Path
) -> None:
    folder = make_running(runs)
    record = {"pid": 4194305, "host": socket.gethostname(), "state": "running"}

    def title(**changes: str) -> str:
        (folder / "supervisor.json").write_text(json.dumps(record | changes), encoding="utf-8")
        return stoker("watch", "medical", "--once").out.splitlines()[0]

    assert title(boot="of last week") == "medical · interrupted"
    said = stoker("watch", "medical", "--once").out.replace("\n", " ")
    assert re.search(r"`stoker train \S+` resumes from step 80", said), said
    assert title(boot="of last week", host="a node") == "medical · interrupted"
    assert title(boot="of last week", state="failed") == "medical · failed"
    assert title(boot=processes.boot()) == title() == "medical · interrupted"


def test_one_page_of_a_running_training(stoker: CommandLine, runs: Path) -> None:
    folder = make_running(runs)
    with training(folder):
        outcome = stoker("watch", "medical", "--once")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "medical · running"
    assert lines[1].rstrip().endswith("80/160  50.0 %")
    rows = page(outcome.out)
    assert rows["loss"] == "3.0000 (first 4.9750)"
    assert rows["eval loss"] == "3.1250 at step 80"
    assert rows["speed"] == "4,000 tokens/s"
    assert rows["time left"].startswith("2 min 40 s, done at about ")
    assert rows["checkpoint"].startswith("step 80, 1.2 GB, 3 min ")
    assert rows["resume"] == "EXACT"
    assert "input-bound" not in outcome.out


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_loss_is_a_chart_with_its_evals(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch, width: int, language: str
) -> None:
    folder = make_running(runs)
    monkeypatch.setattr(console.stdout, "_width", width)
    with training(folder):
        lines = stoker("watch", "medical", "--once", language=language).out.splitlines()
    drawn = [line for line in lines if "│" in line]
    curve = ["".join(re.findall(r"[\u2801-\u28ff]", line)) for line in drawn]
    assert all(curve), "a straight fall passes every line"
    first = [re.search(r"[\u2801-\u28ff]", line).start() for line in drawn]
    assert first == sorted(first), "it falls from left to right"
    assert drawn[0].split("│")[0].strip() == "5.0"
    assert drawn[-1].split("│")[0].strip() == "3.0"
    assert sum(line.count("o") for line in drawn) == 1, "one eval"
    axis = lines[lines.index(drawn[-1]) + 1].split()
    assert (axis[0], axis[-1]) == ("1", "80")
    assert max(cell_len(line.rstrip()) for line in lines) <= width
    assert len(lines) <= 24


def test_a_terminal_without_braille_has_a_row_of_blocks(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loss_chart.can_show("utf-8")
    assert not loss_chart.can_show("gbk")
    monkeypatch.setattr(loss_chart, "can_show", lambda encoding: False)
    folder = make_running(runs)
    with training(folder):
        outcome = stoker("watch", "medical", "--once")
    assert "│" not in outcome.out
    assert page(outcome.out)["loss"] == "███▇▇▇▇▆▆▆▆▅▅▅▅▄▄▄▄▃▃▃▃▂▂▂▂▁▁▁ 3.0000 (first 4.9750)"


def test_a_curve_of_one_step_is_no_chart(stoker: CommandLine, runs: Path) -> None:
    write_events(make_run(runs, "medical"), attempt(2), step(1, 3.0))
    assert "│" not in stoker("watch", "medical", "--once").out


@pytest.mark.parametrize("by", ["attempt", "restart", "supervisor"])
def test_a_new_attempt_without_a_step_has_no_pace(stoker: CommandLine, runs: Path, by: str) -> None:
    folder = make_running(runs, at=ago(seconds=60))
    if by == "attempt":
        write_events(folder, attempt(160, resumed_step=80))
    elif by == "restart":
        write_events(folder, {"event": "restart", "reason": "killed", "step": 80, "wait_seconds": 0})
    else:
        record = {"pid": 1, "state": "running", "started": ago(seconds=1)}
        (folder / "supervisor.json").write_text(json.dumps(record), encoding="utf-8")
    with training(folder):
        rows = page(stoker("watch", "medical", "--once").out)
        assert rows["time left"] == "not known yet: the new attempt has done no step"
        assert "speed" not in rows
        write_events(folder, attempt(160, resumed_step=80), step(81, 3.0))
        rows = page(stoker("watch", "medical", "--once").out)
    assert rows["speed"] == "4,000 tokens/s"
    assert rows["time left"].startswith("2 min 38 s")


def test_one_page_in_chinese(stoker: CommandLine, runs: Path) -> None:
    folder = make_running(runs, wait_seconds=0.9)
    with training(folder):
        out = stoker("watch", "medical", "--once", language="zh").out
    assert out.splitlines()[0] == "medical · 运行中"
    rows = page(out)
    assert rows["速度"] == "4,000 词元/秒"
    assert rows["评估损失"] == "3.1250，第 80 步"
    assert rows["剩余时间"].startswith("2 分 40 秒，预计 ")
    assert "! 数据读取是瓶颈：训练在等数据" in out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80


def test_waiting_for_data_is_called_input_bound_only_while_it_runs(stoker: CommandLine, runs: Path) -> None:
    folder = make_running(runs, wait_seconds=0.9)
    with training(folder):
        assert "! input-bound: training is waiting for the data loader" in stoker("watch", "medical", "--once").out
    assert "input-bound" not in stoker("watch", "medical").out


def test_cards_and_their_memory_are_shown(stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_running(runs, memory_bytes=15 << 30)
    loads = [GpuLoad(0, 97, 21 << 30, 24 << 30), GpuLoad(1, 4, 1 << 30, 24 << 30)]
    monkeypatch.setattr(activity, "gpus", lambda: loads)
    with training(folder):
        rows = page(stoker("watch", "medical", "--once").out)
        found = json.loads(stoker("watch", "medical", "--json").out)
    assert rows["GPU 0"] == "97 % busy, 21.0 of 24.0 GiB"
    assert rows["GPU 1"] == "4 % busy, 1.0 of 24.0 GiB"
    assert rows["memory"] == "15.0 GiB peak reserved"
    assert found["gpus"][0]["utilisation_percent"] == 97
    assert found["memory_bytes"] == 15 << 30


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_on_a_cpu_the_process_is_measured(stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_running(runs)
    monkeypatch.setattr(activity, "gpus", list)
    with training(folder):
        rows = page(stoker("watch", "medical", "--once").out)
        found = json.loads(stoker("watch", "medical", "--json").out)
    assert re.fullmatch(r"this run uses \d+ % of \d+ CPUs", rows["CPU"])
    assert rows["memory"].endswith("GiB main memory")
    assert 0 <= found["cpu_percent"] < 150
    assert found["memory_bytes"] > 1e6


def test_where_nothing_can_be_measured_nothing_is_shown(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_running(runs)
    monkeypatch.setattr(activity, "gpus", list)
    monkeypatch.setattr(activity, "cpu_seconds", lambda pid: None)
    monkeypatch.setattr(activity, "memory_bytes", lambda pid: None)
    with training(folder):
        rows = page(stoker("watch", "medical", "--once").out)
    assert not {"CPU", "memory", "GPU 0"} & rows.keys()


def test_json_of_a_run_that_ended(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    write_events(folder, attempt(2, tier="SAMPLE-EXACT"), step(1, 3.0), step(2, 2.0), end("done", 2))
    found = json.loads(stoker("watch", "medical", "--json").out)
    assert (found["state"], found["step"], found["loss"], found["tier"]) == ("done", 2, 2.0, "SAMPLE-EXACT")
    assert (found["checkpoint"], found["eval_loss"], found["gpus"], found["error"]) == (None, None, [], None)
    assert found["seconds_left"] == 0


@pytest.mark.parametrize(("language", "said"), [("en", "the loss at step 3 is nan"), ("zh", "第 3 步的损失是 nan")])
def test_failed_run_shows_its_error_and_a_hint(stoker: CommandLine, runs: Path, language: str, said: str) -> None:
    folder = make_run(runs, "medical")
    write_events(folder, attempt(40), step(3, "nan"), ERROR)
    out = stoker("watch", "medical", language=language).out
    assert f"✗ {said}  [STK405]" in out
    assert "stoker logs" in out


@pytest.mark.parametrize(("language", "said"), [("en", "finished model is that of step 80"), ("zh", "取自第 80 步")])
def test_a_finished_model_that_is_not_of_the_best_step_is_called_so(
    stoker: CommandLine, runs: Path, language: str, said: str
) -> None:
    not_best = {"event": "not_best", "best": 40, "step": 80, "reason": "COMMIT.json is missing"}
    write_events(make_run(runs, "medical"), attempt(80), step(80, 3), not_best, end("done", 80))
    assert said in " ".join(stoker("watch", "medical", "--once", language=language).out.split())


def test_run_that_never_started_is_new(stoker: CommandLine, runs: Path) -> None:
    make_run(runs, "medical")
    outcome = stoker("watch", "medical")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == "medical · new"
    assert page(outcome.out)["checkpoint"] == "none yet"


def test_process_without_events_yet_is_starting(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    with training(folder):
        lines = stoker("watch", "medical").out.splitlines()
        assert (lines[0], lines[1].startswith("loading torch and the model")) == ("medical · running", True)
        write_events(folder, attempt(6))
        assert "before the first step: loading, then rehearsing" in stoker("watch", "medical").out
        write_events(folder, step(1, 2.0))
        assert "rehearsing" not in stoker("watch", "medical").out


def test_unknown_run_is_an_error(stoker: CommandLine) -> None:
    assert "STK501" in stoker("watch", "nobody").err


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([2.0, 2.0, 2.0], "▁▁▁"),
        ([0.0, 7.0], "▁█"),
        ([7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0], "█▇▆▅▄▃▂▁"),
        ([0.0, 0.0, 7.0, 7.0, 7.0, 7.0, 0.0, 0.0], "▁██▁"),
    ],
)
def test_sparkline_is_the_mean_of_neighbours(values: list[float], expected: str) -> None:
    assert progress.sparkline(values, width=len(expected) or 8) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("leave_by", ["q", "Ctrl-C"])
def test_live_page_is_left_by_a_key_and_the_run_goes_on(runs: Path, leave_by: str) -> None:
    folder = make_running(runs)
    settings = {"STOKER_RUNS": str(runs), "STOKER_LANG": "en", "TERM": "xterm", "COLUMNS": "80"}
    words = [sys.executable, "-c", "from stoker.cli.main import main; main()", "watch", "medical"]
    ours, theirs = os.openpty()
    with training(folder) as process:
        # Started in the background, a test run ignores SIGINT, and so would its children.
        heeding = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        environment = {**os.environ, **settings}
        with subprocess.Popen(words, stdin=theirs, stdout=theirs, env=environment, preexec_fn=heeding) as watching:
            os.close(theirs)
            shown = b""
            while b"q quits; the run continues" not in shown:
                shown += os.read(ours, 4096)
            if leave_by == "q":
                os.write(ours, b"q")
            else:
                watching.send_signal(signal.SIGINT)
            shown += _rest(ours)
            assert watching.wait() == 0
        assert process.poll() is None
    os.close(ours)
    assert b"medical" in shown
    assert "│".encode() in shown


def _rest(terminal: int) -> bytes:
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:
        pass  # Linux says so when the other end is closed
    return shown


def test_keys_are_not_read_where_input_is_not_a_terminal(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with keyboard.Keyboard() as keys:
            assert keys.pressed() == ""


def supervised(folder: Path, **facts: Any) -> None:
    known = {"pid": 1, "state": "running", "restarts": 0, "reason": "", "next_retry": None, "stops_at": None}
    (folder / "supervisor.json").write_text(json.dumps({**known, **facts}), encoding="utf-8")


def test_a_run_nobody_disturbed_has_no_line_of_its_supervisor(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    write_events(folder, attempt(120), step(40, 2.0), end("done", 40))
    supervised(folder, state="done")
    assert "supervisor" not in stoker("watch", "medical", "--once").out


@pytest.mark.parametrize(("language", "said"), [("en", "restarts: 2, last: no sign of life"), ("zh", "长时间无响应")])
def test_restarts_and_limits_are_shown(stoker: CommandLine, runs: Path, language: str, said: str) -> None:
    folder = make_run(runs, "medical")
    restart = {"event": "restart", "reason": "hang", "step": 30, "wait_seconds": 0}
    write_events(folder, attempt(120), step(30, 2.0), restart, attempt(120), step(40, 2.0))
    with training(folder):
        supervised(folder, restarts=2, stops_at="2026-11-15T20:00:00+00:00")
        out = stoker("watch", "medical", "--once", language=language).out
    assert said in out
    assert "11-15 20:00:00" in out


def test_json_has_what_the_supervisor_wrote(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    write_events(folder, attempt(120), step(40, 2.0))
    supervised(folder, restarts=3)
    assert json.loads(stoker("watch", "medical", "--json").out)["supervisor"]["restarts"] == 3


def test_a_step_that_was_passed_over_has_no_loss(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    write_events(folder, attempt(120), step(39, 2.0), step(40, None))
    assert stoker("watch", "medical", "--once").code == 0
