"""What happens to the machine after the run: `where.after`, by what its platform supports. Pure."""

from stoker.config.run import Run
from stoker.facts.platforms import Platform
from stoker.plan.plan import After, Reason


def after(run: Run, platform: Platform | None) -> After:
    """`auto` is a reversible stop, if the platform has one; a machine is released only if the run file says so."""
    asked = run.where.after
    if asked == "stay" or platform is None:
        return "stay"
    if asked == "release" and platform.meter.irreversible:
        return "release"
    return "stop" if platform.meter.reversible else "stay"


def reasons(run: Run, platform: Platform | None) -> list[Reason]:
    """Why the machine is stopped, released or left on; empty for a machine of one's own."""
    asked, decided = run.where.after, after(run, platform)
    if platform is None:
        return [_because("why.after.unknown", word=asked)] if asked in ("stop", "release") else []
    if asked == "stay":
        return [_because("why.asked", word="where.after")]
    fields = {"platform": platform.title}
    if decided == "stay":
        return [_because("why.after.only_release" if platform.meter.irreversible else "why.after.no_verb", **fields)]
    found = [_because(f"why.after.{decided}", **fields)]
    if decided == "stop" and platform.meter.stopped_bills:
        found.append(_because("why.after.disk_bills", **fields))
    if run.save.store is None:
        found.append(_because("why.after.no_store"))
    return found


def _because(key: str, **fields: str) -> Reason:
    return Reason(about="after", key=key, fields=fields)
