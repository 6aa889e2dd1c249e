"""Copies through pinned buffers, from a simulated stream that copies as late as it may."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from stoker.engine import host_copies


class LateStream(TorchFunctionMode):
    """Does the copies that nobody waits for only when an event after them is waited for, in order."""

    def __init__(self, *, waits: bool = True, is_cuda: bool = True) -> None:
        super().__init__()
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.waits = waits
        self.is_cuda = is_cuda
        self.copied = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]  # a property of C
            return self.is_cuda
        if func is torch.Tensor.copy_ and options.pop("non_blocking", False):
            self.waiting.append((args[0], args[1]))
            return args[0]
        self.copied += func in (torch.Tensor.copy_, torch.Tensor.to)
        return func(*args, **options)

    def event(self) -> "LateEvent":
        return LateEvent(self)


class LateEvent:
    def __init__(self, stream: LateStream) -> None:
        self._stream = stream
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def record(self) -> None:
        self._before = list(self._stream.waiting)

    def synchronize(self) -> None:
        for one in self._before if self._stream.waits else []:
            if any(one is other for other in self._stream.waiting):
                self._stream.waiting.pop(0)
                one[0].copy_(one[1])


def tensors() -> Iterator[torch.Tensor]:
    torch.manual_seed(0)
    yield torch.randn(37, 11)
    yield torch.randn(37, 11).t()
    yield torch.randn(9, dtype=torch.float32).to(torch.bfloat16)
    yield torch.tensor(3.5)
    yield torch.arange(50) % 2 == 0
    yield torch.empty(0)


def copied(tensor: torch.Tensor, monkeypatch: pytest.MonkeyPatch, *, waits: bool = True) -> torch.Tensor:
    stream = LateStream(waits=waits)
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    with stream:
        return host_copies.Pinned(buffer_bytes=64)(tensor)


def test_a_copy_is_complete_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for tensor in tensors():
        copy, plain = copied(tensor, monkeypatch), host_copies.plain(tensor)
        assert copy.is_contiguous()
        assert (copy.shape, copy.dtype) == (plain.shape, plain.dtype)
        assert torch.equal(copy, plain)
        assert not tensor.numel() or copy.data_ptr() != tensor.data_ptr()


def test_one_that_does_not_wait_for_its_buffer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = next(tensors())
    assert not torch.equal(copied(tensor, monkeypatch, waits=False), tensor)


@pytest.mark.parametrize(("is_cuda", "copies"), [(True, 2), (False, 1)])
def test_what_is_on_the_host_is_copied_once(monkeypatch: pytest.MonkeyPatch, copies: int, *, is_cuda: bool) -> None:
    tensor, stream = torch.randn(4, 4).t(), LateStream(is_cuda=is_cuda)
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    with stream:
        copy = host_copies.Pinned(buffer_bytes=64)(tensor)
    assert stream.copied == copies
    assert copy.is_contiguous()
    assert torch.equal(copy, tensor)
