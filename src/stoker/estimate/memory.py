"""Memory of one device in one optimizer step: what lives at which moment, byte for byte, without torch.

Weights, gradients and optimizer state are counted here; what the passes through the model keep and make comes from the
tape (`tape.py`, `passes.py`), on which one block stands for all. Held to the trace of a real step (`engine.trace`) by
`tests/engine/test_memory_oracle.py`; figures in `docs/evidence/memory-oracle.json`.
"""

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

from stoker.estimate import layers, operations, optimizer_state, rounding
from stoker.estimate.fragmentation import Tensors, lost_bytes
from stoker.estimate.layers import Linear as Linear
from stoker.estimate.layers import Parameter
from stoker.estimate.layers import linear_layers as linear_layers
from stoker.estimate.layers import trainable_parameters as trainable_parameters
from stoker.estimate.step import BYTES, Step, replace_foreign
from stoker.estimate.tape import block
from stoker.estimate.walk import Moment, Walk

_FP32 = 4
_CUBLAS_WORKSPACES = 2 * ((4096 * 2 + 16 * 8) << 10)
"""cuBLAS workspaces, one per thread of each pass, from torch's allocator."""
_CONTEXT_BYTES = {"cuda": 500_000_000, "mps": 300 << 20, "cpu": 400 << 20}
"""The CUDA context, with the kernels a training run loads."""
_NCCL_BYTES = 200 << 20
_LIVE_PARAMETERS = 10**9
"""Weights that ZeRO-3 keeps gathered (`stage3_max_live_parameters`)."""
_SUB_GROUP = 10**9
"""Weights that DeepSpeed's ZeRO-3 updates together (`sub_group_size`)."""
_WEIGHT_BLOCK = 64
_GROUP = 128
"""Weights that share a 16-bit scale and a 4-bit zero in GPTQ's form."""
_SLIGHT = 0.03
"""Share of held memory below which gradients and states do not affect fragmentation."""
_ROUNDED_WORDS = 15
"""Numbers in 32 bits that rounding at random makes for each weight on the way, operation by operation (measured)."""
_VARIED_ACTIVATIONS, _VARIED_LOGITS = 1.45, 3.7
"""Reserved memory after many steps of differing lengths, as a multiple of the longest step's."""


@dataclass(frozen=True)
class Estimate:
    """Peak memory of one device, in bytes."""

    step: Step = field(repr=False)
    kind: str
    """`cuda`, `mps` or `cpu`."""
    allocated: int
    """Held by tensors."""
    runtime: int
    """The driver's context, and NCCL's buffers."""
    parts: dict[str, int]
    """`allocated` by part."""
    moment: str
    """When the peak is."""
    moments: dict[str, int]
    """The highest figure of each moment."""

    @functools.cached_property
    def reserved(self) -> int:
        """Reserved by the allocator, by a replay of two blocks (milliseconds, on first use)."""
        if self.kind != "cuda":
            return self.allocated
        if self.step.foreign.varied:
            parts = self.parts
            kept = parts["weights"] + parts["gradients"] + parts["optimizer"]
            passing = parts["activations"] + parts["temporaries"]
            return kept + int(_VARIED_ACTIVATIONS * passing + _VARIED_LOGITS * parts["logits"])
        return self.allocated + _lost_bytes(self.step, _walk(self.step))

    @functools.cached_property
    def replayed(self) -> int:
        """The same by a replay of all blocks: exact if fragmentation grows with depth, and a hundred times slower."""
        if self.kind != "cuda" or self.step.foreign.varied:
            return self.reserved
        return self.allocated + _lost_bytes(self.step, Walk(self.step, self.step.shape.layers))

    @property
    def device(self) -> int:
        """What the driver shows."""
        return self.reserved + self.runtime


@functools.cache
def estimate(step: Step, device: str = "cuda") -> Estimate:
    """Peak memory, its moment and its parts."""
    weights, states, waiting = _held_weight_bytes(step), optimizer_bytes(step), _waiting_gradient_bytes(step)
    complete, buffers = gradient_bytes(step) - waiting, _buffer_bytes(step)
    moments = {**_walk(step).moments, "optimizer": _optimizer_moment(step, waiting)}
    if step.gradient_sets > 1:
        moments["adding"] = Moment(complete, gradients=complete)
    copies = _expert_copy_bytes(step)
    held = weights + states + waiting + buffers + copies + _CUBLAS_WORKSPACES
    peaks = {name: held + one.live for name, one in moments.items()}
    name = max(peaks, key=lambda one: peaks[one])
    peak = moments[name]
    parts = {
        "weights": weights + peak.weights,
        "gradients": waiting + buffers + peak.gradients,
        "optimizer": states,
        "activations": peak.activations,
        "logits": peak.logits,
        "temporaries": _CUBLAS_WORKSPACES + copies + peak.others,
    }
    runtime = _CONTEXT_BYTES[device] + (_NCCL_BYTES if step.devices > 1 else 0)
    return Estimate(step, device, peaks[name], runtime, parts, name, peaks)


