"""The prepared set on disk: what the files are called, what they hold, and the report beside them.

    data/report.json               what was read, detected, counted; the digest; report.html shows it
    data/tokenizer/                the tokenizer, as transformers reads it
    data/train/shard-00000/        tokens.bin    int32 token ids; an untrained token is stored as ~id (bitwise not)
                                   segments.bin  int64 token offsets of segments (documents), one more than segments
                                   rows.bin      int64 segment offsets of rows (sequences), one more than rows
                                   trained.bin   int32 trained tokens per row; ~count where its answer is judged bad
                                   columns.jsonl of prompts: per row what it asks, and all columns of the row
    data/eval/shard-00000/         the same for the eval rows, where there are any
All integers are little-endian, so a set is read by memory map on any machine. A segment's first token is never
trained: nothing before it may predict it. Knows nothing of numpy; the engine's `dataset.py` reads the arrays.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker import messages, plugins
from stoker.config import layouts, mixing, objectives
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import checkpoints, files, inputs, layout, set_list
from stoker.rundir.layout import RunDir

FORMAT = 1
ROWS = 5
"""How rows are read: a set prepared by earlier rules is prepared again, unless it was trained on."""
TOKENIZER_NAME = "tokenizer"
TOKENIZER_FILE = "tokenizer.json"
SHARD_FILES = ("tokens.bin", "segments.bin", "rows.bin", "trained.bin")


class SourceCount(BaseModel):
    """What one source of a mixture has in the training split: sequences `first` to `first + sequences`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    first: int
    sequences: int
    tokens: int


class Split(BaseModel):
    """What one split holds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sequences: int
    """Rows of the prepared set: what `batch` counts."""
    segments: int
    """Documents (or pieces of documents) in them."""
    tokens: int
    trained_tokens: int
    longest: int
    """Tokens of the longest sequence; of a pair, of both answers as long as the longer one."""
    longest_segment: int
    shards: list[str]
    files: dict[str, str]
    """SHA-256 by file, relative to the data folder."""
    sources: list[SourceCount] = []
    """Of a mixture: its sources in order, each in shards of its own."""


class Report(BaseModel):
    """`data/report.json`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    digest: str
    """SHA-256 over all of the set: what data order and resume are tied to."""
    key: str
    """Digest of what was asked and of the sources' content: equal key, nothing to do."""
    words: str = ""
    """Digest of what was asked alone."""
    sources: list[list[Any]] = []
    """Name, size and SHA-256 of every local file that was read."""
    length: int
    packed: bool
    vocab: int
    """Tokens the tokenizer has."""
    highest_token: int | None = None
    """The largest token id of the set; not in reports of earlier versions."""
    objective: str
    detected: list[dict[str, Any]]
    """Per source: path, format, reason, rows, bad_rows."""
    rows_read: int
    bad_rows: int
    truncated_rows: int
    context_answers: int = 0
    """Earlier answers that are not trained, because the chat template drops their thinking."""
    length_histogram: dict[str, int]
    """Rows by token count, in powers of two: "128" counts rows of 65 to 128 tokens."""
    pack_efficiency: float
    """Real tokens over sequences x length."""
    unigram_entropy: float
    """Nats per trained token of a model that knows only token frequencies."""
    pipeline: list[dict[str, Any]] | None = None
    """Where the data went through `data.pipeline`: for each stage its name, tasks, and the counts of its blocks."""
    survey: dict[str, Any] | None = None
    """What the rows are like (`survey/findings.py`); not in reports of earlier versions, nor of mixed sets."""
    train: Split
    eval: Split | None = None
    tokenizer: dict[str, str] = {}
    """SHA-256 of the tokenizer's files, by name."""
    seal: str = ""
    """SHA-256 of all the rest: a report that was changed is none."""

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of every file of the set, relative to the data folder."""
        tokenizer = {f"{TOKENIZER_NAME}/{name}": digest for name, digest in self.tokenizer.items()}
        return {**self.train.files, **(self.eval.files if self.eval else {}), **tokenizer}


def report_file(data: Path) -> Path:
    """Path of the report."""
    return data / "report.json"


def read_report(data: Path) -> Report | None:
    """The report, or None where nothing was prepared yet."""
    try:
        text = report_file(data).read_text(encoding="utf-8")
        said = files.parse_json(text)
        report = Report.model_validate(said)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StokerError("STK311", str(report_file(data)), reason=error, folder=data) from error
    if text != files.json_text(said) or report.seal != _seal(said):
        raise StokerError(
            "STK311", str(report_file(data)), reason=messages.text("damage.changed", name="report.json"), folder=data
        )
    return report


def write_report(data: Path, report: Report) -> None:
    """Seal the report and put it beside the set."""
    tokenizer = {path.name: files.sha256(path) for path in sorted((data / TOKENIZER_NAME).iterdir())}
    said = report.model_copy(update={"tokenizer": tokenizer}).model_dump()
    files.write_json(report_file(data), {**said, "seal": _seal(said)})


def _seal(said: dict[str, Any]) -> str:
    rest = {name: value for name, value in said.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def shard_name(number: int) -> str:
    """The folder of a shard."""
    return f"shard-{number:05d}"


def digest(train: Split, held: Split | None, tokenizer: str) -> str:
    """SHA-256 over both splits' files, the tokenizer (its file's digest) and the format."""
    split_files = sorted({**train.files, **(held.files if held else {})}.items())
    parts = [*(f"{name} {one}" for name, one in split_files), f"tokenizer {tokenizer}", f"format {FORMAT}"]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def words(run: Run) -> str:
    """Digest of what `prepare` was asked, whatever its sources hold."""
    return _digest({**_asked(run), "sources": []})


def key_of(run: Run, sources: list[list[Any]]) -> str:
    """Digest of what `prepare` was asked and of its sources' content (`inputs.facts`): equal key, nothing to do."""
    return _digest({**_asked(run), "sources": sources, "rows": ROWS})


