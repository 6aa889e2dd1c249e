"""`stoker watch`: the progress of a run, as a page that redraws itself, one page, or JSON. Reads only."""

import datetime
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
from stoker.facts import platforms
from stoker.launch import training
from stoker.report import state_words
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.settle.reasons import reason
from stoker.terminal import console, loss_chart, objective_words, set_words, source_lines
from stoker.terminal.billing_words import clock
from stoker.terminal.keyboard import Keyboard
from stoker.terminal.load_meter import LoadMeter
from stoker.terminal.progress import interrupted_text, sparkline, spent_text

_SPARKLINE_WIDTH = 30
_CHART_LINES = 8
_FEWEST_CHART_LINES, _MOST_CHART_LINES = 4, 14
_WIDEST_CHART = 110
_OTHER_LINES = 5
"""Title, axis, a remark of two lines, and how to leave."""
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
    figures = {
        "state": state_words.state_word(last.state),
        "step": progress.done_steps,
        "total": progress.total_steps or "?",
    }
    seen = messages.text("watch.seen", at=clock(last.at), **figures)
    lines = [silent, seen, *([messages.text("watch.stored", name=run_dir.name)] if stored else [])]
    state = progress.state
    console.page(Group(_title(progress, state), *_bar(progress, state), *lines))
    return state in _ENDED


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
    state, bar = progress.state, _bar(progress, progress.state)
    shown = [*_training_rows(progress), *_load_rows(progress, meter), *_safety_rows(progress)]
    for label, value in shown:
        rows.add_row(label, value)
    chart = _chart(progress, taken=len(shown) + len(bar))
    parts: list[RenderableType] = [_title(progress, state), *bar, *chart, rows]
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
    if state in _ENDED and progress.step and not progress.elsewhere:
        parts.append(Text(messages.text("watch.report", name=progress.run_dir.name), style="dim"))
    return Group(*parts)


def _title(progress: RunProgress, state: str) -> Text:
    word = Text(state_words.of(progress), style=_STATE_STYLES.get(state, ""))
    return Text.assemble((progress.run_dir.name, "bold"), " · ", word)


def _bar(progress: RunProgress, state: str) -> list[RenderableType]:
    done, total = progress.done_steps, progress.total_steps
    if not total:
        starting = objective_words.before_training(progress) or messages.text("progress.starting")
        return [starting] if state == "running" else []
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
    return rows + objective_words.seen(progress) + source_lines.seen(progress.step)


def _chart(progress: RunProgress, taken: int) -> list[Text]:
    """The loss as a chart, as high as the terminal has room beside so many other lines."""
    screen = console.stdout
    if not loss_chart.can_show(screen.encoding):
        return []
    room = screen.height - taken - _OTHER_LINES if screen.is_terminal else _CHART_LINES
    height = max(_FEWEST_CHART_LINES, min(_MOST_CHART_LINES, room))
    curves = progress.loss_curve.points, progress.eval_curve.points
    return loss_chart.lines(*curves, width=min(_WIDEST_CHART, screen.width - 1), height=height)


def _loss_value(progress: RunProgress) -> str:
    now = loss(progress.step["loss"])
    if progress.first_loss is None:
        return now
    said = messages.text("watch.loss_value", loss=now, first=loss(progress.first_loss))
    if loss_chart.can_show(console.stdout.encoding):
        return said
    losses = [point.mean for point in progress.loss_curve.points]
    return f"{sparkline(losses, _SPARKLINE_WIDTH)} {said}"


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
