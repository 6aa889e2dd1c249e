"""The preparing program: `python -m stoker.engine.prepare RUN_DIR`. Reads like a pass: open, read, finish.

Rows become documents, documents tokens, tokens packed shards; memory stays bounded whatever the corpus' size. This
process reads and writes, in order; others tokenise (`tokenise.py`). Started again after a kill it keeps the shards that
were finished; with everything prepared it returns at once.
"""

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker import messages
from stoker.config import mixing, objectives
from stoker.config.run import Run
from stoker.engine import (
    _compat,
    pass_state,
    pipelined,
    program,
    sampling,
    shards,
    sources,
    splits,
    surveyed,
    tokenise,
    tokenizer,
)
from stoker.engine.bad_rows import BadRows
from stoker.engine.pass_state import PassState
from stoker.engine.shards import ShardWriter
from stoker.engine.sources import Batch, Input
from stoker.engine.surveyed import PassSurvey
from stoker.engine.tokenise import Rows, Tokenised, Tokeniser, Unit
from stoker.engine.tokenizer import Tokenizer
from stoker.errors import EXIT_DONE, EXIT_STOPPED, StokerError
from stoker.facts import machine, setup_times
from stoker.rows import formats, row_files
from stoker.rows.formats import Layout
from stoker.rows.row_files import File
from stoker.rows.row_values import BadRow
from stoker.rundir import files, inputs, lock, prepared, set_list
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.survey import survey_page

SHARD_TOKENS = 1 << 26
"""A shard is closed at this many tokens: bounds memory, and the work a kill can lose."""

_TOKENIZER_CHARACTERS = 1 << 30
"""Largest text a tokenizer is trained on; a larger corpus is sampled evenly with a seed."""

_REPORT_EVERY_SECONDS = 0.5
_WEIGHT, _TEXT = 2, 3
"""Seeds of the random draws."""
_LOCK_TRIES = 25
"""Five seconds: a process whose command was killed ends soon."""
_LOOK_SECONDS = 0.5


@dataclass
class PreparePass:
    """One pass over all sources."""

    run: Run
    data: Path
    state: PassState
    inputs: list[Input]
    tokenizer: Tokenizer
    tokeniser: Tokeniser
    workers: int
    """Processes that tokenise; of their number the set does not depend."""
    writers: dict[str, ShardWriter]
    bad: BadRows
    survey: PassSurvey
    progress: "PassProgress"

    def commit(self) -> None:
        """Write the collected segments and the position of the pass."""
        for writer in self.writers.values():
            writer.flush()
        self.state.bad_bytes = self.bad.sync()
        self.survey.commit()
        self.state.last_count = self.survey.last
        files.write_json(pass_state.state_file(self.data), self.state.model_dump())


def main(path: Path) -> int:
    """Prepare the run's data, unless already prepared."""
    run_dir = RunDir(path)
    with lock.held(path / "prepare.lock", _LOCK_TRIES) as is_alone:
        if not is_alone:
            raise StokerError("STK367", name=run_dir.name)
        return _prepare(run_dir)


def _end_with(command: int) -> None:
    """End with the command that waits for this program, however that one ends; nobody sees what it says then."""
    parent = os.getppid()  # the same, unless what is called Python starts another one
    with suppress(ProcessLookupError):
        while os.getppid() == parent:
            os.kill(command, 0)
            time.sleep(_LOOK_SECONDS)
    os._exit(EXIT_STOPPED)


def _prepare(run_dir: RunDir) -> int:
    run, folder = run_dir.run(), run_dir.folder()
    if run.data.set is not None:
        tokenizer.require_same(run, folder, run_dir.data / "tokenizer", mixing.set_address(run.data))
        listed = set_list.read(run_dir.data)
        assert listed is not None
        files.write_json(set_list.list_file(run_dir.data), listed.model_copy(update={"checked": True}).model_dump())
        return EXIT_DONE
    if prepared.current_report(run_dir, run, folder):
        return EXIT_DONE
    read = inputs.facts(run, folder)
    begun = PassState(key=prepared.key_of(run, read), sources=read, others=_others(run_dir, run))
    state = pass_state.resume(run_dir.data, begun)
    with closing(EventLog(run_dir.events_file)) as events:
        job = _open(run_dir, run, state, events)
        _read_all(job)
        if not state.forced and (missing := splits.num_missing(run, *_rows(job))):
            forced = [draw[1:] for draw in state.least[:missing]]
            state = pass_state.restart(run_dir.data, begun.model_copy(update={"forced": forced}))
            job = _open(run_dir, run, state, events)
            _read_all(job)
    _finish(job)
    return EXIT_DONE


