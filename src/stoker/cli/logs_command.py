"""`stoker logs`: the log of the newest attempt, as it is on disk."""

import codecs
from collections import deque
from io import BufferedReader
from pathlib import Path

from stoker.launch import training
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console
from stoker.terminal.progress import wait_a_little


def logs(name: str, lines: int | None, *, follow: bool) -> None:
    """Print a log.

    Args:
        name: A run's name or folder.
        lines: How many lines from its end; None for all.
        follow: Go on until the training process ends; Ctrl-C leaves, the run goes on.
    """
    run_dir = layout.find(name)
    path: Path | None = training.newest_log(run_dir)
    while path is not None:
        with path.open("rb") as log:
            for line in log if lines is None else deque(log, maxlen=lines):
                console.piece(line.decode("utf-8", errors="replace"))
            lines = None
            path = _follow(run_dir, path, log) if follow else None


def _follow(run_dir: RunDir, path: Path, log: BufferedReader) -> Path | None:
    """Until the run ends, or the supervisor has begun another attempt: then that one's log."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    running = True
    try:
        while running:
            # Looked at before reading: what a process writes last is still printed.
            running = training.is_running(run_dir)
            if chunk := log.read():
                console.piece(decoder.decode(chunk))
            elif running:
                wait_a_little()
                if (newest := training.newest_log(run_dir)) != path and not log.peek():
                    return newest
    except KeyboardInterrupt:
        return None
    return None
