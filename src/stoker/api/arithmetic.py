"""The arithmetic behind every figure of a plan in words, and its measured error: `--explain CARD`, the calculator."""

from stoker import messages
from stoker.api import figures
from stoker.estimate import operations, ranges
from stoker.facts.intervals import Interval
from stoker.facts.prices import Offer
from stoker.facts.rates import rates
from stoker.generating import generated_step
from stoker.plan import clocks, money, search
from stoker.plan.make import Found
from stoker.plan.plan import Cost

_GIB = 2**30
_LEAST_SHARE = 5e-4
"""Smaller parts of a step are not listed."""
_SECTIONS = ("batch", "memory", "speed", "time", "money", "disk", "platforms")


def sections(found: Found) -> dict[str, list[str]]:
    """The lines of each section; empty sections are left out."""
    lines = (_batch, _memory, _speed, _time, _money, _disk, _platforms)
    return {name: said for name, make in zip(_SECTIONS, lines, strict=True) if (said := make(found))}


def _batch(found: Found) -> list[str]:
    way, run = found.way, found.inputs.run
    fields = {"effective": run.train.batch, "micro": way.micro, "accumulation": way.step.accumulation}
    said = [messages.text("why.batch", devices=found.constraints.devices, **fields)]
    kept = "explain.recompute.on" if way.checkpointing else "explain.recompute.off"
    recompute = messages.text("explain.recompute.away" if way.step.kept_away else kept)
    said.append(
        messages.text(
            "explain.way",
            strategy=way.strategy,
            precision=found.constraints.precision,
            attention=found.constraints.attention,
            recompute=recompute,
        )
    )
    return said


def _memory(found: Found) -> list[str]:
    used, machine = found.way.memory, found.inputs.machine
    low, high = (each / _GIB for each in found.way.memory_range)
    there = machine.memory_per_device / _GIB
    room = there * search.usable_share(machine)
    around = ranges.of("memory", found.way.step, machine.card)
    parts = [(messages.named("part", part), size) for part, size in used.parts.items() if size]
    parts.sort(key=lambda part: -part[1])
    fits = "likely" if found.fits == "tight" and found.sure else found.fits
    verdict = f"explain.fits.{fits if found.supported else 'old'}"
    return [
        messages.text(
            "explain.peak", moment=messages.named("moment", used.moment), part=parts[0][0], gib=_gib(parts[0][1])
        ),
        *(f"  {_gib(size):>7}  {part}" for part, size in parts),
        _sum("=", _gib(used.allocated), "explain.allocated"),
        _sum("+", _gib(used.reserved - used.allocated), "explain.gaps"),
        _sum("+", _gib(used.runtime), "explain.runtime"),
        _sum("=", _gib(used.device), "explain.device"),
        _between(around, f"{low:.2f}", f"{high:.2f} GiB"),
        messages.text(
            verdict,
            expected=_gib(used.device),
            high=f"{high:.2f}",
            there=f"{there:.2f}",
            share=search.usable_share(machine),
            room=f"{room:.2f}",
        ),
        *_moments(found),
    ]


def _moments(found: Found) -> list[str]:
    used = found.way.memory
    others = [(messages.named("moment", key), size) for key, size in used.moments.items() if key != used.moment]
    if not others:
        return []
    said = [f"{name} {_gib(size)}" for name, size in sorted(others, key=lambda one: -one[1])]
    return [messages.text("explain.moments", moments=said)]


def _speed(found: Found) -> list[str]:
    pace, step = found.way.pace, found.way.step
    total = pace.step_seconds
    parts = sorted(pace.parts.items(), key=lambda part: -part[1])
    shown = [(part, seconds) for part, seconds in parts if seconds / total >= _LEAST_SHARE]
    expected, slowest, fastest = found.tokens_per_second
    return [
        *_roof(found),
        *(f"  {seconds:>9.3f} s {seconds / total:>4.0%}  {_term(found, part, seconds)}" for part, seconds in shown),
        _sum("=", f"{total:>9.3f} s     ", "explain.step"),
        messages.text(
            "explain.tokens_per_second",
            batch=found.inputs.run.train.batch,
            mean=f"{step.mean_length or step.length:,.0f}",
            seconds=f"{total:.3f}",
            speed=f"{expected:,.0f}",
        ),
        _pace_between(found, f"{slowest:,.0f}", messages.text("plan.pace", value=f"{fastest:,.0f}")),
    ]


def _pace_between(found: Found, low: str, high: str) -> str:
    """Training by its measurements; where a step generates first, that part's assumed interval is in it."""
    if generated_step.PART not in found.way.pace.parts:
        return _between(ranges.of("speed", found.way.step, found.inputs.machine.card), low, high)
    expected, slowest, fastest = found.tokens_per_second
    least, most = (f"{bound:g}" for bound in generated_step.INTERVAL)
    ratios = {"down": f"{slowest / expected:.2f}", "up": f"{fastest / expected:.2f}", "least": least, "most": most}
    return messages.text("explain.between.generating", low=low, high=high, **ratios)


