"""What a terminal says of prepared sets in a store: pushed, fetched, waited for."""

from pathlib import Path
from typing import Any

from stoker import messages
from stoker.api import preparation
from stoker.api.figures import duration, size
from stoker.rundir.layout import RunDir
from stoker.terminal import console


def pushed(run_dir: RunDir, where: str) -> int:
    """Push the set, and say what was sent; a relative directory starts at the working one."""
    with console.status() as status:
        sent = preparation.push(run_dir, where, Path.cwd(), lambda *done: moved(status, "prepare.pushing", *done))
    console.talk("prepare.pushed" if sent else "prepare.pushed_before", where=where, sent=size(sent))
    return sent


def moved(status: console.StatusLine, key: str, done: int, total: int) -> None:
    """How much of a set is there."""
    status.show(messages.text(key, done=size(done), total=size(total)))


def stalled(event: dict[str, Any]) -> str:
    """That training waits for the store, for how long, and why."""
    why = str(event["reason"]) or messages.text("watch.slow")
    return messages.text("watch.stalled", seconds=duration(event["seconds"]), reason=why)
