"""What a training step computes: its products, the bytes it streams and the kernels it launches, by pass.

Follows the eager operations of transformers and PEFT, or one fused kernel for each group of them where `compiled`.
Knows nothing of time.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stoker.estimate import layers
from stoker.estimate.optimizer_state import KEPT, hidden_matrix
from stoker.estimate.step import BYTES, Step

Precision = Literal["half", "single", "narrow", "experts"]

_QUANTISED_BYTES = {"nf4": 0.5 + 4 / 64, "nf4_double": 0.5 + 1.03 / 64, "int8": 1.0, "int4": 0.5 + 2 / 128}
"""Bytes of one weight with its constants: NF4 in blocks of 64, GPTQ in groups of 128."""
_UNPACKING = {"nf4": (5.0, 1), "nf4_double": (5.0, 3), "int8": (3.0, 2), "int4": (24.0, 8)}
"""Bytes and kernels to dequantise a weight to 16 bits. GPTQ's is a chain of elementwise operations."""
_MUON_ROUNDS = 5
"""Newton-Schulz iterations of torch's Muon, three products each."""
_LOSS_BYTES = {
    "logits_fp32": (22.0, 30.0),
    "logits": (8.0, 12.0),
    "chunked": (14.0, 18.0),
    "fused": (22.0, 30.0),
    "liger": (4.0, 4.0),
}
"""Bytes per logit, forward and backward: an fp32 copy, a softmax, its gradient and its cast back."""
_COMPILED_LOSS_BYTES = (6.0, 8.0)


class Product(NamedTuple):
    """Matrix products of one size: `rows` x `inner` times `inner` x `columns`."""

    rows: float
    inner: float
    columns: float
    times: float
    """Their number."""
    launches: float
    """Kernels launched for them: one each, or one for all experts of a layer."""
    frozen: bool = False
    """Whether the weight gets no gradient."""
    precision: Precision = "half"
    """16 bits, fp32, or the step's `product_bits`, of dense layers or of experts."""

    @property
    def flops(self) -> float:
        """Total floating-point operations."""
        return 2 * self.times * self.rows * self.inner * self.columns

    @property
    def moved(self) -> float:
        """Minimum bytes read and written, in 16 bits."""
        return 2 * self.times * (self.rows * self.inner + self.inner * self.columns + self.rows * self.columns)

    def backward(self) -> "tuple[Product, ...]":
        """The input's gradient, and the weight's where it is trained."""
        rows, inner, columns, times, launches, frozen, precision = self
        back = Product(rows, columns, inner, times, launches, frozen, precision)
        return (back,) if frozen else (back, Product(inner, rows, columns, times, launches, frozen, precision))


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes read and written by memory-bound kernels, and the number of kernels."""

    forward: float = 0.0
    backward: float = 0.0
    kernels: float = 0.0
    backward_kernels: float = 0.0

    def __add__(self, other: "Stream") -> "Stream":
        return Stream(
            self.forward + other.forward,
            self.backward + other.backward,
            self.kernels + other.kernels,
            self.backward_kernels + other.backward_kernels,
        )

    def times(self, tokens: float, layers: float) -> "Stream":
        """Scaled by tokens and layers."""
        each = tokens * layers
        return Stream(self.forward * each, self.backward * each, self.kernels * layers, self.backward_kernels * layers)


class Load(NamedTuple):
    """The load of one size of product on a device."""

    flops: float
    moved: float
    precision: str


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro batch over a device's part of the model."""

    products: tuple[Load, ...] = ()
    attention_flops: float = 0.0
    streamed: float = 0.0
    unpacked: float = 0.0
    """Bytes streamed to dequantise weights."""
    kernels: float = 0.0
    """Kernels beside the products."""
    launches: float = 0.0
    """All kernels."""