def _roof(found: Found) -> list[str]:
    """The device's peak rate, and the share of it that training reaches."""
    on = search.hardware(found.inputs.machine)
    has = {"tflops": f"{on.half_flops / 1e12:,.3g}", "bandwidth": f"{on.bandwidth / 1e9:,.0f}", **_link(found)}
    if on.kind != "cuda":
        return [messages.text("explain.roof", **has), messages.text("explain.plain")]
    fitted = rates()
    reached = {"products": f"{fitted.peak[on.rate_class]:.0%}", "streams": f"{fitted.bandwidth:.0%}"}
    said = messages.text("explain.reached", **reached)
    if fitted.peak[on.rate_class] > 1:
        said = messages.text("explain.reached.above", reached=said)
    return [messages.text("explain.roof", **has), said]


def _term(found: Found, part: str, seconds: float) -> str:
    """A part of the step: its operations or bytes, and their rate."""
    step = found.way.step
    if found.inputs.machine.kind != "cuda":
        return messages.named("part", part)
    work, times = operations.work(step), step.accumulation
    passes = {"forward": work.forward, "backward": work.backward}
    streams = {
        "bandwidth": work.forward.streamed + work.backward.streamed,
        "dequantise": work.forward.unpacked + work.backward.unpacked,
    }
    if part in passes:
        one = passes[part]
        done = times * (sum(load.flops for load in one.products) + one.attention_flops) / 1e12
        key, rate = "explain.term.flops", f"{done / seconds:,.3g}"
    elif part in streams:
        done = times * streams[part] / 1e9
        key, rate = "explain.term.bytes", f"{done / seconds:,.0f}"
    else:
        return messages.named("part", part)
    return messages.text(key, part=messages.named("part", part), work=f"{done:,.4g}", rate=rate)


def _link(found: Found) -> dict[str, str]:
    if found.constraints.devices == 1:
        return {"link": ""}
    on = search.hardware(found.inputs.machine)
    said = ""
    if found.way.step.devices_per_node > 1:
        said += messages.text("explain.link", speed=f"{on.link_bytes_per_second / 1e9:.0f}")
    if found.inputs.machine.nodes > 1:
        said += messages.text("explain.network", speed=f"{on.network_bytes_per_second / 1e9:.3g}")
    return {"link": said}


def _time(found: Found) -> list[str]:
    seconds, data, steps = found.seconds, found.inputs.data, found.steps
    return [
        messages.text(
            "explain.tokens",
            tokens=f"{data.tokens:,}",
            per_epoch=f"{steps.per_epoch:,}",
            total=f"{steps.total:,}",
            all=f"{found.tokens:,.0f}",
        ),
        messages.text(
            "explain.hours",
            all=f"{found.tokens:,.0f}",
            speed=f"{found.tokens_per_second[0]:,.0f}",
            hours=f"{seconds[0] / 3600:,.4f}",
            time=figures.time_range(seconds),
        ),
    ]


def _money(found: Found) -> list[str]:
    offer = found.inputs.offer
    cost = money.cost(found.seconds, found.billed_devices, offer, found.inputs.machine.nodes)
    if offer is None or cost is None:
        return [messages.text("compare.no_price")]
    return [
        messages.text(
            "explain.cost",
            hours=f"{found.seconds[0] / 3600:,.4f}",
            count=cost.billed_devices,
            price=f"{cost.price_per_hour:g} {cost.currency}",
            amount=f"{cost.amount:,.2f} {cost.currency}",
            low=f"{cost.amount_range[0]:,.2f}",
            high=f"{cost.amount_range[1]:,.2f}",
        ),
        _price(cost, offer, found.constraints.devices),
    ]


def _price(cost: Cost, offer: Offer, devices: int) -> str:
    said = figures.price_source(cost, offer.instance)
    if cost.billed_devices > devices:
        said += "; " + messages.text("compare.whole_machines", count=cost.billed_devices)
    return said


def _disk(found: Found) -> list[str]:
    parts = {part: size for part, size in found.disk.items() if size}
    said = " + ".join(f"{size / 1e9:.2f} {messages.text(f'disk.{part}')}" for part, size in parts.items())
    return [f"{said} = {sum(parts.values()) / 1e9:.2f} GB"]


def _platforms(found: Found) -> list[str]:
    name, devices = found.inputs.machine.name, found.constraints.devices
    nodes, offer = found.inputs.machine.nodes, None if found.inputs.machine.examined else found.inputs.offer
    return [reason.text for reason in clocks.reasons(name, devices, found.seconds, found.disk, nodes, offer)]


def _between(around: Interval, low: str, high: str) -> str:
    measured = "explain.between" if around.sources else "explain.between.proven"
    ratios = {"down": f"{around.low:.2f}", "up": f"{around.high:.2f}"}
    fields = {
        "n": around.n,
        "sources": around.sources,
        "group": _kind(around.group),
        "borrowed": f"{around.borrowed:.0%}",
    }
    return messages.text(measured if around.n else "explain.between.none", low=low, high=high, **fields, **ratios)


def _kind(group: str) -> str:
    """`qlora single consumer` in the user's words."""
    return " ".join(messages.named("group", word) for word in group.split(" "))


def _sum(sign: str, figure: str, key: str) -> str:
    return f"{sign} {figure:>7}  {messages.text(key)}"


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f}"
