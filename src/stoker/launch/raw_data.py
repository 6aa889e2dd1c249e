"""Size of data that is not prepared: rows are read as `prepare` reads them, their tokens estimated by script.

Large files are sampled, evenly over the whole file. `rows/token_rates.py` says how many tokens a text becomes, and how
far that may be from the truth; a model's own tokenizer is asked only by `look`, for who writes a run file.
"""

import dataclasses
import io
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stoker import messages
from stoker.config import objectives, values
from stoker.config.objectives import ObjectiveFacts
from stoker.config.run import Run, TrainTokenizer
from stoker.errors import StokerError
from stoker.facts import intervals
from stoker.facts.shapes import ModelShape
from stoker.launch import own_tokenizer, parquet_sample
from stoker.plan.data import DataFacts
from stoker.plan.plan import Reason
from stoker.rows import formats, packing, row_files, row_values, token_rates
from stoker.rows.formats import Document, Judged, Layout, Preference, Text
from stoker.rows.prompt_rows import PromptRow
from stoker.rows.row_files import File, Numbered
from stoker.rows.row_values import BadRow
from stoker.rows.token_rates import Counts, TokenRates
from stoker.rows.turns import Conversation
from stoker.rundir import inputs

_READ_BYTES = 2 << 20
"""Of all files together; larger ones are sampled."""
_MOST_FILES = 256
_WINDOWS = 32
_GZIP_RATIO = 4
_PACKED_PIECES = 20_000
_TOKENIZER_BYTES = 75
"""Of a saved tokenizer, for each word: 11.4 MB of Qwen2.5's 151,936. `prepare` keeps a copy."""
_NEAR = 0.1
"""Share of the rows within which a sample's count of them contradicts none that is stated."""
_NINE_IN_TEN = 1.645
"""Standard errors to either side that hold nine in ten draws."""


@dataclass
class _Sample:
    """What was read of one file, and how much of it there is for each row that was read."""

    file: File
    layout: Layout | None = None
    scale: float = 1.0
    weight: float = 1.0
    documents: list[tuple[Document, Counts, int]] = field(default_factory=list)
    """Each with what its text holds, and the part of the file it is from."""
    counted: Counts = field(default_factory=Counter)
    rows: int = 0
    bad: list[tuple[str, BadRow]] = field(default_factory=list)
    """Where, and why."""
    whole: bool = True
    lengths: list[float] = field(default_factory=list)
    error: float = 0.0
    """Relative standard error of its tokens, from what was not read."""

    @property
    def tokens(self) -> float:
        return self.scale * self.weight * math.fsum(self.lengths)


