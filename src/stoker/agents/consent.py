"""Whether a program may start a training: only the plan that was shown, and only within a stated budget.

A digest covers the run as it was asked for, with its name and the folder its paths start from, the place, and the
figures of its plan. Whoever gives it back has seen the plan, because it is written nowhere else; when the run file, the
size of the data, the machine or a price changes, so does it.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from stoker import env
from stoker.api.figures import duration
from stoker.config import problems, values
from stoker.config.load import RunFile
from stoker.errors import StokerError

_PLAN = "plan"
"""The tool that shows a plan."""
_FIGURES = ("card", "fits", "batch", "precision", "strategy", "steps", "data", "time_seconds", "cost")
"""What of a plan a person agrees to. Free memory and disk differ from moment to moment."""


@dataclass(frozen=True)
class AgreedBudget:
    """The most that a training may take, in words; empty where it is not limited."""

    time: str = ""
    money: str = ""

    def require(self) -> None:
        """Refuse none at all, and what cannot be read."""
        if not self.time and not self.money:
            raise StokerError("STK554", choices=["budget_time", "budget_money"])
        if self.time and not values.is_duration(self.time):
            raise problems.unparsable("budget_time", self.time, "`6h`", values.is_duration)
        if self.money and not values.is_money(self.money):
            raise problems.unparsable("budget_money", self.money, "`30USD`", values.is_money)

    def require_enough(self, plan: dict[str, Any]) -> None:
        """Refuse a plan that needs more, or whose money nobody can count."""
        needed = plan["time_seconds"]
        if self.time and needed > values.duration_seconds(self.time):
            raise StokerError("STK555", needed=duration(needed), budget=self.time, key="budget_time")
        if not self.money:
            return
        amount, currency = values.money(self.money)
        cost = plan["cost"]
        if cost is None or cost["currency"] != currency:
            raise StokerError("STK671", currency=currency, card=plan["card"])
        if cost["amount"] > amount:
            spelt = f"{cost['amount']:.2f} {currency}"
            raise StokerError("STK555", needed=spelt, budget=self.money, key="budget_money")

    def overrides(self, run_file: RunFile) -> dict[str, str]:
        """The budget as keys of the run file, so that the supervisor holds it; a smaller one of the file stays."""
        own, found = run_file.run.budget, {}
        if self.time and not (own.time and values.duration_seconds(own.time) < values.duration_seconds(self.time)):
            found["budget.time"] = self.time
        if self.money and not (own.money and _less(own.money, self.money)):
            found["budget.money"] = self.money
        return found


def _less(one: str, other: str) -> bool:
    """Whether an amount of the same currency is smaller."""
    (amount, currency), (than, as_well) = values.money(one), values.money(other)
    return currency == as_well and amount < than


def digest(run_file: RunFile, on: str, plan: dict[str, Any]) -> str:
    """What names a plan that was shown."""
    shown = {
        "run": run_file.run.model_dump(mode="json"),
        "folder": str(run_file.folder.resolve()),
        "on": on,
        "plan": {name: plan[name] for name in _FIGURES},
    }
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def require_shown(given: str, now: str) -> None:
    """Refuse a start whose plan was not shown, or is another by now."""
    if given != now:
        raise StokerError("STK553", call=_PLAN)


def text_digest(run_file: RunFile) -> str:
    """What names the text of a run file, for a command that reads it again."""
    return hashlib.sha256(run_file.text.encode()).hexdigest()


def require_agreed(run_file: RunFile) -> None:
    """Refuse a text other than the one that whoever started this command has read."""
    if env.read(env.AGREED) not in ("", text_digest(run_file)):
        raise StokerError("STK467", name=run_file.name)


def require_digest(given: str) -> None:
    """Refuse a start without a plan, before one is made."""
    if not given:
        raise StokerError("STK552", call=_PLAN)
