"""`stoker train`: prepare, plan, start or resume, follow. Training runs in its own process."""

import subprocess
import sys
from typing import Any

from stoker import messages
from stoker.api import forking, replanning, start
from stoker.api.run_progress import RunProgress, wait_a_little
from stoker.api.start import Listener, Started
from stoker.cli import remote
from stoker.cli.prepare_command import ensure_prepared
from stoker.config.load import RunFile
from stoker.errors import EXIT_DONE, EXIT_STOPPED, StokerError
from stoker.hosts.shell import LocalShell
from stoker.launch import training
from stoker.places import registry
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.settle.reasons import reason
from stoker.terminal import console, plan_pages, recipe_table
from stoker.terminal.progress import progress_line, say_stopped

_CAUSES = {"compute": "straggler.compute", "data": "straggler.data"}


def train(name: str, overrides: list[str], on: str | None, *, detach: bool, yes: bool) -> None:
    """Train a run file or recipe; the same command again goes on where it stopped."""
    run_file = recipe_table.named(name, overrides)
    if on or run_file.run.where.place != "local":
        remote.train(run_file, name, overrides, on, detach=detach, yes=yes)
        return
    _train_here(run_file, detach=detach, yes=yes)


def fork(name: str, new: str, overrides: list[str], on: str | None, *, weights_only: bool, detach: bool) -> None:
    """Train a new run from the newest checkpoint of another one; the same command again goes on with it."""
    parent = layout.find(name)
    if on:
        raise StokerError("STK431", place=on)
    if (last := registry.recorded(parent)) not in (None, LocalShell.name):
        console.talk("train.fork_elsewhere", parent=parent.name, host=last)
    run_file = forking.fork(parent, new, overrides, weights_only=weights_only)
    origin = layout.named(new).manifest().forked_from
    assert origin is not None
    key = "train.forked_weights" if origin["weights_only"] else "train.forked"
    console.talk(key, name=new, parent=parent.name, step=origin["step"])
    _train_here(run_file, detach=detach, yes=False)


def _train_here(run_file: RunFile, *, detach: bool, yes: bool) -> None:
    listener = Listener(console.talk, ensure_prepared, plan_pages.show, lambda: yes or remote.says_yes())
    started = start.begin(run_file, listener)
    if started.process is None:
        _ended(started.run_dir, EXIT_DONE, started.progress)
    elif detach:
        console.talk("train.detached", name=started.run_dir.name, pid=started.process.pid)
    else:
        sys.exit(_follow(started, started.process))


def _follow(started: Started, process: subprocess.Popen[bytes]) -> int:
    """Show progress until the process ends; Ctrl-C asks it to commit and stop."""
    run_dir, progress = started.run_dir, started.progress
    asked, told = False, dict(progress.attempt)
    with console.status() as status:
        while process.poll() is None:
            try:
                if progress.update():
                    _tell_interventions(progress)
                    told = _tell(progress, told)
                    status.show(progress_line(progress))
                if progress.end and training.supervision(run_dir).get("state") == "copying":
                    status.show(messages.text("train.copying"))
                wait_a_little()
            except KeyboardInterrupt:  # noqa: PERF203  # the loop waits anyway
                if asked:
                    raise
                asked = True
                console.talk("train.stopping")
                training.ask_to_stop(run_dir)
    progress.update()
    _tell_interventions(progress)
    return _ended(run_dir, process.returncode, progress)


def _tell(progress: RunProgress, told: dict[str, Any]) -> dict[str, Any]:
    """Report once per attempt the resume tier and rejected checkpoints."""
    if progress.attempt == told:
        return told
    for one in progress.rejected:
        console.talk("train.rejected", path=one["path"], reason=one["reason"])
    attempt = progress.attempt
    if attempt["resumed_step"]:
        console.talk("train.tier", tier=attempt["tier"], step=attempt["resumed_step"])
        if attempt["changed"]:
            console.talk("train.tier_changed", changed=list(attempt["changed"]))
    return attempt


def _tell_interventions(progress: RunProgress) -> None:
    """Report what the supervisor did since the last call."""
    for event in progress.interventions:
        if event["event"] == "restart":
            said = {"step": event["step"], "reason": reason(event["reason"])}
            if wait := round(event["wait_seconds"]):
                console.talk("train.restarted", **said, wait=wait)
            else:
                console.talk("train.restarted_now", **said)
        elif event["event"] == "replan":
            key, changed = replanning.said(event["before"], event["after"])
            console.talk(key, changes=changed)
        elif event["event"] == "passed_over":
            console.talk("train.passed_over", step=event["step"])
        elif event["event"] == "lost":
            console.talk("train.lost", **{**_who(event), "reason": reason(event["reason"])})
        elif event["event"] == "straggler":
            cause = messages.text(_CAUSES[event["cause"]])
            console.talk("train.straggler", **_who(event), times=f"{event['times']:.1f}", cause=cause)
        elif event["event"] == "warning":
            share = round(100 * event["spent_seconds"] / event["limit_seconds"])
            console.talk("train.warning", word=f"budget.{event['reason']}", share=share)
        else:
            console.talk("train.limit", limit=reason(event["reason"]))
    progress.interventions.clear()


def _who(event: dict[str, Any]) -> dict[str, Any]:
    """Rank and step, and the node if there are several."""
    rank = messages.text("train.rank", rank=event["rank"]) if event["rank"] is not None else ""
    return {"who": " · ".join(filter(None, (event["node"], rank))), "step": event["step"]}


def _ended(run_dir: RunDir, code: int, progress: RunProgress) -> int:
    run_dir = layout.present(run_dir)
    if training.supervision(run_dir).get("reason") == "store":
        console.talk("train.not_stored")
    if code == EXIT_DONE:
        if progress.not_best:
            console.talk("train.not_best", **progress.not_best)
        console.talk("train.done", name=run_dir.name, step=progress.done_steps, path=run_dir.final)
    elif code == EXIT_STOPPED:
        say_stopped(run_dir, progress.done_steps)
    elif progress.error:
        console.show_error(progress.problem)
    else:
        raise StokerError("STK409", program="train", exit_code=code, log=training.newest_log(run_dir))
    return code
