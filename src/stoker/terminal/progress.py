"""A run's progress in words: its state, its one line, its money."""

from stoker import messages
from stoker.api.figures import duration, money
from stoker.api.run_progress import RunProgress
from stoker.launch import training
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.settle.reasons import reason
from stoker.settle.spending import Spent
from stoker.terminal import console

STATES = {
    "new": "state.new",
    "running": "state.running",
    "stopped": "state.stopped",
    "done": "state.done",
    "failed": "state.failed",
    "interrupted": "state.interrupted",
    "sent": "state.sent",
    "queued": "state.queued",
    "short": "state.running",
    "unreachable": "state.unreachable",
}
"""The word for each of `RunProgress.state`."""


def state_word(state: str) -> str:
    """A state in words; one that another place has made up, as it is."""
    return messages.text(STATES[state]) if state in STATES else state


def progress_line(progress: RunProgress) -> str:
    """One line: step, epoch, loss, pace, time left, money."""
    step = progress.step
    if not step:
        return messages.text("progress.rehearsing" if progress.attempt else "progress.starting")
    fields = {
        "step": progress.done_steps,
        "total": progress.total_steps,
        "epoch": f"{step['epoch']:.2f}",
        "loss": f"{step['loss']:.4f}" if isinstance(step["loss"], float) else step["loss"] or "-",
        "speed": f"{progress.tokens_per_second:,.0f}",
        "left": duration(progress.seconds_left),
    }
    parts = [messages.text("progress.line" if progress.recent else "progress.resuming", **fields)]
    if spent := progress.spent:
        parts.append(spent_text(spent))
    if progress.input_bound:
        parts.append(messages.text("progress.input_bound"))
    if progress.is_save_failing:
        failed = progress.failed_save["error"]["fields"]
        parts.append(messages.text("progress.save_failed", step=failed["step"], reason=failed["reason"]))
    return " · ".join(parts)


def say_stopped(run_dir: RunDir, step: int) -> None:
    """Report that it stopped, by which limit, and whether a last checkpoint was committed."""
    seen = training.supervision(run_dir)
    by = seen.get("reason")
    if seen.get("ended"):
        console.talk("train.stopped_short", step=seen["committed_step"], reason=reason(seen["ended"]))
    elif by in ("time", "money", "deadline", "notice"):
        console.talk("train.stopped_by", step=step, limit=reason(str(by)))
    elif not seen.get("committed_step") and not checkpoints.committed(run_dir.checkpoints):
        console.talk("stop.before_first")
    else:
        _say_resumable(run_dir, step)


def _say_resumable(run_dir: RunDir, step: int) -> None:
    """That a run stopped with a checkpoint, and the command that resumes it: another where its folder was renamed."""
    manifest = run_dir.manifest()
    key = "train.stopped" if manifest.name == run_dir.name else "train.stopped.renamed"
    console.talk(key, step=step, name=run_dir.name, file=manifest.run_file)


def spent_text(spent: Spent) -> str:
    """`3.10 CNY so far, 12.4 at the end`."""
    fields = {"so_far": money(spent.so_far), "at_end": money(spent.at_end), "currency": spent.currency}
    return messages.text("progress.money", **fields)
