"""`stoker runs` over run directories made by hand."""

import json
import os
from pathlib import Path

import pytest
from made_runs import CommandLine, attempt, checkpoint, end, evaluation, make_run, step, training, write_events
from rich.cells import cell_len

from stoker.launch import programs

ERROR = {
    "event": "error",
    "program": "train",
    "error": {"code": "STK405", "where": "", "fields": {"step": 3, "loss": "nan"}},
}


def make_some(runs: Path) -> None:
    make_run(runs, "fresh", created="2026-11-10T08:00:00+00:00")
    done = make_run(runs, "scratch_tiny", created="2026-11-11T08:00:00+00:00")
    write_events(done, attempt(120), step(119, 2.5), step(120, 2.25), evaluation(120, 2.75), end("done", 120))
    (done / "checkpoints").mkdir()
    (done / "checkpoints" / "weights").write_bytes(bytes(12_000_000))
    stopped = make_run(runs, "medical-qa", created="2026-11-13T08:00:00+00:00")
    write_events(stopped, attempt(4000), step(500, 1.5), checkpoint(500), end("stopped", 500))
    failed = make_run(runs, "too_hot", created="2026-11-12T08:00:00+00:00")
    write_events(failed, attempt(40), step(3, "nan"), ERROR)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_runs_are_listed_newest_first(stoker: CommandLine, runs: Path) -> None:
    make_some(runs)
    outcome = stoker("runs")
    assert outcome.code == 0
    assert lines(outcome.out) == [
        "name          state        step    loss  eval loss  started       size",
        "medical-qa    stopped  500/4000  1.5000          -  11-13 08:00   1 kB",
        "too_hot       failed       3/40     nan          -  11-12 08:00   1 kB",
        "scratch_tiny  done      120/120  2.2500     2.7500  11-11 08:00  12 MB",
        "fresh         new             -       -          -  11-10 08:00   0 kB",
    ]


def test_runs_are_listed_in_chinese(stoker: CommandLine, runs: Path) -> None:
    make_some(runs)
    listed = lines(stoker("runs", language="zh").out)
    assert [line.split()[1] for line in listed] == ["状态", "已停止", "失败", "已完成", "未开始"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_long_names_and_counts_fit_80_columns_uncut(stoker: CommandLine, runs: Path, language: str) -> None:
    name = "qlora-qwen2.5-7b-medical-questions-and-answers-v12"
    folder = make_run(runs, name)
    write_events(folder, attempt(1_000_000), step(123_456, 12.3456), evaluation(120_000, 12.1))
    out = stoker("runs", language=language).out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
    assert "123456/1000000" in out
    assert name in "".join(line.split(" ")[0] for line in out.splitlines()[1:])


def test_a_file_with_two_names_counts_once(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    (folder / "artifacts" / "export").mkdir(parents=True)
    (folder / "artifacts" / "model.safetensors").write_bytes(bytes(1 << 20))
    sizes = []
    for place in ("one", "two"):
        sizes.append(json.loads(stoker("runs", "--json").out)[0]["size_bytes"])
        os.link(folder / "artifacts" / "model.safetensors", folder / "artifacts" / "export" / place)
    assert sizes[0] == sizes[1] > 1 << 20


def test_json_has_the_figures_in_full(stoker: CommandLine, runs: Path) -> None:
    make_some(runs)
    found = {run["name"]: run for run in json.loads(stoker("runs", "--json").out)}
    assert list(found) == ["medical-qa", "too_hot", "scratch_tiny", "fresh"]
    assert found["scratch_tiny"].pop("size_bytes") > 12_000_000
    assert found["scratch_tiny"] == {
        "name": "scratch_tiny",
        "state": "done",
        "failed_in": "",
        "step": 120,
        "total_steps": 120,
        "restarts": 0,
        "loss": 2.25,
        "eval_loss": 2.75,
        "started": "2026-11-11T08:00:00+00:00",
        "elsewhere": None,
    }
    assert found["too_hot"]["loss"] == "nan"
    assert found["fresh"]["loss"] is None


def test_live_process_means_running_and_a_dead_one_failed(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "alive")
    write_events(folder, attempt(100), step(7, 3.0))

    def state() -> str:
        (found,) = json.loads(stoker("runs", "--json").out)
        return str(found["state"])

    with training(folder):
        assert state() == "running"
    assert state() == "failed"


def test_process_that_dies_before_its_first_event_has_failed(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "stillborn")
    (folder / "process.json").write_text('{"pid": 4194305, "attempt": 1}', encoding="utf-8")
    assert json.loads(stoker("runs", "--json").out)[0]["state"] == "failed"


@pytest.mark.parametrize(("language", "said"), [("en", "prepare failed"), ("zh", "数据准备失败")])
def test_a_failed_preparation_is_told_from_a_failed_training(
    stoker: CommandLine, runs: Path, language: str, said: str
) -> None:
    make_some(runs)
    bad = {"code": "STK301", "where": "rows.jsonl", "fields": {}}
    write_events(make_run(runs, "unprepared"), {"event": "error", "program": "prepare", "error": bad})
    listed = {line.split()[0]: line for line in lines(stoker("runs", language=language).out)}
    assert said in listed["unprepared"]
    assert said not in listed["too_hot"]
    found = {run["name"]: (run["state"], run["failed_in"]) for run in json.loads(stoker("runs", "--json").out)}
    assert found["unprepared"] == ("failed", "prepare")
    assert found["too_hot"] == ("failed", "train")
    assert stoker("watch", "unprepared", language=language).out.splitlines()[0] == f"unprepared · {said}"


def test_later_attempt_wipes_out_an_earlier_error(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "mended")
    write_events(folder, attempt(40), step(3, "nan"), ERROR, attempt(40), step(40, 1.0), end("done", 40))
    assert json.loads(stoker("runs", "--json").out)[0]["state"] == "done"


def test_line_cut_by_a_crash_is_passed_over(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "cut")
    write_events(folder, attempt(40), step(3, 1.5))
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "step", "step": 4, "lo')
    assert json.loads(stoker("runs", "--json").out)[0]["step"] == 3


@pytest.mark.parametrize(("language", "said"), [("en", "No runs in"), ("zh", "还没有运行")])
def test_without_runs_a_first_command_is_named(stoker: CommandLine, language: str, said: str) -> None:
    outcome = stoker("runs", language=language)
    assert (outcome.code, outcome.out) == (0, "")
    assert said in outcome.err
    assert "stoker train scratch_tiny" in outcome.err
    assert json.loads(stoker("runs", "--json").out) == []


@pytest.mark.parametrize("words", [("eval", "medical"), ("chat", "medical", "hello")])
def test_before_the_first_checkpoint_nothing_is_started_to_evaluate_or_talk_with(
    stoker: CommandLine, runs: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(programs, "check_engine", start)
    (make_run(runs, "medical") / "checkpoints" / ".step-00000010.writing").mkdir(parents=True)
    done = stoker(*words)
    assert done.code == 1
    assert "[STK502]" in done.err
