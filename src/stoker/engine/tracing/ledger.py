"""`Ledger`: records every storage that is allocated and freed while it is active, with its stream and moment.

A dispatch mode: it sees each operation below autograd, so also what autograd itself allocates, sums and frees. Knows
nothing of models; the part a storage belongs to is set from outside (`name`) or follows from its moment (`part`).
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch.distributed.tensor import DTensor

from stoker.engine.exact import local
from stoker.engine.tracing.private_names import CAST, TorchDispatchMode, is_view, storage_key
from stoker.estimate.allocator import Entry

Part = Literal["weights", "gradients", "optimizer", "activations", "logits", "temporaries"]
PARTS: tuple[Part, ...] = get_args(Part)
Workspace = Callable[[tuple[Any, ...], Any], list[int]]
"""Workspace bytes of a kernel while it runs, from its arguments and its result."""

_DEVICE = torch.ops.prim.device.default
_ADD = torch.ops.aten.add.Tensor


@dataclass
class Birth:
    """The allocation of a storage."""

    size: int
    moment: str
    forward: bool
    """Made in a forward pass or in the recomputation of a checkpointed block."""
    part: Part | None = None
    kept: bool = False
    """Whether it outlived its forward pass."""


@dataclass(eq=False)
class Ledger(TorchDispatchMode):
    """The record of one trace."""

    workspaces: dict[Any, Workspace]
    """Kernel workspaces, by operation."""
    vocab: int = 0
    """Last dimension of logits."""
    log: list[Entry] = field(default_factory=list)
    moments: list[tuple[int, str]] = field(default_factory=list)
    """Where in the log a moment begins."""
    births: dict[int, Birth] = field(default_factory=dict)
    live: int = 0
    peak: int = 0
    moment: str = "start"
    closed: bool = False
    """Whether the record is complete: later frees are ignored."""
    _numbers: dict[int, int] = field(default_factory=dict)
    """The number of each live storage, by its identity."""
    _watched: dict[int, Any] = field(default_factory=dict)
    _last: int = 0
    _sum: tuple[int, int, int] | None = None
    """A sum of two gradients that may be in place of the first: both identities and the bytes."""
    _streams: dict[Any, int] = field(default_factory=lambda: {torch.cpu.current_stream(): 0})
    """FSDP2's streams by number; the compute stream is 0."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and record its results."""
        if func is _DEVICE:
            return args[0].fake_device  # queried at every operation, and slow otherwise
        if DTensor in types:
            return NotImplemented  # dispatched again as operations on this rank's shards
        self._settle()
        out = func(*args, **(kwargs or {}))
        if func is _ADD and self.backward and self._meets(args, kwargs, out):
            return out
        if isinstance(out, torch.Tensor):
            self.record(out)
        elif isinstance(out, list | tuple):
            for one in out:
                if isinstance(one, torch.Tensor):
                    self.record(one)
        if func is CAST:
            self._name_like(args[0], out)
        workspace = self.workspaces.get(func)
        if workspace is not None:
            self._borrow(workspace(args, out))
        return out

    @property
    def backward(self) -> bool:
        """Whether autograd itself runs, not a block's recomputation."""
        return self.moment.endswith("backward") and not torch.is_grad_enabled()

    def record(self, tensor: torch.Tensor) -> None:
        """Record a tensor's storage, unless known."""
        self._settle()
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self._numbers:
            return
        size = storage.nbytes()
        number = self._add(size)
        if self.moment in ("loss", "loss_backward") and tensor.dim() > 1 and tensor.shape[-1] == self.vocab:
            self.births[number].part = "logits"
        self._numbers[key] = number
        self._watch(storage)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record a resized storage as a free and an allocation. Only gathered weights are resized."""
        self._settle()
        key = storage_key(storage)
        number = self._numbers.get(key)
        if number is None:
            return
        birth = self.births[number]
        if storage.nbytes() == birth.size:
            return
        self._drop(number)
        renewed = self._add(storage.nbytes())
        birth.part = self.births[renewed].part = "weights"
        self._numbers[key] = renewed

    def name(self, tensors: Any, part: Part) -> None:
        """Set the part tensors belong to; unknown ones are recorded."""
        for tensor in map(local, tensors):
            self.record(tensor)
            self.births[self._numbers[storage_key(tensor.untyped_storage())]].part = part

    def hold(self, size: int, part: Part) -> None:
        """Memory that is allocated once and kept to the end."""
        number = self._add(size)
        self.births[number].part = part
        self.births[number].moment = "held"

    def enter(self, moment: str) -> None:
        """Start another moment."""
        if moment != self.moment:
            self.moment = moment
            self.moments.append((len(self.log), moment))

    def keep(self) -> None:
        """End the forward pass: live storages are saved for the backward pass."""
        self._settle()
        for number in self._numbers.values():
            self.births[number].kept = True

    def part(self, number: int) -> Part:
        """The part a storage belongs to."""
        birth = self.births[number]
        if birth.part is not None:
            return birth.part
        return "activations" if birth.forward and birth.kept else "temporaries"

    def _meets(self, args: Any, kwargs: Any, out: torch.Tensor) -> bool:
        """Two gradients of one tensor are added: in place of the first, if nothing else holds it.

        While a dispatch mode is active autograd allocates a third tensor instead (InputBuffer::accumulate); if the
        first is freed at once, the sum takes its place here.
        """
        if kwargs or len(args) != 2 or not isinstance(args[1], torch.Tensor) or is_view(args[0]):
            return False  # a view holds its base
        storage, new = args[0].untyped_storage(), out.untyped_storage()
        if storage_key(storage) not in self._numbers or storage.nbytes() != new.nbytes():
            return False
        self._sum = (storage_key(storage), storage_key(new), new.nbytes())
        self._watch(new)
        return True

    def _settle(self) -> None:
        """A sum whose first operand is still alive has its own memory."""
        if self._sum is not None:
            _, key, size = self._sum
            self._sum = None
            self._numbers[key] = self._add(size)

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key = storage_key(storage)
        self._watched[key] = weakref.ref(storage, lambda _: self._forget(key))

    def _name_like(self, weight: torch.Tensor, cast: torch.Tensor) -> None:
        """A cast weight belongs to the weights."""
        number = self._numbers.get(storage_key(weight.untyped_storage()))
        if number is not None and self.births[number].part == "weights":
            self.births[self._numbers[storage_key(cast.untyped_storage())]].part = "weights"

    def _add(self, size: int) -> int:
        self._last += 1
        number = self._last
        again = self.moment.endswith("backward") and not self.backward
        forward = self.moment in ("forward", "loss") or again
        self.births[number] = Birth(size, self.moment, forward, kept=again)
        stream = self._streams.setdefault(torch.cpu.current_stream(), len(self._streams))
        self.log.append((number, size, stream))
        self.live += size
        self.peak = max(self.peak, self.live)
        return number

    def _drop(self, number: int) -> None:
        self.log.append((-number,))
        self.live -= self.births[number].size

    def _borrow(self, sizes: list[int]) -> None:
        numbers = [self._add(size) for size in sizes]
        for number in numbers:
            self._drop(number)

    def _forget(self, key: int) -> None:
        if self.closed:
            return
        del self._watched[key]
        if self._sum is not None and key == self._sum[0]:
            self._numbers[self._sum[1]] = self._numbers.pop(key)
            self._sum = None
            return
        self._settle()
        self._drop(self._numbers.pop(key))
