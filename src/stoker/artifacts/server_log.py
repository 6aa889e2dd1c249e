"""Why a server ended, from its log: the failure that came first, not the last line.

vLLM's processes each report that the one below them failed ("See root cause above"), so the last lines name no cause.
"""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

_OWNER = re.compile(r"((?:\([^()]*\bpid=\d+\) ?)*)(?:[A-Z]+ (?:\d\d-\d\d [\d:]+ )?\[[^\]]+\] ?)?")
"""What vLLM writes before a line: the process, then level, time and file."""
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'File "(?:.*site-packages/)?(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_POINTS_ELSEWHERE = re.compile(
    r"see (root cause|stack ?trace)|stack trace above|check the logs|CalledProcessError|error raised in subprocess",
    re.IGNORECASE,
)
"""Exceptions that only say that another one is in the log."""
_CRASH = re.compile(
    r"Fatal Python error|Segmentation fault|Segfault encountered|[Ii]llegal instruction|double free|terminate called"
    r"|free\(\): |malloc\(\)|corrupted size|stack smashing"
)
_ENDED_BY = re.compile(r"Failed core proc\(s\): \{.*?'(?P<process>\w+)': -(?P<number>\d+)")
_OF_ADAPTER = re.compile(r"lora|module 'triton\.language' has no attribute", re.IGNORECASE)
"""With adapters vLLM 0.32 computes experts by Triton, on CPUs too, which have none."""
_DETAILS = re.compile(r" \[type=\w+, input_value=.*")
"""What pydantic adds to a sentence."""


@dataclass
class Failure:
    """An exception with its traceback."""

    frames: list[str] = field(default_factory=list)
    name: str = ""
    """The exception's name and message; empty while its frames are read."""

    @property
    def sentence(self) -> str:
        """Name and message; one without a message by the function that raised it."""
        places = [match for line in self.frames if (match := _FRAME.search(line))]
        if ":" in self.name or not places:
            return self.name
        return f"{self.name} in {places[-1]['function']} ({places[-1]['file']})"


@dataclass(frozen=True)
class Cause:
    """Why a server ended."""

    sentence: str
    of_adapter: bool = False
    """Whether the failing code is a server's for LoRA adapters."""


def cause(lines: list[str], exit_code: int) -> Cause:
    """The root cause: a crash of native code, else the first exception, else a signal, else the last line."""
    if crash := next((line for line in lines if _CRASH.search(line)), None):
        return Cause(_split(crash)[1].strip())
    told = list(_failures(lines))
    for failure in told:
        if not _POINTS_ELSEWHERE.search(failure.name):
            return Cause(failure.sentence, any(map(_OF_ADAPTER.search, [*failure.frames, failure.name])))
    if by_signal := _signal(lines, exit_code):
        return Cause(by_signal)
    return Cause(told[-1].sentence if told else (lines or ["-"])[-1])


def _failures(lines: list[str]) -> Iterator[Failure]:
    """Exceptions with their tracebacks, in order; lines of several processes may be mixed."""
    being_read: dict[str, Failure] = {}
    for line in lines:
        owner, text = _split(line)
        failure = being_read.get(owner)
        if text == _TRACEBACK:
            being_read[owner] = Failure()
        elif failure is None:
            continue
        elif not failure.name and text.startswith(" "):
            failure.frames.append(text)
        elif not failure.name:
            failure.name = re.sub(r"^(\w+\.)+(?=\w+)", "", text)
            if not failure.name.startswith("ValidationError"):
                yield being_read.pop(owner)
        elif text.startswith("    For further information"):
            yield being_read.pop(owner)
        else:
            failure.name += f": {_DETAILS.sub('', text.strip())}"
    yield from (failure for failure in being_read.values() if failure.name)


def _split(line: str) -> tuple[str, str]:
    """Who wrote a line, and the line itself."""
    match = _OWNER.match(line)
    return (match[1], line[match.end() :]) if match else ("", line)


def _signal(lines: list[str], exit_code: int) -> str:
    """The signal that ended the server or a process of it; empty where none did."""
    for line in lines:
        if match := _ENDED_BY.search(line):
            return f"{match['process']}: {_name(int(match['number']))}"
    return _name(-exit_code) if exit_code < 0 else ""


def _name(number: int) -> str:
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")
