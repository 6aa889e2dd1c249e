"""One micro batch on the tape: the moments of its forward and backward pass, with the weights gathered on the way.

The first and the last block are run; those between are counted as the last one's saved bytes and, going back, as its
gradients. Under FSDP2 a block's weights are put together before it runs and its gradients shared out after it, as
torch's `_fsdp_param_group.py` does it.
"""

from dataclasses import dataclass, replace

from stoker.estimate import layers
from stoker.estimate.passes import Passes
from stoker.estimate.step import BYTES, Step
from stoker.estimate.tape import Held, Tape, Tensor

_FP32 = 4
_GATHERING, _REDUCING = 1, 2
"""FSDP2's own streams."""


@dataclass(frozen=True)
class Moment:
    """The highest point of a part of the step, above what the whole step holds."""

    live: int
    weights: int = 0
    """Gathered ones, and autocast's copies."""
    gradients: int = 0
    activations: int = 0
    logits: int = 0

    @property
    def others(self) -> int:
        """Temporaries."""
        return self.live - self.weights - self.gradients - self.activations - self.logits


class Walk:
    """The forward and backward pass through the model."""

    def __init__(self, step: Step, blocks: int = 2) -> None:
        """Run both passes.

        Args:
            step: What one device does.
            blocks: How many are run; the first and the last are enough for what is live at the peak.
        """
        self.step, self.tape = step, Tape()
        self.tape.keeps_gradients = step.gradient_sets > 1 or step.accumulation == step.gradient_sets == 1
        if step.strategy in ("zero2", "zero3"):
            self.tape.shares = 0 if step.foreign.offload != "none" else step.gradient_parts
        self.moments: dict[str, Moment] = {}
        self.passes = Passes(step, self.tape)
        self.run = min(blocks, step.shape.layers)
        self.between = step.shape.layers - self.run
        self.shards = _Shards(step, self.tape) if step.strategy == "fsdp2" else None
        self._forward()
        self._loss()
        self._loss_backward()
        self._block_backward()

    def _forward(self) -> None:
        """The embedding, all blocks and the last norm."""
        tape, step = self.tape, self.step
        if self.shards:
            self.shards.gather_outer()
        embedded, self.around = self.passes.embed()
        self.masks = self.passes.masks()
        self.places: list[int] = []
        """Where on the tape blocks begin."""
        hidden: Held = embedded
        for _ in range(self.run - 1):
            hidden = self._block(hidden)
        self.copies = len(tape.cache)
        start, before = tape.peak, tape.live
        tape.peak = before
        hidden = self._block(hidden)
        self.lowered = sum(copy.bytes for copy in tape.cache[self.copies :]) * step.shape.layers
        """Copies of weights in lower precision."""
        self.each = tape.live - before
        tape.live += self.between * self.each
        tape.peak = max(start, tape.peak + self.between * self.each)
        hidden = self.passes.norm(hidden)
        self._mark("forward", activations=tape.live)
        del embedded
        if step.recompute == "none":
            self.masks.clear()
        self.hidden = [hidden]

    def _block(self, hidden: Held) -> Held:
        self.places.append(len(self.tape))
        if self.shards:
            self.shards.gather()
        made = self.tape.checkpoint(self.passes.block, hidden) if self._checkpoints else self.passes.block(hidden)
        if self.shards:
            self.shards.drop()
        return made

    @property
    def _checkpoints(self) -> bool:
        return self.step.recompute != "none"

    @property
    def _loss_outside(self) -> bool:
        """Whether the model returns logits, and the loss is computed from them later."""
        return self.step.loss == "logits" or self.step.foreign.shifted_logits

    def _loss(self) -> None:
        """The output layer and the loss; autocast ends with them and frees its cache."""
        tape = self.tape
        self.output, saved = len(tape), tape.live
        tape.peak = saved
        if self.shards and self._loss_outside:
            self.shards.leave()
        self.loss = self.passes.loss(self.hidden.pop())
        self._mark("loss", activations=saved, logits=tape.peak - saved)
        del tape.cache[: self.copies]
        held = tape.live
        tape.cache.clear()
        released = held - tape.live
        self.each -= released
        if released:
            self.lowered = 0
        tape.live -= self.between * released
        self.saved = saved - (self.between + 1) * released

    def _loss_backward(self) -> None:
        """Backward to the logits' gradient, then through the output layer."""
        tape = self.tape
        if self.shards and not self._loss_outside:
            self.shards.turn()
        tape.start(self.loss)
        del self.loss
        tape.peak = tape.live
        tape.backward(self.passes.output)
        self._mark("loss_backward", activations=self.saved, logits=tape.peak - self.saved)
        if self.shards and self._loss_outside:
            self.shards.turn()
        tape.peak = tape.live
        tape.backward(self.output)
        if tape.peak > self.moments["loss_backward"].live:
            self._mark("loss_backward", activations=self.saved)

    def _block_backward(self) -> None:
        """The last block, when all others' saved tensors are alive; then the first, when all others' gradients are."""
        tape = self.tape
        between = self.between * self.each
        tape.peak, known = tape.live, self._gradients()
        within = self._back()
        lowered = min(self.lowered, between)
        highest = Moment(tape.peak, weights=lowered, gradients=known, activations=between - lowered)
        each = self._gradients() - known - self.each
        if self.shards and self.shards.sent and self.between:
            # In the blocks before it, the last one's gradients are still being sent.
            there = within + max(each, self.between * each) + self.shards.sent.bytes
            highest = replace(highest, live=max(highest.live, there))
        grown = self.between * (self._gradients() - known)
        tape.live += grown - between
        tape.peak = tape.live
        while self.places:
            self._back()
        tape.backward(0)
        if self.shards:
            self.shards.reduce_outer()
        if tape.peak > highest.live:
            highest = Moment(tape.peak, gradients=self._gradients() + grown)
        self.moments["block_backward"] = highest

    def _back(self) -> int:
        """Backward through the last remaining block; returns its peak before its gradients were sharded."""
        place = self.places.pop()
        if self.shards:
            self.shards.gather_again(more=bool(self.places))
        known = len(self.tape.kept)
        self.tape.backward(place)
        within = self.tape.peak
        if self.shards:
            self.shards.reduce(known)
        return within

    def _gradients(self) -> int:
        received = self.shards.received if self.shards else []
        return sum(gradient.bytes for gradient in (*self.tape.kept, *received))

    def _mark(self, name: str, activations: int, logits: int = 0) -> None:
        weights = self.lowered + (self.shards.gathered if self.shards else 0)
        gradients = self._gradients() if logits == 0 else 0
        self.moments[name] = Moment(self.tape.peak, weights, gradients, activations - weights, logits)


