"""`stoker train`: prepare, plan, start or resume, follow. The training itself belongs to its own process."""

import subprocess
import sys
from typing import Any

from stoker import messages
from stoker.cli import remote, returning
from stoker.cli.plan_command import require_possible, show
from stoker.cli.prepare_command import ensure_prepared
from stoker.cli.replan_command import changes
from stoker.cluster import assemble
from stoker.config import load
from stoker.config.load import RunFile
from stoker.errors import EXIT_DONE, EXIT_STOPPED, StokerError
from stoker.launch import plan_inputs, training
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rundir import files, layout
from stoker.rundir.layout import RunDir
from stoker.settle.reasons import reason
from stoker.terminal import console
from stoker.terminal.progress import Progress, wait_a_little

_CAUSES = {"compute": "straggler.compute", "data": "straggler.data"}


def train(name: str, overrides: list[str], on: str | None, *, detach: bool, yes: bool) -> None:
    """Train a run file or recipe; the same command again goes on where it stopped."""
    run_file = load.load(name, overrides)
    if on or run_file.run.where.place != "local":
        remote.train(run_file, name, overrides, on, detach=detach, yes=yes)
        return
    run_dir = RunDir(layout.runs_folder() / str(run_file.run.name))
    if left := training.orphan(run_dir):
        console.talk("train.adopted", pid=left)
        process, progress = _start(run_dir)
    else:
        with run_file.located(), training.launching(run_dir, run_file.run):
            run_dir, plan = _ready(run_file, overrides)
            show(plan)
            process, progress = _start(run_dir)
    if detach:
        console.talk("train.detached", name=run_dir.name, pid=process.pid)
        return
    sys.exit(_follow(run_dir, process, progress))


def _start(run_dir: RunDir) -> tuple[subprocess.Popen[bytes], Progress]:
    """The supervisor, and a view of what happens from now on."""
    progress = Progress(run_dir)
    progress.update()
    progress.rejected.clear()  # said in earlier attempts
    progress.interventions.clear()
    process = training.start(run_dir)
    training.keep_lease(run_dir)
    return process, progress


def _ready(run_file: RunFile, overrides: list[str]) -> tuple[RunDir, Plan]:
    """The run directory with its data prepared, and the plan for this machine."""
    training.require_idle(RunDir(layout.runs_folder() / str(run_file.run.name)))
    assemble.check(run_file.run)
    run_dir = layout.create(run_file, overrides)
    run_dir.place_file.unlink(missing_ok=True)  # from now on it is here
    returning.check(run_dir, run_file.run)
    ensure_prepared(run_dir)
    returning.bring(run_dir, run_file.run)
    assemble.gathered(run_dir, run_file.run, console.talk)
    machine = plan_inputs.machine(None, run_file.run, run_dir)
    plan = make_plan(plan_inputs.inputs(run_file, run_dir, machine))
    require_possible(run_file.run, plan)
    files.write_json(run_dir.plan_file, plan.model_dump())
    plan_inputs.record(run_dir, run_file, machine, plan.data.digest)
    return run_dir, plan


def _follow(run_dir: RunDir, process: subprocess.Popen[bytes], progress: Progress) -> int:
    """Show progress until the process ends; Ctrl-C asks it to commit and stop."""
    asked, told = False, dict(progress.attempt)
    with console.status() as status:
        while process.poll() is None:
            try:
                if progress.update():
                    _tell_interventions(progress)
                    told = _tell(progress, told)
                    status.show(progress.line())
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


def _tell_interventions(progress: Progress) -> None:
    """Say what the supervisor did since the last look."""
    for event in progress.interventions:
        if event["event"] == "restart":
            said = {"step": event["step"], "reason": reason(event["reason"])}
            if wait := round(event["wait_seconds"]):
                console.talk("train.restarted", **said, wait=wait)
            else:
                console.talk("train.restarted_now", **said)
        elif event["event"] == "replan":
            console.talk("train.replanned", changes=changes(event["before"], event["after"]))
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
    """Which rank at which step, and where that is not this machine alone, on which one."""
    rank = messages.text("train.rank", rank=event["rank"]) if event["rank"] is not None else ""
    return {"who": " · ".join(filter(None, (event["node"], rank))), "step": event["step"]}


def _ended(run_dir: RunDir, code: int, progress: Progress) -> int:
    if training.supervision(run_dir).get("reason") == "store":
        console.talk("train.not_stored")
    if code == EXIT_DONE:
        console.talk("train.done", name=run_dir.name, step=progress.done_steps, path=run_dir.final)
    elif code == EXIT_STOPPED:
        say_stopped(run_dir, progress.done_steps)
    elif progress.error:
        console.show_error(progress.problem)
    else:
        raise StokerError("STK409", program="train", exit_code=code, log=training.newest_log(run_dir))
    return code


def say_stopped(run_dir: RunDir, step: int) -> None:
    """That it stopped, which limit asked for it, and where that is not so, that no last checkpoint was committed."""
    seen = training.supervision(run_dir)
    by = seen.get("reason")
    if seen.get("ended"):
        console.talk("train.stopped_short", step=seen["committed_step"], reason=reason(seen["ended"]))
    elif by in ("time", "money", "deadline", "notice"):
        console.talk("train.stopped_by", step=step, limit=reason(str(by)))
    else:
        console.talk("train.stopped", step=step)
