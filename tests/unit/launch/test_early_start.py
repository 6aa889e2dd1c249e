"""Where a trainer is started before its plan, and that a launch which gets no plan leaves none."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from stoker import env
from stoker.config import load
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts import setup_times
from stoker.facts.machine import Machine
from stoker.launch import early_start, plan_inputs, training
from stoker.launch.early_start import EarlyStart
from stoker.plan import make
from stoker.rundir import layout
from stoker.rundir.layout import RunDir

WAITS = "import sys; sys.stdin.readline(); sys.exit(0 if sys.stdin.readline() else 75)"


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """Supervisors that were started early: each waits to be told what to start, and to go on."""
    started: list[subprocess.Popen[bytes]] = []

    def start(_: RunDir, *, early: bool) -> "subprocess.Popen[bytes]":
        assert early
        started.append(subprocess.Popen([sys.executable, "-S", "-c", WAITS], stdin=subprocess.PIPE))
        return started[-1]

    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(plan_inputs, "machine", lambda *_: here())
    monkeypatch.setattr(training, "start_supervisor", start)
    return started


def here(**other: Any) -> Machine:
    return plan_inputs.examine().model_copy(
        update={"cpu_count": 2, "kind": "cpu", "devices": (), "memory_bytes": 8 << 30, "nodes": 1, **other}
    )


@contextmanager
def waiting(run_file: RunFile, run_dir: RunDir) -> Iterator[EarlyStart | None]:
    """As a launch has it."""
    early = early_start.begin(run_file, run_dir)
    with closing(early) if early else nullcontext():
        yield early


def run(folder: Path, **sections: Any) -> tuple[RunFile, RunDir]:
    rows = folder / "rows.jsonl"
    if not rows.exists():
        rows.write_text(json.dumps({"text": "three words here"}) + "\n", encoding="utf-8")
    data = sections.pop("data", {})
    content = {
        "model": {"shape": "qwen2", "layers": 1, "width": 64, "heads": 1, "vocab": 300},
        "tokenizer": {"train": "bpe", "vocab": 300},
        "data": data if "set" in data else {"train": str(rows), **data},
        "train": {"objective": "pretrain"},
        **sections,
    }
    path = folder / "early.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    run_file = load.load(str(path))
    return run_file, layout.create(run_file)


def test_it_begins_beside_a_small_preparation_and_goes_on_when_told(tmp_path: Path, begun: list[Any]) -> None:
    with waiting(*run(tmp_path)) as early:
        assert early is not None
        assert early.go_on() is begun[0]
    assert begun[0].wait(10) == 0


def test_a_refusal_of_what_comes_between_ends_it(tmp_path: Path, begun: list[Any]) -> None:
    with pytest.raises(StokerError), waiting(*run(tmp_path)):
        raise StokerError("STK304")
    assert begun[0].poll() == 75


def test_other_variables_than_it_has_need_another_one(
    tmp_path: Path, begun: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting(*run(tmp_path)) as early:
        assert early is not None
        monkeypatch.setenv(env.HF_ENDPOINT.name, "https://mirror.example.org")
        assert early.go_on() is None
        assert begun[0].poll() == 75


def test_one_that_has_ended_is_not_used(tmp_path: Path, begun: list[Any]) -> None:
    with waiting(*run(tmp_path)) as early:
        assert early is not None
        begun[0].kill()
        begun[0].wait()
        assert early.go_on() is None


@pytest.mark.parametrize(
    "sections",
    [
        {"where": {"processes": 2}, "train": {"objective": "pretrain", "batch": 2}},
        {"data": {"train": "hub:owner/rows"}},
        {"data": {"set": "sets/one"}},
    ],
    ids=["several processes", "data of a hub", "a set that is brought"],
)
def test_it_does_not_begin_where_no_processor_would_be_idle(
    tmp_path: Path, begun: list[Any], sections: dict[str, Any]
) -> None:
    with waiting(*run(tmp_path, **sections)) as early:
        assert early is None
    assert not begun


def test_nor_beside_all_processors_at_work(tmp_path: Path, begun: list[Any]) -> None:
    row = json.dumps({"text": "word " * 1000}) + "\n"
    (tmp_path / "rows.jsonl").write_text(row * (setup_times.SEVERAL_BYTES // len(row) + 1), encoding="utf-8")
    with waiting(*run(tmp_path)) as early:
        assert early is None


@pytest.mark.parametrize("lacks", [{"cpu_count": 1}, {"memory_bytes": 2 << 30}])
def test_nor_where_there_is_no_room(
    tmp_path: Path, begun: list[Any], monkeypatch: pytest.MonkeyPatch, lacks: dict[str, int]
) -> None:
    monkeypatch.setattr(plan_inputs, "machine", lambda *_: here(**lacks))
    with waiting(*run(tmp_path)) as early:
        assert early is None


def test_nor_for_data_that_is_prepared(tmp_path: Path, begun: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start.prepared, "current_report", lambda *_: "a report")
    with waiting(*run(tmp_path)) as early:
        assert early is None


def test_what_is_wrong_with_the_run_is_left_to_what_says_it(tmp_path: Path, begun: list[Any]) -> None:
    run_file, run_dir = run(tmp_path)
    (tmp_path / "rows.jsonl").unlink()
    with waiting(run_file, run_dir) as early:
        assert early is None
    assert not begun


def test_it_starts_what_a_plan_of_one_process_starts(tmp_path: Path, begun: list[Any]) -> None:
    run_file, _ = run(tmp_path, data={"tokens": 100_000, "length": 128})
    plan = make.make_plan(plan_inputs.inputs(run_file, None, here()))
    assert make.single_program(run_file.run, here(), plan_inputs.mirror_probe.inherited()) == (plan.argv, plan.env)


@pytest.mark.parametrize("name", ["supervisor.json", "process.json"])
def test_a_run_that_was_started_before_gets_none(tmp_path: Path, begun: list[Any], name: str) -> None:
    """The process that a file names may be gone, and its number one of these two."""
    run_file, run_dir = run(tmp_path)
    (run_dir.path / name).write_text("{}", encoding="utf-8")
    with waiting(run_file, run_dir) as early:
        assert early is None


def test_a_pipe_that_another_process_holds_does_not_keep_it(
    tmp_path: Path, begun: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_start, "_END_SECONDS", 0.2)
    monkeypatch.setattr(early_start.early_trainer, "hang_up", lambda _: None)
    with waiting(*run(tmp_path)):
        pass
    assert begun[0].poll() == -signal.SIGKILL
    begun[0].stdin.close()
