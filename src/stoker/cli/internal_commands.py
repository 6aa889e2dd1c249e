"""Commands that only Stoker's own programs start: `stoker replan` and `stoker settle`."""

import contextlib
from typing import Any

from stoker.api import replanning
from stoker.facts import platforms
from stoker.rundir import layout
from stoker.settle import meter, notify
from stoker.settle.notify import News
from stoker.terminal import console


def replan(name: str, step: int, nodes: str | None) -> None:
    """Plan a run anew that ran out of memory at a step, or for the machines that train now."""
    key, changes = replanning.replan(layout.find(name), step, set(nodes.split(",")) if nodes is not None else None)
    console.talk(key, changes=changes)


def settle(name: str, warning: str | None) -> None:
    """Verify a run's copy, stop the meter, notify the user; with `warning`, only say that a budget is nearly spent."""
    run_dir = layout.find(name)
    if warning:
        meter.warn(run_dir, warning, tell)
    elif not meter.Settling(run_dir, platforms.here(), tell).run():
        _log("settle.not_now", name=run_dir.name)


def tell(news: News) -> None:
    """Notify by every hook, and write it to the log."""
    problems = notify.tell(news)
    _log("settle.news", title=news.title, text=news.text)
    for hook, problem in problems.items():
        _log("settle.hook_failed", hook=hook, reason=problem)


def _log(key: str, **fields: Any) -> None:
    """The log is on the run's disk: a full disk must not keep the meter running."""
    with contextlib.suppress(OSError):
        console.talk(key, **fields)
