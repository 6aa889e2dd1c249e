"""Processes on this machine: the trainers of an attempt, and any group of ours; started, found, watched, ended.

Linux has all of it in /proc; elsewhere `ps` has most of it, on Windows PowerShell some.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from stoker import env
from stoker.errors import StokerError
from stoker.rundir import files
from stoker.rundir.events import Event
from stoker.supervise import starting

_TAIL_BYTES = 1 << 16
_LAST_WORDS_SECONDS = 3.0
"""For torchrun to write how its ranks ended."""
_TERMINATE_SECONDS = 30.0
"""Between SIGTERM to a process and SIGTERM to its group: it may end its children itself."""
_LEFT_SECONDS = 3.0
"""Between SIGTERM to a group and SIGKILL."""
_LOOK_SECONDS = 0.1
_HAS_PROC = Path("/proc/self/stat").exists()


class Trainer(Protocol):
    """A trainer process."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it, or None while it lives."""


class AdoptedTrainer:
    """A trainer that an earlier supervisor left behind: not our child, so its exit code is unknown."""

    def __init__(self, pid: int, run_dir: Path) -> None:
        self.pid = pid
        self.meeting = environment(pid).get(env.RENDEZVOUS.name)
        self._run_dir = run_dir

    def poll(self) -> int | None:
        """None while the trainer lives, and its number is not another process'; what it did is in the events."""
        return None if trains(words_of(self.pid), self._run_dir) else -int(signal.SIGTERM)


def boot() -> str:
    """Which boot of this machine or container; empty where the system does not show it."""
    try:
        started = Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='utf-8').strip()} {started}"
    except (OSError, LookupError):
        return ""


def known_trainer(run_dir: Path) -> int:
    """The process that trains here, whoever started it; 0 for none."""
    pid = int(files.number(files.read_if_any(run_dir / "process.json").get("pid")))
    return pid if pid and trains(words_of(pid), run_dir) else 0


def meeting_place(plan: dict[str, Any]) -> str | None:
    """Where the ranks of an attempt meet: a folder only this user can write to, as anyone who can could join."""
    return tempfile.mkdtemp(prefix="stoker-") if plan["strategy"] != "single" else None


def place(node: dict[str, str], first_rank: int, world: int, store: str) -> dict[str, str]:
    """The environment variables by which the ranks of a node find the others."""
    variables = {env.NODE.name: node["name"]}
    if node["interface"]:
        variables[env.GLOO_SOCKET_IFNAME.name] = node["interface"]
        variables[env.NCCL_SOCKET_IFNAME.name] = f"={node['interface']}"  # `=`: the whole name, not a prefix
    if store:
        found = {env.STORE: store, env.FIRST_RANK: str(first_rank), env.RANKS: str(world)}
        variables |= {variable.name: value for variable, value in found.items()}
    return variables


