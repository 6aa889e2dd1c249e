"""What a model's blocks are made of, written against the tape: linear layers, norms, activations and attention.

Names of local variables and the order of operations follow `modeling_llama.py` and its relatives, PEFT's
`Linear.forward` and bitsandbytes' `Linear4bit`, because the life of a local variable is the life of its memory.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from stoker.estimate import layers
from stoker.estimate.layers import Linear
from stoker.estimate.step import BYTES, Adapter, Step
from stoker.estimate.tape import LEAF, Held, Tape, Tensor, Value, View, Weight

FP32 = 4
_MASK_BYTES = 1
"""Of an element of a dropout mask."""
_LARGEST_FLASH_HEAD = 256
_IN_REGISTERS = 128
"""Widest head whose gradients the efficient kernel sums in registers."""
_QUANTISED = ("nf4", "nf4_double", "int8", "int4")


@dataclass(frozen=True)
class _Family:
    """How a family's block differs from Llama's."""

    norm: Literal["rms", "wide_rms", "layer"] = "rms"
    """RMSNorm with its weight applied after the cast back or, wide, before it; or LayerNorm."""
    parallel: Literal["none", "one_norm", "two_norms"] = "none"
    """Whether attention and feed-forward read the same input, and through how many norms."""
    norms: Literal["before", "after", "around"] = "before"
    """Where norms are beside attention and feed-forward."""
    activation: Literal["kernel", "written_out"] = "kernel"
    rotary_share: float = 1.0
    """Share of a head's channels that are rotated."""
    rotates_apart: bool = False
    """Whether they are concatenated with the rest: the layout is then by head, not by token, also in flash's result."""
    dropout: bool = False
    """Dropout on what is added to the residual stream."""
    caps: bool = False
    """Whether attention scores and logits have a soft cap."""


_LLAMA = _Family()
_FAMILIES = {
    "gemma": _Family(norm="wide_rms"),
    "gemma2": _Family(norm="wide_rms", norms="around", caps=True),
    "gemma3_text": _Family(norm="wide_rms", norms="around"),
    "olmo2": _Family(norm="wide_rms", norms="after"),
    "olmo3": _Family(norm="wide_rms", norms="after"),
    "phi3": _Family(rotates_apart=True),
    "glm": _Family(rotary_share=0.5, rotates_apart=True),
    "glm4": _Family(norms="around", rotary_share=0.5, rotates_apart=True),
    "chatglm": _Family(rotary_share=0.5, rotates_apart=True),
    "phi": _Family(norm="layer", parallel="one_norm", activation="written_out", rotary_share=0.5, rotates_apart=True),
    "gpt2": _Family(norm="layer", activation="written_out", rotary_share=0.0, dropout=True),
    "gpt_neox": _Family(norm="layer", parallel="two_norms", rotary_share=0.25, rotates_apart=True),
    "stablelm": _Family(norm="layer", rotary_share=0.25, rotates_apart=True),
    "olmo": _Family(norm="layer"),
    "mpt": _Family(norm="layer", rotary_share=0.0),
}