@dataclass(frozen=True, slots=True)
class Work:
    """An optimizer step of one device."""

    forward: Pass
    backward: Pass
    again: Pass
    """The recomputation in the backward pass."""
    update: Pass
    """The optimizer, once per step."""
    tokens: float
    """Tokens of a micro batch on this device."""
    trained: float
    """Trained weights of the model part that this device holds or has a shard of."""
    trained_bytes: float
    """Bytes of their gradients."""
    gathered_bytes: float
    """Bytes of that model part as it is gathered, if sharded."""
    kept_bytes: float
    """Bytes of the blocks' inputs of a micro batch."""


@functools.lru_cache(maxsize=4096)
def work(step: Step) -> Work:
    """All operations of a step."""
    sizes = _Sizes(step)
    linear = _products(sizes)
    stream, loss, gradients = _block_stream(sizes), _loss(sizes), _gradients(sizes)
    unpacked, unpacking = _unpacking(sizes)
    flops = _attention_flops(sizes)
    kernels = stream.kernels + unpacking
    head = _head(sizes)
    back = [product for one in (*linear, head) for product in one.backward()]
    return Work(
        forward=_pass([*linear, head], flops, stream.forward + loss.forward, unpacked, kernels + loss.kernels),
        backward=_pass(
            back,
            flops * (2.0 if step.attention == "eager" else 2.5),
            stream.backward + loss.backward + gradients.backward,
            unpacked,
            stream.backward_kernels + unpacking + loss.backward_kernels + gradients.backward_kernels,
        ),
        again=_again(step, linear, flops, stream, unpacked, kernels),
        update=_update(sizes),
        tokens=sizes.tokens,
        trained=sizes.trained,
        trained_bytes=sizes.trained * sizes.trained_width,
        gathered_bytes=_gathered(sizes),
        kept_bytes=sizes.tokens * sizes.shape.hidden * sizes.residual * sizes.layers,
    )


def products(step: Step) -> list[Product]:
    """Forward products of the blocks: the model's linear layers, and adapters."""
    return _products(_Sizes(step))


def _products(sizes: "_Sizes") -> list[Product]:
    return [*_linear_products(sizes), *_adapter_products(sizes)]


def _pass(found: list[Product], attention: float, streamed: float, unpacked: float, kernels: float) -> Pass:
    loads = tuple(Load(one.flops, one.moved, one.precision) for one in found)
    launches = kernels + sum(one.launches for one in found)
    return Pass(loads, attention, streamed, unpacked, kernels, launches)


class _Sizes:
    """A step's sizes on one device."""

    def __init__(self, step: Step) -> None:
        shape = step.shape
        self.step = step
        self.shape = shape
        self.length = step.mean_length or step.length
        self.tokens = step.micro * self.length / step.foreign.context_parallel
        self.layers = shape.layers / step.foreign.pipeline_parallel
        self.query = shape.heads * shape.head_dim / step.foreign.tensor_parallel
        self.key = shape.kv_heads * shape.head_dim / step.foreign.tensor_parallel
        self.inner = shape.intermediate / step.foreign.tensor_parallel * max(1, shape.experts_per_token)
        self.element = BYTES[step.compute]
        self.quantised = step.weights in _QUANTISED_BYTES
        held = step.outer if self.quantised else step.weights
        self.residual = 4 if held == "fp32" and (step.autocast or self.quantised) else self.element
        adapter = step.adapter
        self.linears = layers.linear_layers(shape)
        self.adapted = layers.adapted(shape, adapter) if adapter else []
        self.parts = step.foreign.tensor_parallel * step.foreign.pipeline_parallel
        self.held = (shape.parameters() - _elsewhere(step)) / self.parts
        self.linear_weights = sum(one.inputs * one.outputs * one.count for one in self.linears) / self.parts
        self.packed = layers.quantised(shape) if self.quantised else []
        self.packed_weights = sum(one.weights * one.count for one in self.packed) / self.parts
        trained = layers.trainable_parameters(shape, adapter)
        self.trained = (trained if adapter else trained - _elsewhere(step)) / self.parts
        self.trained_width = BYTES[adapter.dtype] if adapter else 4 if step.weights == "fp32" else 2

    @property
    def tensors(self) -> float:
        """Trained tensors."""
        if self.step.adapter:
            return 2 * sum(one.count for one in self.adapted) / self.parts
        if self.shape.parts:
            return sum(one.count for one in layers.trained(self.shape, None))
        named = sum(min(one.count, self.shape.layers) for one in self.linears)
        return (named + self.shape.layers * self.shape.norms_per_layer + 2) / self.step.foreign.pipeline_parallel


