"""A model's forward pass written against the tape, following transformers' code.

One embedding, one block, one output layer with its loss; `walk.py` repeats the block and goes back.
"""

import sys

from stoker.estimate.fused_rows import fused_rows
from stoker.estimate.modules import FP32, Modules
from stoker.estimate.tape import LEAF, Held, Tensor, Value, Weight

_CHUNKS = 8
"""Pieces of torchtune's chunked loss."""


class Passes(Modules):
    """The parts of one micro batch's forward pass."""

    # ---- the three parts

    def masks(self) -> list[Tensor]:
        """The attention mask, if it is a tensor. Checkpointed blocks hold it."""
        step = self.step
        pairs = step.micro * step.length**2
        if step.attention == "eager":
            sliding = self.family.norm == "wide_rms" and self.family.norms == "around"
            return [self.tape.tensor(pairs * self.outer, self.outer) for _ in range(2 if sliding else 1)]
        return [self.tape.tensor(pairs, 1)] if step.masked else []

    def embed(self) -> tuple[Held, list[Tensor]]:
        """The first block's input, and what lives through both passes: token ids and rotary tables."""
        step, shape, tape = self.step, self.shape, self.tape
        around = [tape.tensor(2 * 8 * self.tokens, 8)]
        if shape.tie_embeddings and self.trains_all:
            self.table_edge = tape.leaf()
        size = self.table if self.trains_embedding else self.outer
        table = Weight(shape.vocab * shape.hidden, size, trained=self.trains_embedding, edge=self.table_edge)
        x: Held = tape.op(self.tokens * shape.hidden * size, size, (table,), (around[0],))
        if step.adapter and step.recompute != "none" and x.edge is None:
            # Checkpointed blocks get an input that requires a gradient, whether a weight needs it or not.
            x = tape.wanting(x)
        if shape.learned_positions:
            positions = Weight(shape.learned_positions * shape.hidden, self.outer, trained=self.trains_all)
            looked_up = tape.op(step.length * shape.hidden * self.outer, self.outer, (positions,), (around[0],))
            x = tape.op(x.bytes, x.size, (x, looked_up))
        elif self.family.rotary_share:
            table_bytes = 2 * int(step.length * shape.head_dim * self.family.rotary_share) * x.size
            around.append(tape.tensor(table_bytes, x.size))
        return self._dropout(x) if self.family.dropout else x, around

    def block(self, hidden: Held) -> Tensor:
        """One block."""
        self.products, self.first_product = 0, sys.maxsize
        if self.family.parallel != "none":
            return self._parallel_block(hidden)
        residual = hidden
        hidden = self._before(hidden)
        hidden = self._attention(hidden)
        hidden = self._after(hidden)
        hidden = self.tape.add(residual, hidden)
        residual = hidden
        hidden = self._before(hidden)
        hidden = self._feed_forward(hidden)
        hidden = self._after(hidden)
        return self.tape.add(residual, hidden)

    def loss(self, hidden: Held) -> Tensor:
        """The output layer and the loss."""
        if self.step.loss == "fused":
            return self._fused_loss(hidden)
        if self.step.loss == "liger":
            return self._liger_loss(hidden)
        if self.step.loss == "chunked":
            return self._chunked_loss(hidden)
        logits: Held = self._logits(hidden)
        self.output = len(self.tape)
        if self.family.caps:
            logits = self._scaled(self._tanh(self._scaled(logits)))
        if self.step.foreign.held_outputs:
            self.outputs.append(self._returned(logits))
        if self.step.loss == "logits_fp32" or (self.step.autocast and not self.step.compiled):
            wide = self._cast(logits, FP32)
            return self._cross_entropy(self._copied(wide) if self.step.foreign.shifted_logits else wide)
        return self._cross_entropy(self._copied(logits) if self.step.foreign.shifted_logits else logits)

    def _returned(self, logits: Held) -> Held:
        """The model's output, which accelerate casts to fp32."""
        if self.step.autocast and self.step.loss == "logits_fp32" and not self.step.foreign.shifted_logits:
            return self.tape.tensor(logits.bytes // logits.size * FP32, FP32)
        return logits

    def _logits(self, hidden: Held) -> Tensor:
        return self._product(hidden, self.head, self._output_weight(self.table_edge))

    def _output_weight(self, edge: int) -> Weight:
        size = self.table if self.trains_head else self.outer
        if not self.shape.tie_embeddings:
            size = min(size, self.matrix)
        return Weight(self.head.weights, size, trained=self.trains_head, edge=edge)

    def _cross_entropy(self, logits: Held) -> Tensor:
        if self.step.compiled:
            return self.tape.op(FP32, FP32, (logits,), (logits,))
        log_probabilities = self.tape.op(logits.bytes, logits.size, (logits,), saves_result=True)
        return self.tape.op(FP32, FP32, (log_probabilities,), (log_probabilities,))

    def _chunked_loss(self, hidden: Held) -> Tensor:
        """torchtune's: logits in chunks, each chunk's fp32 copy recomputed in the backward pass."""
        weight: Value = self._output_weight(self.tape.leaf() if self.table_edge == LEAF else self.table_edge)
        if weight.edge is not None:
            weight = self._lowered(weight, self.compute if self.step.autocast else hidden.size)
        pieces = self.tape.split(hidden, [hidden.bytes // _CHUNKS] * _CHUNKS)
        contiguous = self.step.micro == 1
        logits = [self._product(one if contiguous else self._copied(one), self.head, weight) for one in pieces]
        self.output = len(self.tape)
        losses = [self.tape.checkpoint(lambda one: self._cross_entropy(self._cast(one, FP32)), one) for one in logits]
        return self.tape.join(losses)

    def _fused_loss(self, hidden: Held) -> Tensor:
        """Ours (`engine.fused_loss`): a few rows of logits, of their log softmax, and of two gradients in fp32."""
        tape, shape = self.tape, self.shape
        hidden = self._cast(hidden, self.compute if self.step.autocast else hidden.size)
        self.output = len(tape)
        weight = self._output_weight(self.table_edge)
        logits = min(fused_rows(shape.vocab), self.tokens) * shape.vocab
        ready = [tape.tensor(hidden.bytes, hidden.size)]
        if weight.edge is not None:
            ready.append(tape.tensor(self.head.weights * FP32, FP32))
        lowered = [tape.tensor(self.head.weights * hidden.size, hidden.size)] if weight.size != hidden.size else []
        weight = tape.widened(weight, FP32)
        tape.touch(logits * FP32, logits * hidden.size)
        tape.touch(*[logits * FP32] * 4)
        tape.touch(logits * hidden.size, *([self.head.weights * hidden.size] if weight.edge is not None else []))
        del lowered
        return tape.ahead(FP32, (hidden, weight), ready)

    def _liger_loss(self, hidden: Held) -> Tensor:
        """Liger's: gradients are computed in the forward pass, from a few rows of logits at a time."""
        tape, shape = self.tape, self.shape
        self.output = len(tape)
        compute = self.compute if self.step.autocast else hidden.size
        weight = self._output_weight(self.table_edge)
        rows = 1 << (-(-self.tokens // -(-shape.vocab // shape.hidden)) - 1).bit_length()
        ready = [tape.tensor(hidden.bytes, hidden.size)]
        if weight.edge is not None:
            ready.append(tape.tensor(weight.bytes, weight.size))
        cast = [self.head.weights * compute] if weight.size != compute else []
        logits = None
        for turn in range(2 if rows < self.tokens else 1):
            lowered = [tape.tensor(size, compute) for size in cast]
            logits = tape.tensor(rows * shape.vocab * compute, compute)  # the previous rows are freed only now
            del lowered
            if weight.edge is None:
                tape.touch(rows * shape.hidden * compute, *cast)
                continue
            if self.step.foreign.autocast_cache and turn == 0:
                tape.cache += [tape.tensor(size, compute) for size in cast]
            tape.touch(rows * shape.hidden * compute)
            tape.touch(self.head.weights * compute, *([weight.bytes] if cast else []))
        del logits
        return tape.ahead(FP32, (hidden, weight), ready)

    # ---- inside a block

    def _parallel_block(self, hidden: Held) -> Tensor:
        if self.family.parallel == "two_norms":
            attended = self._attention(self.norm(hidden))
            fed = self._feed_forward(self.norm(hidden))
        else:
            normed = self.norm(hidden)
            attended = self._attention(normed)
            fed = self._feed_forward(normed)
        return self.tape.add(self.tape.add(fed, attended), hidden)

    def _before(self, hidden: Held) -> Held:
        return hidden if self.family.norms == "after" else self.norm(hidden)

    def _after(self, hidden: Held) -> Held:
        """Norm and dropout between a part of the block and the residual stream."""
        if self.family.norms != "before":
            return self.norm(hidden)
        return self._dropout(hidden) if self.family.dropout else hidden

    def _attention(self, hidden: Held) -> Held:
        shape = self.shape
        query: Held
        key: Held
        value: Held
        if "qkv" in self.linears:
            joined = self._linear("qkv", hidden)
            query, key, value = self._split(joined)
        else:
            query, key, value = (self._linear(role, hidden) for role in "qkv")
        if shape.qk_norm != "none":
            width = shape.head_dim if shape.qk_norm == "head" else 0
            query, key = (self._rms_norm(one, width or one.bytes // one.size // self.tokens) for one in (query, key))
        if self.family.rotary_share:
            query, key = self._rotated(query), self._rotated(key)
        output = self._attended(query, key, value)
        return self._linear("o", output)

    def _feed_forward(self, x: Held) -> Held:
        compiled = self.step.fuses
        if "gate_up" in self.linears:
            joined = self._linear("gate_up", x)
            gate, up = self.tape.split(joined, [joined.bytes // 2] * 2)
            del joined
            return self._linear(
                "down", self._gated(gate, up) if compiled else self._multiplied(up, self._activated(gate))
            )
        if self.shape.gated_mlp and compiled:
            return self._linear("down", self._gated(self._linear("gate", x), self._linear("up", x)))
        if self.shape.gated_mlp:
            return self._linear(
                "down", self._multiplied(self._activated(self._linear("gate", x)), self._linear("up", x))
            )
        inner = self._linear("up", x)
        inner = self._activated(inner)
        return self._linear("down", inner)