class Modules:
    """One device's layers for one micro batch."""

    def __init__(self, step: Step, tape: Tape) -> None:
        shape = step.shape
        self.tape, self.step, self.shape = tape, step, shape
        self.family = _FAMILIES.get(shape.family, _LLAMA)
        self.tokens = step.tokens // step.foreign.context_parallel
        self.quantised = step.weights in _QUANTISED
        self.compute = BYTES[step.compute]
        self.outer = self._seen(step.outer if self.quantised else step.weights)
        self.matrix = self.compute if layers.gathers_lowered(step) else self.outer
        """Bytes of an element of a linear layer's weight in use."""
        self.trains_all = step.adapter is None
        whole = step.adapter.whole if step.adapter else ()
        self.trains_embedding = self.trains_all or "embed_tokens" in whole
        self.table = BYTES[step.adapter.whole_dtype] if step.adapter and whole else self.outer
        self.trains_head = self.trains_all or "lm_head" in whole
        # The experts of one token as one layer of their total width: approximate.
        inner = shape.intermediate * max(1, shape.experts_per_token)
        self.linears = layers.by_role(dataclasses.replace(shape, intermediate=inner) if shape.experts else shape)
        self.head = Linear("lm_head", shape.hidden, shape.vocab, 1, bias=shape.head_bias)
        self.table_edge = LEAF
        self.selective, self.products, self.first_product = step.recompute == "selective", 0, 0
        self.outputs: list[Held] = []
        """What the training loop holds until the end of the backward pass."""
        self.output = 0
        """Where on the tape the output layer's product ends and the loss begins."""
        self.scalar = tape.tensor(0, FP32)

    def _seen(self, stored: str) -> int:
        """Bytes of an element of a weight in use; FSDP's mixed precision gathers it in `compute`."""
        own = BYTES[stored]
        return own if self.step.autocast else min(own, self.compute)

    # ---- attention

    def _attended(self, query: Held, key: Held, value: Held) -> Held:
        step = self.step
        if step.attention == "eager":
            return self._eager(query, key, value)
        if step.autocast:
            query, key, value = (self._cast(one, self.compute) for one in (query, key, value))
        if (
            step.attention in ("flash", "flash_2")
            and query.size < FP32
            and not step.masked
            and self.shape.head_dim <= _LARGEST_FLASH_HEAD
        ):
            output = self._flash(query, key, value)
            return self._copied(output) if self.family.rotates_apart else output
        return self._efficient(query, key, value)

    def _flash(self, query: Held, key: Held, value: Held) -> Tensor:
        """Saves its inputs, its result and the log-sum-exp of each row."""
        shape, heads = self.shape, self.step.micro * self.shape.heads
        rows = heads * _up(self.step.length, 128)
        scratch: tuple[int, ...] = (rows * FP32, rows * _up(shape.head_dim, 32) * FP32)
        if shape.kv_heads != shape.heads:
            scratch += (query.bytes, query.bytes)
        sums = self.tape.tensor(heads * self.step.length * FP32, FP32)
        saved, kept = (query, key, value, sums), self.selective
        return self.tape.op(
            query.bytes, query.size, (query, key, value), saved, scratch, saves_result=True, spared=kept
        )

    def _efficient(self, query: Held, key: Held, value: Held) -> Tensor:
        """Like flash, but with keys repeated for every head, and a mask as a number per pair."""
        step, shape = self.step, self.shape
        length, heads = step.length, step.micro * shape.heads
        if shape.kv_heads != shape.heads:
            key, value = self._repeated(key), self._repeated(value)
        mask = self.tape.tensor(step.micro * length * _up(length, 16) * query.size, query.size) if step.masked else None
        sums = self.tape.tensor(heads * _up(length, 32) * FP32, FP32)
        width = _up(shape.head_dim, 64)
        if query.size == FP32:
            summed = heads * length * shape.head_dim * FP32
        else:
            summed = heads * _up(length, 128) * width * FP32
            summed += 2 * heads * _up(length, 64) * width * FP32 if shape.head_dim > _IN_REGISTERS else 0
        scratch = (heads * length * FP32, summed)
        saved = (query, key, value, sums, mask)
        kept = self.selective
        return self.tape.op(
            query.bytes, query.size, (query, key, value), saved, scratch, saves_result=True, spared=kept
        )

    def _repeated(self, value: Held) -> Tensor:
        """Keys or values repeated for each head."""
        return self.tape.op(value.bytes * self.shape.heads // self.shape.kv_heads, value.size, (value,))

    def _eager(self, query: Held, key: Held, value: Held) -> Held:
        """Eager attention: the score of every pair of tokens is stored."""
        tape, shape = self.tape, self.shape
        pairs = self.step.micro * shape.heads * self.step.length**2
        if shape.kv_heads != shape.heads:
            key, value = self._repeated(key), self._repeated(value)
        scores = self._scaled(self._matmul(query, key, pairs))
        if self.family.caps:
            scores = self._scaled(self._tanh(self._scaled(scores)))
        scores = tape.add(scores, View(scores, pairs * self.outer, None, self.outer))
        scores = self._softmax(self._cast(scores, FP32))
        output = self._matmul(self._cast(scores, query.size), value, query.bytes // query.size)
        return self._copied(output)

    def _softmax(self, scores: Held) -> Tensor:
        return self.tape.op(scores.bytes, scores.size, (scores,), saves_result=True)

    def _matmul(self, left: Held, right: Held, elements: int) -> Tensor:
        """A batched product over heads."""
        if self.step.autocast:
            left, right = self._cast(left, self.compute), self._cast(right, self.compute)
        saved = (right if left.edge is not None else None, left if right.edge is not None else None)
        return self.tape.op(elements * left.size, left.size, (left, right), saved)

    def _copied(self, x: Held) -> Tensor:
        """A contiguous copy."""
        return self.tape.op(x.bytes, x.size, (x,))

    def _rotated(self, states: Held) -> Tensor:
        """Rotary positions: `states * cos + rotate_half(states) * sin`, on the first channels of each head."""
        if not self.family.rotates_apart:
            return self._turned(states)
        part = int(states.bytes * self.family.rotary_share)
        turning = self.tape.slice(states, part)
        passing = self.tape.slice(states, states.bytes - part)
        turned = self._turned(turning)
        return self.tape.join((turned, passing))

    def _turned(self, states: Held) -> Tensor:
        if self.step.fuses:
            return self._copied(states)
        size = max(states.size, self.outer)
        num_bytes = states.bytes // states.size * size
        cast = (num_bytes,) if size != states.size else ()
        once = self.tape.op(num_bytes, size, (states,), (self.scalar,), cast)
        negated = self.tape.tensor(states.bytes // 2, states.size)
        half = self.tape.op(states.bytes, states.size, (states,), scratch=(states.bytes,))
        del negated
        half = self.tape.op(num_bytes, size, (half,), (self.scalar,), cast)
        return self.tape.add(once, half)

    def _split(self, joined: Held) -> list[View]:
        query, key = self.shape.heads, self.shape.kv_heads
        head = joined.bytes // (query + 2 * key)
        if self.shape.family == "phi3":
            return [self.tape.slice(joined, head * heads) for heads in (query, key, key)]
        return self.tape.split(joined, [head * heads for heads in (query, key, key)])

    # ---- norms, activations and the like

    def norm(self, x: Held) -> Held:
        """A norm over a token's channels."""
        if self.family.norm == "layer":
            return self._layer_norm(x)
        return self._rms_norm(x, self.shape.hidden)

    def _rms_norm(self, x: Held, width: int) -> Held:
        tape = self.tape
        if self.step.fuses:
            return self._fused_norm(x, width)
        x32 = self._cast(x, FP32)
        rows = x32.bytes // width
        variance = tape.op(rows, FP32, (tape.op(x32.bytes, FP32, (x32,), (x32,), (x32.bytes, x32.bytes)),))
        scale = tape.op(rows, FP32, (variance,), saves_result=True)
        hidden: Held = tape.op(x32.bytes, FP32, (x32, scale), (x32, scale), (x32.bytes,))
        if self.family.norm == "wide_rms":
            return self._cast(self._weighted(hidden, width), x.size)
        return self._weighted(self._cast(hidden, x.size), width)

    def _fused_norm(self, x: Held, width: int) -> Tensor:
        """One kernel, which keeps its input."""
        weight = Weight(width, self.outer, trained=self.trains_all)
        return self.tape.op(x.bytes, x.size, (x, weight), (x,))

    def _weighted(self, hidden: Held, width: int) -> Tensor:
        weight = Weight(width, self.outer, trained=self.trains_all)
        size = max(hidden.size, weight.size)
        num_bytes = hidden.bytes // hidden.size * size
        saved = (hidden if weight.edge is not None else None, weight)
        times = (weight.edge is not None) + (size != hidden.size)
        return self.tape.op(num_bytes, size, (hidden, weight), saved, (num_bytes,) * times)

    def _layer_norm(self, x: Held) -> Tensor:
        x = self._cast(x, FP32) if self.step.autocast else x
        weight = Weight(self.shape.norm_weights * self.shape.hidden, self.outer, trained=self.trains_all)
        moments = self.tape.tensor(2 * self.tokens * FP32, FP32)
        return self.tape.op(x.bytes, x.size, (x, weight), (x, moments))

    def _activated(self, x: Held) -> Tensor:
        tape = self.tape
        if self.family.activation == "kernel":
            return tape.op(x.bytes, x.size, (x,), (x,))
        # `gelu_new` is written out: 0.5 * x * (1 + tanh(c * (x + d * x**3))).
        half = self._scaled(x)
        return self._multiplied(half, tape.shifted(self._tanh(self._scaled(tape.add(x, self._scaled(self._cubed(x)))))))

    def _cubed(self, x: Held) -> Tensor:
        """A power, which autocast computes in fp32."""
        wide = self._cast(x, FP32) if self.step.autocast else x
        return self.tape.op(wide.bytes, wide.size, (wide,), (wide,), (wide.bytes, wide.bytes))

    def _tanh(self, x: Held) -> Tensor:
        return self.tape.op(x.bytes, x.size, (x,), saves_result=True)

    def _gated(self, gate: Held, up: Held) -> Tensor:
        """Activation and product in one kernel."""
        return self.tape.op(up.bytes, up.size, (gate, up), (gate, up))

    def _multiplied(self, left: Held, right: Held) -> Tensor:
        size = max(left.size, right.size)
        num_bytes = left.bytes // left.size * size
        saved = (right if left.edge is not None else None, left if right.edge is not None else None)
        cast = (num_bytes,) if left.size != right.size else ()
        return self.tape.op(num_bytes, size, (left, right), saved, cast)

    def _scaled(self, x: Held) -> Tensor:
        """Times a scalar."""
        return self.tape.op(x.bytes, x.size, (x,), (self.scalar,))

    def _dropout(self, x: Held) -> Tensor:
        mask = self.tape.tensor(x.bytes // x.size * _MASK_BYTES, _MASK_BYTES)
        return self.tape.op(x.bytes, x.size, (x,), (mask,))

    def _cast(self, x: Held, size: int) -> Held:
        if x.size == size:
            return x
        return self.tape.op(x.bytes // x.size * size, size, (x,))

    # ---- linear layers

    def _linear(self, role: str, x: Held) -> Held:
        linear, adapter = self.linears[role], self.step.adapter
        if adapter is None or (adapter.targets and linear.name not in adapter.targets):
            return self._base(x, linear)
        return self._low_rank(x, self._base(x, linear), linear, adapter)

    def _base(self, x: Held, linear: Linear) -> Held:
        self.first_product = min(self.first_product, len(self.tape))
        if self.quantised:
            return self._unpacked_product(x, linear)
        return self._product(x, linear, Weight(linear.weights, self.matrix, trained=self.trains_all))

    def _product(self, x: Held, linear: Linear, weight: Value) -> Tensor:
        """`functional.linear`, with the casts that autocast adds."""
        compute = self.compute if self.step.autocast else x.size
        given = self._cast(x, compute)
        if weight.size == compute and weight.edge is not None and weight.edge != LEAF:
            self.tape.turned.add(weight.edge)
        weight = self._lowered(weight, compute)
        saved = (given if weight.edge is not None else None, weight if given.edge is not None else None)
        num_bytes = x.bytes // x.size // linear.inputs * linear.outputs * compute
        return self.tape.op(num_bytes, compute, (given, weight), saved, spared=self._spared())

    def _spared(self) -> bool:
        """Selective checkpointing keeps every other product of a block."""
        self.products += 1
        return self.selective and self.products % 2 == 1

    def _lowered(self, weight: Value, compute: int) -> Value:
        """A weight as input of a product; autocast may cache its copies of trained ones."""
        if weight.size == compute:
            return weight
        if weight.edge is None:
            return self.tape.tensor(weight.bytes // weight.size * compute, compute)
        copy = self.tape.op(weight.bytes // weight.size * compute, compute, (weight,))
        if self.step.foreign.autocast_cache:
            self.tape.cache.append(copy)
        return copy

    def _unpacked_product(self, x: Held, linear: Linear) -> Held:
        """The 4-bit layer of bitsandbytes: the weight is dequantised for the product and again in the backward pass."""
        given = self._cast(x, self.compute)
        num_bytes = x.bytes // x.size // linear.inputs * linear.outputs * self.compute
        unpacked = self.tape.tensor(linear.weights * self.compute, self.compute)
        saved = (given,) if self.step.foreign.frozen_inputs else ()
        made = self.tape.op(num_bytes, self.compute, (given,), saved, (unpacked.bytes,), spared=self._spared())
        del unpacked
        return self._cast(made, x.size)

    def _low_rank(self, x: Held, result: Held, linear: Linear, adapter: Adapter) -> Held:
        """PEFT's layer around another: `result + B(A(dropout(x))) * scaling`."""
        size = BYTES[adapter.dtype]
        if self.quantised:
            result = self._copied(result)
        if not (self.quantised and self.step.autocast):
            x = self._cast(x, size)
        down = Linear("lora_A", linear.inputs, adapter.rank, 1)
        up = Linear("lora_B", adapter.rank, linear.outputs, 1)
        first, second = Weight(down.weights, size, trained=True), Weight(up.weights, size, trained=True)
        lowered = [self._product(self._dropout(x) if adapter.dropout else x, down, first)]
        added: Held = self._scaled(self._product(lowered.pop(), up, second))
        if self.quantised and not self.step.autocast:
            added = self._cast(added, result.size)
        given = result.size
        result = self.tape.add(result, added)
        return self._cast(result, given)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