class _Shards:
    """Weights that FSDP2 gathers and frees, and gradients it reduce-scatters, as tensors on the tape."""

    def __init__(self, step: Step, tape: Tape) -> None:
        self.tape, self.parts = tape, step.shard_devices
        self.exact, self.untied = step.gradient_sets > 1, not step.shape.tie_embeddings
        self.keeps = tape.keeps_gradients and step.foreign.offload != "all"
        """Whether a weight's shard has no gradient yet. Whole weights keep one for a block only."""
        tape.keeps_gradients = True
        mixed = not step.autocast and step.weights != step.compute and step.weights in BYTES
        self.widened = _FP32 // BYTES[step.compute] if mixed else 1
        """Factor of a gradient's size during reduction: mixed precision reduces in fp32."""
        self.block, self.outer = layers.gathered_bytes(step.shape, step.adapter, _sizes(step, mixed=mixed))
        self.flat: Tensor | None = None
        """The buffer of the newest all-gather, before it is copied out by weight."""
        self.whole: Tensor | None = None
        self.outer_whole: Tensor | None = None
        self.sent: Tensor | None = None
        """Gradients being reduced."""
        self.received: list[Tensor] = []
        """This device's shard of the gradients."""

    @property
    def gathered(self) -> int:
        """Bytes of gathered weights."""
        return sum(one.bytes for one in (self.flat, self.whole, self.outer_whole) if one is not None)

    def gather_outer(self) -> None:
        """Embedding, last norm and output layer; they stay until the end of the backward pass."""
        self.flat = self._buffer(self.outer)
        self.outer_whole = self.tape.tensor(self.outer, 1)

    def gather(self) -> None:
        """Gather a block's weights in the forward pass; the previous block's buffer is freed only after that."""
        received = self._buffer(self.block)
        self.whole = self.tape.tensor(self.block, 1)
        self.flat = received

    def drop(self) -> None:
        """After a block."""
        self.whole = None

    def leave(self) -> None:
        """The model returns: the last buffer is freed."""
        self.flat = None

    def turn(self) -> None:
        """The backward pass begins: the last block is prefetched."""
        self.flat = None
        self.flat = self._buffer(self.block)

    def gather_again(self, *, more: bool) -> None:
        """Gather a block's weights in the backward pass, and prefetch the next one's."""
        self.whole = self.tape.tensor(self.block, 1)
        self.flat = None
        if more:
            self.flat = self._buffer(self.block)

    def reduce(self, first: int = 0) -> None:
        """Reduce-scatter the gradients kept from `first` on; their buffer lives until the next reduction."""
        tape = self.tape
        self.whole = self.sent = None
        size = sum(gradient.bytes for gradient in tape.kept[first:]) * self.widened
        if size == 0:
            return
        self.sent = tape.tensor(size, 1)
        del tape.kept[first:]
        part = self._buffer(size // self.parts, _REDUCING)
        if self.exact:
            # The canonical sum receives every device's slice before adding.
            slices = [size] + [size // self.parts] * self.parts.bit_length()
            [self._buffer(one, _REDUCING) for one in slices]
        if self.keeps:
            self.received.append(part)

    def _buffer(self, size: int, stream: int = _GATHERING) -> Tensor:
        """Memory of another stream than the compute stream, which cannot reuse its free blocks."""
        self.tape.stream = stream
        made = self.tape.tensor(size, 1)
        self.tape.stream = 0
        return made

    def reduce_outer(self) -> None:
        """The same for the outermost weights, at the end. A loop's variable still holds the output layer's gradient."""
        self.outer_whole = None
        held = self.tape.kept[:1] if self.untied else []
        self.reduce()
        self.sent = None
        held.clear()


def _sizes(step: Step, *, mixed: bool) -> layers.Sizes:
    """Bytes of an element of weights as they are gathered."""
    packed = step.weights not in BYTES
    stored = step.outer if packed else step.weights
    return layers.Sizes(
        outer=BYTES[step.compute] if mixed else BYTES[stored],
        linear=0.5 if packed else BYTES[step.compute] if mixed else BYTES[stored],
        adapter=BYTES[step.adapter.dtype] if step.adapter else 0,
    )
