"""`stoker plan`: what will happen, as a page or as JSON."""

from rich.table import Table

from stoker import messages
from stoker.cli import console
from stoker.config import load
from stoker.launch import gather
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan


def plan(name: str, overrides: list[str], card: str | None, *, as_json: bool) -> None:
    """Print the plan of a run file or recipe for a card or this machine."""
    run_file = load.load(name, overrides)
    with run_file.located():
        made = make_plan(gather.inputs(run_file, None, gather.machine(card, run_file.run)))
    if as_json:
        console.data_json(to_json(made))
    else:
        show(made)


def to_json(made: Plan) -> dict[str, object]:
    """The plan as JSON, with each reason in words."""
    out = made.model_dump()
    for reason, entry in zip(made.reasons, out["reasons"], strict=True):
        entry["text"] = reason.text
    return out


def show(made: Plan) -> None:
    """The plan as people read it."""
    console.data(messages.text("plan.title", name=made.name, card=made.card))
    figures = Table.grid(padding=(0, 2))
    for key, value in _figures(made):
        figures.add_row(messages.text(key), value)
    console.table(figures)
    console.data("")
    for reason in made.reasons:
        console.data(f"  {reason.about}: {reason.text}")
    if "data" in made.estimated:
        console.data("")
        console.data(messages.text("plan.data_estimated"))


def _figures(made: Plan) -> list[tuple[str, str]]:
    used, there = made.memory.peak_reserved_bytes / 2**30, made.memory.available_bytes / 2**30
    verdict = messages.text("plan.fits" if made.fits else "plan.fits_not")
    steps = made.steps
    rows = [
        ("plan.fits_row", verdict),
        ("plan.memory", messages.text("plan.memory_value", used=f"{used:.1f}", there=f"{there:.1f}")),
        ("plan.model", messages.text("plan.model_value", **_model_fields(made))),
        (
            "plan.steps",
            messages.text("plan.steps_value", total=steps.total, per_epoch=steps.per_epoch, epochs=steps.epochs),
        ),
        ("plan.speed", messages.text("plan.speed_value", speed=f"{made.speed.tokens_per_second:,.0f}")),
        ("plan.time", duration(made.time_seconds)),
        ("plan.disk", f"{made.disk_bytes / 1e9:.1f} GB"),
    ]
    if made.cost:
        fields = {"amount": f"{made.cost.amount:.2f}", "currency": made.cost.currency, "source": made.cost.source}
        rows.append(("plan.cost", messages.text("plan.cost_value", **fields)))
    return rows


def _model_fields(made: Plan) -> dict[str, str]:
    return {
        "parameters": f"{made.model.parameters / 1e6:,.1f}",
        "trainable": f"{made.model.trainable_parameters / 1e6:,.1f}",
        "origin": messages.text(f"origin.{made.model.origin}"),
    }


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"
