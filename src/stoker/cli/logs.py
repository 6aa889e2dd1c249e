"""`stoker logs`: the log of the newest attempt, as it is on disk."""

import codecs
from collections import deque
from typing import BinaryIO

from stoker.cli import console
from stoker.cli.progress import wait_a_little
from stoker.launch import training
from stoker.rundir import layout
from stoker.rundir.layout import RunDir


def logs(name: str, lines: int | None, *, follow: bool) -> None:
    """Print a log.

    Args:
        name: A run's name or folder.
        lines: How many lines from its end; None for all.
        follow: Go on until the training process ends; Ctrl-C leaves, the run goes on.
    """
    run_dir = layout.find(name)
    with training.newest_log(run_dir).open("rb") as log:
        for line in log if lines is None else deque(log, maxlen=lines):
            console.piece(line.decode("utf-8", errors="replace"))
        if follow:
            _follow(run_dir, log)


def _follow(run_dir: RunDir, log: BinaryIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    running = True
    try:
        while running:
            # Looked at before reading: what a process writes last is still printed.
            running = training.running_pid(run_dir) is not None
            if chunk := log.read():
                console.piece(decoder.decode(chunk))
            elif running:
                wait_a_little()
    except KeyboardInterrupt:
        return
