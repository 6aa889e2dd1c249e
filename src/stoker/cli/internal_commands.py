"""Commands that only Stoker's own programs start: `stoker replan`, `stoker settle` and `stoker join`."""

import contextlib
import sys
from typing import Any

from stoker import env
from stoker.api import preparation, replanning
from stoker.cli.prepare_command import ensure_prepared
from stoker.cluster import assemble, node_daemon
from stoker.facts import platforms
from stoker.launch import programs
from stoker.rundir import layout
from stoker.settle import meter, notify
from stoker.settle.notify import News
from stoker.terminal import console, recipe_table


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


def join(name: str, overrides: list[str]) -> None:
    """Take part in a run whose head is another machine: prepare the data here, then follow its orders to the end."""
    run_file = recipe_table.named(name, overrides)
    programs.check_engine()
    with run_file.located():
        if env.read(env.MEETING):  # in a shared folder the head prepares the data
            run_dir = layout.named(str(run_file.run.name))
            assemble.awaited(run_dir)
        else:
            with preparation.created(run_file) as run_dir:
                ensure_prepared(run_dir)
        sys.exit(node_daemon.serve(run_dir.path))


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
