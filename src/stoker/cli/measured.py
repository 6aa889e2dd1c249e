"""`stoker plan --trace` and `--calibrate`: what was predicted beside what a trace or the first steps show."""

from collections.abc import Iterable

from rich.table import Table

from stoker import messages
from stoker.cli.prepare_command import ensure_prepared
from stoker.config import load
from stoker.launch import calibration, plan_inputs, programs, traced_step
from stoker.launch.calibration import Measured
from stoker.plan import make, money
from stoker.plan.make import Found
from stoker.plan.plan import Cost
from stoker.rundir import events, layout
from stoker.terminal import console, figures
from stoker.terminal.explanation import named


def trace(found: Found, *, as_json: bool) -> None:
    """Trace the step of a plan, and print it beside the closed form."""
    traced_step.check(found)
    with console.status() as status:
        status.show(messages.text("trace.running"))
        traced = traced_step.trace(found)
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
        (f"  {named('part', part)}", _size(size), _size(traced["parts"][part]), "") for part, size in used.parts.items()
    ]
    moments = (named("moment", moment) for moment in (used.moment, traced["moment"]))
    _table(("trace.closed_form", "trace.traced"), [*rows, (messages.text("trace.moment"), *moments, "")])
    for note in traced["notes"]:
        console.data(note)


def calibrate(name: str, overrides: list[str], *, as_json: bool) -> None:
    """Measure the first steps here, and say what time and money are left at that pace."""
    programs.check_engine()
    run_file = load.load(name, overrides)
    run_dir = layout.create(run_file, overrides)
    with run_file.located():
        ensure_prepared(run_dir)
        on = plan_inputs.machine(None, run_file.run)
        found = make.find(plan_inputs.inputs(run_file, run_dir, on))
        few = [*overrides, f"train.steps={min(calibration.STEPS, found.steps.total)}"]
        with console.status() as status:
            measured = calibration.measure(
                load.load(name, few), few, run_dir, on, lambda done: status.show(_progress(done))
            )
    done = max(events.steps(run_dir.events_file), default=0)
    left = found.tokens * (found.steps.total - done) / found.steps.total
    slowest, fastest = measured.tokens_per_second_range
    seconds = left / measured.tokens_per_second, left / fastest, left / slowest
    cost = money.cost(seconds, found.constraints.devices, found.inputs.offer)
    if as_json:
        _print_json(found, measured, done, seconds, cost)
    else:
        _show(found, measured, done, seconds, cost)


def _progress(done: int) -> str:
    return messages.text("calibrate.step", done=done) if done else messages.text("calibrate.starting")


def _print_json(
    found: Found, measured: Measured, done: int, seconds: tuple[float, float, float], cost: Cost | None
) -> None:
    predicted = {
        "tokens": found.tokens,
        "tokens_per_second": found.tokens_per_second[0],
        "memory_bytes": _comparable_bytes(found),
    }
    console.data_json(
        {
            "card": found.inputs.machine.name,
            "predicted": predicted,
            "measured": vars(measured),
            "done_steps": done,
            "total_steps": found.steps.total,
            "time_seconds": seconds[0],
            "time_seconds_range": seconds[1:],
            "cost": cost.model_dump() if cost else None,
        }
    )


def _show(found: Found, measured: Measured, done: int, seconds: tuple[float, float, float], cost: Cost | None) -> None:
    console.data(messages.text("calibrate.title", name=found.inputs.run.name, steps=measured.steps))
    pace = measured.tokens_per_second, *measured.tokens_per_second_range
    expected = found.tokens_per_second
    rows = [(messages.text("compare.speed"), _range(expected), _range(pace), _apart(expected[0], pace[0]))]
    if seen := measured.memory_bytes:
        memory = _comparable_bytes(found)
        rows.append((messages.text("calibrate.memory"), _size(memory), _size(seen), _apart(memory, seen)))
    _table(("calibrate.predicted", "calibrate.measured"), rows)
    console.data("")
    total = found.steps.total
    fields = {
        "steps": total - done,
        "total": total,
        "time": figures.time_range(seconds),
        "before": figures.duration(seconds[0] * pace[0] / expected[0]),
    }
    if cost:
        console.data(messages.text("calibrate.left_money", money=figures.paid(cost), **fields))
    else:
        console.data(messages.text("calibrate.left", **fields))


def _comparable_bytes(found: Found) -> int:
    """On a GPU the allocator's figure is measured, on a processor all of the process."""
    used = found.way.memory
    return used.reserved if found.inputs.machine.kind == "cuda" else used.device


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
    """How far the prediction lies from what was seen."""
    return f"{predicted / seen - 1:+.1%}" if seen else "-"
