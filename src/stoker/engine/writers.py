"""The ranks that write a checkpoint: the first one alone, or all of them together, each its own share.

Together, every rank's saver makes the same saves, each in a thread beside the training. The first rank's gives orders
(write your share into this folder; it is over), and what went wrong anywhere goes wrong everywhere.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stoker.engine import checkpoint, host_copies, shares, spread
from stoker.engine.parallel import ALONE, Ranks
from stoker.engine.shares import Share
from stoker.plan.plan import Plan
from stoker.rundir import files

_SURPRISE = 1 << 20
"""For an error that is not the disk's; no errno is as large."""


@dataclass(frozen=True)
class Writers:
    """The ranks that write, as one of them sees it."""

    ranks: Ranks = ALONE
    """In a control group of their own, if they write together."""
    together: bool = False
    copy: host_copies.Copy = host_copies.plain
    """How tensors come to the host."""

    @property
    def first(self) -> bool:
        """Whether this rank commits."""
        return self.ranks.first

    @property
    def writes(self) -> bool:
        """Whether this rank writes anything."""
        return self.first or self.together

    @property
    def count(self) -> int:
        """How many write."""
        return self.ranks.world if self.together else 1

    def take(self, tensor: torch.Tensor) -> Any:
        """A copy of what this rank writes of a tensor."""
        if self.together:
            return shares.part(tensor, self.copy, first=self.first)
        return checkpoint.kept(tensor, self.copy, keep=self.first)

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """On the first rank, around a save: the others learn how it ended."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(RuntimeError):  # they are gone; the error is why
                self._order(over=_number(error))
            raise
        self._order(over=0)

    def share_out(self, share: Share | None, folder: Path, inside: Path) -> None:
        """On the first rank, within a save: all write their shares into a folder somewhere inside one that all see."""
        if share is not None:
            self._order(write=folder.relative_to(inside).as_posix(), layout=share.layout)
            if wrong := self._write(share, folder, share.layout):
                raise wrong

    def assist(self, share: Share, inside: Path) -> None:
        """On the other ranks: write as the first one says until the save is over; its error is raised here too."""
        wrong = None
        while "write" in (order := json.loads(self.ranks.hear("-"))):
            wrong = self._write(share, inside / order["write"], order["layout"])
        if order["over"]:
            raise wrong or _error(order["over"])

    def _order(self, **order: object) -> None:
        if self.together:
            self.ranks.hear(json.dumps(order))

    def _write(self, share: Share, folder: Path, layout: str) -> Exception | None:
        """Write this rank's share, and read it back once all have; what went wrong, here or on another rank."""

        def write() -> int:
            if layout != share.layout:
                raise RuntimeError("processes lay the files of a checkpoint out in different ways")
            return share.write(folder)

        total, wrong = self._all(write)
        if wrong is None and total != share.data_bytes:
            return RuntimeError(f"{total} of {share.data_bytes} bytes of a checkpoint were written")
        return wrong or self._all(lambda: share.read_back(folder))[1]

    def _all(self, work: Callable[[], int]) -> tuple[int, Exception | None]:
        """What all ranks' work returns in sum, and what went wrong on any."""
        own, done = None, 0
        try:
            done = work()
        except Exception as error:  # noqa: BLE001  # raised when every rank has been told
            own = error
        number = max(self.ranks.numbers(_number(own) if own else 0))
        return sum(self.ranks.numbers(done)), own or (_error(number) if number else None)


def of(ranks: Ranks, plan: Plan, folder: Path, model: Any) -> Writers:
    """Who writes: every rank what it holds of shards, where it can go straight into files that all see.

    A collective call, before the model is sharded.
    """
    copy = host_copies.Pinned() if plan.device == "cuda" else host_copies.plain
    if plan.strategy != "fsdp2" or ranks.world == 1:
        return Writers(ranks, copy=copy)
    if spread.is_shared(folder, ranks) and shares.are_stored_as_held(model):
        return Writers(ranks.apart(), together=True, copy=copy)
    return Writers(ranks, copy=copy)


def _number(error: Exception) -> int:
    return files.error_number(error) or _SURPRISE


def _error(number: int) -> Exception:
    if number == _SURPRISE:
        return RuntimeError("another process could not write its share of a checkpoint")
    return OSError(number, os.strerror(number))