def _asked(run: Run) -> dict[str, Any]:
    asked = {
        "format": FORMAT,
        "data": _asked_data(run),
        "tokenizer": run.model_dump(include={"tokenizer"}),
        "model": run.model_dump(include={"model"}),
        "objective": objectives.title(run.train.objective),
        "seed": run.train.seed,
        **({"answer": run.train.answers.max_new_tokens} if objectives.facts(run.train.objective).prompts else {}),
    }
    others = _other_formats(run)
    return {**asked, "formats": others} if others else asked


_NOT_PREPARED = {"rows", "tokens", "stages", "set", "stream", "cache"}  # keys of `data` that prepare nothing
_NEWER = {"pipeline": None, "columns": None, "duplicates": "keep"}  # sets of before keep their digests


def _asked_data(run: Run) -> dict[str, Any]:
    """What is asked of `data`. How sources are mixed is not: only that they are kept apart, and their names."""
    unsaid = {key for key, default in _NEWER.items() if getattr(run.data, key) == default}
    asked = run.data.model_dump(exclude=_NOT_PREPARED | unsaid)
    train = asked["train"]
    for source in train if isinstance(train, list) else [train] if isinstance(train, dict) else []:
        for key in ("name", "share", "epochs", *(() if source["columns"] else ("columns",))):
            del source[key]
    return {**asked, "mixture": mixing.names(run.data)} if mixing.is_mixed(run.data) else asked


