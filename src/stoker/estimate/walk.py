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
            self.tape.shares = 0 if step.offload != "none" else step.gradient_parts
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
            self.shards.begin()
        embedded, self.around = self.passes.embed()
        if self.shards:
            self.shards.drop()
        self.masks = self.passes.masks()
        self.places: list[tuple[int, int]] = []
        """Where on the tape blocks begin, and their first products."""
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
        place = len(self.tape)
        if self.shards:
            self.shards.gather()
        if self.step.recompute == "none":
            made = self.passes.block(hidden)
        else:
            made = self.tape.checkpoint(self.passes.block, hidden, away=self.step.kept_away)
        self.places.append((place, self.passes.first_product))
        if self.shards:
            self.shards.drop()
        return made

    @property
    def _loss_outside(self) -> bool:
        """Whether the model returns logits, and the loss is computed from them later."""
        return self.step.loss == "logits" or self.step.foreign.shifted_logits

    @property
    def _head_first(self) -> bool:
        """Whether the last block is gathered again only when the backward pass comes to the output layer."""
        return self._loss_outside or (self.shards is not None and self.shards.apart)

    def _loss(self) -> None:
        """The output layer and the loss; autocast ends with them and frees its cache."""
        tape = self.tape
        tape.peak = tape.live
        if self.shards:
            self.shards.gather_head()
            if self._loss_outside:
                self.shards.leave()
        self.output, saved = len(tape), tape.live
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
        if self.shards:
            held = tape.live
            self.shards.leave()
            self.saved -= held - tape.live
            if not self._head_first:
                self.shards.turn()
        tape.start(self.loss)
        del self.loss
        tape.peak = tape.live
        tape.backward(self.passes.output)
        self._mark("loss_backward", activations=self.saved, logits=tape.peak - self.saved)
        if self.shards and self._head_first:
            self.shards.turn()
        tape.peak = tape.live
        tape.backward(self.output)
        if self.shards:
            self.shards.reduce_head()
        if tape.peak > self.moments["loss_backward"].live:
            self._mark("loss_backward", activations=self.saved)

    def _block_backward(self) -> None:
        """The last block, when all others' saved tensors are alive; then the first, when all others' gradients are."""
        tape = self.tape
        between = self.between * self.each
        sent = self.shards.sent.bytes if self.shards and self.shards.sent else 0
        tape.peak, known = tape.live, self._gradients()
        within = self._back() - sent
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
        if self.shards:
            self.shards.gather_embedding_again()
        tape.backward(0)
        if self.shards:
            self.shards.reduce_outer()
        if tape.peak > highest.live:
            highest = Moment(tape.peak, gradients=self._gradients() + grown)
        self.moments["block_backward"] = highest

    def _back(self) -> int:
        """Backward through the last remaining block; returns its peak before its gradients were sharded."""
        place, first_product = self.places.pop()
        if self.shards:
            self.shards.gather_again(more=bool(self.places))
        known = len(self.tape.kept)
        alone = self.shards is not None and self.shards.lowered
        self.tape.backward(first_product if alone else place)
        within = self.tape.peak
        if self.shards:
            # Where only linear layers are gathered together, the norm before them comes after their reduction.
            self.shards.reduce(known)
            self.tape.backward(place)
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
        self.keeps = tape.keeps_gradients and step.offload != "all"
        """Whether a weight's shard has no gradient yet. Whole weights keep one for a block only."""
        tape.keeps_gradients = True
        mixed = not step.autocast and step.weights != step.compute and step.weights in BYTES
        lowered = layers.gathers_lowered(step)
        self.apart = self.untied and (step.autocast or step.compute == "fp32")
        """Whether embedding and output layer are gathered by themselves, as `engine.fsdp` does; others do not."""
        self.widened = _FP32 // BYTES[step.compute] if mixed or lowered else 1
        """Factor of a gradient's size during reduction: what was gathered in 16 bits is reduced in fp32."""
        self.lowered = lowered
        sizes = _sizes(step, mixed=mixed, lowered=lowered)
        self.gathers = layers.gathered(step.shape, step.adapter, sizes)
        self.block = self.gathers.block
        self.flat: Tensor | None = None
        """The buffer of the newest all-gather, before it is copied out by weight."""
        self.whole: Tensor | None = None
        """The weights of the part that is computed."""
        self.head: Tensor | None = None
        self.outer: Tensor | None = None
        self.sent: Tensor | None = None
        """Gradients being reduced."""
        self.received: list[Tensor] = []
        """This device's shard of the gradients."""

    @property
    def gathered(self) -> int:
        """Bytes of gathered weights."""
        return sum(one.bytes for one in (self.flat, self.whole, self.head, self.outer) if one is not None)

    def begin(self) -> None:
        """What stays until the end of the backward pass, and the embedding."""
        gathers = self.gathers
        outer = gathers.rest + (0 if self.apart else gathers.embedding + gathers.head)
        self.flat = self._buffer(outer)
        self.outer = self.tape.tensor(outer, 1)
        if self.apart:
            self._gather(gathers.embedding)

    def gather(self) -> None:
        """Gather a block's weights in the forward pass."""
        self._gather(self.block)

    def _gather(self, size: int) -> None:
        """The buffer of what was gathered before is freed only after that."""
        received = self._buffer(size)
        self.whole = self.tape.tensor(size, 1)
        self.flat = received

    def gather_head(self) -> None:
        """Gather the output layer, which stays until its own backward pass."""
        if self.apart:
            self._gather(self.gathers.head)
            self.head, self.whole = self.whole, None

    def drop(self) -> None:
        """After a block, or the embedding."""
        self.whole = None

    def leave(self) -> None:
        """The model returns: the last buffer is freed."""
        self.flat = None

    def turn(self) -> None:
        """The backward pass comes to the blocks: the last one is prefetched."""
        self.flat = self._buffer(self.block)

    def gather_again(self, *, more: bool) -> None:
        """Gather a block's weights in the backward pass, and prefetch the next one's."""
        self.whole = self.tape.tensor(self.block, 1)
        self.flat = None
        if more or self.apart:
            self.flat = self._buffer(self.block if more else self.gathers.embedding)

    def gather_embedding_again(self) -> None:
        """The embedding's gradient does not need its weights; FSDP gathers them all the same."""
        if self.apart:
            self.whole = self.tape.tensor(self.gathers.embedding, 1)
            self.flat = None

    def reduce_head(self) -> None:
        """Reduce the output layer's gradient as soon as it is there."""
        if self.apart:
            self.head = None
            self._reduce(0, self.widened, large=True)

    def reduce(self, first: int) -> None:
        """Reduce the gradients of a block, those kept from `first` on; with them, a norm's is the last of a group."""
        self._reduce(first, self.widened, large=self.lowered)

    def _reduce(self, first: int, widened: int, *, large: bool) -> None:
        """Reduce-scatter gradients; their buffer lives until the next reduction.

        A loop's variable of FSDP holds the gradient of the group's last weight meanwhile: if `large`, the first one
        that the backward pass came to.
        """
        tape = self.tape
        self.whole = self.sent = None
        size = sum(gradient.bytes for gradient in tape.kept[first:]) * widened
        if size == 0:
            return
        self.sent = tape.tensor(size, 1)
        held = tape.kept[first : first + 1] if large else []
        del tape.kept[first:]
        part = self._buffer(size // self.parts, _REDUCING)
        if self.exact:
            # The canonical sum receives every device's slice before adding.
            slices = [size] + [size // self.parts] * self.parts.bit_length()
            [self._buffer(one, _REDUCING) for one in slices]
        held.clear()
        if self.keeps:
            self.received.append(part)

    def _buffer(self, size: int, stream: int = _GATHERING) -> Tensor:
        """Memory of another stream than the compute stream, which cannot reuse its free blocks."""
        self.tape.stream = stream
        made = self.tape.tensor(size, 1)
        self.tape.stream = 0
        return made

    def reduce_outer(self) -> None:
        """The same for the outermost weights, at the end."""
        self.outer = None
        self._reduce(0, 1 if self.lowered else self.widened, large=self.untied)
        self.sent = None


def _sizes(step: Step, *, mixed: bool, lowered: bool) -> layers.Sizes:
    """Bytes of an element of weights as they are gathered."""
    packed = step.weights not in BYTES
    stored = BYTES[step.outer if packed else step.weights]
    own = BYTES[step.compute] if mixed else stored
    linear = BYTES[step.compute] if lowered else own
    return layers.Sizes(
        outer=own,
        head=linear,
        linear=0.5 if packed else linear,
        adapter=BYTES[step.adapter.dtype] if step.adapter else 0,
    )
