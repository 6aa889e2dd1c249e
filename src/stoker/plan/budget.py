"""Limits that end a run early: budgets in seconds, and the end of a session."""

from stoker.config import values
from stoker.config.run import Run
from stoker.plan.plan import Cost, Limits, Reason

_TIME, _MONEY = "limits.time_seconds", "limits.money_seconds"  # the plan's keys of the two budgets


def limits(run: Run, cost: Cost | None, deadline: str | None) -> Limits:
    """How long the run may take; a budget in money lasts as long as the price in `cost` says."""
    lasts = None
    if run.budget.money and cost:
        amount, currency = values.money(run.budget.money)
        per_hour = cost.price_per_hour * cost.billed_devices
        lasts = amount / per_hour * 3600 if currency == cost.currency else None
    return Limits(
        time_seconds=values.duration_seconds(run.budget.time) if run.budget.time else None,
        money_seconds=lasts,
        deadline=deadline,
    )


def reasons(run: Run, found: Limits, cost: Cost | None, card: str, planned: float) -> list[Reason]:
    """The reason of each limit, and whether the planned seconds go beyond it."""
    out = []
    if found.time_seconds is not None:
        out.append(Reason(about=_TIME, key="why.asked", fields={"word": "budget.time"}))
    if found.money_seconds is not None and cost:
        fields = {
            "hours": f"{found.money_seconds / 3600:.1f}",
            "money": run.budget.money,
            "price": f"{cost.price_per_hour:.2f} {cost.currency}",
            "devices": cost.billed_devices,
            "source": cost.source,
        }
        out.append(Reason(about=_MONEY, key="why.limit.money", fields=fields))
    elif run.budget.money:
        fields = {"currency": values.money(run.budget.money)[1], "card": card}
        out.append(Reason(about=_MONEY, key="why.limit.no_price", fields=fields))
    if found.deadline:
        out.append(Reason(about="limits.deadline", key="why.limit.deadline", fields={"deadline": found.deadline}))
    return [*out, *_short(found, planned)]


def _short(found: Limits, planned: float) -> list[Reason]:
    """That the first of the budgets ends before the plan does."""
    ends = {about: end for about, end in ((_TIME, found.time_seconds), (_MONEY, found.money_seconds)) if end}
    first = min(ends, key=lambda about: ends[about], default="")
    if not first or ends[first] >= planned:
        return []
    fields = {"hours": f"{ends[first] / 3600:.1f}", "planned": f"{planned / 3600:.1f}"}
    return [Reason(about=first, key="why.limit.short", fields=fields)]
