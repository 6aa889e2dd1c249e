"""The user's commands on a box that dies and on a new one, by way of a real S3-compatible server."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import store_servers
import tiny_run

from stoker.rundir import events
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.skipif(not store_servers.has_rclone(), reason="no rclone")
def test_stoker_train_on_a_new_box_goes_on_from_s3_after_the_old_one_died(tmp_path: Path) -> None:
    """The user's commands, three of them; the store is a real S3-compatible server that checks keys."""
    words = ["--set", "train.steps=16", "--set", "save.every=4 steps"]
    with store_servers.rclone(tmp_path / "s3") as server:
        settings = {**os.environ, **server.settings, "HF_HUB_OFFLINE": "1", "STOKER_LANG": "en", "OMP_NUM_THREADS": "1"}
        settings.pop("STOKER_RUNS", None)
        store = f"save.store=s3://{store_servers.BUCKET}/runs"

        def stoker(box: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
            (tmp_path / box).mkdir(exist_ok=True)
            command = [sys.executable, "-m", "stoker", *arguments]
            return subprocess.run(
                command, cwd=tmp_path / box, env=settings, capture_output=True, text=True, timeout=600, check=False
            )

        said = stoker("old", "train", "scratch_tiny", *words, "--set", store, "--detach")
        assert said.returncode == 0, said.stderr
        old = RunDir(tmp_path / "old" / "runs" / "scratch_tiny")
        _until(lambda: _copied(old) >= 4)
        _die(old)
        shutil.rmtree(tmp_path / "old")

        said = stoker("new", "train", "scratch_tiny", *words, "--set", store)
        assert said.returncode == 0, said.stderr
        assert "waiting up to 120 s" in said.stderr
        assert "is only in the store" in said.stderr
        checked = json.loads(stoker("new", "verify", "scratch_tiny", "--json").stdout)
        assert all(one["verified"] for one in (*checked["local"], *checked["store"]["checkpoints"]))
        assert checked["store"]["final"]["verified"]
        assert checked["store"]["missing"] == []
        whole = stoker("whole", "train", "scratch_tiny", *words)
        assert whole.returncode == 0, whole.stderr
    final = [RunDir(tmp_path / box / "runs" / "scratch_tiny").final for box in ("new", "whole")]
    assert tiny_run.weights_sha(final[0]) == tiny_run.weights_sha(final[1])
    _no_secret_anywhere(tmp_path, store_servers.SECRET)


def _no_secret_anywhere(folder: Path, secret: str) -> None:
    inside = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
    assert len(inside) > 20
    assert [path for path in inside if secret.encode() in path.read_bytes()] == []


def _copied(run_dir: RunDir) -> int:
    done = [
        event["step"] for event in events.read(run_dir.events_file) if event["event"] == "store" and event["copied"]
    ]
    return max((step for step in done if step is not None), default=0)


def _until(done: Any, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.2)


def _die(run_dir: RunDir) -> None:
    """Every process of the run at once, as when a box vanishes."""
    own = str(run_dir.path.resolve()).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if own in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
