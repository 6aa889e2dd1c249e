"""Which tensors are on a pretended card and which are the host's, though all of them are on the CPU.

Followed from call to call in Python; weights gathered from shards are on the card. Of what autograd and collectives
make by themselves nothing else is known, nor of what is made where another tensor is, which here says that it is on
the CPU. So a mixture that a card would refuse may pass, but what is refused here a card refuses too.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

Place = Literal["card", "host", "unknown"]

_MOVES = {torch.Tensor.to, torch.Tensor.copy_, torch.Tensor.type_as, torch.Tensor.set_}
"""Functions that take tensors of two places."""
_MOVING = {"__set__", "__getitem__", "__setitem__", "_has_compatible_shallow_copy_type", "is_set_to"}
"""The same by name: setters of attributes; a card's tensor may be indexed by the host's."""
_OFTEN = 4096
"""Storages after which those that are gone are forgotten."""


class Places:
    """The place of every storage that is known."""

    def __init__(self, kind: str = "cuda") -> None:
        self._kind = kind
        self._known: dict[int, tuple[StorageWeakRef, Place]] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._forget_at = _OFTEN

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host whose memory is pinned from now on."""
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is pinned."""
        found = self._pinned.get(tensor.untyped_storage()._cdata) if _is_plain(tensor) else None
        return found is not None and not found.expired()

    def of(self, tensor: torch.Tensor) -> Place:
        """Where a tensor is, if that is known."""
        found = self._known.get(tensor.untyped_storage()._cdata) if _is_plain(tensor) else None
        return found[1] if found and not found[0].expired() else "unknown"

    def is_cuda(self, tensor: torch.Tensor) -> bool:
        """What a tensor says of itself; one whose place is not known is taken to be on the card."""
        return self._kind == "cuda" and self.of(tensor) != "host"

    def require_one(self, func: Any, tensors: list[torch.Tensor], where: list[Place]) -> None:
        """Refuse tensors of two places, as torch does; single numbers of the host go with everything."""
        if "card" not in where or "host" not in where:
            return
        name = getattr(func, "__name__", "")
        if func in _MOVES or name in _MOVING:
            return
        if any(place == "host" and tensor.dim() for tensor, place in zip(tensors, where, strict=True)):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"(when checking arguments of {name})"
            )

    def put(self, result: Any, place: Place, *, moved: bool = False) -> Any:
        """A result at a place; `moved`: asked to be there, so a copy if it is not known to be."""
        if isinstance(result, torch.Tensor):
            return self._put(result, place, moved=moved) if _is_plain(result) else result
        if type(result) in (list, tuple):
            return type(result)(self.put(one, place, moved=moved) for one in result)
        return result

    def _put(self, tensor: torch.Tensor, place: Place, *, moved: bool) -> torch.Tensor:
        known = self.of(tensor)
        if known == place:
            return tensor
        if moved:
            tensor = tensor.clone()
        if place != "unknown":
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = (StorageWeakRef(storage), place)
            self._forget()
        return tensor

    def _forget(self) -> None:
        """Now and then, storages that are gone."""
        if len(self._known) > self._forget_at:
            self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
            self._pinned = {key: one for key, one in self._pinned.items() if not one.expired()}
            self._forget_at = 2 * len(self._known) + _OFTEN


def common(where: list[Place]) -> Place:
    """Where the result of an operation is: on the card if anything is; on the host if nothing else is known."""
    if "card" in where:
        return "card"
    return "unknown" if "unknown" in where else "host"


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among a function's arguments, also in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_of(value)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own: not those that stand for shards, or for shapes only."""
    return type(tensor) in (torch.Tensor, Parameter) and not tensor.is_meta
