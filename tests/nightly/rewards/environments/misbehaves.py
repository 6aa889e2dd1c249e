"""A reward that does what the completion says."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from pathlib import Path

import verifiers.v1 as vf


class MisbehavesData(vf.TaskData):
    file: str = ""


async def fail(_: MisbehavesData) -> float:
    raise LookupError("no such answer")


async def hang(_: MisbehavesData) -> float:
    while True:
        pass


async def wait(_: MisbehavesData) -> float:
    await asyncio.sleep(3600)
    return 1.0


async def hold_on(_: MisbehavesData) -> float:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(3600)


async def say(_: MisbehavesData) -> float:
    print("to stdout")
    sys.stderr.write("to stderr\n")
    return 1.0


async def leave(_: MisbehavesData) -> float:
    os._exit(3)


async def not_a_number(_: MisbehavesData) -> float:
    return float("nan")


async def memory(_: MisbehavesData) -> float:
    return float(len(bytearray(2**34)))


async def network(_: MisbehavesData) -> float:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
    return 1.0


async def files(data: MisbehavesData) -> float:
    return float(Path(data.file).exists())


class MisbehavesTask(vf.Task[MisbehavesData]):
    @vf.reward
    async def done(self, trace: vf.Trace) -> float:
        return await globals()[trace.last_reply](self.data)


class MisbehavesTaskset(vf.Taskset[MisbehavesTask]):
    def load(self) -> list[MisbehavesTask]:
        raise RuntimeError("a reward does not ask for rows")


__all__ = ["MisbehavesTaskset"]
