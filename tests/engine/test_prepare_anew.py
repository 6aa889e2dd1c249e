"""What becomes of a pass when its sources, its folder or its command change beside it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from failing_disk import unreadable
from prepare_case import Case, Prepared, make_tokenizer, prepare_killed, write_jsonl

from stoker.engine import prepare, sources
from stoker.engine.row_counts import RowCounts
from stoker.errors import EXIT_STOPPED, StokerError
from stoker.rundir import file_check, lock, prepared
from stoker.rundir.files import Unreadable
from stoker.rundir.layout import RunDir


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    make_tokenizer(case.tokenizer)
    return case


def rows(count: int, name: str = "wagon") -> list[dict[str, str]]:
    return [{"text": f"{name} {number}"} for number in range(count)]


def raised(run_dir: RunDir) -> StokerError:
    with pytest.raises(StokerError) as caught:
        prepare.main(run_dir.path)
    return caught.value


def texts(run_dir: RunDir) -> list[str]:
    return [text.removesuffix("<|im_end|>") for text in Prepared(run_dir).texts()]


def in_small_shards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prepare, "SHARD_TOKENS", 300)
    patch.setattr(sources, "BATCH_ROWS", 8)


class Cut(Exception):
    pass


# ---- sources that change


@pytest.mark.parametrize("policy", ["keep", "drop"])
@pytest.mark.parametrize("how", ["appended", "replaced", "put back"])
def test_a_source_that_is_written_meanwhile_is_refused_and_nothing_of_it_is_used(
    case: Case, policy: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_shards(monkeypatch)
    source = write_jsonl(case.folder / "train.jsonl", rows(100))
    run_dir = case.make(data={"duplicates": policy})
    plain, calls = sources.batches, []

    def batches(*words: Any) -> Iterator[sources.Batch]:
        calls.append(1)
        if len(calls) == 2:  # the first reading was the survey's
            write_jsonl(source, rows(140) if how == "appended" else rows(100, "train"))
        return plain(*words)

    state = prepare.pass_state.state_file(run_dir.data)

    with monkeypatch.context() as patch:
        patch.setattr(sources, "batches", batches)
        error = raised(run_dir)
    assert (error.code, error.where) == ("STK366", "train.jsonl")
    assert len(calls) == 2
    assert any((run_dir.data / "train").iterdir()), "a shard was committed"
    assert (prepared.read_report(run_dir.data), state.exists()) == (None, False)
    if how == "put back":
        write_jsonl(source, rows(100))
    prepare.main(run_dir.path)
    wanted = {"appended": rows(140), "replaced": rows(100, "train"), "put back": rows(100)}[how]
    assert texts(run_dir) == [row["text"] for row in wanted]


def test_a_tokenizer_of_changed_text_is_not_used_for_what_is_put_back(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(case.folder / "train.jsonl", rows(100))
    words = {"tokenizer": {"train": "bpe", "vocab": 300}}
    expected = case.prepare(name="undisturbed", **words).report.digest
    run_dir, plain = case.make(**words), prepare.tokenizer.train

    def train(*given: Any) -> Any:
        made = plain(*given)
        write_jsonl(source, rows(100, "train"))
        return made

    write_jsonl(source, rows(90, "engine"))  # what it is made of; the pass began with these rows, too
    with monkeypatch.context() as patch:
        patch.setattr(prepare.tokenizer, "train", train)
        assert raised(run_dir).code == "STK366"
    write_jsonl(source, rows(100))
    prepare.main(run_dir.path)
    assert Prepared(run_dir).report.digest == expected


def test_a_source_that_is_moved_away_once_it_was_read_hides_no_change_of_another(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (write_jsonl(case.folder / name, rows(5, name)) for name in ("a.jsonl", "b.jsonl"))
    run_dir = case.make(data={"train": [{"path": "a.jsonl"}, {"path": "b.jsonl"}]})
    before_the_end(monkeypatch, lambda: (second.unlink(), write_jsonl(first, rows(6))))
    error = raised(run_dir)
    assert (error.code, error.where) == ("STK366", "a.jsonl")
    monkeypatch.undo()


def test_a_file_that_is_not_listed_when_it_is_to_be_read_is_missed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network disk that lists half of a folder, or a part of it that is mounted later."""
    folder = case.folder / "corpus"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(folder / name, rows(5, name))
    run_dir, plain = case.make(data={"train": "corpus"}), prepare.row_files.files
    with monkeypatch.context() as patch:
        patch.setattr(prepare.row_files, "files", lambda *words: plain(*words)[:1])
        error = raised(run_dir)
    assert (error.code, error.where) == ("STK366", "corpus/b.jsonl")
    prepare.main(run_dir.path)
    assert len(texts(run_dir)) == 10