def size(run: Run, folder: Path, shape: ModelShape) -> DataFacts:
    """Facts of the training files as they are on this machine, estimated."""
    if isinstance(run.tokenizer, TrainTokenizer) or run.data.pipeline:
        for path, kinds in inputs.named(run):
            if not inputs.is_remote(path):
                inputs.expand(path, folder, kinds)  # refuses what is not here
        raise StokerError("STK206")
    rates = token_rates.of(shape.family, shape.vocab)
    samples = list(_samples(run, folder))
    if (held := inputs.eval_source(run)) and not inputs.is_remote(held.path):
        inputs.expand(held.path, folder)
    has_template = _has_template(run, folder)
    for sample in samples:
        _read(run, sample, max(_READ_BYTES // _MOST_FILES, _READ_BYTES // len(samples)), has_template=has_template)
        _measure(sample, rates, run)
    if not any(sample.lengths for sample in samples):
        raise _nothing(samples, run.data.on_bad_row)
    facts = _facts(run, samples, rates)
    return dataclasses.replace(facts, disk_bytes=facts.disk_bytes + _TOKENIZER_BYTES * shape.vocab)


@dataclass(frozen=True)
class RawRows:
    """What rows that are not prepared are like, by those that were read."""

    layout: Layout | None
    """Of the first file."""
    rows: int
    """Of all files, estimated where they were not read whole."""
    tokens: int
    """Of all rows, before any is cut."""
    lengths: list[float]
    """Tokens of each row that was read; of a text file, of what was read of it."""
    counted: Counts
    """What their text holds."""
    bad: list[tuple[str, str]]
    """Rows that cannot be used: where, and why."""
    files: list[File]
    rates: TokenRates
    by_tokenizer: bool
    """The tokens of texts were counted by the model's own tokenizer; only what a chat template adds is estimated."""


def look(run: Run, folder: Path, rates: TokenRates, tokenizer: Path | None = None) -> RawRows:
    """The rows of a run, whatever its `data.length`, which nothing here cuts them to.

    Args:
        run: What was asked.
        folder: Where relative paths start.
        rates: Tokens of a text, where they cannot be counted.
        tokenizer: The model's `tokenizer.json`, where it is on this machine.
    """
    samples = list(_samples(run, folder))
    if all(row_files.is_blank(sample.file) for sample in samples):
        raise _empty(samples)
    for sample in samples:
        _read(run, sample, max(_READ_BYTES // _MOST_FILES, _READ_BYTES // len(samples)), has_template=True)
    texts = [_text(document) for sample in samples for document, _, _ in sample.documents] if tokenizer else []
    own = own_tokenizer.counts(tokenizer, texts) if tokenizer else None
    counts = iter(own or ())
    for sample in samples:
        english = token_rates.english_share(sample.counted)
        each = [
            (rates.tokens(counted, english) if own is None else next(counts)) + _added(document, rates)
            for document, counted, _ in sample.documents
        ]
        sample.lengths = [math.fsum(each)] if sample.file.is_text and each else each
    return RawRows(
        layout=next((sample.layout for sample in samples if sample.layout), None),
        rows=round(math.fsum(1 if sample.file.is_text else sample.scale * sample.rows for sample in samples)),
        tokens=round(math.fsum(sample.tokens for sample in samples)),
        lengths=[one for sample in samples for one in sample.lengths],
        counted=sum((sample.counted for sample in samples), Counter()),
        bad=[(where, bad.text) for sample in samples for where, bad in sample.bad],
        files=[sample.file for sample in samples],
        rates=rates,
        by_tokenizer=own is not None,
    )


def _has_template(run: Run, folder: Path) -> bool:
    """Whether the tokenizer has a chat template; one that is not on this machine is taken to have one."""
    name = run.model if run.tokenizer == "auto" else run.tokenizer
    local = folder / str(name)
    config = local / "tokenizer_config.json"
    if not config.is_file() or (local / "chat_template.jinja").is_file():
        return True
    return bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))


def _samples(run: Run, folder: Path) -> Iterator[_Sample]:
    for source in inputs.train_sources(run):
        if inputs.is_remote(source.path):
            raise StokerError("STK206")
        found = row_files.files(source, folder)
        taken = found[:: -(-len(found) // _MOST_FILES)]
        share = sum(file.size_bytes for file in found) / max(1, sum(file.size_bytes for file in taken))
        for file in taken:
            yield _Sample(file, weight=source.weight * share, whole=len(taken) == len(found))


# ---- read


def _read(run: Run, sample: _Sample, most: int, *, has_template: bool) -> None:
    file, layout, asked = sample.file, None, objectives.facts(run.train.objective)
    for part, found in enumerate(_parts(sample, most)):
        rows = list(row_files.values(found))
        layout = layout or row_files.layout(run, file, rows)
        if layout and layout.needs_template and not has_template:
            raise StokerError("STK306", file.label)
        _take(sample, part, rows, layout, has_template=has_template, asked=asked)
    sample.layout = layout


def _parts(sample: _Sample, most: int) -> Iterator[list[Numbered]]:
    """The rows of a file, or of parts of it that are spread evenly."""
    file = sample.file
    if file.path and inputs.kind(file.path) == ".parquet":
        total, rows = parquet_sample.read(file.path)
        sample.scale, sample.whole = total / max(1, len(rows)), total == len(rows)
        yield list(row_files.records(rows))
        return
    if file.size_bytes <= most:
        with row_files.opened(file) as opened:
            yield list(opened.rows)
        return
    sample.whole = False
    assert file.path is not None
    if not file.is_gzip and (file.is_text or inputs.kind(file.path) == ".jsonl"):
        sample.scale = file.size_bytes / most
        for at in range(_WINDOWS):
            yield _window(file, at, most // _WINDOWS)
        return
    step = -(-file.size_bytes * (_GZIP_RATIO if file.is_gzip else 1) // most)
    with row_files.opened(file) as opened:
        kept: list[Numbered] = []
        total = 0
        for total, row in enumerate(opened.rows, 1):
            if total % step == step // 2 or total == 1:
                kept.append(row)
    sample.scale = total / max(1, len(kept))
    yield kept


def _window(file: File, number: int, length: int) -> list[Numbered]:
    """The rows whose first byte is in a window of the file: long rows are met as often as short ones."""
    assert file.path is not None
    start = int((number + 0.5) * file.size_bytes / _WINDOWS - length / 2)
    with file.path.open("rb") as raw:
        raw.seek(start - 1)
        raw.readline()
        taken = io.BytesIO()
        while raw.tell() < start + length and (line := raw.readline()):
            taken.write(line)
    text = taken.getvalue().decode("utf-8", "replace")
    if file.is_text:
        return [(1, Text(text))] if text.strip() else []
    return list(row_files.lines(enumerate(text.split("\n"), 1)))


def _take(
    sample: _Sample,
    part: int,
    rows: Iterable[Numbered],
    layout: Layout | None,
    *,
    has_template: bool,
    asked: ObjectiveFacts,
) -> None:
    for number, value in rows:
        document = formats.fitting(formats.document(value, layout, has_template=has_template), asked)
        if isinstance(document, PromptRow):  # counted as what it asks
            document = Text(document.asked) if isinstance(document.asked, str) else document.asked
        sample.rows += 1
        if isinstance(document, BadRow):
            sample.bad.append((row_files.place(sample.file.label, number), document))
            continue
        counted = token_rates.count(_text(document))
        sample.counted += counted
        sample.documents.append((document, counted, part))


def _text(document: Document) -> str:
    return " ".join(_texts(document))


def _texts(document: Document) -> list[str]:
    """All that a template writes of a document."""
    if isinstance(document, Preference):
        return [*_texts(document.chosen), *_texts(document.rejected)]
    if isinstance(document, Judged):
        return _texts(document.answer)
    if not isinstance(document, Conversation):
        return formats.words(document)
    calls = [
        f'{{"name": "{call.name}", "arguments": {call.written}}}' for turn in document.turns for call in turn.calls
    ]
    return [*document.words, *calls, *(json.dumps(tool, ensure_ascii=False) for tool in document.tools)]


# ---- estimate


def _measure(sample: _Sample, rates: TokenRates, run: Run) -> None:
    """Tokens of every row, cut as `prepare` cuts them, and how far the parts differ."""
    asked = objectives.facts(run.train.objective)
    english, length = token_rates.english_share(sample.counted), run.data.length * asked.segments
    by_part: dict[int, float] = {}
    blocks = 0.0
    for document, counted, part in sample.documents:
        tokens = rates.tokens(counted, english) + _added(document, rates)
        splits = isinstance(document, Text) or asked.trains_all
        kept = tokens if splits else min(tokens, length)
        by_part[part] = by_part.get(part, 0.0) + kept
        if sample.file.is_text:
            blocks += kept
        else:
            sample.lengths += _pieces(kept, length)
    if sample.file.is_text:
        sample.lengths = _pieces(blocks, length)
    if sample.whole or not sample.lengths:
        return
    parts = list(by_part.values()) if len(by_part) > 1 else sample.lengths
    if len(parts) > 1:
        sample.error = statistics.stdev(parts) / statistics.mean(parts) / math.sqrt(len(parts))


def _added(document: Document, rates: TokenRates) -> float:
    """What the template, or the end of a text, adds."""
    if isinstance(document, Preference):
        return _added(document.chosen, rates) + _added(document.rejected, rates)
    if isinstance(document, Judged):
        return _added(document.answer, rates)
    if not isinstance(document, Conversation):
        return 1.0
    added = rates.template["message"] * len(document.turns)
    added += rates.template["conversation"] if document.turns[0].role != "system" else 0.0
    return added + (rates.template["tools"] if document.tools else 0.0)


def _pieces(tokens: float, length: int) -> list[float]:
    full, rest = divmod(tokens, length)
    return [float(length)] * int(full) + ([rest] if rest >= 1 else [])


def _facts(run: Run, samples: list[_Sample], rates: TokenRates) -> DataFacts:
    share, length = inputs.eval_share(run), run.data.length * objectives.facts(run.train.objective).segments
    kept = 1 - values.share(share) if share else 1.0
    everything = math.fsum(sample.tokens for sample in samples)
    if not kept:
        raise StokerError("STK307", share=share, eval_rows=sum(sample.rows for sample in samples), train_rows=0)
    rows = math.fsum(sample.scale * sample.weight * len(sample.lengths) for sample in samples)
    sampling = math.sqrt(math.fsum((sample.error * sample.tokens) ** 2 for sample in samples)) / everything
    error = math.exp(_NINE_IN_TEN * sampling)
    low, high = intervals.together(rates.interval, (1 / error, error))
    lengths = [one for sample in samples for one in sample.lengths]
    sequences = everything / (length * _fill(lengths, length)) if run.data.pack else rows
    longest = length if run.data.pack and everything > length else min(length, math.ceil(max(lengths) * high))
    return DataFacts(
        sequences=max(1, round(sequences * kept)),
        tokens=max(1, round(everything * kept)),
        longest=longest,
        longest_segment=min(length, math.ceil(max(lengths) * high)),
        digest="",
        has_eval=run.data.eval is not None,
        disk_bytes=round(4 * everything),
        interval=(low, high),
        reasons=tuple(_reasons(samples, rates, round(everything), (low, high), run)),
    )


def _fill(lengths: list[float], length: int) -> float:
    """How full packed sequences are."""
    pieces = [max(1, round(one)) for one in lengths[:: -(-len(lengths) // _PACKED_PIECES)]]
    if sum(pieces) < length:
        return sum(pieces) / length
    return sum(pieces) / (length * len(packing.best_fit(pieces, length)))


def _reasons(
    samples: list[_Sample], rates: TokenRates, tokens: int, interval: tuple[float, float], run: Run
) -> Iterator[Reason]:
    rows, read = (sum(sample.scale * sample.rows for sample in samples), sum(sample.rows for sample in samples))
    stated = run.data.rows
    sampled = not all(sample.whole for sample in samples)
    found = {
        "rows": f"{float(f'{rows:.2g}') if sampled else rows:,.0f}",
        "files": len(samples),
        "megabytes": f"{sum(sample.file.size_bytes for sample in samples) / 1e6:,.1f}",
        "tokens": f"{tokens:,}",
        "low": f"{round(tokens * interval[0]):,}",
        "high": f"{round(tokens * interval[1]):,}",
    }
    if sampled:
        yield Reason(about="data", key="why.data.sampled", fields={**found, "read": f"{read:,}"})
    else:
        yield Reason(about="data", key="why.data.raw", fields=found)
    far = _NEAR * rows if sampled else 0
    if stated is not None and abs(stated - round(rows)) > far and not any(sample.file.is_text for sample in samples):
        fields = {"stated": stated, "rows": found["rows"], "tokens": round(tokens * stated / rows)}
        yield Reason(about="data", key="why.data.stated", fields=fields)
    if not rates.known:
        yield Reason(about="data", key="why.data.vocabulary", fields={"name": rates.name})
    bad = [one for sample in samples for one in sample.bad]
    if bad:
        fields = {"count": len(bad), "where": bad[0][0], "reason": bad[0][1].text}
        key = "why.data.bad" if run.data.on_bad_row == "skip" else "why.data.bad.stops"
        yield Reason(about="data", key=key, fields=fields)


def _nothing(samples: list[_Sample], on_bad_row: str) -> StokerError:
    """No row can be used: the first one's reason."""
    if all(row_files.is_blank(sample.file) for sample in samples):
        return _empty(samples)
    bad = [one for sample in samples for one in sample.bad]
    if bad:
        where, found = bad[0]
        if on_bad_row == "skip" and found.reason not in row_values.WHOLE_FILE:
            advice = messages.text("advice.every_row", count=len(bad), reason=found.text)
            return StokerError("STK304", where, advice=advice)
        return row_files.unusable(where, found.reason, found.text)
    return _empty(samples)


def _empty(samples: list[_Sample]) -> StokerError:
    return StokerError("STK364", path=", ".join(dict.fromkeys(sample.file.source.path for sample in samples)))
