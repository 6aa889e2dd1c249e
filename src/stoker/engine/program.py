"""How an engine program starts and ends: `python -m stoker.engine.<program> RUN_DIR`.

A user's mistake goes to events.jsonl, where the light world finds it, and ends with 1; a surprise leaves its
traceback in the log and ends with 2.
"""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from stoker.errors import EXIT_SURPRISE, EXIT_USER, StokerError, StokerErrors
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir


def run(main: Callable[[Path], int]) -> int:
    """Run `main` on the run directory named first on the command line; its code, or that of the error."""
    path = Path(sys.argv[1])
    try:
        return _let_go(main(path))
    except StokerError as error:
        problems = [error]
    except StokerErrors as several:
        problems = several.errors
    except Exception:  # noqa: BLE001  # the outermost net: everything unforeseen ends here, with its traceback
        traceback.print_exc()
        return EXIT_SURPRISE
    for problem in problems:
        traceback.print_exception(problem)
    # On a disk that cannot be written to, the words above and the exit code are all there is.
    with suppress(OSError), closing(EventLog(RunDir(path).events_file)) as log:
        for problem in problems:
            log.error(problem, Path(sys.argv[0]).stem)
    return EXIT_USER


def _let_go(code: int) -> int:
    """Words that a full disk does not take must not change the exit code, as Python would."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the end
    return code
