"""Calls that make a processor wait for its card, counted in a training on a pretended one, by who made them.

A card computes what it is told later; a call that needs an answer now waits until all of it is done. What waits on a
real card is known from torch's own code (`set_sync_debug_mode` warns at the same calls); here it is told by the
operator that autograd and kernels are given, and by where its tensors are. Copies of pinned memory do not wait.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from separate_places import Places, common, tensors_of
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_READ = {
    _aten._local_scalar_dense,
    _aten.equal,
    _aten.nonzero,
    _aten.masked_select,
    _aten.bincount,
    _aten.unique_dim,
    _aten.unique_consecutive,
    _aten._unique2,
}
"""Operators whose result is a number for the host, or has a size that only the card knows."""
_BY_MASK = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
"""Those that look for the places of a mask, if they are given one."""
_FROM_NUMBERS = {torch.tensor, torch.as_tensor}
"""Functions that make a tensor of Python's numbers, on the host first."""
_INDEXED = {"__getitem__", "__setitem__"}
_WHEN = {"rehearse": "start", "forward_backward": "micro batch", "_run_epoch": "step"}
"""When a wait happened, by a function that is running; the innermost first."""


class Waits:
    """The waits of this process so far; written down after every step."""

    def __init__(self, notes: Path, places: Places) -> None:
        self._places = places
        self._found: Counter[str] = Counter()
        self._notes = notes.with_name(f"waits.{os.getpid()}")
        register_optimizer_step_post_hook(self._write)

    def called(self, func: Any, args: Any, options: dict[str, Any], asked: str | None) -> None:
        """A function as Python calls it: copies between places."""
        given = [*tensors_of(args), *tensors_of(options.values())]
        if func in _FROM_NUMBERS and asked == "card" and not any(self._is("card", one) for one in given):
            self._note("copy to the card")
        elif func is torch.Tensor.tolist and not self._is("host", args[0]):
            self._note("tolist")
        elif func is torch.Tensor.copy_:
            self._copied(args[1], args[0], options, args[2:])
        elif getattr(func, "__name__", "") in _INDEXED and self._is("card", args[0]):
            if any(
                isinstance(one, list) or (isinstance(one, torch.Tensor) and self._is("host", one))
                for one in _flat(args[1])
            ):
                self._note("copy to the card")
        elif asked and given and self._places.of(given[0]) != asked:
            self._moved(given[0], asked, options)

    def computed(self, func: Any, args: Any, options: dict[str, Any]) -> None:
        """An operator as the card is given it."""
        packet, given = func.overloadpacket, [*tensors_of(args), *tensors_of(options.values())]
        if packet in _READ and not self._is("host", given[0]):
            self._note(packet.__name__)
        elif packet in _BY_MASK and not self._is("host", given[0]):
            if any(one.dtype in (torch.bool, torch.uint8) for one in tensors_of(args[1])):
                self._note("index by a mask")
        elif (
            packet is _aten.repeat_interleave and options.get("output_size") is None and not self._is("host", given[0])
        ):
            self._note("repeat_interleave")

    def _is(self, place: str, tensor: torch.Tensor) -> bool:
        return self._places.of(tensor) == place

    def _moved(self, source: torch.Tensor, asked: str, options: dict[str, Any]) -> None:
        early = bool(options.get("non_blocking"))
        if asked == "card" and self._is("host", source) and not (early and self._places.is_pinned(source)):
            self._note("copy to the card")
        # torch gives a copy to the host that does not wait pinned memory.
        if asked == "host" and not self._is("host", source) and not early:
            self._note("copy to the host")

    def _copied(self, source: torch.Tensor, target: torch.Tensor, options: dict[str, Any], rest: Any) -> None:
        early = bool(options.get("non_blocking") or any(rest))
        if self._is("card", target) and self._is("host", source) and not (early and self._places.is_pinned(source)):
            self._note("copy to the card")
        if self._is("host", target) and self._is("card", source) and not (early and self._places.is_pinned(target)):
            self._note("copy to the host")

    def _note(self, what: str) -> None:
        frame: FrameType | None = sys._getframe(2)
        names, caller = set(), ""
        while frame is not None:
            names.add(frame.f_code.co_name)
            file = Path(frame.f_code.co_filename)
            if not caller and not _is_between(frame.f_code.co_name, file):
                caller = f"{file.stem}.{frame.f_code.co_name}"
            frame = frame.f_back
        when = next((when for name, when in _WHEN.items() if name in names), "start")
        self._found[f"{when}: {caller}: {what}"] += 1

    def _write(self, *_: Any) -> None:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._found) + "\n")
        self._found.clear()


class Watched(TorchDispatchMode):
    """Every operator of a thread, also those of a backward pass; what a card's tensors give is on the card."""

    def __init__(self, waits: Waits, places: Places) -> None:
        super().__init__()
        self._waits, self._places = waits, places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        self._waits.computed(func, args, options)
        result = func(*args, **options)
        where = [self._places.of(tensor) for tensor in (*tensors_of(args), *tensors_of(options.values()))]
        if func.overloadpacket is not _aten.copy_ and common(where) == "card":
            self._places.put(result, "card")
        return result


def read(folder: Path) -> list[Counter[str]]:
    """The waits of each step, from what the processes of a run wrote down."""
    lines = [line for path in sorted(folder.glob("waits.*")) for line in path.read_text().splitlines()]
    return [Counter(json.loads(line)) for line in lines]


def _is_between(function: str, file: Path) -> bool:
    """Whether a frame is torch's or of what looks on, not of who asked."""
    return "torch" in file.parts or file.name == Path(__file__).name or function.startswith("__torch_")


def _flat(index: Any) -> Any:
    return index if isinstance(index, tuple) else (index,)
