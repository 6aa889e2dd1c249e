"""`events.jsonl`: append-only, one JSON object a line. The engine writes; watch, runs and report read.

Older events are in segments of their own (`rundir/segments.py`); offsets count the bytes of all of them.

Kinds and their fields (a reader ignores what it does not know):
    prepare     done_rows, rows, tokens
    sources     changed: files that differ from the prepared data that a start goes on with
    attempt     pid, world, tier, changed, resumed_step, total_steps, steps_per_epoch, batch, base (commit or digest),
                trainable_parameters
    rejected    path, reason: a checkpoint that did not verify, or another node's newer one (`node:step-...`)
    not_best    best, step, reason: the finished model is of this step, as the best checkpoint cannot be used
    rehearsal   part, seconds
    reference   split, done, of: rows of which the log-probabilities before training are known, for some objectives
    rollout     step, file, digest, answers, tokens, seconds: committed answers; refused: step, file that was changed
    step        step, epoch, loss, grad_norm, learning_rate, sequences, order, micro_batches, tokens, trained_tokens,
                padded_tokens, seconds, wait_seconds, memory_bytes; `sequences` is their number, `order` the CRC-32 of
                their ids, which the data's digest, the seed and the step determine (rows/order.py); of a mixture also
                sources: sequences and tokens seen of each since the first step, by name
    stalled     rank, step, seconds, reason: a step waits for rows of a streamed set; the store's fault, or none: slow
    damaged     rank, file, begin: a row of a streamed set came with another digest, and is fetched again
    eval        step, eval_loss, perplexity, seconds; some objectives: figures, by name, as of a step
    filesystem  type, renames, reason: the disk under the checkpoints
    interval    seconds, cost_seconds, between_failures_seconds: of `save.every: auto`, where it was measured anew
    checkpoint  step, seconds, stall_seconds, bytes, best, digest, writers: processes that wrote it
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
    published   to, what, private, bytes: by `stoker publish`
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
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stoker.errors import StokerError
from stoker.rundir import files, in_place, segments

Event = dict[str, Any]
"""One line of the log."""
EventCallback = Callable[[Event], None]
"""Called with every event as it comes."""
_FIGURE = (int, float)
_LOSS = (int, float, str, type(None))
"""Also what is no number, as it was written, and nothing where a step was passed over."""
_LARGEST = 1 << 62
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "attempt": {"tier": str, "resumed_step": int, "total_steps": int},
    "step": {"step": int, "loss": _LOSS, **dict.fromkeys(("epoch", "tokens", "seconds", "wait_seconds"), _FIGURE)},
    "eval": {"step": int, "eval_loss": _LOSS},
    "sources": {"changed": list},
    "checkpoint": {"step": int, "bytes": int},
    "not_best": {"best": int, "step": int, "reason": str},
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
        self._lock = threading.Lock()
        # A kill cut the last line; it is kept apart from ours.
        self._pending = bytearray(b"\n" if path is not None and is_cut_short(path) else b"")
        self._path = path
        self._open()

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "event": kind, **fields}, ensure_ascii=False)
        with self._lock:
            self._pending += line.encode() + b"\n"
            self._follow_cut()
            self._append()

    def cut(self) -> None:
        """Begin a new segment where this one is long enough; for the trainer alone."""
        with self._lock, contextlib.suppress(OSError):  # a disk that is full or busy: at the next call
            if self._path is not None and self._file.tell() >= segments.SEGMENT_BYTES:
                segments.cut(self._path)
                self._follow_cut()

    @property
    def offset(self) -> int:
        """Where the next event will stand."""
        return self._first + self._file.tell() + len(self._pending)

    def _follow_cut(self) -> None:
        """Write on in the newest segment, where another process has begun one."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):  # the run directory may be gone: the open file is not
            if self._path.parent.exists() and not _is_same(self._path, self._stat):
                old = self._file
                self._open()
                old.close()

    def _open(self) -> None:
        nowhere = Path(os.devnull)
        file = nowhere.open("ab", 0) if self._path is None else in_place.appending(self._path)
        self._first = segments.start(self._path) if self._path is not None else 0
        self._file, self._stat = file, os.fstat(file.fileno())

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


def _is_same(path: Path, opened: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), opened)
    except FileNotFoundError:
        return False


def append(path: Path, kind: str, **fields: Any) -> None:
    """One event from a process that does not keep the log open; a line cut short by a kill is kept apart from it."""
    with contextlib.closing(EventLog(path)) as log:
        log.write(kind, **fields)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All events; a line that is cut short or not JSON is passed over."""
    return (event for event, _ in follow(path, 0))


def recent(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every event but older steps, of which some are left out, each with the offset behind it: to begin with."""
    for raw, offset in _recent(path):
        event = _parse(raw)
        if event is not None:
            yield event, offset


