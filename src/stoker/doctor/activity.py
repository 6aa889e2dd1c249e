"""How busy cards and a process are right now. Asks nvidia-smi and /proc; silent where there is neither."""

import csv
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_QUERY = "index,utilization.gpu,memory.used,memory.total"
_PROBE_SECONDS = 5


@dataclass(frozen=True)
class GpuLoad:
    """One card's load."""

    index: int
    utilisation_percent: int
    memory_used_bytes: int
    memory_total_bytes: int


def gpus() -> list[GpuLoad]:
    """The load of every NVIDIA card; empty without one."""
    return parse(_asked(_QUERY))


def power_limit_watts() -> float | None:
    """What the first card may draw, which bounds its speed; None where the driver does not say."""
    words = _asked("power.limit").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return None


def _asked(query: str) -> str:
    """nvidia-smi's answer; empty without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)  # noqa: S603  # fixed arguments
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def parse(answer: str) -> list[GpuLoad]:
    """nvidia-smi's lines; a card that does not report its load is left out."""
    rows = (row for row in csv.reader(answer.splitlines(), skipinitialspace=True) if all(map(str.isdigit, row)))
    return [GpuLoad(int(i), int(busy), int(used) << 20, int(total) << 20) for i, busy, used, total in rows]


def cpu_seconds(pid: int) -> float | None:
    """Processor time a process has used; None if the system does not report it."""
    fields = _stat(pid)
    # After the name: state is field 3 of proc(5), user and system time are fields 14 and 15.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else None


def memory_bytes(pid: int) -> int | None:
    """Main memory a process holds; None if the system does not report it."""
    fields = _stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else None


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the name, which may hold blanks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []
