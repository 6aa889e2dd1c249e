"""`events.jsonl`: append-only, one JSON object a line. The engine writes; watch, runs and report read.

Kinds and their fields (a reader ignores what it does not know):
    prepare     done_rows, rows, tokens
    sources     changed: files that differ from the prepared data that a start goes on with
    attempt     pid, world, tier, changed, resumed_step, total_steps, steps_per_epoch, batch, trainable_parameters
    rejected    path, reason: a checkpoint that did not verify, or another node's newer one (`node:step-...`)
    rehearsal   part, seconds
    step        step, epoch, loss, grad_norm, learning_rate, sequences, micro_batches, tokens, trained_tokens,
                padded_tokens, seconds, wait_seconds, memory_bytes
    eval        step, eval_loss, perplexity, seconds
    filesystem  type, renames, reason: the disk under the checkpoints
    interval    seconds, cost_seconds, between_failures_seconds: of `save.every: auto`, where it was measured anew
    checkpoint  step, seconds, stall_seconds, bytes, best, digest
    store       step, copied, bytes, seconds, reason, code: what became of a copy in the store, by `stoker push`
    save_failed step, error (StokerError.to_json), needed_bytes, free_bytes, retry_seconds: dropped, training goes on
    evaluated   artifact, eval_loss, perplexity, trained_tokens, sequences, seconds: by `stoker eval`
    evaluating  task, done, of
    task        artifact, task, measure, rows, right, answers, seconds: by `stoker eval --task`
    sample      prompt, wanted, before, after: by `stoker eval --samples`
    merging     done_bytes, total_bytes
    merged      adapter, tensors, adapted, bytes, dtype, untied, base_verified, seconds: by `stoker merge`
    exported    source, dtype, bytes, licence: by `stoker export`
    parity      part, done, of: prompts compared so far
    quantized   name, path, bytes, source_bytes, agreement, perplexity_change: by `stoker quantize`
    restart     attempt, reason, step, wait_seconds: by the supervisor, before it starts the trainer again
    replan      step, before, after (micro, accumulation, gradient_checkpointing, strategy, devices): after memory ran
                out, or for other nodes
    lost        attempt, rank, node, step, reason: a rank that brought an attempt to its end
    straggler   attempt, rank, node, step, times, cause (compute | data), seconds, others_seconds
    passed_over attempt, step, reason: a bad step that does no update from now on
    warning     attempt, reason (time | money), spent_seconds, limit_seconds: most of a budget is spent
    limit       attempt, reason (time | money | deadline | notice), stops_at: the supervisor asks the trainer to stop
    link        from, to, bytes_per_second, skew_seconds: a way between two nodes, as it was measured before the start
    settled     state (waiting | verified | last_minute | stopping | stayed | again), reason,
                copy (store | pulled | nothing | nowhere), verb (stop | release): by `stoker settle`
    error       program, error (StokerError.to_json)
    end         status (done | stopped), step
After a resume, steps since the checkpoint are written again: the last line of a step counts.
"""

import contextlib
import datetime
import json
import os
import threading
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from stoker.errors import StokerError
from stoker.rundir import files, in_place

_STEP = b'"event": "step"'
_FIGURE = (int, float)
_LOSS = (int, float, str, type(None))
"""Also what is no number, as it was written, and nothing where a step was passed over."""
_LARGEST = 1 << 62
_LONGEST_BYTES = 1 << 22
"""No event of ours is a longer line."""
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "attempt": {"tier": str, "resumed_step": int, "total_steps": int},
    "step": {"step": int, "loss": _LOSS, **dict.fromkeys(("epoch", "tokens", "seconds", "wait_seconds"), _FIGURE)},
    "eval": {"step": int, "eval_loss": _LOSS},
    "sources": {"changed": list},
    "checkpoint": {"step": int, "bytes": int},
    "passed_over": {"step": int},
    "error": {"program": str, "error": dict},
    "end": {"status": str},
}
"""What readers count on."""
AT_WORK = {"attempt", "rehearsal", "step", "eval", "checkpoint", "save_failed"}
"""Kinds a trainer writes once it has its model; before that it may still be downloading one."""
_PENDING_BYTES = 1 << 26
"""Lines that wait for a full disk to have room again; more than a day of steps."""


