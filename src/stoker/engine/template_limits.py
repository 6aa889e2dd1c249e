"""Chat templates are code of others. Jinja's sandbox keeps them from the system; here they are kept from having no end.

Bounded are processor time (an exception; where C code does not look at it, the kernel ends the process, and `launch`
has the words for that), memory (the address space, on Linux), and the size of what is rendered. Honest templates take
a thousandth of that. Knows nothing of templates: what runs inside the block is bounded.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from stoker import messages
from stoker.errors import StokerError

_SECONDS = 10.0
_SECONDS_EACH = 0.1
_HARD_FACTOR = 2.0
_MEMORY_BYTES = 2 << 30
_CHARACTERS = 1 << 26


class _OutOfTime(BaseException):
    """No `Exception`: nothing on the way may take it for a bad row."""


@contextlib.contextmanager
def limited(tokenizer: str, conversations: int = 1) -> Iterator[None]:
    """Bound what a template may take for so many conversations; STK513 beyond that."""
    seconds = _SECONDS + _SECONDS_EACH * conversations
    try:
        with _time(seconds), _memory():
            yield
    except _OutOfTime:
        raise _beyond(tokenizer, "template.time", seconds=f"{seconds:.0f}") from None
    except MemoryError:
        raise _beyond(tokenizer, "template.memory", size=_MEMORY_BYTES >> 30) from None


def require_size(tokenizer: str, texts: Iterable[str]) -> None:
    """Refuse what no conversation is as long as."""
    if any(len(text) > _CHARACTERS for text in texts):
        raise _beyond(tokenizer, "template.size", count=f"{_CHARACTERS:,}")


def _beyond(tokenizer: str, key: str, **fields: object) -> StokerError:
    return StokerError("STK513", tokenizer=tokenizer, reason=messages.text(key, **fields))


@contextlib.contextmanager
def _time(seconds: float) -> Iterator[None]:
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread, and every program of ours renders there
        return
    before = signal.signal(signal.SIGVTALRM, _raise)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_PROF, _HARD_FACTOR * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGVTALRM, before)


def _raise(*_: object) -> NoReturn:
    raise _OutOfTime


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    """So much more address space than now; a MemoryError beyond."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    wanted = used + _MEMORY_BYTES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