def _others(run_dir: RunDir, run: Run) -> list[str]:
    """Fingerprints of what is read and is no file of the sources: a pipeline's output, what is on a hub."""
    made, own = pipelined.digests(run_dir) if run.data.pipeline else [], inputs.eval_source(run)
    read = [*([] if run.data.pipeline else inputs.train_sources(run)), *([own] if own else [])]
    remote = [sources.hub_fingerprint(one) for one in read if inputs.is_remote(one.path)]
    opened = tokenizer.hub_fingerprint(run, run_dir.folder())
    return [*made, *remote, *([opened] if opened else [])]


# ---- open


def _open(run_dir: RunDir, run: Run, state: PassState, events: EventLog) -> PreparePass:
    data, folder, facts = run_dir.data, run_dir.folder(), objectives.facts(run.train.objective)
    inputs_ = _inputs(run_dir, run, folder)
    if not run.data.pipeline:
        sources.require_all(run, folder, inputs_, {one[0] for one in state.sources})
    sources.check(run, inputs_)
    made = tokenizer.for_run(run, folder, data / "tokenizer", lambda: _training_texts(run, inputs_))
    writers = {
        split: ShardWriter(data, split, run.data.length, done, pack=run.data.pack, together=facts.segments)
        for split, done in (("train", state.train), ("eval", state.eval))
    }
    size_bytes = sum(file.size_bytes for one in inputs_ for file in one.files)
    remote = any(file.path is None for one in inputs_ for file in one.files)
    workers = machine.cpu_count() if remote or size_bytes >= setup_times.SEVERAL_BYTES else 1
    has_template = made.template is not None
    done = (state.rows_read, state.last_count)
    progress = PassProgress(events, size_bytes)
    told = progress.compared
    survey = surveyed.of_pass(run, data, inputs_, done, has_template=has_template, workers=workers, on_rows=told)
    survey.leave_out(inputs_, functools.partial(splits.is_held, run, state.forced))
    return PreparePass(
        run=run,
        data=data,
        state=state,
        inputs=inputs_,
        tokenizer=made,
        tokeniser=Tokeniser(made, facts, run.data.length - (run.train.answers.max_new_tokens if facts.prompts else 0)),
        workers=workers,
        writers=writers,
        bad=BadRows(pass_state.bad_rows_file(data), state.bad_bytes, stop=run.data.on_bad_row == "stop"),
        survey=survey,
        progress=progress,
    )


def _inputs(run_dir: RunDir, run: Run, folder: Path) -> list[Input]:
    read = pipelined.train_files(run_dir) if run.data.pipeline else (lambda _, s: row_files.files(s, folder))
    train = [Input(s.path, s.weight, "train", read(n, s)) for n, s in enumerate(inputs.train_sources(run))]
    own = inputs.eval_source(run)
    return [*train, Input(own.path, 1.0, "eval", row_files.files(own, folder))] if own else train


def _training_texts(run: Run, inputs_: list[Input]) -> Iterator[list[str]]:
    """The text of all training rows, for the tokenizer. Bad rows are skipped here and reported by the pass itself."""
    read = [one for one in inputs_ if one.split == "train"]
    train = [file for one in read for file in one.files]
    share = _TOKENIZER_CHARACTERS / max(1, sum(file.size_bytes for file in train))
    number, is_text, bad = 0, False, None
    for file in train:
        layout: Layout | None = None
        for batch in sources.batches(file, run.data.length):
            layout = layout or row_files.layout(run, file, row_files.values(batch.rows))
            if sampling.taken(number, share, run.train.seed, _TEXT):
                made = [
                    (n, formats.document(one, layout, has_template=True)) for n, one in row_files.values(batch.rows)
                ]
                bad = bad or next(((file.label, n, one) for n, one in made if isinstance(one, BadRow)), None)
                found = [text for _, one in made for text in formats.words(one)]
                is_text = is_text or bool(found)
                yield found
            number += 1
    if is_text:
        return
    if bad is None:
        raise sources.empty(read)
    label, place, why = bad  # not the vocabulary, which no text could fill
    raise row_files.unusable(row_files.place(label, place), why.reason, why.text)