class EventLog:
    """Appends events; each line reaches the operating system before `write` returns.

    On a full or failing disk lines wait in memory for the next one: training does not end for its diary.
    """

    def __init__(self, path: Path | None) -> None:
        """Open a log; None for one that nobody reads, of a rank that is not the first."""
        is_cut = path is not None and path.exists() and path.stat().st_size and not _ends_whole(path)
        self._lock = threading.Lock()
        self._pending = bytearray(b"\n" if is_cut else b"")  # a kill cut the last line; it is kept apart from ours
        self._file = Path(os.devnull).open("ab", 0) if path is None else in_place.appending(path)  # noqa: SIM115

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "event": kind, **fields}, ensure_ascii=False)
        with self._lock:
            self._pending += line.encode() + b"\n"
            self._append()

    @property
    def offset(self) -> int:
        """Where the next event will stand."""
        return self._file.tell() + len(self._pending)

    def _append(self) -> None:
        try:
            while self._pending:
                del self._pending[: self._file.write(self._pending)]
        except OSError as error:
            if error.errno not in files.DISK_ERRORS or len(self._pending) > _PENDING_BYTES:
                raise

    def error(self, error: StokerError, program: str) -> None:
        """Append an error, for the light world to show in the user's language."""
        self.write("error", program=program, error=error.to_json())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def append(path: Path, kind: str, **fields: Any) -> None:
    """One event from a process that does not keep the log open; a line cut short by a kill is kept apart from it."""
    with contextlib.closing(EventLog(path)) as log:
        log.write(kind, **fields)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All events; a line that is cut short or not JSON is passed over."""
    return (event for event, _ in follow(path, 0))


def is_whole(event: dict[str, Any]) -> bool:
    """Whether an event has what readers of its kind count on: a run directory may be a stranger's."""
    wanted = {"at": str, **_FIELDS.get(event["event"], {})}
    return all(_is(event.get(name), kind) for name, kind in wanted.items()) and _is_time(event["at"])


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether it is of a kind; a number must be one that can be counted with, but for a loss of NaN."""
    if isinstance(value, int | float) and not (isinstance(value, float) and kind == _LOSS):
        return not isinstance(value, bool) and isinstance(value, kind) and 0 <= value < _LARGEST
    return isinstance(value, kind)


def _is_time(text: str) -> bool:
    try:
        return datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def steps(path: Path) -> dict[int, dict[str, Any]]:
    """The last event of each step, by step number."""
    return {event["step"]: event for event in read(path) if event["event"] == "step"}


def has_steps(path: Path) -> bool:
    """Whether any step was ever done here."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(_STEP in raw for raw in _lines(file))


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def follow(path: Path, start_byte: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Whole events from a byte offset on, each with the offset behind it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start_byte)
        for raw in _lines(file):
            if not raw.endswith(b"\n") and len(raw) < _LONGEST_BYTES:
                return
            event = _parse(raw)
            if event is not None:
                yield event, file.tell()


def _lines(file: BufferedReader) -> Iterator[bytes]:
    """Lines with their ends; one that is too long for an event comes in parts, none of which is one."""
    return iter(lambda: file.readline(_LONGEST_BYTES), b"")


def skim(path: Path) -> Iterator[dict[str, Any]]:
    """All events in order, but of steps that follow each other only the last: the others are not even parsed."""
    if not path.exists():
        return
    step = b""
    with path.open("rb") as file:
        for raw in _lines(file):
            if _STEP in raw and raw.endswith(b"\n"):
                step = raw
                continue
            yield from filter(None, (_parse(step), _parse(raw)))
            step = b""
    yield from filter(None, [_parse(step)])


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
