"""The processes of an attempt on this machine: started, found again, watched, ended. Standard library only.

Linux says all of this in /proc; elsewhere `ps` says most of it.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

FOREIGN = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What a record that is not ours may bring about: a run directory comes from a store, a pulse from a line."""
_TAIL_BYTES = 1 << 16
_ENDLESS = 1e9
"""Seconds: no step, save or run lasts longer."""
_LAST_WORDS_SECONDS = 3.0
"""For torchrun to say how its ranks ended."""
_HAS_PROC = Path("/proc/self/stat").exists()

Event = dict[str, Any]


class Trainer(Protocol):
    """A trainer process."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it, or None while it lives."""


def meeting_place(plan: dict[str, Any]) -> str | None:
    """Where the ranks of an attempt meet: a folder of this user's own, as whoever could write there could join."""
    return tempfile.mkdtemp(prefix="stoker-") if plan["strategy"] != "single" else None


def place(node: dict[str, str], first_rank: int, world: int, store: str) -> dict[str, str]:
    """What the ranks of a node are told of the others."""
    told = {"STOKER_NODE": node["name"]}
    if node["interface"]:
        told["GLOO_SOCKET_IFNAME"] = node["interface"]
        told["NCCL_SOCKET_IFNAME"] = f"={node['interface']}"  # without the sign it is the beginning of a name
    if store:
        told |= {"STOKER_STORE": store, "STOKER_FIRST_RANK": str(first_rank), "STOKER_RANKS": str(world)}
    return told


