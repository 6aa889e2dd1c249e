"""Predictions beside a trace or the first measured steps: `stoker plan --trace` and `--calibrate`."""

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.api import figures
from stoker.api.measuring import Calibration
from stoker.plan.make import Found
from stoker.terminal import console


def show_trace(found: Found, traced: dict[str, Any], *, as_json: bool) -> None:
    """Print a traced step beside the closed form."""
    used, name = found.way.memory, found.inputs.machine.name
    if as_json:
        closed = {key: getattr(used, key) for key in ("allocated", "reserved", "runtime", "parts", "moment", "moments")}
        console.data_json({"card": name, "closed_form": closed, "traced": traced})
        return
    console.data(messages.text("trace.title", name=found.inputs.run.name, card=name))
    rows = [
        (messages.text(label), _size(closed), _size(traced[key]), _apart(closed, traced[key]))
        for label, key, closed in (
            ("trace.allocated", "allocated", used.allocated),
            ("trace.reserved", "reserved", used.reserved),
        )
    ]
    rows += [
        (f"  {messages.named('part', part)}", _size(size), _size(traced["parts"][part]), "")
        for part, size in used.parts.items()
    ]
    moments = (messages.named("moment", moment) for moment in (used.moment, traced["moment"]))
    _table(("trace.closed_form", "trace.traced"), [*rows, (messages.text("trace.moment"), *moments, "")])
    for note in traced["notes"]:
        console.data(note)


def progress(done: int) -> str:
    """How many steps were measured."""
    return messages.text("calibrate.step", done=done) if done else messages.text("calibrate.starting")


def show_calibration(calibration: Calibration, *, as_json: bool) -> None:
    """Print the measurement, and the remaining time and money at that pace."""
    if as_json:
        _print_json(calibration)
    else:
        _show(calibration)


def _print_json(calibration: Calibration) -> None:
    found, cost = calibration.found, calibration.cost
    predicted = {
        "tokens": found.tokens,
        "tokens_per_second": found.tokens_per_second[0],
        "memory_bytes": calibration.comparable_bytes,
    }
    console.data_json(
        {
            "card": found.inputs.machine.name,
            "predicted": predicted,
            "measured": vars(calibration.measured),
            "done_steps": calibration.done_steps,
            "total_steps": found.steps.total,
            "time_seconds": calibration.seconds[0],
            "time_seconds_range": calibration.seconds[1:],
            "setup_seconds": calibration.setup,
            "stay_seconds": calibration.stay[0],
            "stay_seconds_range": calibration.stay[1:],
            "cost": cost.model_dump() if cost else None,
        }
    )


def _show(calibration: Calibration) -> None:
    found, measured, seconds = calibration.found, calibration.measured, calibration.seconds
    console.data(messages.text("calibrate.title", name=found.inputs.run.name, steps=measured.steps))
    pace = measured.tokens_per_second, *measured.tokens_per_second_range
    expected = found.tokens_per_second
    rows = [(messages.text("compare.speed"), _range(expected), _range(pace), _apart(expected[0], pace[0]))]
    if seen := measured.memory_bytes:
        memory = calibration.comparable_bytes
        rows.append((messages.text("calibrate.memory"), _size(memory), _size(seen), _apart(memory, seen)))
    _table(("calibrate.predicted", "calibrate.measured"), rows)
    console.data("")
    total = found.steps.total
    fields = {
        "steps": total - calibration.done_steps,
        "total": total,
        "time": figures.time_range(seconds),
        "before": figures.duration(seconds[0] * pace[0] / expected[0]),
    }
    if calibration.cost:
        console.data(messages.text("calibrate.left_money", money=figures.paid(calibration.cost), **fields))
    else:
        console.data(messages.text("calibrate.left", **fields))
    console.data(messages.text("calibrate.stay", time=figures.time_range(calibration.stay)))


def _table(sides: tuple[str, str], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for heading in (*sides, "trace.apart"):
        table.add_column(messages.text(heading), justify="right")
    for row in rows:
        table.add_row(*row)
    console.table(table)


def _range(values: tuple[float, float, float]) -> str:
    value, low, high = (f"{each:,.0f}" for each in values)
    return messages.text("plan.range", value=value, low=low, high=high)


def _size(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _apart(predicted: float, seen: float) -> str:
    """Relative error of the prediction."""
    return f"{predicted / seen - 1:+.1%}" if seen else "-"