def _recent(path: Path) -> Iterator[tuple[bytes, int]]:
    with segments.view(path) as (older, newest, first):
        for one in older:
            yield from ((raw, one.next) for raw in segments.summary(one))
        tail = max(0, newest.seek(0, 2) - segments.SEGMENT_BYTES)  # a Stoker that did not cut left long files
        for part in (segments.thinned(newest, 0, tail), segments.lines(newest, tail, None)):
            yield from ((raw, first + behind) for raw, behind in part)


def is_whole(event: dict[str, Any]) -> bool:
    """Whether an event has what readers of its kind count on: a run directory may be a stranger's."""
    wanted = {"at": str, **_FIELDS.get(event["event"], {})}
    whole = all(_is(event.get(name), kind) for name, kind in wanted.items()) and _is_time(event["at"])
    return whole and (event["event"] != "step" or _is_counts(event.get("sources", {})))


def _is_counts(value: Any) -> bool:
    """Whether it is two counts by name."""
    lists = list(value.values()) if isinstance(value, dict) else [None]
    return all(isinstance(one, list) and len(one) == 2 and all(_is(count, int) for count in one) for one in lists)


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
    return {event["step"]: event for event in read(path) if event["event"] == "step" and _is(event.get("step"), int)}


def loss(event: dict[str, Any]) -> float | None:
    """The training loss of a step: one that was passed over has none, a stranger's may be no number."""
    try:
        return float(event["loss"])
    except files.FOREIGN:
        return None


def newest_steps(path: Path, count: int, up_to: float = float("inf")) -> dict[int, dict[str, Any]]:
    """The last event of each of the newest steps, by step number: at least `count` of them, as far as there are any."""
    found: dict[int, dict[str, Any]] = {}
    with segments.view(path) as (older, newest, _), contextlib.ExitStack() as stack:
        for file in (newest, *(stack.enter_context(one.path.open("rb")) for one in reversed(older))):
            for begin in reversed(range(0, file.seek(0, 2), segments.SEGMENT_BYTES)):
                part = segments.lines(file, begin, begin + segments.SEGMENT_BYTES)
                lines = (_parse(raw) for raw, _ in part if segments.STEP in raw)
                own = {event["step"]: event for event in lines if event and _is(event.get("step"), int)}
                found = {**own, **found}
                if sum(step <= up_to for step in found) >= count:
                    return found
    return found


def has_steps(path: Path) -> bool:
    """Whether any step was ever done here."""
    with segments.view(path) as (older, newest, _):
        summaries = (raw for one in older for raw in segments.summary(one))
        lines = (raw for raw, _ in segments.lines(newest, 0, None))
        return any(segments.STEP in raw for raw in itertools.chain(summaries, lines))


def end(path: Path) -> int:
    """The offset at which the next event will stand."""
    with segments.view(path) as (_, newest, first):
        return first + newest.seek(0, 2)


def copy_recent(path: Path, target: Path) -> None:
    """Write what `recent` has into one file: for a copy elsewhere, which needs no old step."""
    files.write_text(target, b"".join(raw for raw, _ in _recent(path)).decode("utf-8", "replace"))


def is_cut_short(path: Path) -> bool:
    """Whether a kill cut the last line."""
    with segments.view(path) as (_, newest, _):
        if not newest.seek(0, 2):
            return False
        newest.seek(-1, 2)
        return newest.read(1) != b"\n"


def follow(path: Path, start_byte: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Whole events from an offset on, each with the offset behind it."""
    with segments.view(path) as (older, newest, first):
        for one in older:
            if start_byte < one.next:
                with contextlib.suppress(FileNotFoundError), one.path.open("rb") as file:
                    yield from _events(file, one.first, start_byte)
        yield from _events(newest, first, start_byte)


def _events(file: BinaryIO, first: int, start_byte: int) -> Iterator[tuple[dict[str, Any], int]]:
    for raw, behind in segments.lines(file, max(0, start_byte - first), None):
        event = _parse(raw)
        if event is not None:
            yield event, first + behind


def skim(path: Path) -> Iterator[dict[str, Any]]:
    """All events in order, but few steps: the last before another event, and one in a while; others are not parsed."""
    with segments.view(path) as (older, newest, _):
        for one in older:
            yield from filter(None, map(_parse, segments.summary(one)))
        yield from filter(None, (_parse(raw) for raw, _ in segments.thinned(newest, 0, None)))


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
