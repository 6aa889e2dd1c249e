"""Prepared sets in a directory store: what is sent, what is brought, what is refused."""

import itertools
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.config.run import Run
from stoker.errors import StokerError, StokerErrors
from stoker.rundir import checkpoints, files, layout, prepared, set_list
from stoker.rundir.layout import RunDir
from stoker.store import opening, row_ranges, sets
from stoker.store.row_ranges import Damaged, RowPlace, RowRanges

ROWS = [[[1, 2, 3], [4, 5]], [[6, 7, 8, 9]], [[~1, 2], [~3], [4, 4, 4]]]
RUN = """
model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
data: {DATA, length: 8}
train: {objective: pretrain, batch: 2}
"""


def _packed(kind: str, numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def _offsets(counts: list[int]) -> list[int]:
    return [sum(counts[:i]) for i in range(len(counts) + 1)]


def write_set(data: Path, rows: list[list[list[int]]]) -> None:
    """A prepared set of one shard, without numpy."""
    shard = data / "train" / "shard-00000"
    shard.mkdir(parents=True)
    documents = [document for row in rows for document in row]
    (shard / "tokens.bin").write_bytes(_packed("i", [token for one in documents for token in one]))
    (shard / "segments.bin").write_bytes(_packed("q", _offsets([len(one) for one in documents])))
    (shard / "rows.bin").write_bytes(_packed("q", _offsets([len(row) for row in rows])))
    (shard / "trained.bin").write_bytes(_packed("i", [1 for _ in rows]))
    (data / "tokenizer").mkdir()
    (data / "tokenizer" / "tokenizer.json").write_text("{}")
    names = [f"train/shard-00000/{name}" for name in prepared.SHARD_FILES]
    split: dict[str, Any] = {
        "sequences": len(rows),
        "segments": len(documents),
        "tokens": sum(map(len, documents)),
        "trained_tokens": len(rows),
        "longest": 6,
        "longest_segment": 4,
        "shards": ["shard-00000"],
        "files": {name: files.sha256(data / name) for name in names},
    }
    report = {
        "digest": sha256(str(rows).encode()).hexdigest(),
        "key": "",
        "length": 8,
        "packed": True,
        "vocab": 300,
        "objective": "pretrain",
        "detected": [],
        "rows_read": len(rows),
        "bad_rows": 0,
        "truncated_rows": 0,
        "length_histogram": {},
        "pack_efficiency": 1.0,
        "unigram_entropy": 0.0,
        "train": split,
    }
    prepared.write_report(data, prepared.Report.model_validate(report))


def run_of(folder: Path, data: str) -> tuple[RunDir, Run]:
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(RUN.replace("DATA", data))
    run_file = load.load(str(folder / "run.yaml"))
    return layout.create(run_file), run_file.run


@pytest.fixture
def pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a set in it."""
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    run_dir, _ = run_of(tmp_path / "first", "train: rows.txt")
    write_set(run_dir.data, ROWS)
    assert sets.push(run_dir, "store", tmp_path) > 0
    return tmp_path / "store"


def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> tuple[RunDir, Run]:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "other-runs"))
    return run_of(tmp_path / "other", data)


def test_a_second_push_sends_nothing_and_mends_what_is_gone(pushed: Path, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "run")
    assert sets.push(run_dir, str(pushed), tmp_path) == 0
    lost = next((pushed / "objects").iterdir())
    size = lost.stat().st_size
    lost.unlink()
    assert sets.push(run_dir, str(pushed), tmp_path) == size
    assert sets.push(run_dir, str(pushed), tmp_path) == 0


def test_a_fetched_set_is_whole_and_is_not_fetched_again(
    pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = other(tmp_path, monkeypatch, f"set: {pushed}")
    assert prepared.current_report(run_dir, run, tmp_path) is None
    report = sets.bring(run_dir, run, tmp_path)
    prepared.check_digests(run_dir.data, report)
    assert prepared.current_report(run_dir, run, tmp_path) is None, "its tokenizer was not compared yet"
    found = set_list.read(run_dir.data)
    assert found is not None
    files.write_json(set_list.list_file(run_dir.data), found.model_copy(update={"checked": True}).model_dump())
    assert prepared.current_report(run_dir, run, tmp_path) == report
    assert (run_dir.data / "train/shard-00000/tokens.bin").stat().st_size == 4 * 15


def test_a_streamed_set_has_all_but_the_tokens_and_each_row_its_digest(
    pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = other(tmp_path, monkeypatch, f"set: {pushed}, stream: true")
    report = sets.bring(run_dir, run, tmp_path)
    prepared.check_digests(run_dir.data, report)
    prepared.check_sizes(run_dir.data, "train", report.train)
    assert not (run_dir.data / "train/shard-00000/tokens.bin").exists()
    rows = [_packed("i", [token for one in row for token in one]) for row in ROWS]
    sums = b"".join(sha256(row).digest()[: set_list.SUM_BYTES] for row in rows)
    assert (run_dir.data / "train/shard-00000/sums.bin").read_bytes() == sums
    with pytest.raises(StokerError, match="STK347"):
        sets.push(run_dir, str(pushed), tmp_path)


def test_a_trained_run_gets_the_set_it_was_trained_on(
    pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared.read_report(RunDir(tmp_path / "runs" / "run").data)
    assert first is not None
    newer = RunDir(tmp_path / "runs" / "newer")
    write_set(newer.data, ROWS[::-1])
    sets.push(newer, str(pushed), tmp_path)
    run_dir, run = other(tmp_path, monkeypatch, f"set: {pushed}")
    facts = {"order_version": 1, "world": 1, "fingerprint": {}}
    with checkpoints.writing(run_dir.checkpoints, 5, data_digest=first.digest, **facts) as aside:
        (aside / "model.safetensors").write_bytes(b"m")
    assert sets.bring(run_dir, run, tmp_path).digest == first.digest


@pytest.mark.parametrize("word", ["length: 16", "length: 8, pack: false", "length: 8, eval: 5%"])
def test_a_set_that_was_prepared_by_other_words_is_refused(
    pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(f"{__name__}.RUN", RUN.replace("length: 8", word))
    run_dir, run = other(tmp_path, monkeypatch, f"set: {pushed}")
    with pytest.raises(StokerError, match="STK342"):
        sets.bring(run_dir, run, tmp_path)
    assert not run_dir.data.exists()


def test_a_changed_list_and_a_wrong_object_are_refused(
    pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = other(tmp_path, monkeypatch, f"set: {pushed}")
    damaged = next(path for path in (pushed / "objects").iterdir() if path.stat().st_size == 4 * 15)
    damaged.write_bytes(b"x" * 60)
    with pytest.raises(StokerError, match="STK658"):
        sets.bring(run_dir, run, tmp_path)
    (listed,) = (pushed / "sets").iterdir()
    listed.write_text(listed.read_text().replace('"bytes": 60', '"bytes": 61'))
    with pytest.raises(StokerError, match="STK658"):
        sets.bring(run_dir, run, tmp_path)


def test_no_set_and_no_store_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    run_dir, run = other(tmp_path, monkeypatch, f"set: {tmp_path}/empty")
    with pytest.raises(StokerError, match="STK340"):
        sets.bring(run_dir, run, tmp_path)
    run_dir, run = other(tmp_path, monkeypatch, f"set: {tmp_path}/nowhere/at/all")
    monkeypatch.setattr("stoker.store.store_protocol.Patience.pause", lambda *_: None)
    with pytest.raises(StokerError, match="STK341"):
        sets.bring(run_dir, run, tmp_path)


def test_data_of_another_run_is_linked(pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "runs" / "run" / "data"
    run_dir, run = other(tmp_path, monkeypatch, f"set: {data}")
    sets.bring(run_dir, run, tmp_path)
    name = "train/shard-00000/tokens.bin"
    assert (run_dir.data / name).stat().st_ino == (data / name).stat().st_ino
    run_dir, run = other(tmp_path, monkeypatch, f"set: {data}, stream: true")
    with pytest.raises(StokerError, match="STK344"):
        sets.bring(run_dir, run, tmp_path)


def test_rows_or_a_set_and_only_a_set_is_streamed(tmp_path: Path) -> None:
    for data, code in (("length: 8", "STK167"), ("train: a, set: b", "STK167"), ("train: a, stream: true", "STK168")):
        (tmp_path / "run.yaml").write_text(RUN.replace("DATA, length: 8", data))
        with pytest.raises(StokerErrors, match=code):
            load.load(str(tmp_path / "run.yaml"))


# ---- rows by ranges


def places(content: bytes, edges: list[int]) -> dict[Any, RowPlace]:
    cut = itertools.pairwise(edges)
    digest = lambda begin, end: sha256(content[begin:end]).digest()[: set_list.SUM_BYTES]  # noqa: E731
    return {number: RowPlace("file", begin, end, digest(begin, end)) for number, (begin, end) in enumerate(cut)}


def test_rows_arrive_by_joined_ranges_and_a_wrong_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 40
    (tmp_path / "file").write_bytes(content)
    wanted = places(content, [0, 100, 300, 5000, 5100, 10240])
    del wanted[2]  # a gap that is too large to read
    asked: list[int] = []
    store = opening.open_store(str(tmp_path), tmp_path).inner
    plain = store.ranges  # type: ignore[attr-defined]
    ranges = RowRanges(str(tmp_path), tmp_path)
    monkeypatch.setattr(type(store), "ranges", lambda self, parts: (asked.append(len(parts)), plain(parts))[1])
    arrived: dict[Any, bytes] = {}
    ranges.fetch(wanted, arrived.__setitem__)
    assert asked == [2]
    assert arrived == {key: content[place.begin : place.end] for key, place in wanted.items()}
    (tmp_path / "file").write_bytes(content[:150] + b"!" + content[151:])
    arrived.clear()
    with pytest.raises(Damaged) as caught:
        ranges.fetch(wanted, arrived.__setitem__)
    assert caught.value.key == 1
    assert arrived.keys() == {0, 3, 4}
    assert row_ranges.PATIENCE.stall_seconds < 60
