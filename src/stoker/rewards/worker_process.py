"""The parent's end of a worker: start it, ask it, and end it when it says nothing, too much, or nonsense.

The worker may do what it likes: every wait has an end, every buffer a size, and only JSON is read from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from typing import Any

_CHUNK = 65_536
_PRINTED_BYTES = 10_000_000
"""More than this in answer to one question is not worth reading."""
_KEPT_BYTES = 4_000
_REPLY_BYTES = 65_536
_REPLY_BYTES_EACH = 1_024
"""How long an answer may be: at all, and for each completion."""
_END_SECONDS = 5.0
_LEFT_SECONDS = 1.0


class WorkerError(Exception):
    """The worker gave no answer; `key` of the sentence that says why, and its fields."""

    def __init__(self, key: str, **fields: Any) -> None:
        super().__init__(key)
        self.key = key
        self.fields = fields


class WorkerProcess:
    """A running worker."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            bufsize=0,
            start_new_session=True,
        )
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self._room = _REPLY_BYTES
        self._printed = 0
        self._tail = b""
        self._flooded = False
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._read, self._drain)]
        for thread in self._threads:
            thread.start()

    def ask(self, message: dict[str, Any], seconds: float, count: int = 0) -> dict[str, Any]:
        """Send a message and wait for the answer; raises `WorkerError` where none comes in time."""
        self._room = _REPLY_BYTES + _REPLY_BYTES_EACH * count
        self._printed = 0
        # In a thread, because a worker that does not read would hold us up.
        line = json.dumps(message, default=str).encode() + b"\n"
        threading.Thread(target=self._write, args=(line,), daemon=True).start()
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise WorkerError("slow", seconds=seconds) from None
        if answer is None:
            raise self._ended()
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise WorkerError("nonsense")
        return found

    @property
    def printed(self) -> str:
        """The end of what it printed so far."""
        return self._tail.decode(errors="replace").strip()

    def end(self) -> None:
        """Kill it with all it started, and wait until it is gone."""
        kill_all(self._process)
        self._process.stdin.close()  # type: ignore[union-attr]  # a pipe
        for thread in self._threads:  # which close theirs, where nothing that was left behind holds the other end
            thread.join(_LEFT_SECONDS)

    def _ended(self) -> WorkerError:
        """Why there are no more answers."""
        if self._flooded:
            return WorkerError("flood")
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerError("closed")
        if not self.printed:
            return WorkerError("crash", code=code)
        return WorkerError("crash_said", code=code, last=self.printed.splitlines()[-1][:200])

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        with contextlib.suppress(OSError, ValueError):  # it has ended, which the reader finds
            while left:
                left = left[self._process.stdin.write(left) :]  # type: ignore[union-attr]  # a pipe

    def _read(self) -> None:
        """Whole lines into the queue; None where there will be no more."""
        begun = b""
        with self._process.stdout as pipe:  # type: ignore[union-attr]  # a pipe
            while chunk := pipe.read(_CHUNK):
                *lines, begun = (begun + chunk).split(b"\n")
                for line in lines:
                    self._answers.put(line)
                if len(begun) > self._room or self._answers.qsize() > 1:
                    self._flooded = True
                    break
        self._answers.put(None)
        if self._flooded:
            self._process.kill()

    def _drain(self) -> None:
        """Keep the end of what it prints, so that it never waits for a reader; end it where that is too much."""
        with self._process.stderr as pipe:  # type: ignore[union-attr]  # a pipe
            while chunk := pipe.read(_CHUNK):
                self._printed += len(chunk)
                self._tail = (self._tail + chunk)[-_KEPT_BYTES:]
                if self._printed > _PRINTED_BYTES and not self._flooded:
                    self._flooded = True
                    self._process.kill()


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and what it started in it; a sandbox ends with all that is in it."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
