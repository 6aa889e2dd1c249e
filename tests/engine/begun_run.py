"""A run that was begun and is started once more, as a supervisor does."""

import logging
import sys
from typing import Any

import tiny_run

from stoker.engine import program, train
from stoker.rundir import events
from stoker.rundir.layout import RunDir


def again(run_dir: RunDir) -> int:
    """As the supervisor starts it: errors become events and exit codes."""

    def work() -> int:
        logging.disable(logging.WARNING)
        sys.argv = ["train", str(run_dir.path)]
        return program.run(train.main)

    return tiny_run.in_child(work)


def last(run_dir: RunDir, kind: str) -> dict[str, Any]:
    return [event for event in events.read(run_dir.events_file) if event["event"] == kind][-1]
