"""What devices send each other in a step, and how long that takes without anything to hide behind.

Within a node and between nodes parts of a collective go on side by side, so the slower of the two counts. A gather over
n devices in nodes of k: (k - 1) / k of the bytes reach each device inside; (nodes - 1) / nodes of them enter each node,
over the lines of its k devices together. Where slices are exchanged nothing is added up on the way: each device sends
(n - k) / n of its bytes out over its own line. Time to get a message under way is not counted.
"""

from dataclasses import dataclass

from stoker.estimate.operations import Work
from stoker.estimate.step import BYTES, Step

_HOOKS = {"fsdp2": 1, "zero3": 9}
"""Hooks per block and pass: FSDP gathers a block at once, DeepSpeed each layer and norm of it."""


@dataclass(frozen=True, slots=True)
class Links:
    """How fast one device sends to others, after losses."""

    inside: float
    """Bytes per second within a node."""
    between: float
    """Bytes per second between nodes."""
    host: float
    """Bytes per second between a device and main memory."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of collectives, by what they can hide behind."""

    forward: float = 0.0
    """Per micro batch, beside the forward pass."""
    backward: float = 0.0
    """Per micro batch, beside the backward pass."""
    blocking: float = 0.0
    """Per micro batch, with nothing beside it."""
    last: float = 0.0
    """Per step, beside the last backward pass."""
    end: float = 0.0
    """Per step, with nothing beside it."""
    hooks: float = 0.0
    """Hooks the host runs per pass of a micro batch."""


def traffic(step: Step, work: Work, links: Links) -> Traffic:
    """All collectives of a step."""
    blocking = _tensor_parallel(step, work, links) + _experts(step, work, links)
    replicas = step.devices // (step.foreign.tensor_parallel * step.foreign.pipeline_parallel)
    if step.strategy == "single" or (replicas == 1 and step.strategy != "zero3"):
        return Traffic(blocking=blocking)
    if step.strategy == "ddp":
        gather = _gather(step, work.trained_bytes, replicas, links)
        if step.canonical and replicas > step.devices_per_node:
            # After the last micro batch, so beside nothing.
            sums = most_sums(step.accumulation, replicas)
            return Traffic(blocking=blocking, end=sums * _exchange(step, work.trained_bytes, replicas, links) + gather)
        return Traffic(blocking=blocking, last=2 * gather)
    shared = min(step.shard_devices, replicas)
    gather = _gather(step, work.gathered_bytes, shared, links)
    reduce = (_exchange if step.canonical else _gather)(step, work.trained_bytes, shared, links)
    across = 2 * _gather(step, work.trained_bytes / shared, replicas // shared, links, apart=True)
    if step.strategy in ("fsdp2", "zero3"):
        hooks = _HOOKS[step.strategy] * step.shape.layers / step.foreign.pipeline_parallel
        upload = work.gathered_bytes / shared / links.host if step.foreign.offload == "all" else 0.0
        # DeepSpeed frees a block's weights between recomputing it and its backward pass, FSDP keeps them.
        backward = 2 if step.strategy == "zero3" and step.recompute == "full" else 1
        # The norm of whole gradients: each device sends its shard once more, after the last backward pass.
        norm = _exchange(step, work.trained_bytes / shared, shared, links) if step.canonical else 0.0
        return Traffic(gather + upload, backward * (gather + upload) + reduce, blocking, across, norm, hooks)
    if step.strategy == "zero2":
        return Traffic(0.0, reduce, blocking, across, gather)
    return Traffic(0.0, 0.0, blocking, reduce + across, gather)


def _gather(step: Step, size: float, devices: int, links: Links, *, apart: bool = False) -> float:
    """Seconds to gather (or to reduce and scatter) `size` bytes over devices."""
    if devices <= 1:
        return 0.0
    near = 1 if apart else min(devices, max(1, step.devices_per_node // step.foreign.tensor_parallel))
    nodes = devices / near
    inside = size * (near - 1) / near / links.inside
    between = size * (nodes - 1) / nodes / (links.between * near) if nodes > 1 else 0.0
    return max(inside, between)


def _exchange(step: Step, size: float, devices: int, links: Links) -> float:
    """Seconds until each device has its slice of all devices' `size` bytes."""
    near = min(devices, step.devices_per_node)
    return max(size * (near - 1) / devices / links.inside, size * (devices - near) / devices / links.between)


def most_sums(leaves: int, ranks: int) -> int:
    """How many sums of the canonical tree one rank holds at most, with so many leaves for each of the ranks.

    A power of two of leaves makes one; a rank whose leaves start or end between the tree's nodes holds several.
    """
    return max(_sums(rank * leaves, (rank + 1) * leaves) for rank in range(ranks))


def _sums(first: int, last: int) -> int:
    """Whole nodes of the tree, the largest there are, that make up the leaves [first, last)."""
    count = 0
    while first < last:
        size = 1 << (last - first).bit_length() - 1
        first += min(size, first & -first or size)
        count += 1
    return count


def _tensor_parallel(step: Step, work: Work, links: Links) -> float:
    """Two sums of the activations forward, two backward, two more to recompute."""
    if step.foreign.tensor_parallel == 1:
        return 0.0
    times = {"none": 4, "selective": 4, "full": 6}[step.recompute] * step.shape.layers / step.foreign.pipeline_parallel
    size = work.tokens * step.shape.hidden * BYTES[step.compute]
    return times * 2 * size * (step.foreign.tensor_parallel - 1) / step.foreign.tensor_parallel / links.inside


def _experts(step: Step, work: Work, links: Links) -> float:
    """Tokens sent to their experts and back, forward and backward."""
    experts, stages = step.foreign.expert_parallel, step.foreign.pipeline_parallel
    if experts == 1:
        return 0.0
    size = work.tokens * step.shape.experts_per_token * step.shape.hidden * BYTES[step.compute]
    near = min(experts, step.devices_per_node)
    inside, between = (near - 1) / experts, 1 - near / experts
    return 4 * step.shape.layers / stages * size * (inside / links.inside + between / links.between)