# ---- read


@dataclass(frozen=True)
class Read:
    """A batch and its place in the pass, or why its file cannot be read on."""

    source: int
    file: int
    batch: Batch
    rows: Rows
    problem: StokerError | None = None


def _read_all(job: PreparePass) -> None:
    ahead = deque[Read]()
    with closing(tokenise.in_order(job.tokeniser, _remembered(_batches(job), ahead), job.workers)) as made:
        for tokenised in made:
            _take(job, ahead.popleft(), tokenised)
    for one in ahead:
        assert one.problem, "tokenised, and not taken"
        raise one.problem


def _remembered(batches: Iterator[Read], ahead: deque[Read]) -> Iterator[Rows]:
    """What is to be tokenised; `ahead` has what was read of it. A problem waits until all before it is taken."""
    for one in batches:
        ahead.append(one)
        if not one.problem:
            yield one.rows


def _batches(job: PreparePass) -> Iterator[Read]:
    """All batches from the position of the pass on; ends with the first problem."""
    state = job.state
    begin, skip, layout = (state.source, state.file), state.rows, formats.stored(state.layout) if state.layout else None
    places = [(number, at, file) for number, one in enumerate(job.inputs) for at, file in enumerate(one.files)]
    for number, at, file in places:
        if (number, at) < begin:
            continue
        try:
            for batch in sources.batches(file, job.run.data.length, skip):
                layout = layout or row_files.layout(job.run, file, row_files.values(batch.rows))
                if layout and layout.needs_template and not job.tokenizer.template:
                    raise StokerError("STK306", file.label)
                yield Read(number, at, batch, Rows(batch.rows, layout, file.is_text))
        except StokerError as problem:
            yield Read(number, at, Batch([], 1.0, last=True), Rows([], None, file.is_text), problem)
            return
        skip, layout = 0, None


def _take(job: PreparePass, read: Read, made: Tokenised) -> None:
    """Count what was made of a batch, give it to its split, and move the position of the pass."""
    state, one, layout = job.state, job.inputs[read.source], read.rows.layout
    state.source = read.source  # of those before it, the last ones may have no file
    file = one.files[read.file]
    job.bad.open_file(file.label)
    detected = _detected(state, one.path, layout, has_template=job.tokenizer.template is not None)
    detected["files"] += state.rows == 0
    detected.pop("file", None)
    if detected["files"] == 1 and file.label != one.path:  # of a folder: which one it is
        detected["file"] = file.label
    state.context_answers += made.context_answers
    for unit in made.units:
        _take_unit(job, one, file, unit, detected)
    state.rows += len(read.batch.rows)
    state.layout = asdict(layout) if layout else None
    job.bad.stop_if_due(last=read.batch.last)
    job.progress.show(job, file, read.batch)
    if read.batch.last:
        state.file, state.rows, state.layout = read.file + 1, 0, None
    if state.file == len(one.files):
        state.source, state.file, state.unit = read.source + 1, 0, 0
        if one.split == "train" and mixing.is_mixed(job.run.data):
            job.writers["train"].flush()  # a source of a mixture has shards of its own
            state.ends = [*_ends(state, read.source), len(state.train)]
            job.commit()
    if max(writer.pending_tokens for writer in job.writers.values()) >= SHARD_TOKENS:
        job.commit()