def test_a_position_that_cannot_be_read_for_now_costs_no_shard(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_shards(monkeypatch)
    monkeypatch.setattr(file_check, "_PAUSES_SECONDS", (0.0,))
    write_jsonl(case.folder / "train.jsonl", rows(100))
    run_dir = case.make()
    prepare_killed(run_dir, 2, monkeypatch)
    shards = sorted((run_dir.data / "train").iterdir())
    with monkeypatch.context() as patch:
        unreadable(patch, prepare.pass_state.state_file(run_dir.data))
        with pytest.raises(Unreadable):
            prepare.main(run_dir.path)
    assert sorted((run_dir.data / "train").iterdir()) == shards
    prepare.main(run_dir.path)
    assert texts(run_dir) == [row["text"] for row in rows(100)]


def test_a_file_that_is_new_in_a_folder_is_of_the_next_set(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = case.folder / "corpus"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", rows(5))
    run_dir = case.make(data={"train": "corpus"})
    with monkeypatch.context() as patch:
        before_the_end(patch, lambda: write_jsonl(folder / "b.jsonl", rows(5, "train")))
        prepare.main(run_dir.path)
    assert len(texts(run_dir)) == 5
    prepare.main(run_dir.path)
    assert len(texts(run_dir)) == 10


def before_the_end(patch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Something happens once all is read."""
    plain = prepare._finish
    patch.setattr(prepare, "_finish", lambda job: (happens(), plain(job)))


def test_a_source_that_is_gone_hides_no_change_of_another(case: Case) -> None:
    first, second = (write_jsonl(case.folder / name, rows(5, name)) for name in ("a.jsonl", "b.jsonl"))
    run_dir = case.make(data={"train": [{"path": "a.jsonl"}, {"path": "b.jsonl"}]})
    prepare.main(run_dir.path)
    run = run_dir.run()
    report = prepared.read_report(run_dir.data)
    assert report is not None
    second.unlink()
    assert prepared.current_report(run_dir, run, case.folder) == report, "the rest is as it was"
    assert prepared.changed_sources(report, run, case.folder) == []
    write_jsonl(first, rows(5, "mended"))
    assert prepared.current_report(run_dir, run, case.folder) is None
    assert prepared.changed_sources(report, run, case.folder) == ["a.jsonl"]
    assert raised(run_dir).code == "STK301"


def test_a_hub_dataset_of_another_revision_is_read_from_its_beginning(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_shards(monkeypatch)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(case.folder / "cache"))
    hub = case.folder / "hub"
    hub.mkdir()
    write_jsonl(hub / "train.jsonl", rows(200))
    run_dir = case.make(data={"train": {"path": f"hub:{hub}", "split": "train"}})
    prepare_killed(run_dir, 2, monkeypatch)
    prepare.main(run_dir.path)
    assert texts(run_dir) == [row["text"] for row in rows(200)]
    again = case.make("again", data={"train": {"path": f"hub:{hub}", "split": "train"}})
    prepare_killed(again, 2, monkeypatch)
    sources.load_hub_dataset.cache_clear()  # as another program would begin
    newer = [*rows(7, "train"), *rows(200)]
    write_jsonl(hub / "train.jsonl", newer)
    prepare.main(again.path)
    assert texts(again) == [row["text"] for row in newer]


def test_a_hub_tokenizer_of_another_revision_reads_from_the_beginning(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    in_small_shards(monkeypatch)
    write_jsonl(case.folder / "train.jsonl", rows(200))
    monkeypatch.setattr(prepare.tokenizer, "_of_hub", lambda _: AutoTokenizer.from_pretrained(case.tokenizer))
    run_dir = case.make(tokenizer="owner/name")
    prepare_killed(run_dir, 2, monkeypatch)
    mark = run_dir.data / "train" / "shard-00000" / "of the first pass"
    mark.touch()
    prepare_killed(run_dir, 1, monkeypatch)
    assert mark.exists(), "it goes on"
    template = case.tokenizer / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8") + "{# another #}", encoding="utf-8")
    prepare.main(run_dir.path)
    assert not mark.exists()
    assert texts(run_dir) == [row["text"] for row in rows(200)]


def test_a_survey_that_a_hub_does_not_answer_leaves_nothing_in(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(case.folder / "train.jsonl", [*rows(20), *rows(20)])
    run_dir = case.make(data={"duplicates": "drop"})
    plain, calls = sources.batches, []

    def batches(*words: Any) -> Iterator[sources.Batch]:
        calls.append(1)
        if len(calls) == 1:
            raise StokerError("STK310", path="hub:owner/name", reason="503")
        return plain(*words)

    with monkeypatch.context() as patch:
        patch.setattr(sources, "batches", batches)
        assert raised(run_dir).code == "STK310"
    prepare.main(run_dir.path)
    assert len(texts(run_dir)) == 20


# ---- a folder that was changed


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_pass_that_is_cut_at_its_end_has_its_counts(
    case: Case, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    in_small_shards(monkeypatch)
    write_jsonl(case.folder / "train.jsonl", rows(200))
    run_dir = case.make()

    def cut(*_: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(prepared, "write_report", cut)
        with pytest.raises(Cut):
            prepare.main(run_dir.path)
    counts = run_dir.data / "row_counts.bin"
    assert counts.exists()
    if not is_kept:  # as where its rows could not be compared when it began
        counts.unlink()
    prepare.main(run_dir.path)
    report = Prepared(run_dir).report
    assert len(texts(run_dir)) == 200
    assert report.survey is not None
    assert (report.survey["skipped"], counts.exists()) == (None if is_kept else "survey.skipped.problem", False)


def test_a_new_beginning_that_was_cut_is_not_taken_for_the_old_pass(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_shards(monkeypatch)
    write_jsonl(case.folder / "train.jsonl", rows(200))
    run_dir = case.make()
    prepare_killed(run_dir, 2, monkeypatch)

    plain, other = shutil.rmtree, case.make(data={"length": 64})

    def cut(path: Path, **words: Any) -> None:
        plain(path, **words)
        if path.name == "train":
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut)
        with pytest.raises(Cut):
            prepare.main(other.path)
    prepare.main(case.make().path)
    assert texts(run_dir) == [row["text"] for row in rows(200)]


def test_a_pass_without_its_shards_begins_anew(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_shards(monkeypatch)
    write_jsonl(case.folder / "train.jsonl", rows(200))
    run_dir = case.make()
    prepare_killed(run_dir, 3, monkeypatch)
    shutil.rmtree(run_dir.data / "train" / "shard-00001")
    prepare.main(run_dir.path)
    assert texts(run_dir) == [row["text"] for row in rows(200)]


def test_a_text_may_have_more_tokens_than_32_bits_count(tmp_path: Path) -> None:
    counts = RowCounts(tmp_path, 0, 0)
    counts.add(2**31 - 1, held=True, is_row=True)
    counts.add(2**31, held=True, is_row=False)
    counts.commit()
    again = RowCounts(tmp_path, 1, counts.last)
    assert [array.tolist() for array in again.arrays()] == [[2**32 - 1], [True]]


# ---- a command that is killed

LAUNCHER = """
import sys
from pathlib import Path
from stoker.launch import programs
from stoker.rundir.layout import RunDir
programs.run_engine("prepare", RunDir(Path(sys.argv[1])), lambda _: None)
"""


@pytest.mark.skipif(os.name == "nt", reason="there a process has no parent once that one has ended")
def test_the_program_ends_with_its_command_and_only_one_prepares(case: Case) -> None:
    write_jsonl(case.folder / "train.jsonl", [{"text": f"wagon {number} " * 300} for number in range(60_000)])
    run_dir = case.make()
    place = run_dir.path / "prepare.lock"
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(run_dir.path)]) as launcher:
        until(lambda: lock.is_held(place), "no program began")
        done = subprocess.run(
            [sys.executable, "-m", "stoker.engine.prepare", str(run_dir.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "STK367" in done.stderr) == (1, True), done.stderr[-2000:]
        launcher.send_signal(signal.SIGKILL)
    until(lambda: not lock.is_held(place), "the program outlived its command")
    assert prepared.read_report(run_dir.data) is None, "it was cut in its work"


def test_a_program_whose_command_is_gone_before_it_begins_ends_at_once(case: Case) -> None:
    write_jsonl(case.folder / "train.jsonl", [{"text": f"wagon {number} " * 300} for number in range(60_000)])
    run_dir = case.make()
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    command = [sys.executable, "-m", "stoker.engine.prepare", str(run_dir.path), str(gone.pid)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, prepared.read_report(run_dir.data)) == (EXIT_STOPPED, None)


def until(is_so: Any, otherwise: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
