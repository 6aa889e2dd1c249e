"""`stoker watch`: the progress of a run, as a page that redraws itself, one page, or JSON. Reads only."""

import datetime
import time
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stoker import messages
from stoker.api.figures import duration, loss, size
from stoker.api.run_progress import RunProgress, wait_a_little
from stoker.api.sentences import listed
from stoker.doctor import activity
from stoker.doctor.activity import GpuLoad
from stoker.facts import machine, platforms
from stoker.launch import training
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.settle.reasons import reason
from stoker.terminal import console, set_words, source_lines
from stoker.terminal.billing_words import clock
from stoker.terminal.keyboard import Keyboard
from stoker.terminal.progress import interrupted_text, sparkline, spent_text, state_word

_SPARKLINE_WIDTH = 30
_LOAD_EVERY_SECONDS = 2.0
_STATE_STYLES = {"running": "green", "done": "green", "failed": "red"} | dict.fromkeys(
    ("stopped", "interrupted", "unreachable"), "yellow"
)
_ENDED = ("done", "stopped", "failed", "interrupted")


def watch(name: str, *, once: bool, as_json: bool) -> None:
    """Show a run until it ends; `q` or Ctrl-C leaves, and the run goes on."""
    progress = RunProgress(layout.find(name))
    progress.update()
    meter = LoadMeter(progress)
    if as_json:
        console.data_json(facts(progress, meter))
    elif once or not console.stdout.is_terminal or progress.state != "running":
        console.page(_page(progress, meter))
    else:
        _follow(progress, meter)


def last_known_page(run_dir: RunDir, *, stored: bool, as_json: bool) -> bool:
    """Show what was last known of a run whose place does not respond; whether it had ended.

    Args:
        run_dir: The run, on this machine.
        stored: Whether its store knew more than the place had said.
        as_json: Print figures only.
    """
    progress = RunProgress(run_dir)
    progress.update()
    last = progress.elsewhere
    assert last is not None
    if as_json:
        console.data_json(progress.figures() | {"elsewhere": last.model_dump(mode="json")})
        return last.shown_state in _ENDED
    platform = platforms.find(next(iter(last.rented.values()), ""))
    key, title = ("watch.silent", platform.title) if platform else ("watch.silent_own", "")
    silent = messages.text(key, host=last.on, platform=title)
    figures = {"state": state_word(last.state), "step": progress.done_steps, "total": progress.total_steps or "?"}
    seen = messages.text("watch.seen", at=clock(last.at), **figures)
    lines = [silent, seen, *([messages.text("watch.stored", name=run_dir.name)] if stored else [])]
    state = progress.state
    console.page(Group(_title(progress, state), *_bar(progress, state), *lines))
    return state in _ENDED


