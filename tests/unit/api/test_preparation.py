"""The prepared set of a run that was trained is sealed: sources that change do not hold the run up, and are said."""

import shutil
from pathlib import Path

import pytest

from stoker.api import preparation, start
from stoker.api.sentences import listed
from stoker.config import load
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, files, inputs, layout, prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report, Split

TEXT = """
name: v
model: some/model
data: {train: rows, length: 16}
train: {epochs: 1, batch: 4}
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose data is prepared from a folder with one file."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "v.yaml").write_text(TEXT)
    made = layout.create(load.load(str(tmp_path / "v.yaml"), []))
    _seal(made)
    return made


def _seal(run_dir: RunDir, digest: str = "d") -> None:
    """Prepared data as the engine leaves it."""
    shard, tokenizer = run_dir.data / "train" / "shard-00000", run_dir.data / "tokenizer"
    for path in (shard / "tokens.bin", tokenizer / "tokenizer.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0000")
    run, folder = run_dir.run(), run_dir.folder()
    split = Split(
        sequences=1,
        segments=1,
        tokens=1,
        trained_tokens=1,
        longest=1,
        longest_segment=1,
        shards=["shard-00000"],
        files={"train/shard-00000/tokens.bin": files.sha256(shard / "tokens.bin")},
    )
    report = Report(
        digest=digest,
        key=prepared.key_of(run, inputs.facts(run, folder)),
        words=prepared.words(run),
        sources=inputs.facts(run, folder),
        length=16,
        packed=True,
        vocab=8,
        objective="sft",
        detected=[],
        rows_read=1,
        bad_rows=0,
        truncated_rows=0,
        length_histogram={},
        pack_efficiency=1.0,
        unigram_entropy=0.0,
        train=split,
    )
    prepared.write_report(run_dir.data, report)


def _train(run_dir: RunDir) -> None:
    events.append(run_dir.events_file, "step", step=1)
    facts = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {}, "tokens": 1, "events_bytes": 1}
    with checkpoints.writing(run_dir.checkpoints, 1, **facts) as aside:
        (aside / "trainer_state.json").write_text("{}")


def _append(run_dir: RunDir) -> list[str]:
    with (run_dir.folder() / "rows" / "a.jsonl").open("a") as file:
        file.write('{"text": "b"}\n')
    return ["rows/a.jsonl"]


def _add(run_dir: RunDir) -> list[str]:
    (run_dir.folder() / "rows" / "b.jsonl").write_text('{"text": "b"}\n')
    return ["rows/b.jsonl"]


def _move(run_dir: RunDir) -> list[str]:
    (run_dir.folder() / "rows" / "a.jsonl").rename(run_dir.folder() / "rows" / "b.jsonl")
    return ["rows/a.jsonl", "rows/b.jsonl"]


@pytest.mark.parametrize("change", [_append, _add, _move])
def test_a_trained_run_goes_on_with_its_set_and_says_which_sources_differ(run_dir: RunDir, change: object) -> None:
    _train(run_dir)
    changed = change(run_dir)  # type: ignore[operator]  # one of the three above
    report = preparation.current(run_dir)
    assert report is not None
    assert report.digest == "d"
    assert preparation.changed_sources(run_dir, report) == changed
    told: list[tuple[str, str]] = []
    listener = start.Listener(tell=lambda key, **fields: told.append((key, fields["files"])))
    start._say_changes(run_dir, report, listener)
    assert told == [("prepare.sources_changed", listed(changed))]
    assert list(events.read(run_dir.events_file))[-1]["changed"] == changed


def test_a_run_that_was_never_trained_is_prepared_anew(run_dir: RunDir) -> None:
    assert preparation.current(run_dir) is not None
    _append(run_dir)
    assert preparation.current(run_dir) is None


def test_a_set_from_elsewhere_goes_on_without_a_word_where_the_sources_are_not(run_dir: RunDir) -> None:
    _train(run_dir)
    (run_dir.folder() / "rows" / "a.jsonl").unlink()
    report = preparation.current(run_dir)
    assert report is not None
    assert preparation.changed_sources(run_dir, report) == []


def test_the_words_of_a_trained_run_stay_what_they_were(run_dir: RunDir) -> None:
    _train(run_dir)
    path = run_dir.folder() / "v.yaml"
    path.write_text(TEXT.replace("length: 16", "length: 32"))
    with pytest.raises(StokerError) as caught:
        layout.create(load.load(str(path), []))
    assert caught.value.code == "STK401"
    layout.record(run_dir, text=TEXT.replace("length: 16", "length: 32"))
    with pytest.raises(StokerError) as caught:
        preparation.current(run_dir)
    assert caught.value.code == "STK415"


def test_a_trained_run_whose_set_is_gone_is_not_prepared_anew(run_dir: RunDir) -> None:
    _train(run_dir)
    (run_dir.data / "train" / "shard-00000" / "tokens.bin").unlink()
    with pytest.raises(StokerError) as caught:
        preparation.current(run_dir)
    assert caught.value.code == "STK415"


def test_a_trained_run_without_any_set_is_prepared(run_dir: RunDir) -> None:
    """On a machine it moved to; the trainer compares the set with the checkpoint."""
    _train(run_dir)
    shutil.rmtree(run_dir.data)
    assert preparation.current(run_dir) is None


def test_a_set_of_other_words_is_not_taken_where_the_sources_are_not(run_dir: RunDir) -> None:
    layout.record(run_dir, text=TEXT.replace("rows", "rwos"))
    assert preparation.current(run_dir) is None


def test_a_plan_of_a_trained_run_is_that_of_its_set(run_dir: RunDir) -> None:
    _train(run_dir)
    _append(run_dir)
    run_file = load.load(str(run_dir.folder() / "v.yaml"), [])
    assert prepared.current_report(layout.find("v"), run_file.run, run_file.folder) is not None


def test_a_set_that_no_checkpoint_is_of_is_prepared_again_once_the_source_is_back(run_dir: RunDir) -> None:
    _train(run_dir)
    source = run_dir.folder() / "rows" / "a.jsonl"
    before = source.read_text()
    shutil.rmtree(run_dir.data)
    _append(run_dir)
    _seal(run_dir, digest="other")  # what the next start prepares; the trainer refuses it
    source.write_text(before)
    assert preparation.current(run_dir) is None
    _seal(run_dir)
    assert preparation.current(run_dir) is not None
