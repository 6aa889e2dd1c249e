"""The ranks of a run: joining them, assigning micro batches, and agreeing on decisions.

`ddp` keeps the whole model on every rank (accelerate wraps it in DistributedDataParallel); `fsdp2` shards parameters,
gradients and optimizer state (`engine.fsdp`: accelerate silently turns FSDP on a CPU into DDP); `zero2` and `zero3` are
DeepSpeed's. `require_strategy` checks that the planned strategy runs.
"""

import datetime
import os
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from stoker import env, messages
from stoker.errors import EXIT_USER, StokerError
from stoker.plan.plan import Plan
from stoker.rundir.events import EventLog

_BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo", "mps": "gloo"}
_TIMEOUT = datetime.timedelta(minutes=30)
"""Timeout of collectives while computing."""
PATIENCE = datetime.timedelta(days=2)
"""Timeout while the first rank reads or writes files."""

_MEETING_SECONDS = 600.0
"""Timeout of the rendezvous."""
_LOST = ("gloo/transport", "Gloo connectFullMesh failed", "onnection closed by peer")
"""Messages of lost connections: Gloo has no exception type for them."""


@dataclass(frozen=True)
class Ranks:
    """This process among all that train."""

    rank: int = 0
    world: int = 1
    control: Any = field(default=None, repr=False, compare=False)
    """The process group for decisions and files of the first rank, with a long timeout."""
    interleaved: bool = False
    """Neighbouring micro batches run on different ranks, as sharding needs it; else each rank has a range."""
    rank_here: int = 0
    """Its number among the processes of its node."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes the files."""
        return self.rank == 0

    @property
    def first_here(self) -> bool:
        """Whether this is the first process of its node."""
        return self.rank_here == 0

    def leaves(self, count: int) -> list[int]:
        """The micro batches of a step of `count` that this rank computes, in order."""
        if self.interleaved:
            return list(range(self.rank, count, self.world))
        return list(self.ranges(count)[self.rank])

    def ranges(self, count: int) -> list[range]:
        """Each rank's contiguous range of micro batches, as even as possible."""
        return [range(r * count // self.world, (r + 1) * count // self.world) for r in range(self.world)]

    def turns(self, count: int) -> int:
        """Micro batches each rank runs, zero-weight stand-ins included if ranks run in lockstep."""
        return -(-count // self.world) if self.interleaved else max(1, len(self.leaves(count)))

    def agree(self, flags: Sequence[bool]) -> list[bool]:
        """The first rank's flags: clocks and files are read by one process only."""
        return [bool(flag) for flag in self.follow(flags)]

    def anyone(self, flags: Sequence[bool]) -> list[bool]:
        """Each flag if set on any rank: a signal may reach one process only."""
        if self.world == 1:
            return list(flags)
        said = torch.tensor(flags, dtype=torch.int64)
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self.control)
        return [bool(flag) for flag in said]

    def everyone(self, flag: bool) -> list[bool]:  # noqa: FBT001  # a vote, no option
        """Every rank's flag."""
        return self.anyone([flag and rank == self.rank for rank in range(self.world)])

    def numbers(self, number: int) -> list[int]:
        """Every rank's number."""
        if self.world == 1:
            return [number]
        said = torch.zeros(self.world, dtype=torch.int64)
        said[self.rank] = number
        dist.all_reduce(said, group=self.control)
        return [int(one) for one in said]

    def follow(self, numbers: Sequence[int], leader: int = 0) -> list[int]:
        """The numbers of the first rank, or of another one."""
        if self.world == 1:
            return list(numbers)
        said = torch.tensor(numbers, dtype=torch.int64)
        dist.broadcast(said, src=leader, group=self.control)
        return [int(number) for number in said]

    def hear(self, text: str, leader: int = 0) -> str:
        """The non-empty text of the first rank, or of another one."""
        if self.world == 1:
            return text
        own = bytearray(text.encode())
        (size,) = self.follow([len(own)], leader)
        said = torch.frombuffer(own if self.rank == leader else bytearray(size), dtype=torch.uint8)
        dist.broadcast(said, src=leader, group=self.control)
        return said.numpy().tobytes().decode()

    def meet(self) -> None:
        """Wait for every rank."""
        self.anyone([True])

    def wait(self) -> None:
        """Wait for the first rank, with the long timeout."""
        self.agree([True])

    def apart(self) -> "Ranks":
        """The same ranks with another control group, for a thread beside the training; a collective call."""
        return replace(self, control=dist.new_group(backend="gloo", timeout=PATIENCE))

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over ranks of values that each rank filled in its own places, zero elsewhere."""
        if self.world > 1:
            dist.all_reduce(values)
        return values


ALONE = Ranks()


def take_place() -> int:
    """The global rank of this process. torchrun numbers one node only; with several, each node knows its first rank.

    Set before accelerate and transformers read rank and world size from the same variables. The device still follows
    from the local rank.
    """
    if env.read(env.STORE):
        env.put(env.RANK, str(int(env.read(env.FIRST_RANK)) + int(env.read(env.LOCAL_RANK))))
        env.put(env.WORLD_SIZE, env.read(env.RANKS))
    return int(env.read(env.RANK, "0"))


@contextmanager
def joined(plan: Plan, events_file: Path) -> Iterator[Ranks]:
    """Join the process group, if there are several ranks (see `take_place`)."""
    world = int(env.read(env.WORLD_SIZE, "1"))
    if world != plan.batch.devices:
        raise StokerError(
            "STK404", difference=messages.text("machine.processes", planned=plan.batch.devices, found=world)
        )
    if plan.strategy == "single":
        yield ALONE
        return
    rank, rank_here = int(env.read(env.RANK)), int(env.read(env.LOCAL_RANK))
    meeting = Path(env.read(env.RENDEZVOUS))
    if plan.device == "cuda":
        torch.cuda.set_device(rank_here)
    try:
        with _meeting(rank, events_file):
            dist.init_process_group(
                _BACKENDS[plan.device], **_place(meeting, rank, world), rank=rank, world_size=world, timeout=_TIMEOUT
            )
            control = dist.new_group(backend="gloo", timeout=PATIENCE)
        yield Ranks(rank, world, control, interleaved=plan.strategy != "ddp", rank_here=rank_here)
    except RuntimeError as error:
        if is_lost(error):
            raise StokerError("STK423", rank=rank, reason=str(error).splitlines()[0]) from error
        raise
    # Not after a failure: the last pulses stay for the supervisor, and NCCL may wait for ranks that still compute
    # before the error is written. The end of the process closes its connections.
    if rank_here == 0:
        shutil.rmtree(meeting, ignore_errors=True)
    dist.destroy_process_group()


def _place(meeting: Path, rank: int, world: int) -> dict[str, Any]:
    """The rendezvous: a file on one node; with several, a TCP store on the first rank."""
    if place := env.read(env.STORE):
        host, _, port = place.rpartition(":")
        return {"store": _store((host.strip("[]"), int(port)), rank, world)}
    return {"init_method": f"file://{meeting / 'store'}-{env.read(env.RESTART_COUNT, '0')}"}


def _store(address: tuple[str, int], rank: int, world: int) -> Any:
    options: dict[str, Any] = {"wait_for_workers": False, "timeout": datetime.timedelta(seconds=_MEETING_SECONDS)}
    if rank == 0:
        try:
            # By default the store listens on every address of the machine.
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            listener = socket.create_server(address, family=family)
        except OSError as error:
            raise StokerError("STK424", address="{}:{}".format(*address), reason=error.strerror) from error
        options |= {"is_master": True, "master_listen_fd": listener.detach()}
    return dist.TCPStore(*address, world, **options)  # type: ignore[attr-defined]  # not listed there


@contextmanager
def _meeting(rank: int, events_file: Path) -> Iterator[None]:
    """End the process if this takes too long: gloo restarts its timeout with every attempt to connect."""

    def give_up() -> None:
        reason = messages.text("reason.no_response", seconds=_MEETING_SECONDS)
        with closing(EventLog(events_file)) as log:
            log.error(StokerError("STK423", rank=rank, reason=reason), "train")
        os._exit(EXIT_USER)

    timer = threading.Timer(_MEETING_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_lost(error: Exception) -> bool:
    """Whether a collective failed because another rank died, hung or lost its connection."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST)


# ---- sharding


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor gathered from its shards; a collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


# ---- the strategy that runs


def require_strategy(plan: Plan, wrapped: Any) -> None:
    """Refuse to train with another strategy than planned."""
    found = strategy_of(wrapped)
    if found != plan.strategy:
        raise StokerError("STK418", planned=plan.strategy, found=found)


def strategy_of(wrapped: Any) -> str:
    """The strategy, by the type of the wrapped model."""
    if isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
        return "ddp"
    if isinstance(wrapped, FSDPModule):
        return "fsdp2"
    if type(wrapped).__name__ == "DeepSpeedEngine":
        return f"zero{wrapped.zero_optimization_stage()}"
    return "single"


def unsynchronised(wrapped: Any) -> Any:
    """A context in which DistributedDataParallel does not reduce gradients."""
    return wrapped.no_sync() if isinstance(wrapped, torch.nn.parallel.DistributedDataParallel) else nullcontext()
