"""`stoker train`: prepare, plan, start or resume, follow. Training runs in its own process."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from stoker.agents import consent
from stoker.api import forking, start, stopping
from stoker.api.handle import RunHandle
from stoker.api.run_progress import RunProgress, wait_a_little
from stoker.api.start import Listener, Started
from stoker.cli import remote, report_command
from stoker.cli.prepare_command import ensure_prepared
from stoker.cli.remote import TrainOptions
from stoker.config.load import RunFile
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USER, StokerError
from stoker.hosts.shell import LocalShell
from stoker.launch import training
from stoker.places import registry
from stoker.plan.plan import Plan, Resume
from stoker.report import happening_words, next_commands
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console, plan_pages, recipe_table
from stoker.terminal.progress import say_stopped
from stoker.terminal.train_screen import TrainScreen


def train(name: str, overrides: list[str], options: TrainOptions) -> None:
    """Train a run file or recipe; the same command again goes on where it stopped."""
    run_file = recipe_table.named(name, overrides)
    consent.require_agreed(run_file)
    if options.on or run_file.run.where.place != "local":
        remote.train(run_file, name, overrides, options)
        return
    _train_here(run_file, options)


def fork(name: str, new: str, overrides: list[str], options: TrainOptions, *, weights_only: bool) -> None:
    """Train a new run from the newest checkpoint of another one; the same command again goes on with it."""
    parent = layout.find(name)
    if options.on:
        raise StokerError("STK431", place=options.on)
    if (last := registry.recorded(parent)) not in (None, LocalShell.name):
        console.talk("train.fork_elsewhere", parent=parent.name, host=last)
    run_file = forking.fork(parent, new, overrides, weights_only=weights_only)
    origin = layout.named(new).manifest().forked_from
    assert origin is not None
    key = "train.forked_weights" if origin["weights_only"] else "train.forked"
    console.talk(key, name=new, parent=parent.name, step=origin["step"])
    _train_here(run_file, options)


def _train_here(run_file: RunFile, options: TrainOptions) -> None:
    run_dir = layout.named(str(run_file.run.name))
    announced: list[Resume] = []

    def planned(plan: Plan) -> None:
        announced.extend([plan.resume] if plan.resume else [])
        plan_pages.show_outlook(run_file.run, plan, run_dir, why=options.why)

    listener = Listener(console.talk, ensure_prepared, planned, lambda: options.yes or remote.says_yes(), console.busy)
    started = start.begin(run_file, listener)
    code = None
    if started.process is None:
        _ended(started.run_dir, EXIT_DONE, started.progress)
    elif options.detach:
        console.talk("train.detached", name=started.run_dir.name, pid=started.process.pid)
    else:
        code = _follow(started, started.process, announced[0] if announced else None)
    if options.as_json:
        console.data_json(_facts(started, RunHandle(layout.present(started.run_dir), started.process)))
    if code is not None:
        sys.exit(code)


def _facts(started: Started, handle: RunHandle) -> dict[str, Any]:
    """What `watch --json` says of the run, and where it is; a supervisor that just started has written nothing yet."""
    lives = handle.is_running
    return {
        **handle.figures,
        **({"state": "running"} if lives else {}),
        "folder": str(handle.path),
        "pid": started.process.pid if started.process and lives else None,
        "artifacts": {name: str(path) for name, path in handle.artifacts.items()},
    }


def _follow(started: Started, process: subprocess.Popen[bytes], announced: Resume | None) -> int:
    """Show progress until the process ends; Ctrl-C asks it to commit and stop, a second one leaves it to that.

    SIGTERM ends the screen alone, which is said.
    """
    run_dir, progress = started.run_dir, started.progress
    asked, told = False, dict(progress.attempt)
    with _leaving(run_dir), TrainScreen(progress) as screen:
        while process.poll() is None:
            try:
                if progress.update():
                    _tell_interventions(progress)
                    told, announced = _tell(progress, told, announced)
                screen.show()
                wait_a_little()
            except KeyboardInterrupt:  # noqa: PERF203  # the loop waits anyway
                if asked:
                    console.talk("train.left_stopping", name=run_dir.name)
                    raise
                asked = True
                console.talk(stopping.said(progress))
                training.ask_to_stop(run_dir)
    progress.update()
    _tell_interventions(progress)
    return _ended(run_dir, process.returncode, progress)


@contextlib.contextmanager
def _leaving(run_dir: RunDir) -> Iterator[None]:
    def leave(number: int, _: FrameType | None) -> NoReturn:
        console.talk("train.left", name=run_dir.name)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(
    progress: RunProgress, told: dict[str, Any], announced: Resume | None
) -> tuple[dict[str, Any], Resume | None]:
    """Report once per attempt rejected checkpoints and the resume tier, if it is not as the plan announced it."""
    if progress.attempt == told:
        return told, announced
    for one in progress.rejected:
        console.talk("train.rejected", path=one["path"], reason=one["reason"])
    attempt = progress.attempt
    if attempt["resumed_step"] and not _is_as_announced(attempt, announced):
        console.talk("train.tier", tier=attempt["tier"], step=attempt["resumed_step"])
        if attempt["changed"]:
            console.talk("train.tier_changed", changed=list(attempt["changed"]))
    return attempt, None


def _is_as_announced(attempt: dict[str, Any], announced: Resume | None) -> bool:
    found = (attempt["resumed_step"], attempt["tier"], list(attempt["changed"]))
    return announced is not None and found == (announced.step, announced.tier, announced.changed)


def _tell_interventions(progress: RunProgress) -> None:
    """Report what the supervisor did since the last call."""
    for event in progress.interventions:
        if said := happening_words.sentence(event):
            console.sentence(said, screen=console.stderr)
    progress.interventions.clear()


def _ended(run_dir: RunDir, code: int, progress: RunProgress) -> int:
    run_dir = layout.present(run_dir)
    if training.supervision(run_dir).get("reason") == "store":
        console.talk("train.not_stored")
    if code == EXIT_DONE:
        if progress.not_best:
            console.talk("train.not_best", **progress.not_best)
        command = f"stoker {'eval' if next_commands.scores(run_dir) else 'chat'} {run_dir.name}"
        console.talk("train.done", command=command, step=progress.done_steps, path=run_dir.final)
    elif code == EXIT_STOPPED:
        say_stopped(run_dir, progress.done_steps)
    else:
        report_command.keep(run_dir)
        died = StokerError("STK409", program="train", exit_code=code, log=training.newest_log(run_dir))
        problem = progress.problem if progress.error else died
        problem.exit_code = code if progress.error else EXIT_USER
        raise problem
    report_command.keep(run_dir)
    return code
