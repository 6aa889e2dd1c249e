"""`stoker train`: prepare, plan, start or resume, follow. The training itself belongs to its own process."""

import subprocess
import sys
from typing import Any

from stoker import messages
from stoker.cli import console
from stoker.cli.plan import show
from stoker.cli.prepare import ensure_prepared
from stoker.cli.progress import Progress, wait_a_little
from stoker.config import load
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import EXIT_DONE, EXIT_STOPPED, StokerError
from stoker.launch import gather, training
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rundir import files, layout
from stoker.rundir.layout import RunDir


def train(name: str, overrides: list[str], *, detach: bool) -> None:
    """Train a run file or recipe; the same command again goes on where it stopped."""
    run_file = load.load(name, overrides)
    with run_file.located():
        run_dir, plan = _ready(run_file, overrides)
    show(plan)
    progress = Progress(run_dir)
    progress.update()
    progress.rejected.clear()  # said in earlier attempts
    process = training.start(run_dir, plan)
    if detach:
        console.talk("train.detached", name=run_dir.name, pid=process.pid)
        return
    sys.exit(_follow(run_dir, process, progress))


def _ready(run_file: RunFile, overrides: list[str]) -> tuple[RunDir, Plan]:
    """The run directory with its data prepared, and the plan for this machine."""
    _check_served(run_file.run)
    training.require_idle(RunDir(layout.runs_folder() / str(run_file.run.name)))
    run_dir = layout.create(run_file, overrides)
    ensure_prepared(run_dir)
    machine = gather.machine(None, run_file.run)
    plan = make_plan(gather.inputs(run_file, run_dir, machine))
    _check(plan)
    files.write_json(run_dir.plan_file, plan.model_dump())
    gather.record(run_dir, run_file, machine, plan.data.digest)
    return run_dir, plan


def _check_served(run: Run) -> None:
    """Words that a later version acts on are refused, not ignored: nobody may believe to be protected."""
    if run.where.place != "local":
        raise StokerError("STK209", place=run.where.place)
    for word, value in [
        ("save.store", run.save.store),
        ("budget.money", run.budget.money),
        ("budget.time", run.budget.time),
    ]:
        if value is not None:
            raise StokerError("STK213", word=word)


def _check(plan: Plan) -> None:
    for reason in plan.reasons:
        if reason.key == "why.card.old":
            raise StokerError("STK204", **reason.fields)
    if plan.fits == "no":
        needed, there = (f"{b / 2**30:.1f}" for b in (plan.memory.peak_device_bytes, plan.memory.available_bytes))
        advice = messages.text("advice.does_not_fit")
        raise StokerError("STK202", needed=needed, available=there, card=plan.card, advice=advice)


def _follow(run_dir: RunDir, process: subprocess.Popen[bytes], progress: Progress) -> int:
    """Show progress until the process ends; Ctrl-C asks it to commit and stop."""
    asked, told = False, dict(progress.attempt)
    with console.status() as status:
        while process.poll() is None:
            try:
                if progress.update():
                    told = _tell(progress, told)
                    status.show(progress.line())
                wait_a_little()
            except KeyboardInterrupt:  # noqa: PERF203  # the loop waits anyway
                if asked:
                    raise
                asked = True
                console.talk("train.stopping")
                training.ask_to_stop(run_dir)
    progress.update()
    # torchrun knows success and failure only; that several processes stopped as asked is in the events.
    stopped = process.returncode == EXIT_DONE and progress.end.get("status") == "stopped"
    return _ended(run_dir, EXIT_STOPPED if stopped else process.returncode, progress)


def _tell(progress: Progress, told: dict[str, Any]) -> dict[str, Any]:
    """Say once per attempt how exactly it goes on, and what was passed over."""
    if progress.attempt == told:
        return told
    for one in progress.rejected:
        console.talk("train.rejected", path=one["path"], reason=one["reason"])
    attempt = progress.attempt
    if attempt["resumed_step"]:
        console.talk("train.tier", tier=attempt["tier"], step=attempt["resumed_step"])
        if attempt["changed"]:
            console.talk("train.tier_changed", changed=", ".join(attempt["changed"]))
    return attempt


def _ended(run_dir: RunDir, code: int, progress: Progress) -> int:
    if code == EXIT_DONE:
        console.talk("train.done", name=run_dir.name, step=progress.done_steps, path=run_dir.final)
    elif code == EXIT_STOPPED:
        console.talk("train.stopped", step=progress.done_steps)
    elif progress.error:
        raise StokerError.from_json(progress.error)
    else:
        raise StokerError("STK409", program="train", exit_code=code, log=training.newest_log(run_dir))
    return code
