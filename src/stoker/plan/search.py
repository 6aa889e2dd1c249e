"""How a step is cut to the hardware: every way that keeps batch and length, and the fastest that fits.

The order is law 1's ladder: larger micro batches first, then gradient checkpointing, then sharding, and activations in
main memory only where nothing else fits. Of equally fast ways the first of the ladder is taken, and one that surely
fits before one that is only expected to. How fast a way is includes the chance that it runs out of memory and another
is taken instead (ADR 0034).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.estimate import memory, ranges, speed
from stoker.estimate.memory import Estimate
from stoker.estimate.speed import Hardware, Pace
from stoker.estimate.step import Adapter, Attention, Dtype, Loss, Step, Strategy
from stoker.facts import setup_times
from stoker.facts.intervals import Interval
from stoker.facts.machine import Machine
from stoker.facts.shapes import ModelShape
from stoker.generating.generated_step import NOTHING, Alongside
from stoker.plan import checks, choices, moves, native_steps, optimizers, strategy
from stoker.plan.choices import kernel
from stoker.plan.moves import Earlier
from stoker.plan.plan import Rung

Fits = Literal["yes", "tight", "no"]

USABLE_SHARE = 0.98
"""Share of a device's memory that a process can use: the driver keeps the rest (81,050 of 81,920 MiB on an A100)."""
_MAIN_MEMORY_SHARES = {"mps": 0.75, "cpu": 0.95}
"""The same of main memory: about what macOS grants a GPU, and what other programs leave on a CPU."""
_AS_FAST = 0.99
_SHARDED = {"strategy": "fsdp2", "devices": "any"}


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What every way to cut the step must keep."""

    run: Run
    machine: Machine
    shape: ModelShape
    longest: int
    """Tokens of the longest sequence."""
    mean: float
    """Tokens of a mean sequence."""
    tokens: float
    """Of the whole run."""
    precision: str
    attention: str
    arrange: str
    loss: str
    kernels: str
    devices: int
    share: int
    """Sequences per device and step."""
    earlier: Earlier | None = None
    """The checkpoint the run resumes from."""
    out_of_memory: tuple[Rung, ...] = ()
    """Rungs that ran out of memory on this machine, whatever the estimates say."""
    alongside: Alongside = NOTHING

    @functools.cached_property
    def adapter(self) -> Adapter | None:
        """What every way trains, if not every weight."""
        return _adapter(self.run, self.shape)

    @functools.cached_property
    def kernel(self) -> Attention:
        """The attention kernel that will run."""
        capability = self.machine.compute_capability if self.machine.kind == "cuda" else 0.0
        return kernel(self.attention, capability, self.precision, masked=self.masked)

    @property
    def masked(self) -> bool:
        """Whether packed documents are kept apart by a mask tensor."""
        return self.arrange == "rows" and self.run.data.pack and self.attention != "flash_attention_2"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to run the step. Expensive figures are computed on first use."""

    strategy: str
    micro: int
    checkpointing: bool
    step: Step
    memory: Estimate
    around: Interval
    """The interval of memory."""
    room: float
    """Bytes a process can use on the device."""
    on: Hardware
    alongside: Alongside
    safe: "Way | None" = None
    """The fastest way that surely fits, where this one is only expected to."""

    @functools.cached_property
    def pace(self) -> Pace:
        """Its speed."""
        return self.alongside.slowing(speed.estimate(self.step, self.on), self.memory, self.on)

    @property
    def memory_range(self) -> tuple[int, int]:
        """Nine in ten runs lie between."""
        return int(self.memory.device * self.around.low), int(self.memory.device * self.around.high)

    @property
    def least(self) -> int:
        """Bytes of the tensors alone: more is reserved for them, but that costs a replay."""
        return self.memory.allocated + self.memory.runtime

    def may_fit(self, *, surely: bool = False) -> bool:
        """Whether the tensors alone fit, or surely do."""
        return self.least * (self.around.high if surely else 1.0) <= self.room

    def risk(self, needed: float) -> float:
        """Chance of running out of memory where so many bytes are predicted."""
        return self.around.above(self.room / needed)

    @functools.cached_property
    def verdict(self) -> Fits:
        """Whether it fits: surely, as expected but not surely, or not."""
        if not self.may_fit():
            return "no"
        if self.memory_range[1] <= self.room:
            return "yes"
        return "tight" if self.memory.device <= self.room else "no"