def _elsewhere(step: Step) -> float:
    """Weights of experts that other devices hold."""
    shape = step.shape
    matrices = 3 if shape.gated_mlp else 2
    experts = shape.experts * shape.layers * shape.hidden * shape.intermediate * matrices
    return experts * (1 - 1 / step.foreign.expert_parallel)


def _linear_products(sizes: _Sizes) -> Iterator[Product]:
    step, shape = sizes.step, sizes.shape
    frozen = step.adapter is not None
    for one in sizes.linears:
        # Tensor parallelism splits the wider side: the outputs on the way in, the inputs on the way back.
        leaving = one.inputs > one.outputs
        inputs = one.inputs / step.foreign.tensor_parallel if leaving else one.inputs
        outputs = one.outputs if leaving else one.outputs / step.foreign.tensor_parallel
        if not one.sparse:
            times = one.count / step.foreign.pipeline_parallel
            yield Product(sizes.tokens, inputs, outputs, times, times, frozen, "narrow")
            continue
        rows = sizes.tokens * shape.experts_per_token * step.foreign.expert_parallel / shape.experts
        times = one.count / (step.foreign.pipeline_parallel * step.foreign.expert_parallel)
        yield Product(rows, inputs, outputs, times, sizes.layers if step.compiled else times, frozen, "experts")


def _adapter_products(sizes: _Sizes) -> Iterator[Product]:
    adapter, step = sizes.step.adapter, sizes.step
    if adapter is None:
        return
    precision: Precision = "single" if adapter.dtype == "fp32" and not step.autocast else "half"
    for one in sizes.adapted:
        count, outputs = one.count / step.foreign.pipeline_parallel, one.outputs / step.foreign.tensor_parallel
        rank = adapter.rank * one.ranks
        yield Product(sizes.tokens, one.inputs, rank, count, count, precision=precision)
        yield Product(sizes.tokens, rank, outputs, count, count, precision=precision)


def _head(sizes: _Sizes) -> Product:
    """The output layer: whole on a pipeline's last stage, which the others wait for."""
    frozen = sizes.step.adapter is not None and "lm_head" not in sizes.step.adapter.whole
    vocab = sizes.shape.vocab / sizes.step.foreign.tensor_parallel
    return Product(sizes.tokens, sizes.shape.hidden, vocab, 1, 1, frozen)


def _attention_flops(sizes: _Sizes) -> float:
    causal = 1.0 if sizes.step.attention == "eager" or sizes.step.masked else 0.5
    return 4 * causal * sizes.tokens * sizes.length * sizes.query * sizes.layers


def _block_stream(sizes: _Sizes) -> Stream:
    """Everything in the blocks that is not a matrix product."""
    pieces = (_norms, _positions, _attention, _activation, _residual, _experts, _quantising)
    block = sum((piece(sizes) for piece in pieces), Stream())
    return block.times(sizes.tokens, sizes.layers) + _adapters(sizes) + _weight_casts(sizes)


def _norms(sizes: _Sizes) -> Stream:
    """RMSNorm in eager mode is seven kernels in fp32; LayerNorm is one."""
    shape, r = sizes.shape, sizes.residual
    channels: float = shape.norms_per_layer * shape.hidden
    count = shape.norms_per_layer
    if shape.qk_norm != "none":
        channels, count = channels + sizes.query + sizes.key, count + 2
    if sizes.step.fuses or shape.norm_weights != 1:
        return Stream(2 * r * channels, 3 * r * channels, count, 2 * count)
    once, back, kernels = (36, 62, 7) if r == 2 else (28, 50, 5)
    return Stream(once * channels, back * channels, kernels * count, 1.7 * kernels * count)


