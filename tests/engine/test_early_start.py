"""A training whose trainer imported while its data was prepared: the same events and weights, one process, no rest."""

import json
import os
import time
from pathlib import Path

import pytest
import tiny_run

from stoker.api import start
from stoker.api.start import Listener
from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import early_start, plan_inputs
from stoker.rundir import events, files, layout
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

pytestmark = pytest.mark.filterwarnings("default")

RUN = """
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 4, steps: 2, epochs: 4}}
where: {{micro: 4}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    here = plan_inputs.examine().model_copy(update={"cpu_count": 2, "memory_bytes": 8 << 30})  # also on a small one
    monkeypatch.setattr(plan_inputs, "examine", lambda: here)
    base = tiny_run.make_base_model(tmp_path / "base")
    tiny_run.make_tokenizer(base)
    rows = [{"prompt": f"w{n % 5}", "completion": f"w{n % 7} w{n % 11}"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name in ("one", "other"):
        (tmp_path / f"{name}.yaml").write_text(RUN.format(base=base), encoding="utf-8")
    return tmp_path


def trained(folder: Path, name: str) -> tuple[RunDir, bool]:
    """A finished run, and whether its trainer was started before its plan."""
    started = start.begin(load.load(str(folder / f"{name}.yaml")), Listener())
    assert started.process is not None
    early = False
    while started.process.poll() is None:
        pid = int(files.number(files.read_if_any(started.run_dir.process_file).get("pid")))
        early = early or (bool(pid) and processes.environment(pid).get("STOKER_EARLY") == "1")
        time.sleep(0.02)
    assert started.process.returncode == 0
    return started.run_dir, early


def left(run_dir: RunDir) -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*") if is_of(int(path.name), run_dir)]


def is_of(pid: int, run_dir: RunDir) -> bool:
    return pid != os.getpid() and processes.is_named(processes.words_of(pid), run_dir.path.resolve())


def test_it_trains_the_same_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, early = trained(folder, "one")
    assert early
    assert [one["event"] for one in events.read(run_dir.events_file)].count("attempt") == 1
    monkeypatch.setattr(early_start, "begin", lambda *_: None)
    other, early = trained(folder, "other")
    assert not early
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(other.final)
    assert sorted(path.name for path in run_dir.logs.iterdir()) == sorted(path.name for path in other.logs.iterdir())
    assert left(run_dir) == []


def test_refused_data_leaves_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = [], early_start.begin
    monkeypatch.setattr(early_start, "begin", lambda *arguments: begun.append(begin(*arguments)) or begun[0])
    (folder / "rows.jsonl").write_text('{"neither": 1}\n', encoding="utf-8")
    run_file = load.load(str(folder / "one.yaml"))
    with pytest.raises(StokerError):
        start.begin(run_file, Listener())
    run_dir = layout.named("one")
    assert begun != [None]
    assert left(run_dir) == []
    assert not run_dir.supervisor_file.exists()
    assert processes.newest_attempt(run_dir.path) == 0