def find(constraints: Constraints) -> Way:
    """The way of the least expected time, with the fastest that surely fits; else the smallest.

    The rehearsal tries it in the first minute, and the ladder takes the next: over hours that costs less than a smaller
    one. A way that keeps the bits of an earlier attempt comes before all others; then one that keeps its micro batch:
    random streams are numbered by micro batch.
    """
    ways = list(_ways(constraints, *_asked(constraints.run)))
    return _next_rung(constraints, ways) if constraints.out_of_memory else _expected(constraints, ways)


def _expected(constraints: Constraints, ways: list[Way]) -> Way:
    """What is planned before anything ran out of memory."""
    if all(way.verdict == "no" for way in ways):
        ways = [*ways, *_last_ways(constraints)]
    exact = [way for way in ways if keeps_bits(constraints, way)]
    earlier = [way for way in ways if constraints.earlier and way.micro == constraints.earlier.micro]
    for kept in (exact, earlier, ways):
        if found := _fastest(kept):
            sure = found if found.verdict == "yes" else _fastest(kept, surely=True)
            if sure and sure.pace.tokens_per_second >= _AS_FAST * found.pace.tokens_per_second:
                return sure
            safe = sure or _fastest(ways, surely=True)
            taken = _worth_trying(kept, sure, safe or _smallest(ways), constraints.tokens)
            return taken if taken is sure else dataclasses.replace(taken, safe=safe)
    return _smallest(ways)


def _worth_trying(ways: list[Way], sure: Way | None, otherwise: Way, tokens: float) -> Way:
    """The way of the least expected time, if that is shorter by 1 % than with the sure one.

    Args:
        ways: Some of them may fit.
        sure: The fastest of them that surely fits.
        otherwise: What is taken after out-of-memory.
        tokens: Of the whole run.
    """
    instead = tokens / otherwise.pace.tokens_per_second
    failed = restart_seconds(otherwise) + instead
    best, least = sure, _AS_FAST * instead if sure else math.inf
    for way in sorted((way for way in ways if way.may_fit()), key=lambda way: -way.pace.tokens_per_second):
        seconds = tokens / way.pace.tokens_per_second
        if seconds >= least:
            break
        # The tensors alone tell most that are not worth it; what is reserved for them costs a replay.
        if way.risk(way.least) * (failed - seconds) + seconds >= least or way.verdict == "no":
            continue
        expected = way.risk(way.memory.device) * (failed - seconds) + seconds
        if expected < least:
            best, least = way, expected
    assert best is not None
    return best


def restart_seconds(way: Way) -> float:
    """What an attempt takes until the rehearsal has tried the longest batch: start, load, one step."""
    load = memory.whole_weight_bytes(way.step) / setup_times.figure("load").value
    return setup_times.figure("start").value + load + way.pace.step_seconds


def _smallest(ways: list[Way]) -> Way:
    return min(ways, key=lambda way: way.memory.allocated)


def keeps_bits(constraints: Constraints, way: Way) -> bool:
    """Whether a way computes the same bits as the earlier attempt, on the same device."""
    parts = moves.cut(
        strategy=way.strategy,
        exact=strategy.exact(constraints.run, way.strategy),
        devices=constraints.devices,
        micro=way.micro,
        checkpointing=way.checkpointing,
    )
    earlier = _comparable(constraints)
    return earlier is not None and earlier.keeps(parts)


