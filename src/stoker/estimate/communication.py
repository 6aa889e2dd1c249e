"""Communication of a step, and its time without overlap.

Transfers within a node and between nodes run in parallel, so the slower of the two counts. A gather over
n devices in nodes of k: (k - 1) / k of the bytes reach each device inside; (nodes - 1) / nodes of them enter each node,
over the links of its k devices together. An exchange of slices reduces nothing on the way: each device sends
(n - k) / n of its bytes over its own link. Latency is not counted.
"""

from dataclasses import dataclass

from stoker.estimate.operations import Work
from stoker.estimate.step import BYTES, Step

_HOOKS = {"fsdp2": 1, "zero3": 9}
"""Hooks per block and pass: FSDP gathers a block at once, DeepSpeed each layer and norm of it."""


@dataclass(frozen=True, slots=True)
class Links:
    """Effective bandwidths of one device."""

    inside: float
    """Bytes per second within a node."""
    between: float
    """Bytes per second between nodes."""
    host: float
    """Bytes per second between a device and main memory."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of collectives, by what they overlap with."""

    forward: float = 0.0
    """Per micro batch, overlapping the forward pass."""
    backward: float = 0.0
    """Per micro batch, overlapping the backward pass."""
    blocking: float = 0.0
    """Per micro batch, without overlap."""
    last: float = 0.0
    """Per step, overlapping the last backward pass."""
    end: float = 0.0
    """Per step, without overlap."""
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
        if step.canonical:
            # After the last micro batch, so without overlap.
            sums = most_sums(step.accumulation, replicas)
            return Traffic(blocking=blocking, end=sums * _exchange(step, work.trained_bytes, replicas, links) + gather)
        return Traffic(blocking=blocking, last=2 * gather)
    shared = min(step.shard_devices, replicas)
    gather = _gather(step, work.gathered_bytes, shared, links)
    reduce = (_exchange if step.canonical else _gather)(step, work.trained_bytes, shared, links)
    across = 2 * _gather(step, work.trained_bytes / shared, replicas // shared, links, apart=True)
    if step.strategy in ("fsdp2", "zero3"):
        hooks = _HOOKS[step.strategy] * step.shape.layers / step.foreign.pipeline_parallel
        upload = work.gathered_bytes / shared / links.host if step.offload == "all" else 0.0
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
    """The most sums of the canonical tree that one rank holds, with `leaves` per rank.

    A power of two of leaves makes one; a rank whose leaves start or end inside a node holds several.
    """
    return max(_sums(rank * leaves, (rank + 1) * leaves) for rank in range(ranks))


def _sums(first: int, last: int) -> int:
    """The number of largest whole nodes that make up the leaves [first, last)."""
    count = 0
    while first < last:
        size = 1 << (last - first).bit_length() - 1
        first += min(size, first & -first or size)
        count += 1
    return count


def _tensor_parallel(step: Step, work: Work, links: Links) -> float:
    """Two all-reduces of the activations forward, two backward, two more to recompute."""
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