def _walk(step: Step) -> Walk:
    return _walked(_passing(step))


@functools.lru_cache(maxsize=256)  # more than a table of all cards walks
def _walked(step: Step) -> Walk:
    return Walk(step)


def _passing(step: Step) -> Step:
    """The step without fields that do not affect its passes: many steps of a search share them."""
    if step.strategy in ("single", "ddp", "zero1"):
        alone = dataclasses.replace(step, strategy="single", devices=1, shard_devices=1, offload="none")
    else:
        alone = step
    several, sets = min(step.accumulation, 2), min(step.gradient_sets, 2)
    alone = dataclasses.replace(alone, optimizer="sgd", mean_length=None, accumulation=several, gradient_sets=sets)
    return replace_foreign(alone, master=False)


def _lost_bytes(step: Step, walk: Walk) -> int:
    """Reserved bytes that no tensor uses, by a replay of the walked blocks."""
    shallow = dataclasses.replace(step, shape=step.shape.shallow(walk.run))
    around = _tensors(shallow)
    if sum(around.waiting) + sum(around.states) > _SLIGHT * sum(around.held):
        return lost_bytes(walk.tape.log, around, expandable=step.expandable)
    if walk.between:
        return _lost_in_passes(_passing(step))
    return lost_bytes(walk.tape.log, Tensors(around.held), expandable=step.expandable)


@functools.lru_cache(maxsize=64)
def _lost_in_passes(step: Step) -> int:
    """The same if gradients and states are too small to matter."""
    walk = _walked(step)
    shallow = dataclasses.replace(step, shape=step.shape.shallow(walk.run))
    return lost_bytes(walk.tape.log, Tensors(_tensors(shallow).held), expandable=step.expandable)


