"""What is billed of a run at another place, and how it is ended, in words."""

import datetime

from stoker import messages
from stoker.api import last_seen
from stoker.api.figures import money
from stoker.facts import platforms
from stoker.rundir.last_known import LastKnown


def billed_words(name: str, last: LastKnown) -> str:
    """Whether the machines of a run are billed, until when, and what ends it."""
    kind, since = last_seen.billed(last), clock(last.silent)
    if kind == "no":
        return messages.text("billed.silent_own" if last.silent else "billed.no", since=since)
    how = messages.text("list.semicolon").join(how_off(host, platform) for host, platform in last.rented.items())
    return messages.text(f"billed.{kind}", price=price(last), since=since, how=how, name=name)


def how_off(host: str, platform: str) -> str:
    """What switches a rented machine off."""
    found = platforms.find(platform)
    if found is not None and found.meter.reversible is not None:
        return f"`stoker hosts off {host}`"
    return messages.text("off.console", platform=found.title if found else platform)


def price(last: LastKnown | None) -> str:
    """`, 2.50 CNY/h`; empty where it is not known."""
    if last is None or last.price is None:
        return ""
    return messages.text("billed.price", price=money(last.price.per_hour), currency=last.price.currency)


def clock(at: datetime.datetime | None) -> str:
    """A moment, as lists show it."""
    return f"{at.astimezone():%m-%d %H:%M}" if at else "-"
