"""How an engine program starts and ends: `python -m stoker.engine.<program> RUN_DIR`.

A user error is written to events.jsonl, where the light world reads it, and ends with 1; an unexpected error leaves its
traceback in the log and ends with 2.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from stoker.errors import EXIT_SURPRISE, EXIT_USER, StokerError
from stoker.rundir import files
from stoker.rundir.events import EventLog
from stoker.rundir.files import Unreadable
from stoker.rundir.layout import RunDir


def run(main: Callable[[Path], int]) -> int:
    """Run `main` on the run directory of the command line; returns its exit code, or that of the error."""
    path = Path(sys.argv[1])
    try:
        return _let_go(main(path))
    except StokerError as error:
        problems = error.errors
    except Unreadable as error:
        problems = [error.named()]
    except Exception as error:  # noqa: BLE001  # the outermost handler: every unexpected error is logged with its traceback
        if files.error_number(error) not in (errno.ENOSPC, errno.EDQUOT):
            traceback.print_exc()
            return EXIT_SURPRISE
        problems = [StokerError("STK901", reason=files.reason(error))]
    for problem in problems:
        traceback.print_exception(problem)
    # On a read-only disk, the traceback above and the exit code are all there is.
    with suppress(OSError), closing(EventLog(RunDir(path).events_file)) as log:
        for problem in problems:
            log.error(problem, Path(sys.argv[0]).stem)
    return EXIT_USER


def _let_go(code: int) -> int:
    """Flush; output lost to a full disk must not change the exit code, as it would in Python."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the end
    return code
