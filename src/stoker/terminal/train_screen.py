"""What `stoker train` shows while it watches: a bar with figures that is redrawn, or plain lines without a terminal.

A wait has a label and a clock: loading, rehearsing, evaluating, writing the finished model, copying it to the store.
"""

import datetime
import time

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stoker import messages
from stoker.api.figures import duration, loss
from stoker.api.run_progress import RunProgress, finite
from stoker.config import values
from stoker.launch import training
from stoker.report import plan_check
from stoker.terminal import console
from stoker.terminal.load_meter import LoadMeter
from stoker.terminal.progress import progress_line, spent_text
from stoker.terminal.wrapping import wrap

_SHORTEST_BAR, _LONGEST_BAR = 8, 44
_LABEL_SECONDS = 2.0


class TrainScreen:
    """The lower end of the terminal while a run is watched."""

    def __init__(self, progress: RunProgress) -> None:
        """Prepare to show a run that was just started; an attempt that is known already is an earlier one."""
        self._progress, self._plan = progress, plan_check.read_plan(progress.run_dir)
        self._earlier = progress.attempt
        self._label, self._since = "", time.monotonic()
        self._meter: LoadMeter | None = None
        self._line = None if console.stderr.is_terminal else console.status()
        self._live = console.live(console.stderr, transient=True) if console.stderr.is_terminal else None

    def __enter__(self) -> "TrainScreen":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self) -> None:
        """Show how far the run is."""
        label = self._waits_for()
        if label != self._label:
            self._label, self._since = label, time.monotonic()
        if self._live:
            self._live.update(Group(*self._lines()), refresh=True)
        elif self._line:
            self._line.show(self._said() or progress_line(self._progress))

    def _said(self) -> str:
        """The label, with a clock once it has lasted."""
        waited = time.monotonic() - self._since
        return f"{self._label} · {duration(waited)}" if self._label and waited >= _LABEL_SECONDS else self._label

    def _waits_for(self) -> str:
        """What is done now that is no step; empty while steps are."""
        progress, begun = self._progress, self._progress.attempt is not self._earlier
        if progress.end and begun:
            copying = training.supervision(progress.run_dir).get("state") == "copying"
            return messages.text("train.copying" if copying else "train.ending")
        if not progress.recent:
            return self._rehearsing() if begun else messages.text("progress.starting")
        if progress.done_steps >= progress.total_steps:
            return messages.text("train.finishing")
        return messages.text("train.evaluating", step=progress.done_steps) if self._is_eval_due() else ""

    def _rehearsing(self) -> str:
        done = [messages.named("rehearsal", part) for part in self._progress.rehearsed]
        said = messages.text("progress.rehearsing")
        return messages.text("progress.rehearsed", rehearsing=said, done=done) if done else said

    def _is_eval_due(self) -> bool:
        if self._plan is None:
            return False
        progress, every = self._progress, values.every(self._plan.intervals.evaluate)
        interval = {"steps": int(every.amount), "epoch": self._plan.steps.per_epoch}.get(every.kind, 0)
        due = bool(interval) and progress.done_steps % interval == 0
        return due and progress.evaluation.get("step") != progress.done_steps

    def _lines(self) -> list[RenderableType]:
        progress, width = self._progress, console.stderr.width
        lines: list[RenderableType] = [_bar(progress, width)] if progress.total_steps and progress.step else []
        lines += [Text(line) for line in _joined(self._facts(), width)] if progress.step else []
        lines += [Text(line, style="yellow") for one in _remarks(progress) for line in wrap(f"! {one}", width)]
        if self._label and (not progress.recent or self._said() != self._label):
            lines.append(Spinner("line", Text("\n".join(wrap(self._said(), width - 2)))))
        return lines

    def _facts(self) -> list[str]:
        progress = self._progress
        said = [messages.text("screen.loss", loss=loss(progress.step["loss"]))]
        if progress.evaluation:
            said.append(messages.text("screen.eval", loss=loss(progress.evaluation["eval_loss"])))
        if progress.tokens_per_second:
            said.append(messages.text("plan.pace", value=f"{progress.tokens_per_second:,.0f}"))
        if used := self._memory_bytes():
            said.append(messages.text("screen.memory", used=f"{used / 2**30:.1f}"))
        if saved := progress.checkpoint:
            said.append(messages.text("screen.saved", step=saved["step"], ago=_ago(saved["at"])))
        if spent := progress.spent:
            said.append(spent_text(spent))
        return said

    def _memory_bytes(self) -> int:
        """Of the card as the trainer says it, else of its process."""
        if on_card := finite(self._progress.step.get("memory_bytes")):
            return int(on_card)
        if self._meter is None:
            self._meter = LoadMeter(self._progress)
        self._meter.measure_if_due()
        return self._meter.memory_bytes or 0


def _joined(facts: list[str], width: int) -> list[str]:
    """Facts in as few lines as they fit in, none of them broken."""
    lines: list[str] = []
    for fact in facts:
        longer = f"{lines[-1]} · {fact}" if lines else ""
        if longer and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines


def _bar(progress: RunProgress, width: int) -> Table:
    done, total = progress.done_steps, progress.total_steps
    going = bool(progress.recent) and done < total
    left = [messages.text("screen.left", left=duration(progress.seconds_left))] if going else []
    words = [f"{done}/{total}", f"{100 * done / total:.1f} %", *left]
    room = width - sum(cell_len(word) + 2 for word in words)
    bar = ProgressBar(total=total, completed=done, width=max(_SHORTEST_BAR, min(_LONGEST_BAR, room)))
    line = Table.grid(padding=(0, 2))
    line.add_row(bar, *words)
    return line


def _remarks(progress: RunProgress) -> list[str]:
    said = [messages.text("progress.input_bound")] if progress.input_bound else []
    if progress.is_save_failing:
        failed = progress.failed_save["error"]["fields"]
        said.append(messages.text("progress.save_failed", step=failed["step"], reason=failed["reason"]))
    return said


def _ago(at: str) -> str:
    then = datetime.datetime.fromisoformat(at)
    return duration(max(0.0, (datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()))