def start_trainer(
    run_dir: Path, plan: dict[str, Any], attempt: int, meeting: str | None, here: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start the plan's program, detached, with its output in a log.

    Args:
        run_dir: The run directory.
        plan: What to start, and with which environment.
        attempt: Its number.
        meeting: Where the ranks of this machine meet; removed where none can be started.
        here: The variables of `place` for the ranks of a node.
    """
    here = here or {}
    variables = {**_trainer_variables(run_dir, plan["env"]), env.ATTEMPT.name: str(attempt), **here}
    if meeting:
        variables[env.RENDEZVOUS.name] = meeting
    log = log_file(run_dir, attempt, int(here.get(env.FIRST_RANK.name, 0)))
    try:
        return starting.start(starting.python(*plan["argv"], run_dir), log, variables, detached=True)
    except OSError:
        shutil.rmtree(meeting or "", ignore_errors=True)
        raise


def start_early(
    run_dir: Path, words: list[object], environment: dict[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a trainer that has no plan yet (`early_trainer`): one process, which needs no number of its attempt."""
    variables = _trainer_variables(run_dir, environment)
    return starting.start(starting.python(*words), log, variables, detached=True, is_told=True)


def _trainer_variables(run_dir: Path, environment: dict[str, str]) -> dict[str, str]:
    return {**environment, env.TENSORBOARD_LOGGING_DIR.name: str(run_dir / "logs" / "tensorboard")}


def trains(words: list[str], run_dir: Path) -> bool:
    """Whether a command line is a trainer's of this run."""
    return "stoker.engine.train" in words and is_named(words, run_dir)


def is_named(words: list[str], run_dir: Path) -> bool:
    """Whether a command line names this run directory, also by a name that it had before (`renamed_folder`).

    `ps` does not quote a word with a space in it.
    """
    return f" {run_dir} " in " ".join([*words, ""]) or any(map(partial(_is_same, run_dir), words))


def _is_same(run_dir: Path, word: str) -> bool:
    return word.startswith("/") and Path(word).is_symlink() and run_dir.exists() and run_dir.samefile(word)


def words_of(pid: int) -> list[str]:
    """The command line of a living process; empty where it has ended."""
    if os.name == "nt":
        query = ["powershell", "-NoProfile", f"(Get-CimInstance Win32_Process -Filter 'ProcessId={pid}').CommandLine"]
        return _output(query).split()
    if not _HAS_PROC:
        return next((words for number, _, words in _asked_ps() if number == pid), [])
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode("utf-8", "replace").split("\0") if raw else []


def members(group: int | None, run_dir: Path, node: str = "", spared: int | None = None) -> list[int]:
    """Living processes of an attempt: its group, and ranks of torchrun, which have groups of their own.

    Several nodes may be one machine with one folder, as in a queue of one: then only the ranks of `node` count. The
    rank `spared` and its children are left out.
    """
    if os.name == "nt":
        return [] if group is None else [group]

    def is_ours(pid: int, words: list[str]) -> bool:
        return trains(words, run_dir) and (not node or environment(pid).get(env.NODE.name) == node)

    others = [(pid, pgid, words) for pid, pgid, words in _living() if pid != os.getpid() and pgid != spared]
    return [pid for pid, pgid, words in others if pgid == group or is_ours(pid, words)]


def group_members(group: int) -> list[int]:
    """Living processes of a process group; zombies do not count."""
    return [pid for pid, pgid, _ in _living() if pgid == group]


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where the system does not show it."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in raw.split("\0") if "=" in word)


def read_pulses(meeting: str | None, run_dir: Path) -> list[Event]:
    """The newest pulse of each rank of this machine, whether its process lives, and what that has used so far."""
    paths = sorted(Path(meeting).glob("pulse-*.json")) if meeting else []
    living = _training({int(files.number(files.read_if_any(path).get("pid"))) for path in paths}, run_dir)
    found = []
    for path in paths:
        with contextlib.suppress(*files.FOREIGN):
            pulse = files.read_if_any(path)  # after the look at its process: a rank writes its last mark before it ends
            pid = int(pulse["pid"])
            found.append(as_pulse({**pulse, "alive": pid in living, "used": used(pid)}))
    return found


def _training(pids: set[int], run_dir: Path) -> set[int]:
    """Those that live and are trainers of this run: pids are used again."""
    if os.name == "nt":
        return pids
    told = ((pid, words_of(pid)) for pid in pids) if _HAS_PROC else ((pid, words) for pid, _, words in _asked_ps())
    return {pid for pid, words in told if pid in pids and trains(words, run_dir)}


def as_pulse(said: Event) -> Event:
    """A checked pulse; raises one of `FOREIGN` where it is malformed."""
    figures = {key: [files.number(value) for value in said[key]] for key in ("own_seconds", "data_seconds")}
    numbers = {key: int(said[key]) for key in ("rank", "pid", "step", "used")}
    words = {key: str(said[key]) for key in ("node", "mark")}
    return {**figures, **numbers, **words, "at": float(said["at"]), "alive": bool(said["alive"])}


def dump_stacks(pulses: list[Event], run_dir: Path) -> None:
    """Have ranks write their stacks into their logs; the signal would kill one that has no pulse yet."""
    for pid in _training({pulse["pid"] for pulse in pulses}, run_dir) if os.name != "nt" else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)


