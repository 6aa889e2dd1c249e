"""A run on every card as JSON: the fields of `stoker plan --json`."""

from typing import Any

from stoker.generating.planned_answers import Generating
from stoker.plan.clocks import Stay
from stoker.plan.make import Found
from stoker.plan.search import Way
from stoker.rent.bill import Bill, in_safe_way
from stoker.rent.compare import Advice, Row


def of_answer(found: Advice | None, said: str) -> dict[str, Any]:
    """What to take, with the sentence that says it."""
    if found is None:
        return {"text": said, "kept": False, "card": None}
    named = {"card": found.row.card, "devices": found.row.devices}
    return {"text": said, "kept": found.kept, **named, "bill": _of_bill(found.bill) if found.bill else None}


def _of_bill(bill: Bill) -> dict[str, Any]:
    return {
        "kind": bill.kind,
        "provider": bill.provider,
        "setup_seconds": bill.setup,
        "stay_seconds": bill.seconds,
        "billed_seconds": bill.billed_seconds,
        "own_price": bill.own_price,
        "cost": bill.cost.model_dump(),
        "restarts": bill.restarts,
        "session": _of_stay(bill.stay) if bill.stay else None,
    }


def of_row(row: Row, why: str, marked: list[Row]) -> dict[str, Any]:
    """A row of the table; `why` in words, `marked` are on the frontier."""
    out: dict[str, Any] = {
        "card": row.card,
        "devices": row.devices,
        "fits": row.fits,
        "sure": row.sure,
        "why": why,
    }
    out["frontier"] = any(row is one for one in marked)
    out["refused"] = row.refused.to_json() if row.refused else None
    found = row.found
    if found is None:
        return out
    pace, slowest, fastest = found.tokens_per_second
    seconds, least, most = found.seconds
    answers = generating(row)
    return out | {
        "memory_bytes": found.way.memory.device,
        "memory_bytes_range": found.way.memory_range,
        "available_bytes": found.inputs.machine.memory_per_device,
        "moment": found.way.memory.moment,
        "tokens_per_second": pace,
        "tokens_per_second_range": (slowest, fastest),
        **({"generating": answers.model_dump()} if answers else {}),
        "time_seconds": seconds,
        "time_seconds_range": (least, most),
        "setup_seconds": row.setup,
        "stay_seconds": row.seconds if row.fits != "no" else None,
        "cost": row.cost.model_dump() if row.cost else None,
        "spot": _of_bill(row.spot) if row.spot else None,
        "free": [_of_bill(one) for one in row.free],
        "strategy": found.way.strategy,
        "micro": found.way.micro,
        "accumulation": found.way.step.accumulation,
        "gradient_checkpointing": found.way.checkpointing,
        "safe": _of_safe(found, found.way.safe, row.bill) if found.way.safe else None,
        "precision": found.constraints.precision,
        "disk_bytes": sum(found.disk.values()),
        "platforms": [_of_stay(stay) for stay in row.stays],
    }


def generating(row: Row) -> Generating | None:
    """What generating takes there, with the money of the whole stay; None for a run that does not."""
    found = row.found
    if found is None or row.fits == "no":
        return None
    return found.inputs.data.answers.figures(found.way.memory, found.way.pace, row.cost, found.steps.total)


def _of_safe(found: Found, way: Way, bill: Bill | None) -> dict[str, Any]:
    """The way that is taken after out-of-memory; its money is of the whole stay, the failed attempt included."""
    seconds, amount = in_safe_way(found, way, bill)
    return {
        "strategy": way.strategy,
        "micro": way.micro,
        "gradient_checkpointing": way.checkpointing,
        "memory_bytes_range": way.memory_range,
        "time_seconds": seconds,
        "cost": amount,
    }


def _of_stay(stay: Stay) -> dict[str, Any]:
    return {
        "platform": stay.platform,
        "free": stay.free,
        "session_hours": stay.session_hours,
        "sessions": stay.sessions,
        "weekly_hours": stay.weekly_hours,
        "weeks": stay.weeks,
        "disk_too_small": stay.disk.path if stay.disk else None,
    }