def _tensors(step: Step) -> Tensors:
    """Tensors beside those of a micro batch."""
    trained = layers.trained(step.shape, step.adapter)
    gradients = [one.elements * _size(step, one) // step.gradient_parts for one in trained for _ in range(one.count)]
    weights = _weight_tensors(step) if step.offload != "all" else []
    waiting = gradients * (step.gradient_sets - 1) if step.gradient_sets > 1 else gradients
    here = step.offload == "none"
    return Tensors(
        held=[*weights, *([_CUBLAS_WORKSPACES // 2] * 2), *(gradients if step.strategy == "ddp" else [])],
        waiting=waiting if step.accumulation > 1 and not _hands_over(step) else [],
        states=_state_tensors(step) if here else [],
        scratch=_scratch_tensors(step) if here else [],
    )


# ---- what the whole step holds


@functools.cache
def whole_weight_bytes(step: Step) -> int:
    """The whole model's weights with the adapter, as one process builds them."""
    every = layers.trained(step.shape, None)
    adapter = _trained_bytes(step) if step.adapter else 0
    if step.weights in BYTES:
        return _copies(every, BYTES[step.weights]) + adapter
    packed = sum(_packed_bytes(step, one) * one.count for one in layers.quantised(step.shape))
    return packed + _copies(layers.unquantised(step.shape), BYTES[step.outer]) + adapter


def _held_weight_bytes(step: Step) -> int:
    """This device's shard of the weights; of quantised ones only the packed values are sharded."""
    whole = 0 if step.offload == "all" else whole_weight_bytes(step)
    if step.strategy == "zero3":
        gathered = min(step.shape.parameters(), _LIVE_PARAMETERS) * BYTES.get(step.weights, 2)
        return whole // step.weight_parts + gathered
    if step.weights in BYTES or step.offload == "all":
        return whole // step.weight_parts
    linears = layers.quantised(step.shape)
    packed = sum(block(one.weights // 2) * one.count for one in linears)
    scales = sum(_packed_bytes(step, one) * one.count for one in linears) - packed
    return (whole - scales) // step.weight_parts + scales


def _expert_copy_bytes(step: Step) -> int:
    """Adapted or unpacked experts, kept for the backward pass: of one block where blocks are recomputed."""
    if step.adapter is None:
        return 0
    once, every = layers.expert_copies(step.shape, step.adapter, packed=step.weights not in BYTES)
    return (once if step.recompute == "full" else every) * BYTES[step.compute]


def _copies(parameters: Iterable[Parameter], size: int) -> int:
    """Bytes of tensors of these forms, by bytes per element."""
    return sum(block(one.elements * size) * one.count for one in parameters)


def _packed_bytes(step: Step, linear: Linear) -> int:
    """A quantised layer with its scales."""
    if step.weights == "int8":
        return linear.weights + linear.outputs * _FP32
    if step.weights == "int4":
        return linear.weights // 2 + linear.weights * 5 // (2 * _GROUP)
    blocks = -(-linear.weights // _WEIGHT_BLOCK)
    scales = blocks + -(-blocks // 256) * _FP32 if step.weights == "nf4_double" else blocks * _FP32
    return block(linear.weights // 2) + block(scales)


def gradient_bytes(step: Step) -> int:
    """Gradients of this device's shard of all trained weights, times the live copies."""
    return 0 if _hands_over(step) else _trained_bytes(step) * step.gradient_sets // step.gradient_parts


def _trained_bytes(step: Step) -> int:
    return sum(block(one.elements * _size(step, one)) * one.count for one in layers.trained(step.shape, step.adapter))


def _size(step: Step, one: Parameter) -> int:
    """Bytes of an element of a trained weight."""
    if step.adapter is None:
        return BYTES.get(step.weights, _FP32)
    return BYTES[step.adapter.whole_dtype if one.table else step.adapter.dtype]


def _updated_size(step: Step, one: Parameter) -> int:
    """Bytes of an element as the optimizer updates it."""
    return _FP32 if step.foreign.master else _size(step, one)


def away_bytes(step: Step) -> int:
    """What one device keeps in main memory of a micro batch: torch pins memory in powers of two."""
    one = int(operations.work(dataclasses.replace(step, mean_length=None)).kept_bytes) // step.shape.layers
    return (1 << (one - 1).bit_length()) * step.shape.layers if step.kept_away else 0


def _hands_over(step: Step) -> bool:
    """Whether gradients are offloaded as they arrive."""
    return step.offload == "all" or (step.offload == "optimizer" and step.strategy in ("zero2", "zero3"))


def _waiting_gradient_bytes(step: Step) -> int:
    """Gradients of earlier micro batches, while one is computed."""
    if step.gradient_sets == 1:
        return gradient_bytes(step) if step.accumulation > 1 else 0
    return gradient_bytes(step) * (step.gradient_sets - 1) // max(1, step.gradient_sets)


def _buffer_bytes(step: Step) -> int:
    """DDP's and ZeRO's permanent gradient buckets."""
    gradients = _trained_bytes(step)
    if step.strategy == "ddp":
        return gradients
    if step.bucket and step.strategy in ("zero1", "zero2", "zero3"):
        return 2 * step.bucket * BYTES[step.compute]
    if step.strategy in ("zero2", "zero3"):
        return 2 * min(step.shape.hidden**2 * BYTES[step.compute], gradients)
    return 0


@functools.cache
def gradient_sets(micro_batches: int, *, exact: bool, ranks: int = 1) -> int:
    """The tree holds a sum per level and the newest leaf; more on a rank whose leaves start inside a node.

    Args:
        micro_batches: Those of one device and step.
        exact: Whether there is a tree.
        ranks: How many share the leaves, each with a range of them.
    """
    if not exact:
        return 1
    starts = range(0, ranks * micro_batches, micro_batches)
    return max((micro_batches - 1).bit_length() + 1, *(_most_held(start, start + micro_batches) for start in starts))


def _most_held(first: int, last: int) -> int:
    """The most nodes at a time while a tree takes the leaves [first, last)."""
    held = most = 0
    for leaf in range(first, last):
        held += 1
        most = max(most, held)
        size = 2
        while (leaf + 1) % size == 0 and leaf + 1 - size >= first:
            held, size = held - 1, 2 * size
    return most


@functools.cache
def checkpoint_bytes(step: Step) -> int:
    """Bytes of one checkpoint: trained weights and the optimizer's state."""
    trained = layers.trained(step.shape, step.adapter)
    states = sum((_master_bytes(step, one) + _moment_bytes(step, one, on_disk=True)) * one.count for one in trained)
    return finished_bytes(step) + states + (16 << 20)


def finished_bytes(step: Step) -> int:
    """What was trained, as it is written."""
    width = _FP32 if step.adapter else BYTES.get(step.weights, _FP32)
    return trainable_parameters(step.shape, step.adapter) * width


def _weight_tensors(step: Step) -> list[int]:
    """This device's part of every weight."""
    parts, trained = step.weight_parts, layers.trained(step.shape, step.adapter) if step.adapter else ()
    adapter = [one.elements * _size(step, one) // parts for one in trained for _ in range(one.count)]
    every = layers.trained(step.shape, None)
    if step.weights in BYTES:
        return _each(every, BYTES[step.weights], parts) + adapter
    packed = [one.weights // 2 // parts for one in layers.quantised(step.shape)]
    return packed + _each(layers.unquantised(step.shape), BYTES[step.outer], parts) + adapter


def _each(parameters: Iterable[Parameter], size: int, parts: int) -> list[int]:
    """Bytes of a device's part of each tensor of these forms."""
    return [one.elements * size // parts for one in parameters for _ in range(one.count)]


# ---- optimizers


def optimizer_bytes(step: Step) -> int:
    """The optimizer's state of one device's part."""
    if step.offload != "none":
        return 0
    states = sum(_state_bytes(step, one) * one.count for one in layers.trained(step.shape, step.adapter))
    return states // step.state_parts


def _state_bytes(step: Step, one: Parameter) -> int:
    return _master_bytes(step, one) + _moment_bytes(step, one)


def _master_bytes(step: Step, one: Parameter) -> int:
    """An fp32 copy of a 16-bit weight."""
    return block(one.elements * _FP32) if step.foreign.master and _size(step, one) < _FP32 else 0


def _moment_bytes(step: Step, one: Parameter, *, on_disk: bool = False) -> int:
    width = _updated_size(step, one)
    kept = optimizer_state.state_tensors(step.optimizer, one, width, step.extra_moments, on_disk=on_disk)
    return sum(map(block, kept))


def _optimizer_moment(step: Step, waiting: int) -> Moment:
    """One complete set of gradients, and temporaries of the optimizer step."""
    trained = layers.trained(step.shape, step.adapter)
    if step.offload != "none":
        return Moment(gradient_bytes(step) - waiting, gradients=gradient_bytes(step) - waiting)
    if step.foreign.master and step.strategy == "zero3":
        # DeepSpeed widens them in groups of so many weights.
        widened = min(sum(_parts(step, trained)), _SUB_GROUP * _FP32)
        gradients = gradient_bytes(step) + widened - waiting
    elif step.foreign.master:
        # They become fp32 one by one.
        gradients = sum(map(block, _parts(step, trained))) - waiting
    else:
        gradients = _trained_bytes(step) * min(1, step.gradient_sets) // step.gradient_parts - waiting
    return Moment(gradients + sum(map(block, _scratch_tensors(step))), gradients=gradients)


def _scratch_tensors(step: Step) -> list[int]:
    trained = layers.trained(step.shape, step.adapter)
    largest = max(trained, key=lambda one: one.elements)
    if step.optimizer == "adafactor":
        # The squared gradient twice; of 16-bit weights also the gradient and the weight in fp32.
        return [largest.elements * _FP32] * (2 if _size(step, largest) == _FP32 else 4)
    if step.optimizer == "muon":
        return _orthogonalised(trained)
    if step.optimizer == "adamw_rounded":
        return [_ROUNDED_WORDS * min(rounding.ROUNDED_AT_ONCE, largest.elements) * _FP32]
    if step.gradient_sets == 0:
        trained = (dataclasses.replace(largest, count=1),)
    return _parts(step, trained) if optimizer_state.KEPT[step.optimizer].temporaries else []


def _orthogonalised(trained: Iterable[Parameter]) -> list[int]:
    """Muon's temporaries of the largest hidden matrix: the update, three copies in 16 bits, two of its square."""
    hidden = [(one.elements, min(one.rows, one.columns)) for one in trained if optimizer_state.hidden_matrix(one)]
    elements, side = max(hidden, default=(0, 0))
    return [elements * _FP32, *[elements * 2] * 3, *[side * side * 2] * 2]


def _state_tensors(step: Step) -> list[int]:
    trained = layers.trained(step.shape, step.adapter)
    kept = optimizer_state.KEPT[step.optimizer]
    if kept.bits == 0:
        moments = 1 if step.optimizer == "muon" else kept.moments + step.extra_moments
        return _parts(step, trained) * (moments + (1 if step.foreign.master else 0) if moments else 0)
    if kept.paged:
        return []

    def size(one: Parameter) -> int:
        wide = kept.bits == 32 or (one.embedding and not kept.torchao)
        return one.elements * (_FP32 if wide else 1) // step.state_parts

    return kept.moments * [size(one) for one in trained for _ in range(one.count)]


def _parts(step: Step, trained: Iterable[Parameter]) -> list[int]:
    """Bytes of this device's part of each weight as the optimizer changes it."""
    return [one.elements * _updated_size(step, one) // step.state_parts for one in trained for _ in range(one.count)]
