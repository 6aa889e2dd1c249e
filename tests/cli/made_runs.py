"""Run directories made by hand and the command line to look at them with, for the tests of this folder."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import main
from stoker.terminal import console

LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """`stoker` in this process: 80 columns, no network, no terminal."""

    def __init__(self, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        settings = {"STOKER_RUNS": str(runs), "HF_HUB_OFFLINE": "1", "TZ": "UTC"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        if hasattr(time, "tzset"):
            time.tzset()
        monkeypatch.setattr(console.stdout, "_width", 80)

    def __call__(self, *words: str, language: str = "en", stdin: str = "") -> Outcome:
        self._monkeypatch.setenv("STOKER_LANG", language)
        self._monkeypatch.setattr(sys, "argv", ["stoker", *words])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        printed = self._capsys.readouterr()
        return Outcome(int(end.value.code or 0), printed.out, printed.err)


def make_run(runs: Path, name: str, created: str = "2026-11-15T02:19:00+00:00") -> Path:
    """A run directory that was never trained."""
    folder = runs / name
    folder.mkdir(parents=True)
    manifest = {
        "format": 1,
        "name": name,
        "created": created,
        "stoker_version": "0.1.0",
        "run_file": "run.yaml",
        "overrides": [],
        "folder": str(runs),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def write_events(folder: Path, *written: dict[str, Any]) -> None:
    """Append events; those without a time happened just now."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        for event in written:
            file.write(json.dumps({"at": now, **event}) + "\n")


def attempt(total_steps: int, **fields: Any) -> dict[str, Any]:
    return {"event": "attempt", "tier": "EXACT", "resumed_step": 0, "total_steps": total_steps, **fields}


def step(number: int, loss: float | str, **fields: Any) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "epoch": number / 40,
        "loss": loss,
        "learning_rate": 2e-4,
        "tokens": 8000,
        "seconds": 2.0,
        "wait_seconds": 0.01,
        "memory_bytes": 0,
        **fields,
    }


def evaluation(number: int, loss: float) -> dict[str, Any]:
    return {"event": "eval", "step": number, "eval_loss": loss, "perplexity": 2.718**loss, "seconds": 1.0}


def checkpoint(number: int, **fields: Any) -> dict[str, Any]:
    return {"event": "checkpoint", "step": number, "seconds": 0.5, "bytes": 1_234_000_000, "best": False, **fields}


def end(status: str, number: int) -> dict[str, Any]:
    return {"event": "end", "status": status, "step": number}


def ago(**span: float) -> str:
    """A time so long ago, as events write it."""
    return (datetime.now(timezone.utc) - timedelta(**span)).isoformat(timespec="milliseconds")


@contextmanager
def training(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A live process that passes for the training of this run; it ends when its input is closed."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", program, "stoker.engine.train", str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        (folder / "process.json").write_text(json.dumps({"pid": process.pid, "attempt": 1}), encoding="utf-8")
        yield process


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Another process that holds the lock."""
    program = "import sys; from pathlib import Path; from stoker.rundir import lock\n"
    program += "with lock.held(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", program, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield
        process.communicate()


def is_held(lock: Path) -> bool:
    """Whether another process finds it held: the one that holds it would not, and would give it back by looking."""
    program = "import sys; from pathlib import Path; from stoker.rundir import lock\n"
    program += "sys.exit(lock.is_held(Path(sys.argv[1])))"
    return subprocess.run([sys.executable, "-c", program, str(lock)], check=False).returncode == 1