def _positions(sizes: _Sizes) -> Stream:
    """Rotary positions of queries and keys."""
    if sizes.shape.learned_positions:
        return Stream()
    rotated = sizes.element * (sizes.query + sizes.key)
    if sizes.step.fuses:
        return Stream(2 * rotated, 2 * rotated, 2, 2)
    return Stream(10 * rotated, 10 * rotated, 12, 14)


def _attention(sizes: _Sizes) -> Stream:
    """A fused kernel reads inputs and writes outputs; eager attention writes all scores several times."""
    ends = 2 * (sizes.query + sizes.key) * sizes.element
    if sizes.step.attention != "eager":
        return Stream(ends, 2.2 * ends, 1, 2)
    scores = sizes.element * sizes.shape.heads / sizes.step.foreign.tensor_parallel * sizes.length
    passes = 4 if sizes.step.compiled else 12
    return Stream(ends + passes * scores, 2 * ends + passes * scores, 8, 10)


def _activation(sizes: _Sizes) -> Stream:
    once = sizes.element * sizes.inner
    if not sizes.shape.gated_mlp:
        return Stream(2 * once, 3 * once, 1, 1)
    passes, back, kernels = (3, 5, 1) if sizes.step.fuses else (5, 9, 2)
    return Stream(passes * once, back * once, kernels, 1.5 * kernels)


def _residual(sizes: _Sizes) -> Stream:
    """Two sums, and a cast at each product's input where the stream is wider than the arithmetic."""
    r, e, hidden = sizes.residual, sizes.element, sizes.shape.hidden
    sums = 4 if sizes.step.compiled else 6
    added = Stream(sums * r * hidden, sums * r * hidden, 2, 2)
    if r == e:
        return added
    casts = 1 if sizes.step.compiled else 5
    return added + Stream(casts * (r + e) * hidden, casts * (r + e) * hidden, casts, casts)


def _experts(sizes: _Sizes) -> Stream:
    """Tokens sorted by expert, and restored."""
    if not sizes.shape.experts:
        return Stream()
    moved = 4 * sizes.element * sizes.shape.experts_per_token * sizes.shape.hidden
    return Stream(moved, moved, 12, 12)


def _quantising(sizes: _Sizes) -> Stream:
    """Inputs of products cast to 8 or 4 bits, and their gradients."""
    if sizes.step.foreign.product_bits == 16:
        return Stream()
    hidden, query, key, inner = sizes.shape.hidden, sizes.query, sizes.key, sizes.inner
    entering = 2 * hidden + query + inner
    leaving = query + 2 * key + 2 * hidden + (2 if sizes.shape.gated_mlp else 1) * inner
    return Stream(4 * entering, 4 * leaving, 4, 7)


def _adapters(sizes: _Sizes) -> Stream:
    """What adapters add around their products: casts, dropout, scaling and the sum with the layer's own output."""
    adapter, step, e = sizes.step.adapter, sizes.step, sizes.element
    if adapter is None:
        return Stream()
    wide = adapter.dtype == "fp32" and e == 2
    cast_back = 6 if wide and step.autocast else 0
    entering = (6 if wide else 0) + cast_back + ((9 if wide else 2 * e + 1) if adapter.dropout else 0)
    result = 4 if wide and not step.autocast else e
    leaving, scaling = 3 * result + 2 * e, 2 * result
    kernels = 2 + bool(wide) + (3 if cast_back else 0) + bool(adapter.dropout)
    if step.compiled:
        entering, leaving, scaling, kernels = (2 * e if adapter.dropout else 0), 3 * e, e, 1
    inputs = sum(one.inputs * one.count for one in sizes.adapted) / step.foreign.pipeline_parallel
    outputs = sum(one.outputs * one.count for one in sizes.adapted) / sizes.parts
    counted = sum(one.count for one in sizes.adapted) / step.foreign.pipeline_parallel
    forward = entering * inputs + leaving * outputs
    backward = (entering + 3 * e) * inputs + scaling * outputs
    tokens = sizes.tokens
    return Stream(forward * tokens, backward * tokens, kernels * counted, (kernels + 2) * counted)


