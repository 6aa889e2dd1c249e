"""`stoker settle`: after a run has ended, verify its copy, stop the meter, tell the user. The supervisor starts it."""

import contextlib
from typing import Any

from stoker.facts import platforms
from stoker.rundir import layout
from stoker.settle import meter, notify
from stoker.settle.notify import News
from stoker.terminal import console


def settle(name: str, warning: str | None) -> None:
    """Settle a run that has ended; with `warning`, only tell that most of this budget is spent."""
    run_dir = layout.find(name)
    if warning:
        meter.warn(run_dir, warning, tell)
    elif not meter.Settling(run_dir, platforms.here(), tell).run():
        _log("settle.not_now", name=run_dir.name)


def tell(news: News) -> None:
    """By every hook, and into the log."""
    problems = notify.tell(news)
    _log("settle.news", title=news.title, text=news.text)
    for hook, problem in problems.items():
        _log("settle.hook_failed", hook=hook, reason=problem)


def _log(key: str, **fields: Any) -> None:
    """The log is on the run's disk: where that is full, the meter is stopped without it."""
    with contextlib.suppress(OSError):
        console.talk(key, **fields)