def _comparable(constraints: Constraints) -> Earlier | None:
    """The earlier attempt, if every choice made before the way is unchanged and equal settings mean equal bits."""
    machine, earlier = constraints.machine, constraints.earlier
    device = machine.devices[0].name if machine.kind == "cuda" else machine.name
    parts = {
        "device": device,
        "precision": constraints.precision,
        "attention": constraints.attention,
        "arrange": constraints.arrange,
        "loss": constraints.loss,
    }
    run = constraints.run
    same = (
        moves.provable(machine.kind, deterministic=run.train.deterministic, compiled=moves.compiled(run))
        and earlier
        and earlier.keeps(parts)
    )
    return earlier if same else None


def _next_rung(constraints: Constraints, ways: list[Way]) -> Way:
    """The safe way that the plan named, else the first of the ladder that fits; it needs less than all that failed."""
    tried = (
        describe(
            constraints,
            rung.strategy,
            min(rung.micro, constraints.share),
            _Kept(rung.gradient_checkpointing, rung.offload_activations),
        )
        for rung in constraints.out_of_memory
    )
    beside = constraints.alongside.beside
    too_much = min(beside(memory.estimate(step, constraints.machine.kind)).allocated for step in tried)
    named = _expected(constraints, ways).safe
    for way in (*([named] if named else []), *ways, *_last_ways(constraints)):
        if way.memory.allocated < too_much and way.verdict != "no":
            return way
    last = constraints.out_of_memory[-1]
    raise StokerError("STK675", micro=last.micro, step=last.step, tried=len(constraints.out_of_memory))


def _fastest(ways: list[Way], *, surely: bool = False) -> Way | None:
    """Of the ways that are expected to fit, or surely do, the first of the ladder that is as fast as any."""
    able, fits = [way for way in ways if way.may_fit(surely=surely)], ("yes",) if surely else ("yes", "tight")
    by_pace = sorted(able, key=lambda way: -way.pace.tokens_per_second)
    best = next((way for way in by_pace if way.verdict in fits), None)
    if best is None:
        return None
    enough = _AS_FAST * best.pace.tokens_per_second
    return next(way for way in able if way.pace.tokens_per_second >= enough and way.verdict in fits)


def usable_share(machine: Machine) -> float:
    """Share of a device's memory that a training process can use."""
    return _MAIN_MEMORY_SHARES.get(machine.kind, USABLE_SHARE)


def hardware(machine: Machine) -> Hardware:
    """The devices of a machine as the roofline sees them."""
    if machine.card is None:
        return speed.processor(machine.threads)
    return speed.hardware(machine.card, per_node=len(machine.devices))


class _Kept(NamedTuple):
    """What is kept of activations: all, or each block's input to recompute the rest, here or in main memory."""

    checkpointing: bool = True
    away: bool = False


def _asked(run: Run) -> tuple[_Kept, ...]:
    stated = run.where.gradient_checkpointing
    return (_Kept(False), _Kept()) if stated == "auto" else (_Kept(bool(stated), stated == "offload"),)


def _last_ways(constraints: Constraints) -> list[Way]:
    """Ways that keep activations in main memory: slower than all others, so tried where nothing else fits."""
    machine = constraints.machine
    run = constraints.run
    if run.where.gradient_checkpointing != "auto" or machine.kind != "cuda" or moves.compiled(run):
        return []
    ways = _ways(constraints, _Kept(away=True))
    room = machine.memory_bytes if machine.examined else math.inf
    return [way for way in ways if memory.away_bytes(way.step) * way.step.devices_per_node <= room]


def _ways(constraints: Constraints, *recompute: _Kept) -> Iterator[Way]:
    run, machine = constraints.run, constraints.machine
    tried = constraints.earlier.micro if constraints.earlier else None
    sizes = choices.micro_candidates(run, machine, constraints.share, tried)
    strategies = strategy.candidates(run, machine, constraints.devices, constraints.precision)
    if run.where.strategy == "auto" and checks.packs_experts(run, constraints.shape):
        strategies = [one for one in strategies if one != "fsdp2"]
    earlier = _comparable(constraints)
    if strategies == ["single"] and run.where.strategy == "auto" and earlier and earlier.keeps(_SHARDED):
        strategies = ["single", "fsdp2"]  # FSDP on one device keeps the bits of FSDP on several
    for chosen, kept in itertools.product(strategies, recompute):
        yield from reversed(_sizes(constraints, chosen, sizes, kept))