def _weight_casts(sizes: _Sizes) -> Stream:
    """fp32 weights cast at each use."""
    if not sizes.step.autocast or sizes.step.weights != "fp32" or sizes.element == 4:
        return Stream()
    counted = sum(min(one.count, sizes.shape.layers) for one in sizes.linears) / sizes.step.foreign.pipeline_parallel
    return Stream(6 * sizes.linear_weights, 6 * sizes.linear_weights, counted, counted)


def _unpacking(sizes: _Sizes) -> tuple[float, float]:
    """Bytes and kernels of one pass to dequantise weights."""
    if not sizes.quantised:
        return 0.0, 0.0
    size, kernels = _UNPACKING[sizes.step.weights]
    counted = sum(one.count for one in sizes.packed) / sizes.step.foreign.pipeline_parallel
    return size * sizes.packed_weights, kernels * counted


def _loss(sizes: _Sizes) -> Stream:
    step = sizes.step
    logits = sizes.tokens * sizes.shape.vocab / step.foreign.tensor_parallel
    fusable = step.compiled and step.loss in ("logits_fp32", "chunked")
    forward, backward = _COMPILED_LOSS_BYTES if fusable else _LOSS_BYTES[step.loss]
    return Stream(forward * logits, backward * logits, 6, 10)


def _gradients(sizes: _Sizes) -> Stream:
    """Accumulating the gradients of a micro batch."""
    again = 1 - 1 / sizes.step.accumulation
    return Stream(0.0, 3 * sizes.trained_width * sizes.trained * again, 0.0, sizes.tensors * again)


def _again(step: Step, linear: list[Product], flops: float, stream: Stream, unpacked: float, kernels: float) -> Pass:
    """The whole forward pass of the blocks, or all but attention and every second product."""
    if step.recompute == "none":
        return Pass()
    if step.recompute == "full":
        return _pass(linear, flops, stream.forward, unpacked, kernels)
    halved = [one._replace(times=one.times / 2, launches=one.launches / 2) for one in linear]
    return _pass(halved, 0.0, stream.forward, unpacked, kernels)


def _update(sizes: _Sizes) -> Pass:
    step = sizes.step
    if step.offload != "none":
        return Pass()
    words = KEPT[step.optimizer].words * (4 if step.foreign.master else sizes.trained_width)
    kernels = 0.5 if step.optimizer in ("adamw", "adamw_fused") else 3.0
    products = _orthogonalising(step) if step.optimizer == "muon" else []
    return _pass(products, 0.0, sizes.trained / step.state_parts * words, 0.0, sizes.tensors * kernels)


def _orthogonalising(step: Step) -> list[Product]:
    """Muon's products: of each hidden matrix the square of its short side, that squared, and applied."""
    found = []
    for one in layers.trained(step.shape, step.adapter):
        if hidden_matrix(one):
            short, long = sorted((float(one.rows), float(one.columns)))
            times = float(_MUON_ROUNDS * one.count)
            sides = ((short, long, short), (short, short, short), (short, short, long))
            found += [Product(*side, times, times) for side in sides]
    return found


def _gathered(sizes: _Sizes) -> float:
    step = sizes.step
    if not sizes.quantised:
        if layers.gathers_lowered(step):
            tables = step.shape.vocab * step.shape.hidden
            return (sizes.held - tables) * sizes.element + tables * BYTES[step.weights]
        # Under autocast weights are cast at use, after they were gathered.
        return sizes.held * (BYTES.get(step.weights, sizes.element) if step.autocast else sizes.element)
    packed = sizes.packed_weights
    return packed * _QUANTISED_BYTES[step.weights] + (sizes.held - packed) * BYTES[step.outer]