def _take_unit(job: PreparePass, one: Input, file: File, unit: Unit, detected: dict[str, Any]) -> None:
    state, segments = job.state, unit.segments
    state.rows_read += unit.is_row
    detected["rows"] += unit.is_row
    state.truncated_rows += unit.truncated
    if isinstance(segments, BadRow):
        job.survey.count(0, held=False, is_row=unit.is_row)
        state.bad_rows += 1
        state.bad_reasons[segments.reason] = state.bad_reasons.get(segments.reason, 0) + 1
        state.unit += not file.is_text
        detected["bad_rows"] += 1
        job.bad.add(unit.number, segments, unit.tokens)
    elif job.survey.leaves_out(state.rows_read - 1):
        job.survey.count(unit.tokens, held=False, is_row=unit.is_row)
        state.unit += len(segments) if file.is_text else 1
    elif file.is_text:
        for segment in segments:
            _route(job, one, [segment])
        job.survey.count(unit.tokens, held=one.split == "eval", is_row=unit.is_row)
    else:
        held = _route(job, one, segments, unit.columns, undesired=unit.undesired)
        job.survey.count(unit.tokens, held=held, is_row=unit.is_row)


def _route(
    job: PreparePass, one: Input, segments: list[np.ndarray], columns: str = "", *, undesired: bool = False
) -> bool:
    """Assign a unit to its split: eval rows are drawn before weights, so no copy of one is trained. True for eval."""
    state, seed = job.state, (job.run.train.seed, job.state.source)
    place, state.unit = (state.source, state.unit), state.unit + 1
    number = place[1]
    held = one.split == "eval" or splits.is_held(job.run, state.forced, *place)
    if not held:
        state.least = splits.next_draws(job.run, state.least, *place)
    count = 1 if held else sampling.copies(number, one.weight, *seed, _WEIGHT)
    for _ in range(count):
        for segment in segments:
            job.writers["eval" if held else "train"].add(segment, columns, undesired=undesired)
    return held


def _detected(state: PassState, path: str, layout: Layout | None, *, has_template: bool) -> dict[str, Any]:
    """The report's entry for a source and a layout."""
    known = asdict(layout or Layout("", "detect.none"))
    del known["columns"]
    if known["package"] is None:
        del known["package"]
    if not has_template and known["format"] in formats.PLAIN_WITHOUT_TEMPLATE:
        known["plain"] = True
    for entry in state.detected:
        if entry["path"] == path and all(entry.get(key) == value for key, value in known.items()):
            return entry
    state.detected.append({"path": path, **known, "files": 0, "rows": 0, "bad_rows": 0})
    return state.detected[-1]


class PassProgress:
    """Writes progress events at intervals."""

    def __init__(self, events: EventLog, total_bytes: int) -> None:
        self._events = events
        self._total_bytes = total_bytes
        self._shown_at: dict[str, float] = {}

    def show(self, job: PreparePass, file: File, batch: Batch) -> None:
        """Write an event, unless the last one is recent."""
        if not self._is_due("prepare"):
            return
        done = sum(f.size_bytes for i in job.inputs[: job.state.source] for f in i.files)
        done += sum(f.size_bytes for f in job.inputs[job.state.source].files[: job.state.file])
        share = (done + batch.read_share * file.size_bytes) / self._total_bytes if self._total_bytes else 0.0
        every = [f for i in job.inputs for f in i.files]
        rows = len(every) if all(f.is_text for f in every) else round(job.state.rows_read / share) if share else 0
        tokens = sum(writer.num_tokens for writer in job.writers.values())
        self._events.write("prepare", done_rows=job.state.rows_read, rows=rows, tokens=tokens)

    def compared(self, rows: int) -> None:
        """The same, of the survey before the pass."""
        if self._is_due("surveying"):
            self._events.write("surveying", done_rows=rows)

    def _is_due(self, kind: str) -> bool:
        now = time.monotonic()
        if now - self._shown_at.get(kind, 0.0) < _REPORT_EVERY_SECONDS:
            return False
        self._shown_at[kind] = now
        return True


# ---- finish


def _rows(job: PreparePass) -> tuple[int, int]:
    """What train and eval have so far."""
    return job.writers["train"].num_segments, job.writers["eval"].num_segments