def start_trainer(
    run_dir: Path, plan: dict[str, Any], attempt: int, meeting: str | None, here: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """The plan's program in a session of its own, with files for its words: a closed terminal changes nothing.

    Args:
        run_dir: The run directory.
        plan: What to start, and with which environment.
        attempt: Its number.
        meeting: Where the ranks of this machine meet; removed where none can be started.
        here: What `place` tells the ranks of a node.
    """
    here = here or {}
    settings = {
        **plan["env"],
        "TENSORBOARD_LOGGING_DIR": str(run_dir / "logs" / "tensorboard"),
        "STOKER_ATTEMPT": str(attempt),
        **here,
    }
    if meeting:
        settings["STOKER_RENDEZVOUS"] = meeting
    log = log_file(run_dir, attempt, int(here.get("STOKER_FIRST_RANK", 0)))
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603  # our own program, no shell
                [sys.executable, "-X", "utf8", *plan["argv"], str(run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings},
                start_new_session=os.name != "nt",
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
    except OSError:
        shutil.rmtree(meeting or "", ignore_errors=True)
        raise


def trains(words: list[str], run_dir: Path) -> bool:
    """Whether a command line is a trainer's of this run; `ps` does not tell a space in a word from one between two."""
    return "stoker.engine.train" in words and f" {run_dir} " in " ".join([*words, ""])


def words_of(pid: int) -> list[str]:
    """A living process' command line; empty where it has ended, or this system does not say."""
    if not _HAS_PROC:
        return next((words for number, _, words in _asked_ps() if number == pid), [])
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode("utf-8", "replace").split("\0") if raw else []


def members(group: int | None, run_dir: Path, node: str = "", spared: int | None = None) -> list[int]:
    """Living processes of an attempt: its group, and ranks of torchrun, which have groups of their own.

    Several nodes may be one machine, with one folder, as a queue of one has them: only this one's are told then. The
    rank that is `spared`, and its children, are left out.
    """
    if os.name == "nt":
        return [] if group is None else [group]

    def is_ours(pid: int, words: list[str]) -> bool:
        return trains(words, run_dir) and (not node or environment(pid).get("STOKER_NODE") == node)

    living = _in_proc() if _HAS_PROC else _asked_ps()
    others = [(pid, pgid, words) for pid, pgid, words in living if pid != os.getpid() and pgid != spared]
    return [pid for pid, pgid, words in others if pgid == group or is_ours(pid, words)]


def environment(pid: int) -> dict[str, str]:
    """With what a process was started; nothing where this system does not say."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in raw.split("\0") if "=" in word)


def read_pulses(meeting: str | None, run_dir: Path) -> list[Event]:
    """The newest pulse of each rank of this machine, whether its process lives, and what that has used so far."""
    paths = sorted(Path(meeting).glob("pulse-*.json")) if meeting else []
    living = _training({int(figure(read_json(path).get("pid"))) for path in paths}, run_dir)
    found = []
    for path in paths:
        with contextlib.suppress(*FOREIGN):
            pulse = read_json(path)  # after the look at its process: one that has ended has said so before
            pid = int(pulse["pid"])
            found.append(as_pulse({**pulse, "alive": pid in living, "used": used(pid)}))
    return found


def _training(pids: set[int], run_dir: Path) -> set[int]:
    """Those that live, and are a trainer's of this run: a number may be another's by now."""
    if os.name == "nt":
        return pids
    told = ((pid, words_of(pid)) for pid in pids) if _HAS_PROC else ((pid, words) for pid, _, words in _asked_ps())
    return {pid for pid, words in told if pid in pids and trains(words, run_dir)}


def as_pulse(said: Event) -> Event:
    """A pulse as ours are, or an error."""
    figures = {key: [figure(value) for value in said[key]] for key in ("own_seconds", "data_seconds")}
    numbers = {key: int(said[key]) for key in ("rank", "pid", "step", "used")}
    words = {key: str(said[key]) for key in ("node", "mark")}
    return {**figures, **numbers, **words, "at": float(said["at"]), "alive": bool(said["alive"])}


def dump_stacks(pulses: list[Event], run_dir: Path) -> None:
    """Have ranks write into their logs where they are; one without a pulse would end instead."""
    for pid in _training({pulse["pid"] for pulse in pulses}, run_dir) if os.name != "nt" else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)


def end_ranks(
    trainer: Trainer, run_dir: Path, node: str, wait: Callable[[float], None] = time.sleep, spared: int | None = None
) -> None:
    """End the ranks of this node, or all but one; who started them has a moment to say how they ended."""
    for pid in members(trainer.pid, run_dir, node, spared):
        if pid != trainer.pid:
            kill(pid)
    if spared:
        return
    until = time.monotonic() + _LAST_WORDS_SECONDS
    while trainer.poll() is None and time.monotonic() < until:
        wait(0.05)
    end_group(trainer.pid, run_dir, node, gone=trainer.poll() is not None)


def end_group(group: int | None, run_dir: Path, node: str, *, gone: bool = False) -> None:
    """Nothing of an attempt outlives it: an orphaned rank would hold the lock and go on writing."""
    # A number that is in use again: nothing of its old group is left.
    is_strangers = gone and group is not None and bool(words_of(group))
    for pid in members(None if is_strangers else group, run_dir, node):
        kill(pid)


def free_port(address: str) -> int:
    """A port at which nobody listens this moment."""
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        return int(server.getsockname()[1])


def _in_proc() -> Iterator[tuple[int, int, list[str]]]:
    """Living processes: number, group, command line."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        pid = int(path.parent.name)
        try:
            state, _, pgid = path.read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if state != "Z":
            yield pid, int(pgid), words_of(pid)


def _asked_ps() -> Iterator[tuple[int, int, list[str]]]:
    """The same where there is no /proc, as on a Mac."""
    if os.name == "nt":
        return
    query = ["ps", "-A", "-ww", "-o", "pid=,pgid=,stat=,command="]
    said = subprocess.run(query, capture_output=True, check=False).stdout.decode("utf-8", "replace")  # noqa: S603  # fixed words
    for pid, pgid, state, *words in map(str.split, filter(str.strip, said.splitlines())):
        if not state.startswith("Z"):
            yield int(pid), int(pgid), words


def used(pid: int) -> int:
    """What a process has computed, read and written so far, in no unit; 0 where this system does not say."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:15]
        moved = Path(f"/proc/{pid}/io").read_text(encoding="utf-8").split()[1::2]
    except OSError:
        return 0
    return sum(map(int, ticks)) + sum(map(int, moved))


def kill(pid: int) -> None:
    """End a process without asking it."""
    if os.name == "nt":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(pid)], capture_output=True, check=False)  # noqa: S603, S607
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # ended; macOS says so of one that nobody collected yet
        return


def oom_kills() -> int:
    """How often the kernel killed in this container for want of memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError:
            continue
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found.group(1))
    return 0


# ---- files


def log_file(run_dir: Path, attempt: int, rank: int = 0) -> Path:
    """The log of an attempt, by the rank that writes there."""
    return run_dir / "logs" / f"train-{attempt}-rank{rank}.log"


def log_tail(path: Path) -> str:
    """The end of a log; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def figure(value: Any) -> float:
    """A figure of a file; what is none counts as nothing."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _ENDLESS else 0.0