def _digest(asked: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _other_formats(run: Run) -> list[str]:
    """Formats of other packages that may read the rows, with their versions: a new version prepares again."""
    if run.data.format in layouts.BUILT_IN:
        return []
    offered = plugins.offered(plugins.FORMATS)
    return [one.title for one in offered.values() if run.data.format in (layouts.AUTO, one.name)]


def current_report(run_dir: RunDir, run: Run, folder: Path) -> Report | None:
    """The report of a whole set that was prepared for this run, or None where there is something to prepare.

    A set whose sources are not on this machine (it was prepared elsewhere) counts, unless one that is here changed.
    Once a step was done on it the set is sealed: it counts whatever became of its sources (`changed_sources`).
    """
    report = read_report(run_dir.data)
    if report is None:
        return None
    local = (name for name in _local_files(run_dir.data, report) if not name.startswith(f"{TOKENIZER_NAME}/"))
    if not all((run_dir.data / name).is_file() for name in local):
        return None
    listed = set_list.read(run_dir.data)
    if run.data.set is not None:
        where = mixing.set_address(run.data)
        if listed is None or (listed.where, listed.digest, listed.checked) != (where, report.digest, True):
            return None
        require_fits(report, run, where)
        return report if run.data.stream or not listed.streamed else None
    if listed is not None:
        return None  # a set that this run file does not name
    same = report.words in ("", words(run))
    now = _facts(report, run, folder)
    sealed = same and (now is None or (layout.was_trained(run_dir) and is_trained_on(run_dir, report)))
    return report if sealed or report.key == key_of(run, now or []) else None


def _facts(report: Report, run: Run, folder: Path) -> list[list[Any]] | None:
    """The sources as they are here; None where some are not, and what is here is as the report has it."""
    try:
        return inputs.facts(run, folder)
    except StokerError as error:
        if error.code == "STK121":  # they are here, and cannot be read: whether they changed is not known
            raise
        now = inputs.as_now(report.sources, folder)
    return now if now != report.sources else None


def require_fits(report: Report, run: Run, where: str) -> None:
    """A set that was prepared elsewhere is what the run file's own words would make of such rows."""
    pairs = {
        "data.length": (run.data.length, report.length),
        "data.pack": (run.data.pack, report.packed),
        "train.objective": (run.train.objective, report.objective),
        "data.eval": (run.data.eval is not None, report.eval is not None),
    }
    if isinstance(run.data.set, str):
        pairs["data.stages"] = (run.data.stages is not None, bool(report.train.sources))
    if differs := [
        f"{word} {json.dumps(asked)} / {json.dumps(has)}" for word, (asked, has) in pairs.items() if asked != has
    ]:
        raise StokerError("STK342", store=where, differs=differs)


def _local_files(data: Path, report: Report) -> dict[str, str]:
    """SHA-256 of the files that are on this machine: of a set that is streamed, all but the tokens."""
    listed = set_list.read(data)
    if listed is None or not listed.streamed:
        return report.files
    own = {name: digest for name, digest in report.files.items() if not set_list.is_streamed(name)}
    return own | {name: one.sha256 for name, one in listed.files.items() if name.endswith(set_list.SUMS_NAME)}


def is_trained_on(run_dir: RunDir, report: Report) -> bool:
    """Whether the newest checkpoint is of this set; also where there is none but the weights of another run."""
    commits = [one.commit for one in checkpoints.committed(run_dir.checkpoints)]
    own = [commit for commit in commits if not (commit.forked_from and commit.forked_from["weights_only"])]
    return not own or own[-1].data_digest == report.digest


def changed_sources(report: Report, run: Run, folder: Path) -> list[str]:
    """Files that are not what the set was prepared from: changed, new or gone; none where they are not here at all."""
    now = None if run.data.set is not None else _facts(report, run, folder)  # of a set they are where it was prepared
    if now is None or not report.sources or report.key == key_of(run, now):  # an older report does not name them
        return []
    before, after = ({name: rest for name, *rest in one} for one in (report.sources, now))
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def check_sizes(data: Path, split_name: str, split: Split) -> None:
    """Every file is there and as large as the counts say: a cheap check before training."""
    shards = len(split.shards)
    listed = set_list.read(data)
    expected = {
        "tokens.bin": 4 * split.tokens,
        "segments.bin": 8 * (split.segments + shards),
        "rows.bin": 8 * (split.sequences + shards),
        "trained.bin": 4 * split.sequences,
    }
    if listed is not None and listed.streamed and split_name == "train":
        del expected["tokens.bin"]
        expected[set_list.SUMS_NAME] = set_list.SUM_BYTES * split.sequences
    for name, size in expected.items():
        paths = [data / split_name / shard / name for shard in split.shards]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise StokerError("STK311", str(missing[0]), reason=messages.text("damage.missing", name=name), folder=data)
        found = sum(path.stat().st_size for path in paths)
        if found != size:
            raise StokerError(
                "STK311",
                str(paths[0]),
                reason=messages.text("damage.size", name=name, found=found, expected=size),
                folder=data,
            )


def check_digests(data: Path, report: Report) -> None:
    """Every file is what was prepared, to the last bit."""
    for name, wanted in _local_files(data, report).items():
        path = data / name
        if not path.is_file():
            raise StokerError("STK311", str(path), reason=messages.text("damage.missing", name=path.name), folder=data)
        if files.sha256(path) != wanted:
            raise StokerError("STK311", str(path), reason=messages.text("damage.digest", name=path.name), folder=data)
