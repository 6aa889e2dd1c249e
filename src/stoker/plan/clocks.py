"""Session lengths, weekly quotas and disk limits of platforms. Pure; the facts are data."""

import functools
import math
from dataclasses import dataclass

from stoker.facts import platforms, prices
from stoker.facts.platforms import Platform, Storage
from stoker.facts.prices import Offer
from stoker.plan import money
from stoker.plan.plan import Reason


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A run on a platform that has its cards."""

    platform: str
    """Its title."""
    free: bool
    session_hours: float | None
    """Hours of one session; None if a machine runs until it is released."""
    sessions: tuple[int, int]
    """Expected, and at most."""
    weekly_hours: float | None
    weeks: tuple[int, int]
    """Weeks of quota needed: expected, and at most."""
    idle_minutes: float | None
    release_days: float | None
    """Days after which a stopped machine is released with all its data."""
    disk: Storage | None
    """The largest persistent disk, if the run does not fit it."""


def stays(
    card: str, devices: int, seconds: tuple[float, float, float], disk: dict[str, int], nodes: int = 1
) -> list[Stay]:
    """Every platform that offers so many of a card, with its limits; free ones first."""
    hours = seconds[0] / 3600, seconds[2] / 3600
    found = [_stay(platform, hours, kept_bytes(disk), free=free) for platform, free in _having(card, devices, nodes)]
    return sorted(found, key=lambda stay: not stay.free)


def reasons(
    card: str,
    devices: int,
    seconds: tuple[float, float, float],
    disk: dict[str, int],
    nodes: int = 1,
    offer: Offer | None = None,
) -> list[Reason]:
    """The limits, as reasons, of platforms that lend the card, and of the one whose offer is taken; else of all."""
    found = stays(card, devices, seconds, disk, nodes)
    if offer is not None and offer.cloud != money.OWN:
        taken = platforms.find(offer.cloud)
        found = [one for one in found if one.free or (taken and one.platform == taken.title)]
    return [one for stay in found for one in _said(stay, kept_bytes(disk))]


def kept_bytes(disk: dict[str, int]) -> int:
    """Bytes that must be persistent: data, checkpoints and artifacts; a base model can be downloaded again."""
    return sum(size for part, size in disk.items() if part != "base")


def sessions_reason(stay: Stay) -> Reason:
    """How many sessions, and of how many hours."""
    count, most = stay.sessions
    fields = {
        "platform": stay.platform,
        "sessions": str(count) if count == most else f"{count}-{most}",
        "hours": f"{stay.session_hours:g}",
        "weekly": f"{stay.weekly_hours:g}" if stay.weekly_hours else "",
        "weeks": str(stay.weeks[0]) if stay.weeks[0] == stay.weeks[1] else f"{stay.weeks[0]}-{stay.weeks[1]}",
    }
    kind = "weekly" if stay.weekly_hours else "plain"
    if most == 1:
        kind += ".one"
    elif kind == "weekly" and stay.weeks[1] == 1:
        kind = "within"
    return Reason(about="time_seconds", key=f"why.sessions.{kind}", fields=fields)


@functools.cache
def _having(card: str, devices: int, nodes: int) -> tuple[tuple[Platform, bool], ...]:
    """Platforms that provide a card on one machine or have an offer of it, and whether it is free."""
    found: list[tuple[Platform, bool]] = []
    clouds = {offer.cloud for offer in prices.offers(card)}
    for platform in platforms.platforms():
        lent = [one for one in platform.cards if one.card == card and one.count >= devices and nodes == 1]
        if lent:
            found.append((platform, lent[0].free))
        elif platform.name in clouds:
            found.append((platform, False))
    return tuple(found)


def _stay(platform: Platform, hours: tuple[float, float], disk_bytes: float, *, free: bool) -> Stay:
    session, weekly = platform.session_hours, platform.limits.weekly_gpu_hours
    kept = [store for store in platform.storage if store.survives_stop and store.size_gb]
    largest = max(kept, key=lambda store: store.size_gb or 0, default=None)
    return Stay(
        platform=platform.title,
        free=free,
        session_hours=session,
        sessions=_times(hours, session),
        weekly_hours=weekly,
        weeks=_times(hours, weekly),
        idle_minutes=platform.limits.idle_minutes,
        release_days=platform.limits.release_after_stopped_days,
        disk=largest if largest and disk_bytes > (largest.size_gb or 0) * 1e9 else None,
    )


def _times(hours: tuple[float, float], limit: float | None) -> tuple[int, int]:
    if limit is None:
        return 1, 1
    expected, most = (max(1, math.ceil(each / limit)) for each in hours)
    return expected, most


def dangers(platform: Platform) -> list[Reason]:
    """What a platform stops or deletes automatically."""
    return _dangers(platform.title, platform.limits.idle_minutes, platform.limits.release_after_stopped_days)


def _dangers(title: str, idle_minutes: float | None, release_days: float | None) -> list[Reason]:
    found = []
    if idle_minutes:
        fields = {"platform": title, "minutes": f"{idle_minutes:g}"}
        found.append(Reason(about="platform", key="why.idle", fields=fields))
    if release_days:
        fields = {"platform": title, "days": f"{release_days:g}"}
        found.append(Reason(about="platform", key="why.release", fields=fields))
    return found


def _said(stay: Stay, size: int) -> list[Reason]:
    found = [sessions_reason(stay)] if stay.session_hours else []
    return found + _dangers(stay.platform, stay.idle_minutes, stay.release_days) + disk_reasons(stay, size)


def disk_reasons(stay: Stay, size: int) -> list[Reason]:
    """That a platform's disk does not hold so many bytes, if so."""
    if stay.disk is None:
        return []
    fields = {"platform": stay.platform, "path": stay.disk.path, "needed": f"{size / 1e9:.0f}"}
    return [Reason(about="disk_bytes", key="why.disk", fields={**fields, "there": f"{stay.disk.size_gb:g}"})]
