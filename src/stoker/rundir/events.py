"""`events.jsonl`: append-only, one JSON object a line. The engine writes; watch, runs and report read.

Kinds and their fields (a reader ignores what it does not know):
    prepare     done_rows, rows, tokens
    attempt     pid, world, tier, changed, resumed_step, total_steps, steps_per_epoch, batch, trainable_parameters
    rejected    path, reason: a checkpoint that did not verify
    rehearsal   part, seconds
    step        step, epoch, loss, grad_norm, learning_rate, sequences, micro_batches, tokens, trained_tokens,
                padded_tokens, seconds, wait_seconds, memory_bytes
    eval        step, eval_loss, perplexity, seconds
    checkpoint  step, seconds, bytes, best
    evaluated   artifact, eval_loss, perplexity, trained_tokens, sequences, seconds: by `stoker eval`
    evaluating  task, done, of
    task        artifact, task, measure, rows, right, answers, seconds: by `stoker eval --task`
    sample      prompt, wanted, before, after: by `stoker eval --samples`
    merging     done_bytes, total_bytes
    merged      adapter, tensors, adapted, bytes, dtype, untied, base_verified, seconds: by `stoker merge`
    exported    source, dtype, bytes, licence: by `stoker export`
    parity      part, done, of: prompts compared so far
    quantized   name, path, bytes, source_bytes, agreement, perplexity_change: by `stoker quantize`
    error       program, error (StokerError.to_json)
    end         status (done | stopped), step
After a resume, steps since the checkpoint are written again: the last line of a step counts.
"""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from stoker.errors import StokerError

_STEP = b'"event": "step"'


class EventLog:
    """Appends events; each line reaches the operating system before `write` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8", newline="\n")
        if path.stat().st_size and not _ends_whole(path):
            self._file.write("\n")  # a kill cut the last line; keep it apart from ours

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "event": kind, **fields}, ensure_ascii=False)
        self._file.write(line + "\n")
        self._file.flush()

    def error(self, error: StokerError, program: str) -> None:
        """Append an error, for the light world to show in the user's language."""
        self.write("error", program=program, error=error.to_json())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All events; a line that is cut short or not JSON is passed over."""
    return (event for event, _ in follow(path, 0))


def steps(path: Path) -> dict[int, dict[str, Any]]:
    """The last event of each step, by step number."""
    return {event["step"]: event for event in read(path) if event["event"] == "step"}


def has_steps(path: Path) -> bool:
    """Whether any step was ever done here."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(_STEP in raw for raw in file)


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
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            start_byte += len(raw)
            event = _parse(raw)
            if event is not None:
                yield event, start_byte


def skim(path: Path) -> Iterator[dict[str, Any]]:
    """All events in order, but of steps that follow each other only the last: the others are not even parsed."""
    if not path.exists():
        return
    step = b""
    with path.open("rb") as file:
        for raw in file:
            if _STEP in raw and raw.endswith(b"\n"):
                step = raw
                continue
            yield from filter(None, (_parse(step), _parse(raw)))
            step = b""
    yield from filter(None, [_parse(step)])


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(raw)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
