"""Reasons of a plan that no choice of its own carries: the way, the model, the machine, and what no figure knows."""

from stoker.config import mixing
from stoker.config.run import Run
from stoker.estimate import memory, operations
from stoker.facts import native_figures
from stoker.facts.machine import Machine
from stoker.facts.model_parts import ModelParts, WeightGroup
from stoker.facts.shapes import ResolvedShape
from stoker.plan import native_steps, search
from stoker.plan.data import DataFacts
from stoker.plan.plan import BatchSplit, Reason, SourcePlan, StepCounts
from stoker.plan.search import Constraints, Way
from stoker.rows import training_length

_AGREES = 0.005
"""Share by which a model's files may differ from the counted weights without a remark."""


def of_batch(batch: BatchSplit) -> Reason:
    """The arithmetic of the batch."""
    return Reason(about="batch", key="why.batch", fields=batch.model_dump())


def of_sources(run: Run, data: DataFacts, sources: list[SourcePlan]) -> list[Reason]:
    """What is seen of each source of a mixture, and the mean that makes shares of tokens shares of sequences."""
    if mixing.is_mixed(run.data) and not data.sources:
        return [Reason(about="sources", key="why.sources.alike", fields={})]
    mean = {one.name: f"{one.tokens / max(1, one.sequences):,.1f}" for one in data.sources}
    return [Reason(about="sources", key="why.sources", fields={**one.words, "mean": mean[one.name]}) for one in sources]


def of_steps(run: Run, steps: StepCounts, sequences: int) -> list[Reason]:
    """That `train.epochs` counts for nothing, where both are set; too few steps or too many passes to learn well."""
    said = training_length.remarks(run, sequences, steps.total, steps.epochs)
    return [Reason(about=about, key=key, fields=fields) for about, key, fields in said]


def of_way(constraints: Constraints, way: Way) -> list[Reason]:
    """How the step is cut, whether it fits, and what ran out of memory."""
    before = constraints.earlier.micro if constraints.earlier else 0
    fields = {"micro": way.micro, "word": "where.micro", "before": before, "share": constraints.share}
    key = _micro_key(constraints, way)
    reasons = [Reason(about="batch.micro", key=key, fields={**fields, "card": constraints.machine.name})]
    if constraints.run.where.gradient_checkpointing != "auto":
        key = "why.asked"
    elif search.keeps_bits(constraints, way):
        key = "why.checkpointing.as_before" if way.checkpointing else "why.checkpointing.off_as_before"
    else:
        key = "why.checkpointing.on" if way.checkpointing else "why.checkpointing.off"
    reasons.append(Reason(about="gradient_checkpointing", key=key, fields={"word": "where.gradient_checkpointing"}))
    if way.step.compiled:
        reasons.append(Reason(about="native.trainer.torch_compile", key="why.compile", fields={}))
    if way.step.kept_away:
        reasons.append(Reason(about="offload_activations", key="why.offload", fields=_copied(way)))
    if way.verdict != "yes":
        key = "why.fits.not" if way.verdict == "no" else "why.fits.tight"
        reasons.append(Reason(about="fits", key=key, fields=_gib(way, constraints.machine)))
    return reasons + [
        Reason(about="out_of_memory", key="why.out_of_memory", fields=rung.model_dump())
        for rung in constraints.out_of_memory
    ]


def _copied(way: Way) -> dict[str, str]:
    """What goes to main memory and back, and what that costs of a step."""
    seconds, copied = way.pace.parts["offload"], 2 * operations.work(way.step).kept_bytes * way.step.accumulation
    fields = {"gib": memory.away_bytes(way.step) / 2**30, "seconds": seconds, "step": way.pace.step_seconds}
    return {name: f"{value:.2f}" for name, value in fields.items()} | {"rate": f"{copied / seconds / 1e9:.0f}"}


def _micro_key(constraints: Constraints, way: Way) -> str:
    if constraints.run.where.micro != "auto":
        return "why.asked"
    if way.verdict == "no":
        return "why.micro.smallest"
    if constraints.earlier and constraints.earlier.micro:
        return _moved_micro_key(constraints.earlier.micro, constraints.share, way.micro)
    return "why.micro.cpu" if constraints.machine.kind == "cpu" else "why.micro.fastest"


