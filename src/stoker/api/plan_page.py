"""A plan in words: its title, its figures, its reasons; and as notebooks show it."""

from collections.abc import Iterable
from typing import Any

from pydantic import PrivateAttr

from stoker import messages
from stoker.api import figures, html_tables
from stoker.generating.planned_answers import Generating
from stoker.plan.plan import Cost, Plan, Reason, Resume, SafeWay, StepCounts

_OF_NO_CHOICE = ("why.card.taken", "why.data")
"""Reasons that hold on a card that nothing runs on."""


class PlanPage(Plan):
    """A plan that shows itself: as text in a terminal, as a table in a notebook."""

    _way_out: list[str] = PrivateAttr(default_factory=list)

    @classmethod
    def of(cls, made: Plan, way_out: list[str] | None = None) -> "PlanPage":
        """The page of a plan, with the lines that say what would make it fit."""
        page = cls(**dict(made))
        page._way_out = way_out or []
        return page

    @property
    def is_possible(self) -> bool:
        """Whether it fits, surely or as expected: `fits` is a word, and `no` is as true as any."""
        return self.fits != "no"

    def __str__(self) -> str:
        """The page."""
        rows = [f"{label}  {value}" for label, value in rows_of(self)]
        return "\n".join([title(self), *rows, "", *reasons(self), *self._remarks()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = html_tables.paragraph(title(self)) + html_tables.table(rows_of(self))
        return head + html_tables.items(reasons(self)) + "".join(map(html_tables.paragraph, self._remarks()))

    def _remarks(self) -> list[str]:
        return [*estimated_remark(self), *self._way_out]


def title(made: Plan) -> str:
    """`{name} on 4 x {card}`."""
    card = f"{made.batch.devices} x {made.card}" if made.batch.devices > 1 else made.card
    return messages.text("plan.title", name=made.name, card=card)


def reasons(made: Plan) -> list[str]:
    """A line for each reason; where the card is refused, no choice was made."""
    said = [one for one in made.reasons if one.key.startswith(_OF_NO_CHOICE)] if _too_old(made) else made.reasons
    return [messages.text("plan.reason", about=reason.about, text=reason.text) for reason in said]


def _too_old(made: Plan) -> str:
    """Why no build of torch runs on the card, if so."""
    return next((one.text for one in made.reasons if one.key == "why.card.old"), "")


def estimated_remark(made: Plan) -> list[str]:
    """That the figures of the data are the run file's, or estimated from its files, where they are."""
    return data_remark(made.reasons) if "data" in made.estimated else []


_REMARKS = ("why.steps", "why.epochs", "why.save.beyond", "why.rate", "why.context", "why.not_merged")


def length_remarks(said: Iterable[Reason]) -> list[str]:
    """Steps, passes, saves and learning rates that are unusual, rows longer than the model's, and no merged model."""
    return [one.text for one in said if one.key.startswith(_REMARKS)]


def data_remark(said: Iterable[Reason]) -> list[str]:
    """What data that is not prepared was estimated from."""
    for reason in said:
        if reason.key == "why.data.raw":
            return [messages.text("plan.data_raw", rows=reason.fields["rows"])]
        if reason.key == "why.data.sampled":
            return [messages.text("plan.data_sampled", rows=reason.fields["rows"], read=reason.fields["read"])]
    return [messages.text("plan.data_estimated")]


def to_json(made: Plan) -> dict[str, Any]:
    """The plan as JSON, with each reason in words."""
    out = made.model_dump()
    for reason, entry in zip(made.reasons, out["reasons"], strict=True):
        entry["text"] = reason.text
    return out


def rows_of(made: Plan) -> list[tuple[str, str]]:
    """The figures: a label and a value each."""
    used, there = made.memory.peak_device_bytes / 2**30, made.memory.available_bytes / 2**30
    low, high = (f"{each / 2**30:.1f}" for each in made.memory.device_bytes_range)
    rows = [
        ("plan.fits_row", _fits(made)),
        *([("plan.safe", _safe(made, made.safe))] if made.safe else []),
        (
            "plan.main_memory" if made.device == "cpu" else "plan.memory",
            messages.text("plan.memory_value", used=f"{used:.1f}", there=f"{there:.1f}", low=low, high=high),
        ),
        ("plan.model", messages.text("plan.model_value", **_model_fields(made))),
        ("plan.steps", steps_text(made.steps)),
        *(_pace(made) if made.fits != "no" else []),
        ("plan.disk", _disk(made)),
    ]
    if made.fits != "no" and (made.cost or made.device == "cuda"):
        rows.append(("plan.cost", _cost(made, made.cost) if made.cost else messages.text("plan.no_price")))
    if made.fits != "no" and made.generating and made.cost:
        rows.append(("plan.prompts", prompts_cost(made.generating, made.cost.currency)))
    if made.resume:
        rows.append(("plan.resume", resume_text(made.resume)))
    return [(messages.text(key), value) for key, value in rows]


def steps_text(steps: StepCounts) -> str:
    """Whole epochs are a product; `train.steps` may end in the middle of one."""
    key = "plan.steps_part" if steps.total < steps.per_epoch else "plan.steps_parts"
    if steps.total == steps.per_epoch * steps.epochs:
        key = "plan.steps_value"
    return messages.text(key, share=f"{steps.total / steps.per_epoch:.2f}", **steps.model_dump())


def _fits(made: Plan) -> str:
    """The verdict, with the card where that is what refuses."""
    old = _too_old(made)
    if old:
        return messages.text("plan.fits.old", why=old)
    return messages.text("plan.fits.likely" if made.safe else f"plan.fits.{made.fits}")


def _safe(made: Plan, way: SafeWay) -> str:
    """The way that surely fits: its cut, memory, time and money."""
    strategy = "" if way.strategy == "single" else f"{way.strategy} "
    cut = f"{strategy}{way.micro}x{made.batch.effective // way.micro // made.batch.devices}x{made.batch.devices}"
    recompute = f" {messages.text('compare.recompute')}" if way.gradient_checkpointing else ""
    paid = [f"{way.cost:,.2f} {made.cost.currency}"] if way.cost is not None and made.cost else []
    high, said = f"{way.device_bytes_range[1] / 2**30:.1f}", [figures.duration(way.time_seconds), *paid]
    return messages.text("plan.safe_value", way=f"{cut}{recompute}", high=high, figures=said)


def _pace(made: Plan) -> list[tuple[str, str]]:
    """What a run that does not fit has none of."""
    slowest, fastest = (f"{each:,.0f}" for each in made.speed.tokens_per_second_range)
    pace = f"{made.speed.tokens_per_second:,.0f}"
    return [
        ("plan.speed", messages.text("plan.speed_value", speed=pace, low=slowest, high=fastest)),
        ("plan.time", figures.time_range((made.time_seconds, *made.time_seconds_range))),
        *([("plan.generating", _generating(made, made.generating))] if made.generating else []),
    ]


def _generating(made: Plan, found: Generating) -> str:
    """Its part of a step, and its memory beside that of training."""
    gib = (f"{size / 2**30:.1f}" for size in (found.device_bytes, found.training_device_bytes))
    fields = {"answers": found.at_once, "memory": next(gib), "training": next(gib)}
    return messages.text("plan.generating_value", **fields, **generating_fields(found, made.speed.step_seconds))


def generating_fields(found: Generating, step_seconds: float) -> dict[str, str]:
    """Seconds of a step that pass before it trains, and what part of it that is."""
    low, high = map(figures.short, found.step_seconds_range)
    seconds, whole = figures.short(found.step_seconds), figures.short(step_seconds)
    return {"seconds": seconds, "low": low, "high": high, "step": whole, "share": f"{found.share:.0%}"}


def prompts_cost(found: Generating, currency: str) -> str:
    """What 1,000 prompts cost, with its interval."""
    assert found.cost_per_1000_prompts is not None
    assert found.cost_per_1000_prompts_range is not None
    low, high = map(figures.money, found.cost_per_1000_prompts_range)
    value = f"{figures.money(found.cost_per_1000_prompts)} {currency}"
    return messages.text("plan.range", value=value, low=low, high=high)


def resume_text(found: Resume) -> str:
    """The tier at which the run resumes, as the trainer reports it."""
    if found.tier == "FORK" and found.step == 0:
        return messages.text("plan.resume_weights", tier=found.tier)
    key = "plan.resume_changed" if found.changed else "train.tier"
    return messages.text(key, tier=found.tier, step=found.step, changed=found.changed)


def _cost(made: Plan, cost: Cost) -> str:
    key = "plan.cost_generated" if made.generating else "plan.cost_value"
    return messages.text(key, amount=figures.paid(cost), source=figures.price_source(cost))


def _disk(made: Plan) -> str:
    parts = [
        f"{size / 1e9:.1f} {messages.text(f'disk.{part}')}" for part, size in made.disk_parts.items() if size >= 5e7
    ]
    return (
        f"{made.disk_bytes / 1e9:.1f} GB = {' + '.join(parts)}" if len(parts) > 1 else f"{made.disk_bytes / 1e9:.1f} GB"
    )


def _model_fields(made: Plan) -> dict[str, str]:
    return {
        "parameters": figures.millions(made.model.parameters),
        "trainable": figures.millions(made.model.trainable_parameters),
        "origin": messages.text(f"origin.{made.model.origin}"),
    }
