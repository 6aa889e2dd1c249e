"""Which other runs need this machine: those at work, those not settled yet, and those with their only copy here."""

from pathlib import Path

from stoker.launch import training
from stoker.rundir import checkpoints, files, lock, pulled
from stoker.rundir.layout import RunDir
from stoker.settle import settled_record
from stoker.settle.settled_record import ENDED, SETTLED, end_of
from stoker.supervise import limits


def needing(run_dir: RunDir, now: float, unsettled_seconds: float, *, is_lossy: bool) -> list[str]:
    """Names of the runs beside this one that need the machine on; a run that cannot be read does.

    Args:
        run_dir: The run that has ended.
        now: The time.
        unsettled_seconds: For a run that has ended to begin with settling.
        is_lossy: Whether the platform's command loses the disk with the runs.
    """
    here = run_dir.path.resolve()
    try:
        others = sorted(one for one in here.parent.iterdir() if one.is_dir() and one.resolve() != here)
    except OSError:
        return [here.parent.name]

    def is_needed(other: RunDir) -> bool:
        try:
            return _needs_it(other, now, unsettled_seconds) or (is_lossy and not _is_elsewhere(other))
        except OSError:
            return True

    return [one.name for one in others if is_needed(RunDir(one))]


def _needs_it(other: RunDir, now: float, unsettled_seconds: float) -> bool:
    """It works here, or has ended and is not settled yet: its settling may just be starting, or was killed."""
    if any(lock.is_held(path) for path in working_locks(other)):
        return True
    seen, record = training.supervision(other), settled_record.read(other)
    if record.get("end") == end_of(seen) and record.get("state") in SETTLED:
        return False
    if lock.is_held(settled_record.lock_path(other)):
        return True
    after = seen.get("after") or files.read_if_any(other.plan_file).get("after") or "stay"
    passed = limits.seconds_since(seen, now)
    return seen.get("state") in ENDED and after != "stay" and passed < unsettled_seconds


def working_locks(run_dir: RunDir) -> tuple[Path, ...]:
    """Held by whatever prepares, watches or trains a run."""
    return run_dir.launch_lock, run_dir.supervisor_lock, run_dir.lock_file


def _is_elsewhere(run_dir: RunDir) -> bool:
    """Whether this machine has nothing of a run that is not elsewhere too, by the records of who has looked."""
    names = [path.name for path in run_dir.checkpoints.iterdir()] if run_dir.checkpoints.is_dir() else []
    has_final = run_dir.final.is_dir()
    if not has_final and not any(name.startswith("step-") for name in names):
        return True
    record = settled_record.read(run_dir)
    if record.get("end") == end_of(training.supervision(run_dir)) and record.get("copy") in ("store", "pulled"):
        return True
    there, home = checkpoints.committed(run_dir.checkpoints), pulled.read(run_dir)
    if home is None or has_final != bool(home.final):
        return False
    kept = checkpoints.with_best(run_dir.checkpoints, there[-1]) if there else []
    return [one for one in (home.best, home.commit) if one] == [one.commit.digest for one in kept]