def _moved_micro_key(before: int, share: int, now: int) -> str:
    if now == before:
        return "why.micro.earlier"
    return "why.micro.divides" if share % before else "why.micro.fits"


def _gib(way: Way, machine: Machine) -> dict[str, str]:
    needed, high, there = way.memory.device, way.memory_range[1], machine.memory_per_device
    return {"needed": f"{needed / 2**30:.1f}", "high": f"{high / 2**30:.1f}", "available": f"{there / 2**30:.1f}"}


def of_model(run: Run, found: ResolvedShape) -> list[Reason]:
    """What is approximate without a formula, where files disagree with the count, and what rules out a merged model."""
    reasons, parts = [], found.shape.parts
    if parts:
        fields = {"family": parts.family, "model_class": parts.model_class, "groups": len(parts.groups)}
        reasons.append(Reason(about="model", key="why.weighed", fields=fields))
        reasons += _expert_reasons(run, parts)
    if found.shape.context and run.data.length > found.shape.context:
        fields = {"length": run.data.length, "context": found.shape.context}
        reasons.append(Reason(about="data.length", key="why.context", fields=fields))
    stored, counted = found.stored_parameters, found.shape.parameters()
    if stored and abs(counted - stored) > _AGREES * stored:
        fields = {"counted": f"{counted / 1e9:.3f}", "stored": f"{stored / 1e9:.3f}"}
        reasons.append(Reason(about="model", key="why.stored", fields=fields))
    if alone := [f"`native.lora.{name}`" for name in native_figures.not_merged(run.native.lora)]:
        reasons.append(Reason(about="native.lora", key="why.not_merged", fields={"options": alone}))
    return reasons


def _expert_reasons(run: Run, parts: ModelParts) -> list[Reason]:
    """How the experts are held, and that nothing but the rows decides the loss."""
    if not parts.experts:
        return []
    reasons = [Reason(about="model", key="why.balance", fields={})]
    if run.tune.method == "qlora":
        fused = parts.fused_experts
        for key, groups in (
            ("why.experts.packed", [one for one in fused if one.quantised]),
            ("why.experts", [one for one in fused if not one.quantised]),
        ):
            reasons += [Reason(about="model", key=key, fields={"layers": _names(groups)})] if groups else []
    return reasons


def _names(groups: list[WeightGroup]) -> list[str]:
    return sorted({f"`{group.layer}`" for group in groups})


def of_machine(machine: Machine) -> list[Reason]:
    """Threads, whether memory is pinned, and what other programs hold of it."""
    pinned = "why.pinned.cuda" if machine.kind == "cuda" else "why.pinned.none"
    held = {str(device.index): f"{device.held_bytes / 2**30:.1f}" for device in machine.devices if device.held_bytes}
    return [
        *(Reason(about="memory", key="why.held", fields={"index": index, "held": gib}) for index, gib in held.items()),
        Reason(about="threads", key="why.threads", fields={"threads": machine.threads, "cpus": machine.cpu_count}),
        Reason(about="native.trainer.dataloader_pin_memory", key=pinned, fields={}),
    ]


def of_support(machine: Machine, *, supported: bool) -> list[Reason]:
    """A card that current builds of torch have left."""
    fields = {"card": machine.name, "capability": machine.compute_capability}
    return [] if supported else [Reason(about="fits", key="why.card.old", fields=fields)]


def of_network(machine: Machine, way: Way) -> list[Reason]:
    """The bandwidth assumed between nodes."""
    if machine.nodes == 1 or machine.kind != "cuda":
        return []
    here, on = way.step.devices_per_node, way.on
    rate = on.network_bytes_per_second * (1 if on.own_port else here)
    key = "why.network.own" if on.own_port else "why.network.shared"
    fields = {"nodes": machine.nodes, "cards": here, "gigabits": f"{rate * 8 / 1e9:.0f}"}
    return [Reason(about="nodes", key=key, fields=fields)]


def not_planned(run: Run, way: Way, precision: str) -> list[Reason]:
    """Options that change memory or speed and that no figure of the plan knows."""
    options = native_steps.not_planned(run, way.strategy, precision, way.step.shape)
    return [Reason(about="native", key="why.not_planned", fields={"options": options})] if options else []