# ---- ending


def end_ranks(
    trainer: Trainer, run_dir: Path, node: str, wait: Callable[[float], None] = time.sleep, spared: int | None = None
) -> None:
    """Kill the ranks of this node, or all but one; torchrun gets a moment to write how they ended."""
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
    """Kill what is left of an attempt: an orphaned rank would hold the lock and go on writing."""
    # The number of a trainer that is gone may be in use again: then nothing of its group is left.
    is_strangers = gone and group is not None and bool(words_of(group))
    for pid in members(None if is_strangers else group, run_dir, node):
        kill(pid)


def terminate(pid: int) -> None:
    """Ask a detached process to end, then its group, then kill what is left of that."""
    if os.name == "nt":
        kill(pid)
        return
    _signal(pid, signal.SIGTERM, group=False)
    _wait(lambda: pid not in group_members(pid), _TERMINATE_SECONDS)
    _signal(pid, signal.SIGTERM, group=True)
    _wait(lambda: not group_members(pid), _LEFT_SECONDS)
    _signal(pid, signal.SIGKILL, group=True)
    _wait(lambda: not group_members(pid), _LEFT_SECONDS)
    if left := group_members(pid):
        raise StokerError("STK603", pids=list(left))


def kill(pid: int) -> None:
    """End a process without asking it."""
    if os.name == "nt":
        _output(["taskkill", "/T", "/F", "/PID", str(pid)])
    else:
        _signal(pid, signal.SIGKILL, group=False)


def _signal(pid: int, number: int, *, group: bool) -> None:
    try:
        os.killpg(pid, number) if group else os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # ended; macOS reports the second for zombies
        return


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


# ---- what the system shows


def _living() -> Iterator[tuple[int, int, list[str]]]:
    """Living processes: number, group, command line."""
    return _in_proc() if _HAS_PROC else _asked_ps()


def _in_proc() -> Iterator[tuple[int, int, list[str]]]:
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
    said = _output(["ps", "-A", "-ww", "-o", "pid=,pgid=,stat=,command="])
    for pid, pgid, state, *words in map(str.split, filter(str.strip, said.splitlines())):
        if not state.startswith("Z"):
            yield int(pid), int(pgid), words


def _output(words: list[str]) -> str:
    """What a program of the system prints; empty where it cannot be started."""
    try:
        done = subprocess.run(words, capture_output=True, check=False)  # noqa: S603  # fixed words and a number
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace")


def used(pid: int) -> int:
    """CPU time and bytes read and written so far, summed; 0 where the system does not show them."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:15]
        moved = Path(f"/proc/{pid}/io").read_text(encoding="utf-8").split()[1::2]
    except OSError:
        return 0
    return sum(map(int, ticks)) + sum(map(int, moved))


def oom_kills() -> int:
    """How many processes of this container the kernel has OOM-killed."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError:
            continue
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found.group(1))
    return 0


def free_port(address: str) -> int:
    """A port nobody listens on at the moment."""
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        return int(server.getsockname()[1])


# ---- logs


def log_file(run_dir: Path, attempt: int, rank: int = 0) -> Path:
    """The log of an attempt, by the rank that writes there."""
    return run_dir / "logs" / f"train-{attempt}-rank{rank}.log"


def newest_attempt(run_dir: Path) -> int:
    """The newest attempt that has a log; they are numbered from 1."""
    names = [path.name.split("-")[1] for path in (run_dir / "logs").glob("train-*-rank0.log")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def log_tail(path: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
