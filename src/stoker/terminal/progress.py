"""A run's progress in words: its state, its one line, its money."""

import itertools
from pathlib import Path

from stoker import messages
from stoker.api.figures import duration, money
from stoker.api.run_progress import RunProgress
from stoker.launch import training
from stoker.report import next_commands
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.settle.reasons import reason
from stoker.settle.spending import Spent
from stoker.terminal import console, objective_words

_SENT_HERE = "where.place=local"
"""What a place adds to the run file of a run that was sent there."""
_BLOCKS = "▁▂▃▄▅▆▇█"


def progress_line(progress: RunProgress) -> str:
    """One line: step, epoch, loss, pace, time left, money."""
    step = progress.step
    if not step:
        starting = objective_words.before_training(progress) or messages.text("progress.starting")
        return messages.text("progress.rehearsing") if progress.attempt else starting
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


def interrupted_text(progress: RunProgress) -> str:
    """Why a run that was killed with its supervisor stands still, and the command that resumes it."""
    if progress.elsewhere or _SENT_HERE in progress.run_dir.manifest().overrides:  # the command was another machine's
        return messages.text("watch.cut_off_elsewhere")
    return messages.text(
        "watch.cut_off",
        command=next_commands.resume(progress.run_dir, Path.cwd()),
        step=progress.checkpoint.get("step", 0),
    )


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
    """`3.10 CNY so far, 12.4 at the end`; only the first where the end is not known."""
    fields = {"so_far": money(spent.so_far), "currency": spent.currency}
    if spent.at_end is None:
        return messages.text("progress.money_so_far", **fields)
    return messages.text("progress.money", at_end=money(spent.at_end), **fields)


def sparkline(values: list[float], width: int) -> str:
    """Values as a row of blocks; neighbours are averaged if there are more than `width`."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)
