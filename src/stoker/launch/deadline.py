"""When this machine will be taken away, by a variable, the queue or the platform's session limit."""

import datetime
import os
from pathlib import Path

from stoker import env
from stoker.errors import StokerError
from stoker.facts import platforms


def deadline() -> str | None:
    """The earliest known end, in UTC; None where there is none."""
    ends = [end for end in (_set(), _queue(), _session()) if end is not None]
    return min(ends).isoformat(timespec="seconds") if ends else None


def _set() -> datetime.datetime | None:
    text = env.read(env.DEADLINE)
    if not text:
        return None
    try:
        end = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise StokerError("STK676", variable=env.DEADLINE.name, value=text) from error
    return end.astimezone(datetime.timezone.utc)


def _queue() -> datetime.datetime | None:
    """Slurm says when the job's time is up."""
    text = env.read(env.SLURM_JOB_END_TIME)
    return _utc(float(text)) if text.isdigit() else None


def _session() -> datetime.datetime | None:
    """Free notebooks end a session after some hours; it began with the container's first process."""
    platform = platforms.here()
    began = _machine_began()
    if platform is None or platform.limits.session_hours is None or began is None:
        return None
    return _utc(began + 3600 * platform.limits.session_hours)


def _machine_began() -> float | None:
    try:
        ticks = int(Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        booted = next(line for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines() if "btime" in line)
    except (OSError, StopIteration):
        return None
    return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
