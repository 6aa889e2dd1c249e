"""How an attempt ended, and what follows from it: what will repeat is told apart from what may pass.

Pure: exit codes, error codes and the end of a log in, a ruling out. It starts and ends nothing.
"""

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USER

BAD_STEP = {"STK405", "STK416", "STK672"}
WATCHED = {"silent", "node", "hang"}
"""Reasons seen from outside: the lost rank's own exit code then only says how we killed it."""
_OUT_OF_MEMORY = "STK408"
_MAY_PASS = {"STK341", "STK407", "STK413", "STK421", "STK440"}
"""Store of streamed data, disk, model hub: a mistake before the first step, a failure of the surroundings after it."""
_PORT_TAKEN = "STK424"
"""The port at which ranks meet was free a moment ago; the next attempt takes another."""
_PEER = "STK402"
"""A rank's error about another one's failure."""
_UNREACHABLE = "STK423"
"""A rank cannot reach another one; that one's own error, exit code or signal comes first."""
_FAULTS = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"}
"""Signals a program causes itself; others come from outside."""
_DEVICE = re.compile(r"CUDA error|NCCL error|ECC error|fallen off the bus|device lost|hipError")
_LIBRARY_MEMORY = re.compile(r"^Error out of memory at line \d+ in file ", re.MULTILINE)
"""What bitsandbytes prints before it exits with 1, so that nothing is recorded."""
_RANK_SIGNAL = re.compile(r"exitcode\s*: -(\d+)")
_RANK_SURPRISE = re.compile(r"exitcode\s*: 2\b")
_FIRST_FAILED = re.compile(r"Root Cause.*?local_rank: (\d+)\)", re.DOTALL)
"""As torchrun writes them."""

_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: *)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?)$", re.MULTILINE
)
"""The last line of a traceback."""
_LAUNCHERS = "ChildFailedError"
"""torchrun's own exception about a rank that failed; the rank's is above it."""
_LONGEST_CAUSE = 300

Report = dict[str, Any]


@dataclass
class Ended:
    """How an attempt ended, as far as it can be seen from outside."""

    code: int
    codes: list[str] = field(default_factory=list)
    """Of the errors it recorded."""
    status: str = ""
    """Of its end event."""
    step: int = 0
    """The newest step it did, or resumed from."""
    bad_step: int | None = None
    hung: bool = False
    lost: str = ""
    """Why a rank or a node was given up, where it could not report that itself."""
    oom_killed: bool = False
    """Whether the kernel OOM-killed a process during the attempt."""
    tail: str = ""
    """The end of its log."""

    @property
    def signal(self) -> str:
        """The signal that ended it or one of its ranks; torchrun itself then exits with 1."""
        number = -self.code
        is_quiet = set(self.codes) <= {_UNREACHABLE, _PEER}
        if self.code == EXIT_USER and is_quiet and (found := _RANK_SIGNAL.search(self.tail)):
            number = int(found.group(1))
        try:
            return signal.Signals(number).name if number > 0 else ""
        except ValueError:
            return f"signal {number}"


@dataclass(frozen=True)
class Ruling:
    """What to do after an attempt, and why."""

    act: str
    """done, stopped, retry, replan, pass_over, away or fail."""
    reason: str

    @property
    def is_fault(self) -> bool:
        """Whether the program itself failed: twice at the same step, and it will a third time."""
        return self.act == "retry" and self.reason in {"surprise", "device", *_FAULTS}


def judge(ended: Ended, *, skip: bool, trained: bool) -> Ruling:
    """Tell what will repeat from what may pass.

    Args:
        ended: How it ended.
        skip: Whether the run file wants bad steps passed over.
        trained: Whether any step was done before.
    """
    if ended.status == "done":
        return Ruling("done", "")
    if ended.status == "stopped" or ended.code == EXIT_STOPPED:
        return Ruling("stopped", "asked")
    if ended.hung:
        return Ruling("retry", "hang")
    in_library = set(ended.codes) <= {_UNREACHABLE, _PEER} and _LIBRARY_MEMORY.search(ended.tail)
    if _OUT_OF_MEMORY in ended.codes or ended.oom_killed or in_library:
        return Ruling("replan", "memory")
    if BAD_STEP & set(ended.codes):
        return Ruling("pass_over" if skip and ended.bad_step is not None else "fail", "bad_step")
    return _judge_rest(ended, trained=trained)


def _judge_rest(ended: Ended, *, trained: bool) -> Ruling:
    if ended.lost:
        return Ruling("retry", ended.lost)
    if ended.signal:
        return Ruling("retry", ended.signal)
    named = [code for code in ended.codes if code != _UNREACHABLE]
    own = [code for code in named if code != _PEER] or named
    if own and ended.code == EXIT_USER:
        may_pass = set(own) <= {_PORT_TAKEN} or (trained and set(own) <= _MAY_PASS)
        return Ruling("retry" if may_pass else "fail", own[0])
    if ended.codes and not _RANK_SURPRISE.search(ended.tail):
        return Ruling("retry", "lost")
    return Ruling("retry", "device" if _DEVICE.search(ended.tail) else "surprise")


def cause(tail: str) -> str:
    """The newest exception at the end of a log, as its traceback ends; empty where there is none."""
    found = [line for line in _EXCEPTION.findall(tail) if _LAUNCHERS not in line]
    return str(found[-1])[:_LONGEST_CAUSE] if found else ""


def report(code: int, tail: str, first_rank: int, codes: list[str]) -> Report:
    """How the processes of a node ended, by the exit code and the log of what started them."""
    found = _FIRST_FAILED.search(tail)
    rank = first_rank + int(found.group(1)) if found else None
    said = {"code": code, "tail": tail, "rank": rank, "codes": codes}
    return {**said, "signal": Ended(code, codes=codes, tail=tail).signal}


def reported_reason(said: Report) -> str:
    """Why a node's processes failed by their own report; empty where they did not, or we killed them."""
    codes = [str(code) for code in said["codes"]]
    if said["code"] in (EXIT_DONE, EXIT_STOPPED) or (said["asked"] and said["signal"] == "SIGKILL"):
        return ""
    if said["signal"]:
        return str(said["signal"])
    if codes and not _RANK_SURPRISE.search(said["tail"]):
        return next((code for code in codes if code not in (_UNREACHABLE, _PEER)), "lost")
    return "surprise"
