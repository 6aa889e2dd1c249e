"""Copies of tensors on the host, for checkpoints: complete when they are returned, so that training may go on.

From a GPU they go through two pinned buffers in turn: the GPU fills one while the processor empties the other. Into
memory that is not pinned, as much as a checkpoint has, a driver copies piece by piece at a part of the bus's speed; to
pin all of it would take that much from the machine for good.
"""

from collections.abc import Callable

import torch

BUFFER_BYTES = 32 << 20

Copy = Callable[[torch.Tensor], torch.Tensor]
"""Makes a contiguous copy on the host."""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, waited for."""
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


class Pinned:
    """Copies from a GPU through pinned memory."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._size = buffer_bytes
        self._buffers: list[torch.Tensor] = []

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of one tensor; one that is on the host already (an offloaded state) needs no buffer."""
        if not tensor.is_cuda:
            return plain(tensor)
        if not self._buffers:  # with the first save, not where a run only loads
            self._buffers = [torch.empty(self._size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        source = tensor.contiguous().reshape(-1).view(torch.uint8).split(self._size)
        target = copy.reshape(-1).view(torch.uint8).split(self._size)
        filled: tuple[torch.Tensor, torch.cuda.Event, torch.Tensor] | None = None
        for number, (there, here) in enumerate(zip(source, target, strict=True)):
            buffer = self._buffers[number % 2][: len(there)]
            buffer.copy_(there, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            if filled is not None:
                _empty(*filled)
            filled = buffer, done, here
        if filled is not None:
            _empty(*filled)
        return copy


def _empty(buffer: torch.Tensor, done: torch.cuda.Event, target: torch.Tensor) -> None:
    done.synchronize()
    target.copy_(buffer)