class LoadMeter:
    """Load of the run's devices, measured every few seconds because asking takes time."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._measured_at = 0.0
        self._cpu_seconds: float | None = None
        self.gpus: list[GpuLoad] = []
        self.cpu_percent: float | None = None
        self.memory_bytes: int | None = None
        self.cpu_count = machine.cpu_count()
        self.measure()
        if self._cpu_seconds is not None:
            wait_a_little()
            self.measure()

    def measure(self) -> None:
        """Measure the GPUs and the training process."""
        pid = training.running_pid(self._progress.run_dir)
        now, before = time.monotonic(), self._cpu_seconds
        self.gpus = activity.gpus() if pid else []
        self.memory_bytes = activity.memory_bytes(pid) if pid else None
        self._cpu_seconds = activity.cpu_seconds(pid) if pid else None
        if self._cpu_seconds is None:
            self.cpu_percent = None
        elif before is not None:
            used = (self._cpu_seconds - before) / (now - self._measured_at)
            self.cpu_percent = 100 * used / self.cpu_count
        self._measured_at = now

    def measure_if_due(self) -> None:
        """Measure if the last measurement is old enough."""
        if time.monotonic() - self._measured_at >= _LOAD_EVERY_SECONDS:
            self.measure()


def facts(progress: RunProgress, meter: LoadMeter) -> dict[str, Any]:
    """Everything the page shows, for `--json`."""
    figures = progress.figures()
    return figures | {
        "memory_bytes": figures["memory_bytes"] or meter.memory_bytes,
        "cpu_percent": meter.cpu_percent,
        "gpus": [asdict(gpu) for gpu in meter.gpus],
    }


def _follow(progress: RunProgress, meter: LoadMeter) -> None:
    leave = Text(messages.text("watch.leave"), style="dim")
    with Keyboard() as keyboard, console.live() as live:
        try:
            while progress.state == "running" and keyboard.pressed() != "q":
                progress.update()
                meter.measure_if_due()
                live.update(Group(_page(progress, meter), leave), refresh=True)
                wait_a_little()
        except KeyboardInterrupt:
            pass
        progress.update()
        live.update(_page(progress, meter), refresh=True)


def _page(progress: RunProgress, meter: LoadMeter) -> RenderableType:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    state = progress.state
    for label, value in [*_training_rows(progress), *_load_rows(progress, meter), *_safety_rows(progress)]:
        rows.add_row(label, value)
    parts: list[RenderableType] = [_title(progress, state), *_bar(progress, state), rows]
    if state == "running" and progress.stalled:
        parts.append(Text("! " + set_words.stalled(progress.stalled), style="yellow"))
    elif state == "running" and progress.input_bound:
        parts.append(Text("! " + messages.text("progress.input_bound"), style="yellow"))
    if state == "interrupted":
        parts.append(Text("! " + interrupted_text(progress), style="yellow"))
    if state == "done" and progress.not_best:
        parts.append(Text("! " + messages.text("train.not_best", **progress.not_best), style="yellow"))
    if progress.error:
        error = progress.problem
        parts.append(Text(f"✗ {error.what}  [{error.code}]", style="red"))
        parts.append(Text(f"  {messages.text('hint')}{error.hint}"))
    return Group(*parts)


def _title(progress: RunProgress, state: str) -> Text:
    word = Text(state_word(state), style=_STATE_STYLES.get(state, ""))
    return Text.assemble((progress.run_dir.name, "bold"), " · ", word)


def _bar(progress: RunProgress, state: str) -> list[RenderableType]:
    done, total = progress.done_steps, progress.total_steps
    if not total:
        return [messages.text("progress.starting")] if state == "running" else []
    line = Table.grid(padding=(0, 2))
    line.add_row(ProgressBar(total=total, completed=done, width=44), f"{done}/{total}", f"{100 * done / total:.1f} %")
    return [line] if progress.recent or state != "running" else [line, messages.text("progress.rehearsing")]


def _training_rows(progress: RunProgress) -> list[tuple[str, str]]:
    if not progress.step:
        return []
    rows = [(messages.text("watch.loss"), _loss_value(progress))]
    if progress.evaluation:
        fields = {"loss": loss(progress.evaluation["eval_loss"]), "step": progress.evaluation["step"]}
        rows.append((messages.text("watch.eval"), messages.text("watch.eval_value", **fields)))
    if progress.tokens_per_second:
        speed = f"{progress.tokens_per_second:,.0f}"
        rows.append((messages.text("watch.speed"), messages.text("watch.speed_value", speed=speed)))
    if progress.state == "running" and not progress.recent:
        rows.append((messages.text("watch.left"), messages.text("watch.resuming")))
    elif progress.state == "running":
        end = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=progress.seconds_left)
        fields = {"left": duration(progress.seconds_left), "clock": f"{end:%m-%d %H:%M}"}
        rows.append((messages.text("watch.left"), messages.text("watch.left_value", **fields)))
    if progress.spent:
        rows.append((messages.text("watch.money"), spent_text(progress.spent)))
    return rows + source_lines.seen(progress.step)


def _loss_value(progress: RunProgress) -> str:
    now, curve = loss(progress.step["loss"]), sparkline(progress.losses, _SPARKLINE_WIDTH)
    if not curve:
        return now
    said = messages.text("watch.loss_value", loss=now, first=loss(progress.first_loss))
    return f"{curve} {said}"


def _load_rows(progress: RunProgress, meter: LoadMeter) -> list[tuple[str, str]]:
    rows = []
    if progress.step.get("memory_bytes"):
        used = _gib(progress.step["memory_bytes"])
        rows.append((messages.text("watch.memory"), messages.text("watch.memory_gpu", used=used)))
    elif meter.memory_bytes:
        rows.append((messages.text("watch.memory"), messages.text("watch.memory_cpu", used=_gib(meter.memory_bytes))))
    for gpu in meter.gpus:
        fields = {"used": _gib(gpu.memory_used_bytes), "total": _gib(gpu.memory_total_bytes)}
        value = messages.text("watch.gpu_value", busy=gpu.utilisation_percent, **fields)
        rows.append((messages.text("watch.gpu", index=gpu.index), value))
    if meter.cpu_percent is not None:
        value = messages.text("watch.cpu_value", busy=f"{meter.cpu_percent:.0f}", count=meter.cpu_count)
        rows.append((messages.text("watch.cpu"), value))
    return rows


def _safety_rows(progress: RunProgress) -> list[tuple[str, str]]:
    rows = [(messages.text("watch.checkpoint"), _checkpoint(progress.checkpoint)), *_supervisor(progress)]
    if progress.attempt:
        rows.append((messages.text("watch.tier"), progress.attempt["tier"]))
    if progress.sources.get("changed"):
        said = messages.text("watch.sources_value", files=listed([str(name) for name in progress.sources["changed"]]))
        rows.append((messages.text("watch.sources"), said))
    if progress.step:
        rows.append((messages.text("watch.last"), messages.text("watch.last_value", ago=_ago(progress.step["at"]))))
    return rows


def _supervisor(progress: RunProgress) -> list[tuple[str, str]]:
    """What the supervisor did, waits for and will do; empty if nothing happened."""
    seen = training.supervision(progress.run_dir)
    said = []
    if seen.get("restarts"):
        said.append(messages.text("watch.restarts", restarts=seen["restarts"], reason=reason(_last_reason(progress))))
    if progress.state == "running" and seen.get("next_retry"):
        fields = {"clock": _clock(seen["next_retry"]), "reason": reason(seen["reason"])}
        said.append(messages.text("watch.waiting", **fields))
    if progress.state == "running" and seen.get("stops_at"):
        said.append(messages.text("watch.stops_at", clock=_clock(seen["stops_at"])))
    if progress.state == "running" and any(one["event"] == "warning" for one in progress.interventions):
        said.append(messages.text("watch.warned"))
    return [(messages.text("watch.supervisor"), messages.text("list.semicolon").join(said))] if said else []


def _last_reason(progress: RunProgress) -> str:
    reasons = [one["reason"] for one in progress.interventions if one["event"] == "restart"]
    return str(reasons[-1]) if reasons else "surprise"


def _clock(at: str) -> str:
    return f"{datetime.datetime.fromisoformat(at).astimezone():%m-%d %H:%M:%S}"


def _checkpoint(event: dict[str, Any]) -> str:
    if not event:
        return messages.text("watch.no_checkpoint")
    fields = {"step": event["step"], "size": size(event["bytes"]), "ago": _ago(event["at"])}
    return messages.text("watch.checkpoint_value", **fields)


def _ago(at: str) -> str:
    then = datetime.datetime.fromisoformat(at)
    return duration(max(0.0, (datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f}"
