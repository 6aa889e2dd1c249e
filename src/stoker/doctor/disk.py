"""The disk under the runs folder: is there room, may we write, and does it survive a stopped machine?"""

import os
import shutil
from pathlib import Path

from stoker.doctor.finding import Finding, fail, ok, warn
from stoker.facts import platforms
from stoker.facts.platforms import Platform

_ROOM_FOR_7B_BYTES = 15_000_000_000
"""What a merged 7B model takes in 16 bits: 7.6 billion weights of 2 bytes."""
_LEAST_BYTES = 1_000_000_000


def findings(runs: Path) -> list[Finding]:
    """Space and persistence of the folder that holds run directories."""
    folder = _existing(runs.resolve())
    platform = platforms.here()
    return [space(folder, shutil.disk_usage(folder).free), persistence(folder, platform)]


def space(folder: Path, free_bytes: int) -> Finding:
    """Whether we may write there, and how much."""
    fields = {"folder": folder, "free": f"{free_bytes / 1e9:.1f}"}
    if not os.access(folder, os.W_OK):
        return fail("disk", "doctor.disk.read_only", "doctor.advice.read_only", **fields)
    if free_bytes < _LEAST_BYTES:
        return fail("disk", "doctor.disk.full", "doctor.advice.space", **fields)
    if free_bytes < _ROOM_FOR_7B_BYTES:
        return warn(
            "disk", "doctor.disk.little", "doctor.advice.space", room=f"{_ROOM_FOR_7B_BYTES / 1e9:.0f}", **fields
        )
    return ok("disk", "doctor.disk", **fields)


def persistence(folder: Path, platform: Platform | None) -> Finding:
    """What becomes of the folder when the machine is stopped or given back."""
    name = "persistence"
    if platform is None:
        return ok(name, "doctor.keep.own")
    store = platform.storage_of(folder.as_posix())
    fields = {"folder": folder, "platform": platform.title, "better": _better(platform)}
    if store is None:
        return warn(name, "doctor.keep.unknown", "doctor.advice.lost", **fields)
    if store.survives_release:
        return ok(name, "doctor.keep.always", **fields)
    if not store.survives_stop:
        return warn(name, "doctor.keep.lost", "doctor.advice.lost", **fields)
    if platform.meter.stops_on == "stop":
        return ok(name, "doctor.keep.stop", **fields)
    return warn(name, "doctor.keep.release", "doctor.advice.release", **fields)


def _better(platform: Platform) -> list[str] | str:
    """Where data survives longest there."""
    released = [store.path for store in platform.storage if store.survives_release]
    stopped = [store.path for store in platform.storage if store.survives_stop and store.path != "/"]
    return released or stopped or "-"


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.is_dir())
