"""The program that keeps a run's lease: `python -m stoker.store.lease_keeper RUN_DIR`. Started with the supervisor.

Light; lives as long as the run is supervised or trained, and gives the lease back at the end. Copies nothing.
"""

import contextlib
import sys
import time
from pathlib import Path

from stoker.errors import EXIT_DONE, EXIT_USER, StokerError
from stoker.rundir import lock
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.store import lease, opening
from stoker.store.lease import Lease, Renewing
from stoker.store.store_protocol import Fault

_START_SECONDS = 60.0
"""Until the supervisor holds its lock."""
_LOOK_SECONDS = 1.0
_AWAY_LOOKS = 4
"""In a row: a run directory that is renamed while it trains is away for a moment."""
_AGAIN_SECONDS = 30.0


def main(path: Path) -> int:
    """Renew until the run is over or the lease is another's."""
    run_dir = RunDir(path)
    with lock.held(run_dir.store_folder / "keep.lock", inside=run_dir.path) as alone:
        if not alone:
            return EXIT_DONE
        try:
            with Renewing(_acquired(run_dir), gives_back=lambda: True) as renewing:
                _wait_for_the_end(run_dir, renewing)
            if renewing.lost.is_set():
                raise StokerError("STK656", name=run_dir.name)
        except StokerError as error:
            with contextlib.closing(EventLog(run_dir.events_file)) as events:
                events.write("store", copied=False, reason=str(error.what), code=error.code)
            return EXIT_USER
        except Fault:
            return EXIT_USER  # it runs out by itself
    return EXIT_DONE


def _acquired(run_dir: RunDir) -> Lease:
    """The lease, as soon as the store can be reached."""
    run, token = run_dir.run(), lease.own_token(run_dir.store_folder / "token")
    started = time.monotonic()
    while True:
        try:
            own = Lease(opening.of_run(run, run_dir.folder()), run_dir.name, token)
            own.acquire()
        except Fault:  # noqa: PERF203  # the loop waits anyway
            if not _is_busy(run_dir) and time.monotonic() - started > _START_SECONDS:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return own


def _wait_for_the_end(run_dir: RunDir, renewing: Renewing) -> None:
    started, seen, away = time.monotonic(), False, 0
    while not renewing.lost.is_set():
        away = 0 if run_dir.path.exists() else away + 1
        busy = _is_busy(run_dir) or 0 < away < _AWAY_LOOKS
        seen = seen or busy
        if not busy and (seen or time.monotonic() - started > _START_SECONDS):
            return
        time.sleep(_LOOK_SECONDS)


def _is_busy(run_dir: RunDir) -> bool:
    return any(lock.is_held(path) for path in (run_dir.supervisor_lock, run_dir.lock_file))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