def _require_same_sources(job: PreparePass) -> None:
    """What was read is what the report will name: the files that were there when the pass began, as they were then."""
    before = job.state.sources
    now = inputs.as_now(before, RunDir(job.data.parent).folder())
    changed = [one[0] for one, other in zip(before, now, strict=True) if one != other]
    if not job.run.data.pipeline:
        changed += sorted(sources.labels(job.inputs) - {one[0] for one in before})
    if changed:
        pass_state.discard(job.data)
        raise StokerError("STK366", changed[0], changed=messages.shortened(changed))


def _finish(job: PreparePass) -> None:
    _require_same_sources(job)
    _check_splits(job)
    for writer in job.writers.values():
        writer.flush()
    job.bad.sync()
    run, state = job.run, job.state
    names = mixing.names(run.data) if mixing.is_mixed(run.data) else []
    train = shards.as_split("train", state.train, dict(zip(names, _ends(state, len(names)), strict=True)))
    held = shards.as_split("eval", state.eval) if state.eval else None
    counted = shards.statistics(job.data, train, job.tokenizer.vocab)
    report = Report(
        digest=prepared.digest(train, held, files.sha256(job.data / "tokenizer" / prepared.TOKENIZER_FILE)),
        key=state.key,
        words=prepared.words(run),
        sources=state.sources,
        length=run.data.length,
        packed=run.data.pack,
        vocab=job.tokenizer.vocab,
        highest_token=max(counted.highest_token, shards.highest_token(job.data / "eval", held) if held else 0),
        objective=run.train.objective,
        detected=state.detected,
        rows_read=state.rows_read,
        bad_rows=state.bad_rows,
        truncated_rows=state.truncated_rows,
        context_answers=state.context_answers,
        length_histogram=counted.length_histogram,
        pack_efficiency=train.tokens / ((train.sequences if run.data.pack else train.segments) * run.data.length),
        unigram_entropy=counted.unigram_entropy,
        pipeline=pipelined.statistics(RunDir(job.data.parent)) if run.data.pipeline else None,
        survey=job.survey.finish({"train": train.segments, "eval": held.segments if held else 0}, job.bad),
        train=train,
        eval=held,
    )
    prepared.write_report(job.data, report)
    files.write_text(
        job.data / survey_page.PAGE_NAME, survey_page.page(report.model_dump(), RunDir(job.data.parent).name)
    )
    pass_state.state_file(job.data).unlink()
    job.survey.remove()


def _ends(state: PassState, count: int) -> list[int]:
    """Training shards at the end of each of the first sources of a mixture; one without files has none of its own."""
    return state.ends + [(state.ends or [0])[-1]] * (count - len(state.ends))


def _check_splits(job: PreparePass) -> None:
    (train, held), fewest = _rows(job), splits.fewest(job.run)
    share = inputs.eval_share(job.run)
    if train + held == 0 and job.state.bad_reasons.keys() == {"row.no_trained"}:
        raise StokerError("STK305", reason=messages.text("row.no_trained", length=job.run.data.length))
    if train + held == 0:
        raise _no_rows(job)
    if share and min(train, held) < fewest:
        one = StokerError("STK307", share=share, eval_rows=held, train_rows=train)
        raise one if fewest == 1 else _too_few(job)
    if job.run.data.eval and held == 0:
        raise _no_rows(job, job.run.data.eval)
    if train == 0:
        raise _no_rows(job, ", ".join(one.path for one in job.inputs if one.split == "train"))
    if train < fewest or (job.run.data.eval and held < fewest):
        raise _too_few(job)


def _too_few(job: PreparePass) -> StokerError:
    train, held = _rows(job)
    return StokerError("STK378", objective=job.run.train.objective, eval_rows=held, train_rows=train)


def _no_rows(job: PreparePass, where: str = "") -> StokerError:
    if not job.state.bad_rows:
        split = "eval" if where and where == job.run.data.eval else "train"
        return sources.empty([one for one in job.inputs if one.split == split])
    return StokerError(
        "STK304", where, advice=messages.text("advice.bad_rows", path=pass_state.bad_rows_file(job.data))
    )


if __name__ == "__main__":
    if len(sys.argv) > 2 and os.name == "posix":  # a second word: the command; elsewhere signal 0 is not harmless
        threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    _compat.hide_torch()
    sys.exit(program.run(main))