def _sizes(constraints: Constraints, chosen: str, sizes: list[int], kept: _Kept) -> list[Way]:
    """Ways by micro batch from the smallest, up to one whose activations alone fill the device."""
    machine = constraints.machine
    on, room = hardware(machine), machine.memory_per_device * usable_share(machine)
    ways: list[Way] = []
    for micro in sorted(sizes):
        step = describe(constraints, chosen, micro, kept)
        way = Way(
            strategy=chosen,
            micro=micro,
            checkpointing=kept.checkpointing,
            step=step,
            memory=constraints.alongside.beside(memory.estimate(step, machine.kind)),
            around=ways[0].around if ways else ranges.of("memory", step, machine.card),
            room=room,
            on=on,
            alongside=constraints.alongside,
        )
        ways.append(way)
        if way.memory.parts["activations"] > room:
            break
    return ways


def describe(constraints: Constraints, chosen: str, micro: int, kept: _Kept) -> Step:
    """The step that `engine.train` will run with these choices."""
    run, precision = constraints.run, constraints.precision
    accumulation = constraints.share // micro
    exact = strategy.exact(run, chosen)
    sets = memory.gradient_sets(accumulation, exact=exact, ranks=constraints.devices if chosen == "ddp" else 1)
    return Step(
        shape=constraints.shape,
        micro=micro,
        length=constraints.longest,
        mean_length=constraints.mean,
        accumulation=accumulation,
        adapter=constraints.adapter,
        weights=_weights(run, precision),
        outer="fp32",
        compute=cast("Dtype", precision),
        autocast=native_steps.casts(run, chosen, precision),
        attention=constraints.kernel,
        masked=constraints.masked,
        recompute="full" if kept.checkpointing else "none",
        kept_away=kept.away,
        loss="fused" if run.train.scores else _LOSSES[constraints.loss],  # one output takes less than any logits
        optimizer=optimizers.step_name(run),
        extra_moments=optimizers.extra_moments(run),
        gradient_sets=sets,
        strategy=cast("Strategy", chosen),
        devices=constraints.devices,
        shard_devices=constraints.devices,
        devices_per_node=constraints.devices // constraints.machine.nodes,
        canonical=exact,
        expandable=constraints.machine.kind == "cuda",
        offload=native_steps.offload(run, chosen),
        compiled=moves.compiled(run),
        fused_blocks=constraints.kernels == "liger",
        bucket=native_steps.bucket(run, chosen),
    )


_LOSSES: dict[str, Loss] = {"plain": "logits_fp32", "fused": "fused", "liger": "liger"}


def _adapter(run: Run, shape: ModelShape) -> Adapter | None:
    """The adapter a run trains; if its targets name no layer of the blocks, one on all linear layers is assumed."""
    tune = run.tune
    if tune.method == "full":
        return None
    targets = tuple(native_steps.targets(run, shape)[0])
    return Adapter(rank=tune.rank, targets=targets, dropout=tune.dropout > 0, whole=_whole(run))


def _whole(run: Run) -> tuple[str, ...]:
    """Embedding and output layer, if they are trained next to the adapter; the engine holds such a copy in fp32."""
    named = run.native.lora.get("modules_to_save") or ()
    return tuple(table for table, names in native_steps.TABLES.items() if any(one.endswith(names) for one in named))


def _weights(run: Run, precision: str) -> Literal["fp32", "bf16", "fp16", "nf4_double", "nf4"]:
    if run.tune.method == "qlora":
        return "nf4" if native_steps.single_quantisation(run) else "nf4_double"
    return "fp32" if run.tune.method == "full" and not optimizers.rounds(run) else cast("Dtype", precision)
