"""`stoker train` with several real processes: torchrun, a log per rank, nothing on the network, stop and go on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.rundir import events

STEPS = 5000
"""More than there is time for: both trainings are stopped."""
COMMAND = [
    "train",
    "scratch_tiny",
    *("--set", "where.processes=2"),
    *("--set", "where.gpus=0"),
    *("--set", f"train.steps={STEPS}"),
    *("--set", "train.exact=true"),
]


@contextmanager
def stoker(folder: Path, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The command, ended with the test at the latest."""
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "STOKER_LANG": "en", "OMP_NUM_THREADS": "1", **more}
    with subprocess.Popen(
        [sys.executable, "-m", "stoker", *arguments],
        cwd=folder,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell's background job ignores SIGINT, and so would this command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_step(run: Path, step: int) -> None:
    for _ in range(3000):
        if any(number >= step for number in events.steps(run / "events.jsonl")):
            return
        time.sleep(0.1)
    pytest.fail((run / "logs" / "train-1-rank0.log").read_text())


def family(pid: int) -> set[int]:
    """A process and all its descendants."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(status.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> list[str]:
    """Addresses on which these processes listen, by the kernel's own tables."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.append(fields[1].rsplit(":", 1)[0])
    return found


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the kernel's tables")
def test_two_processes_train_stop_and_go_on(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "scratch_tiny"
    with stoker(tmp_path, *COMMAND) as first:
        wait_for_step(run, 3)
        trainer = json.loads((run / "process.json").read_text())["pid"]
        processes = family(trainer)
        assert len(processes) >= 3  # torchrun and two ranks
        heard = listening(processes)
        assert heard, "gloo listens for its peers: the tables were not read"
        assert set(heard) <= LOOPBACK
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=120)
    assert first.returncode == 75, said
    (attempt,) = [event for event in events.read(run / "events.jsonl") if event["event"] == "attempt"]
    assert (attempt["world"], attempt["strategy"]) == (2, "ddp")
    for rank in (0, 1):
        assert (run / "logs" / f"train-1-rank{rank}.log").stat().st_size

    alone = [word.replace("where.processes=2", "where.processes=1") for word in COMMAND]
    done = max(events.steps(run / "events.jsonl"))
    with stoker(tmp_path, *alone) as second:
        wait_for_step(run, done + 3)
        second.send_signal(signal.SIGINT)
        said, _ = second.communicate(timeout=120)
    assert second.returncode == 75, said
    last = [event for event in events.read(run / "events.jsonl") if event["event"] == "attempt"][-1]
    assert (last["world"], last["tier"]) == (1, "EXACT")
    assert last["resumed_step"] >= 3
    steps = sorted(events.steps(run / "events.jsonl"))
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("fails", [True, False])
def test_the_group_is_left_to_the_process_s_end_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """With NCCL, leaving it may wait for the other ranks, and the error would not be written."""
    import torch.distributed as dist

    from stoker.engine import parallel

    meeting = tmp_path / "meeting"
    meeting.mkdir()
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("STOKER_RENDEZVOUS", str(meeting))
    plan = SimpleNamespace(batch=SimpleNamespace(devices=1), strategy="ddp", device="cpu")
    try:
        with suppress(ZeroDivisionError), parallel.joined(plan, tmp_path / "events.jsonl"):
            assert dist.is_initialized()
            if fails:
                raise ZeroDivisionError
        assert dist.is_initialized() is meeting.is_dir() is fails
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
