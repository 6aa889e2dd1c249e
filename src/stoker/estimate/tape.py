"""A tape of tensor operations without tensors: which bytes are alive when, forward and backward, as in autograd.

A `Tensor` here is a number of bytes that live as long as something refers to it, by Python's own reference counting,
like torch's tensors. Code written against the tape like the model's own code therefore has the model's lifetimes.
Knows nothing of models (`passes.py`) nor of how often a block repeats (`memory.py`).
"""

import functools
import itertools
from collections.abc import Callable, Sequence

from stoker.estimate.allocator import Entry

LEAF = -1
"""The edge of a weight: its gradient is kept when it arrives."""
_GRAIN = 512
_SMALL = 1 << 20
_OWN_SEGMENT = 10 << 20
_SEGMENT_GRAIN = 2 << 20


def block(num_bytes: int) -> int:
    """Bytes CUDA's allocator counts for a tensor: rounded up, with a remainder of its segment too small to use."""
    size = -(-num_bytes // _GRAIN) * _GRAIN
    if size >= _OWN_SEGMENT:
        rest = -size % _SEGMENT_GRAIN
        return size + rest if rest <= _SMALL else size
    return size


class Weight:
    """A parameter. Its bytes are counted elsewhere; here only its gradient is allocated."""

    __slots__ = ("bytes", "edge", "size")

    def __init__(self, elements: int, size: int, *, trained: bool, edge: int = LEAF) -> None:
        self.bytes = elements * size
        self.size = size
        self.edge: int | None = edge if trained else None


class Tensor:
    """Bytes on the device, from creation until the last reference is dropped."""

    __slots__ = ("_held", "_number", "_tape", "bytes", "edge", "size")

    def __init__(self, tape: "Tape", num_bytes: int, size: int, edge: int | None = None) -> None:
        self._tape = tape
        self._held = held = block(num_bytes)
        self.bytes = num_bytes
        self.size = size
        """Bytes of an element."""
        self.edge = edge
        """The operation that made it, where a gradient flows back to it."""
        tape.live += held
        if tape.live > tape.peak:
            tape.peak = tape.live
        self._number = len(tape.log)
        tape.log.append((self._number + 1, num_bytes, tape.stream))

    def __del__(self) -> None:
        tape = self._tape
        tape.live -= self._held
        tape.log.append((-self._number - 1,))


class View:
    """A view of another tensor, or of a part of it."""

    __slots__ = ("base", "bytes", "edge", "size")

    def __init__(self, base: "Tensor | View", num_bytes: int, edge: int | None, size: int | None = None) -> None:
        self.base = base
        self.bytes = num_bytes
        self.size: int = size or base.size
        self.edge = edge


Held = Tensor | View
Value = Tensor | View | Weight


class _Frame:
    """A checkpointed part: what its operations would save is recomputed by `program` when first needed."""

    __slots__ = ("done", "nodes", "program", "spared")

    def __init__(self, program: Callable[[], object]) -> None:
        self.program = program
        """Holds the part's input, which therefore lives until the backward pass of its last operation."""
        self.nodes: list[_Node] = []
        self.spared: list[Tensor] = []
        """Results that are not recomputed."""
        self.done = False


class _Node:
    """An operation's backward half."""

    __slots__ = ("frame", "inputs", "ready", "saved", "scratch")

    def __init__(self, inputs: list[tuple[int, int]], saved: tuple[object, ...], scratch: tuple[int, ...]) -> None:
        self.inputs = inputs
        """(edge, bytes of its gradient) for each input that requires one; 0 bytes if the gradient is passed on."""
        self.saved = saved
        self.scratch = scratch
        self.ready: tuple[Tensor, ...] = ()
        self.frame: _Frame | None = None


class _Recomputed(Exception):  # not an error: everything to save is recomputed, as in torch's checkpoint
    pass


class Tape:
    """Live bytes, their peak, and the operations of the backward pass."""

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.log: list[Entry] = []
        """Every allocation and free, in the form of `allocator.replay`."""
        self.stream = 0
        self.kept: list[Tensor] = []
        """Gradients of weights so far."""
        self.keeps_gradients = True
        """False if weights have a gradient already, to which the new one is added in place."""
        self.shares: int | None = None
        """Over how many devices gradients are partitioned as they arrive (ZeRO); 0 if none stays on this one."""
        self.cache: list[Tensor] = []
        """Autocast's cache of weights in lower precision."""
        self.turned: set[int] = set()
        """Edges whose first gradient is a transposed view, to which nothing is added in place."""
        self._nodes: list[_Node] = []
        self._gradients: dict[int, Tensor] = {}
        self._pending: list[tuple[int, Tensor]] = []
        """Gradients of the current operation's inputs that are still to be passed on."""
        self._collected: dict[int, list[Tensor]] = {}
        """Gradients of the parts of a split tensor."""
        self._frame: _Frame | None = None
        self._again: list[_Node] | None = None
        self._spared: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def tensor(self, num_bytes: int, size: int) -> Tensor:
        """A tensor that no operation of the tape produced."""
        return Tensor(self, num_bytes, size)

    def leaf(self) -> int:
        """The edge of a weight used by several operations: its gradient is complete only here."""
        self._nodes.append(_Node([], (), ()))
        return len(self._nodes) - 1

    def touch(self, *sizes: int) -> None:
        """Temporaries that are alive together for a moment."""
        [Tensor(self, num_bytes, 1) for num_bytes in sizes]

    def op(
        self,
        num_bytes: int,
        size: int,
        inputs: Sequence[Value],
        saved: tuple[object, ...] = (),
        scratch: tuple[int, ...] = (),
        *,
        saves_result: bool = False,
        spared: bool = False,
    ) -> Tensor:
        """An operation whose inputs' gradients are new tensors of the inputs' sizes.

        Args:
            num_bytes: Of the result.
            size: Of an element of the result.
            inputs: Inputs that may require a gradient.
            saved: Tensors saved for the backward pass.
            scratch: Bytes of temporaries of the backward pass.
            saves_result: Whether the result is saved, too.
            spared: Whether a checkpointed part keeps the result instead of recomputing it.
        """
        wanted = [(one.edge, one.bytes) for one in inputs if one.edge is not None]
        if saves_result:
            result = self._result(num_bytes, size, spared=spared)
            result.edge = self._note(wanted, (*saved, result), scratch)
            return result
        edge = self._note(wanted, saved, scratch)
        result = self._result(num_bytes, size, spared=spared)
        result.edge = edge
        return result

    def ahead(self, size: int, inputs: Sequence[Value], gradients: Sequence[Tensor]) -> Tensor:
        """An operation with a scalar result, whose forward pass computes its inputs' gradients."""
        edge = self._note([(one.edge, one.bytes) for one in inputs if one.edge is not None], (), ())
        if edge is not None:
            self._nodes[edge].ready = tuple(gradients)
        return Tensor(self, size, size, edge)

    def widened(self, weight: Weight, size: int) -> Weight:
        """A weight whose gradient is computed with elements of `size` bytes, then rounded to the weight's own."""
        if weight.edge is None or weight.size >= size:
            return weight
        edge = self._note([(weight.edge, weight.bytes)], (), ())
        assert edge is not None
        return Weight(weight.bytes // weight.size, size, trained=True, edge=edge)

    def _result(self, num_bytes: int, size: int, *, spared: bool) -> Tensor:
        if spared and self._spared:
            return self._spared.pop(0)
        result = Tensor(self, num_bytes, size)
        if spared and self._frame is not None:
            self._frame.spared.append(result)
        return result

    def wanting(self, base: Held) -> View:
        """A tensor that requires a gradient although nothing trained produced it; it lives until that is computed."""
        return View(base, base.bytes, self._note([(LEAF, 1)], (base,), ()))

    def slice(self, base: Held, num_bytes: int) -> View:
        """A slice of a tensor: its gradient is written into zeros of the whole."""
        wanted = [(base.edge, base.bytes)] if base.edge is not None else []
        return View(base, num_bytes, self._note(wanted, (), ()))

    def split(self, base: Held, parts: Sequence[int]) -> list[View]:
        """A tensor split into all its parts: their gradients are collected and concatenated."""
        edge = self._note([(base.edge, base.bytes)], (), ()) if base.edge is not None else None
        if edge is not None and edge != LEAF:
            self._collected[edge] = []
        return [View(base, num_bytes, edge) for num_bytes in parts]

    def join(self, parts: Sequence[Held]) -> Tensor:
        """Concatenation: each tensor gets its part of the gradient."""
        size = max(one.size for one in parts)
        wanted = [(one.edge, 0 if one.size == size else one.bytes) for one in parts if one.edge is not None]
        edge = self._note(wanted, (), ())
        return Tensor(self, sum(one.bytes // one.size * size for one in parts), size, edge)

    def shifted(self, value: Held) -> Tensor:
        """A tensor plus a scalar."""
        edge = self._note([(value.edge, 0)] if value.edge is not None else [], (), ())
        return Tensor(self, value.bytes, value.size, edge)

    def add(self, left: Held, right: Held) -> Tensor:
        """Sum of two tensors of one shape: gradients are passed on, unless cast."""
        size = max(left.size, right.size)
        num_bytes = max(left.bytes, right.bytes)
        wanted = [(one.edge, 0 if one.size == size else one.bytes) for one in (left, right) if one.edge is not None]
        edge = self._note(wanted, (), ())
        return Tensor(self, num_bytes, size, edge)

    def _note(self, wanted: list[tuple[int, int]], saved: tuple[object, ...], scratch: tuple[int, ...]) -> int | None:
        """Record an operation for the backward pass, before its result is allocated, like saving in torch."""
        if not wanted:
            return None
        if self._again is not None:
            if saved:
                self._again.pop().saved = saved
                if not self._again:
                    raise _Recomputed
            return LEAF
        node = _Node(wanted, saved, scratch)
        if self._frame is not None and saved:
            node.saved, node.frame = (), self._frame
            self._frame.nodes.append(node)
        self._nodes.append(node)
        return len(self._nodes) - 1

    # ---- checkpointing

    def checkpoint(self, program: Callable[[Held], Tensor], value: Held, *, away: bool = False) -> Tensor:
        """Run a checkpointed part, which saves only its input, here or `away`, and is recomputed when going back."""
        num_bytes, size, edge = value.bytes, value.size, value.edge
        fetched = functools.partial(Tensor, self, num_bytes, size, edge)
        self._frame = _Frame((lambda: program(fetched())) if away else (lambda: program(value)))
        try:
            return program(value)
        finally:
            self._frame = None

    def _recompute(self, frame: _Frame) -> None:
        """Recompute a part up to its last saved tensor."""
        frame.done = True
        self._again, frame.nodes = frame.nodes[::-1], []
        self._spared, frame.spared = frame.spared, []
        try:
            frame.program()
        except _Recomputed:
            pass
        finally:
            self._again = None
            frame.spared, self._spared = self._spared, []
            self.cache.clear()

    # ---- backward

    def start(self, value: Tensor) -> None:
        """The gradient of the loss."""
        assert value.edge is not None
        self._gradients[value.edge] = Tensor(self, value.bytes, value.size)

    def backward(self, until: int) -> None:
        """Run the backward pass of all operations after the first `until`."""
        while len(self._nodes) > until:
            node = self._nodes.pop()
            edge = len(self._nodes)
            gradient = self._gradients.pop(edge, None)
            parts = self._collected.pop(edge, None)
            if gradient is None and not parts:
                continue
            if not node.inputs and gradient is not None:
                self._keep(gradient)
                continue
            if node.frame is not None and not node.frame.done:
                self._recompute(node.frame)
            self._pending = self._made(node, gradient)
            if node.scratch:
                self.touch(*node.scratch)
            node.saved = ()
            del node, gradient, parts
            self._pending.reverse()
            while self._pending:
                self._accumulate(*self._pending.pop())

    def _made(self, node: _Node, gradient: Tensor | None) -> list[tuple[int, Tensor]]:
        """The gradients of an operation's inputs."""
        if node.ready:
            return [(edge, one) for (edge, _), one in zip(node.inputs, node.ready, strict=True)]
        return [(edge, Tensor(self, size, 1) if size or not gradient else gradient) for edge, size in node.inputs]

    def _accumulate(self, edge: int, gradient: Tensor) -> None:
        if edge == LEAF:
            self._keep(gradient)
            return
        if edge in self._collected:
            self._collected[edge].append(gradient)
            return
        earlier = self._gradients.get(edge)
        if earlier is None:
            self._gradients[edge] = gradient
        elif edge in self.turned or earlier is gradient or self._shared(earlier, edge):
            # Not added in place: the sum is a new tensor.
            self.turned.discard(edge)
            self._gradients[edge] = Tensor(self, earlier.bytes, 1)

    def _shared(self, gradient: Tensor, edge: int) -> bool:
        """Whether anything but the buffer of `edge` holds a gradient."""
        holders = itertools.chain(
            (one for other, one in self._gradients.items() if other != edge),
            (one for _, one in self._pending),
            (one for some in self._collected.values() for one in some),
            self.kept,
        )
        return any(one is gradient for one in holders)

    def _keep(self, gradient: Tensor) -> None:
        if not self.keeps_gradients:
            return
        if self.shares is not None and self.kept:
            # The previous one is reduced over the devices by now.
            before = self.kept.pop()
            self.kept.append(Tensor(self, before.bytes // self.shares if self.shares else 0, 1))
        self.kept.append(gradient)
