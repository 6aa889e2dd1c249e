"""Figures as text: significant digits, durations, a figure with its interval."""

from stoker import messages
from stoker.facts import prices
from stoker.facts.prices import STALE_DAYS
from stoker.plan import money as money_facts
from stoker.plan.plan import Cost

_LESS = "<0.01"


def short(value: float) -> str:
    """Two digits behind the point below one, one below a hundred, none above; `12k`."""
    if value >= 10_000:
        return thousands(value)
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def money(amount: float) -> str:
    """Two digits behind the point below ten, one below a hundred, none above; `<0.01`."""
    if 0 < amount < 0.01:
        return _LESS
    return f"{amount:.2f}" if amount < 10 else short(amount)


def exact_money(amount: float) -> str:
    """The same, but less than a hundredth to four digits, as plans compute it: `0.0034`, `<0.0001`, `0`."""
    if amount >= 0.01:
        return money(amount)
    return f"{amount:.4f}" if amount >= 0.0001 else "<0.0001" if amount else "0"


def thousands(value: float) -> str:
    """`870`, `1.2k`, `12k`, `18M`."""
    if value < 1000:
        return f"{value:.0f}"
    if value >= 10_000_000:
        return f"{value / 1e6:,.0f}M"
    return f"{value / 1000:.1f}k" if value < 10_000 else f"{value / 1000:,.0f}k"


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `12 s`."""
    whole = round(seconds)
    if whole == 0 and seconds > 0:
        return messages.text("duration.below_one")
    if whole >= 3600:
        return messages.text("duration.hours", hours=f"{whole // 3600:,}", minutes=f"{whole % 3600 // 60:02d}")
    if whole >= 60:
        return messages.text("duration.minutes", minutes=whole // 60, seconds=f"{whole % 60:02d}")
    return messages.text("duration.seconds", seconds=whole)


def limit(seconds: float) -> str:
    """A duration that was asked for: `6 h` where it is whole hours."""
    whole = seconds >= 3600 and seconds % 3600 == 0
    return messages.text("duration.whole_hours", hours=f"{seconds / 3600:,.0f}") if whole else duration(seconds)


def time_range(seconds: tuple[float, float, float]) -> str:
    """`6 h 27 min (4 h 58 min to 8 h 36 min)`."""
    expected, least, most = map(duration, seconds)
    if expected == least == most:
        return expected
    return messages.text("plan.range", value=expected, low=least, high=most)


def paid(cost: Cost) -> str:
    """`12.79 CNY (9.84 to 17.05)`; `<0.01 USD`."""
    amount, least, most = map(_cents, (cost.amount, *cost.amount_range))
    value = f"{amount} {cost.currency}"
    return value if most == _LESS else messages.text("plan.range", value=value, low=least, high=most)


def _cents(amount: float) -> str:
    return _LESS if 0 < amount < 0.01 else f"{amount:,.2f}"


def price_source(cost: Cost, machine: str | None = None) -> str:
    """Whose price it is, and its age if it is old.

    Args:
        cost: What is paid.
        machine: The provider's name of the machine, to be said with the age in any case.
    """
    if cost.source == money_facts.OWN:
        return messages.text("plan.price_own")
    source = f"{cost.source} {machine or ''}".strip()
    if prices.is_own(cost.source, cost.price_per_hour):
        return own_price(source)
    if cost.age_days <= STALE_DAYS and machine is None:
        return source
    key = "plan.price_age" if cost.age_days else "plan.price_today"
    return messages.text(key, source=source, days=cost.age_days)


def own_price(source: str) -> str:
    """A provider, or a price of it, marked as what the user stated."""
    return messages.text("plan.price_of_you", source=source)


def millions(count: float) -> str:
    """`7,615.6`, `0.5`, `0.013`: one digit after the point, more below a tenth."""
    return f"{count / 1e6:,.1f}" if count >= 1e5 or not count else f"{count / 1e6:.2g}"


def loss(value: float | str | None) -> str:
    """Four decimals; `nan` as it was written; `-` for none."""
    return f"{value:.4f}" if isinstance(value, int | float) else value or "-"


def size(size_bytes: float) -> str:
    """`1.2 GB`, `34 MB`, `5 kB`."""
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.1f} GB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"
