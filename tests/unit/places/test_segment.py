"""What one segment of a chain takes over from the one before: the newest that verifies, and never silently nothing."""

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import StokerError
from stoker.places import segment
from stoker.places.segment import SegmentReport, SegmentRequest
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.store import copies, opening

FACTS = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {"micro": "1"}}


def _left(folder: Path, *steps: int, step: int | None = None, chain: str = "c", number: int = 1) -> RunDir:
    """What a segment leaves: checkpoints, records, its report."""
    run_dir = RunDir(folder / "runs" / "tiny")
    run_dir.path.mkdir(parents=True, exist_ok=True)
    for one in steps:
        with checkpoints.writing(run_dir.checkpoints, one, **FACTS) as aside:
            (aside / "model.safetensors").write_bytes(str(one).encode() * 100)
    run_dir.events_file.write_text('{"event": "step"}\n')
    newest = max(steps, default=0) if step is None else step
    report = SegmentReport(chain=chain, number=number, state="stopped", exit_code=75, step=newest)
    (folder / segment.REPORT).write_text(json.dumps(report.sealed()))
    return run_dir


def _asked(
    tmp_path: Path, source: int | None = 1, words: tuple[str, ...] = (), began: float | None = None
) -> SegmentRequest:
    return SegmentRequest(
        name="tiny",
        chain="c",
        number=2,
        source=source,
        session_seconds=3600,
        began=time.time() if began is None else began,
        runs=str(tmp_path / "working" / "runs"),
        inputs=str(tmp_path / "input"),
        words=list(words),
    )


def _mine(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "working" / "runs" / "tiny")


def _damage(run_dir: RunDir, step: int) -> None:
    (run_dir.checkpoints / checkpoints.folder_name(step) / "model.safetensors").write_bytes(b"x")


@pytest.mark.parametrize("where", ["tiny-1", "notebooks/someone/tiny-1"])
def test_the_newest_checkpoint_and_the_records_are_taken_over(tmp_path: Path, where: str) -> None:
    _left(tmp_path / "input" / where, 5, 10)
    rejected: list[dict[str, str]] = []
    assert segment.bring(_asked(tmp_path), _mine(tmp_path), rejected) == 10
    assert rejected == []
    assert [one.step for one in checkpoints.committed(_mine(tmp_path).checkpoints)] == [10]
    assert checkpoints.newest_verified(_mine(tmp_path).checkpoints)[0] is not None
    assert _mine(tmp_path).events_file.exists()


def test_the_first_segment_takes_over_nothing(tmp_path: Path) -> None:
    assert segment.bring(_asked(tmp_path, source=None), _mine(tmp_path), []) == 0


def test_a_damaged_newest_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    _damage(_left(tmp_path / "input" / "tiny-1", 5, 10), 10)
    rejected: list[dict[str, str]] = []
    assert segment.bring(_asked(tmp_path), _mine(tmp_path), rejected) == 5
    assert rejected == [{"path": "step-00000010", "reason": "model.safetensors has 1 byte instead of 200"}]


def test_a_chain_with_no_checkpoint_that_verifies_does_not_start_over(tmp_path: Path) -> None:
    run_dir = _left(tmp_path / "input" / "tiny-1", 5, 10)
    _damage(run_dir, 5)
    _damage(run_dir, 10)
    (tmp_path / "tiny.yaml").write_text("model: m\ndata: {train: a.txt}\n")
    with pytest.raises(StokerError) as problem:
        segment.bring(_asked(tmp_path, words=("train", str(tmp_path / "tiny.yaml"))), _mine(tmp_path), [])
    assert problem.value.code == "STK752"
    assert "step-00000010" in problem.value.what
    assert checkpoints.committed(_mine(tmp_path).checkpoints) == []


def test_checkpoints_that_are_gone_though_the_report_names_a_step_are_an_error(tmp_path: Path) -> None:
    _left(tmp_path / "input" / "tiny-1", step=10)
    (tmp_path / "tiny.yaml").write_text("model: m\ndata: {train: a.txt}\n")
    with pytest.raises(StokerError) as problem:
        segment.bring(_asked(tmp_path, words=("train", str(tmp_path / "tiny.yaml"))), _mine(tmp_path), [])
    assert problem.value.code == "STK752"


def test_a_segment_that_stopped_before_its_first_checkpoint_is_no_loss(tmp_path: Path) -> None:
    _left(tmp_path / "input" / "tiny-1")
    assert segment.bring(_asked(tmp_path), _mine(tmp_path), []) == 0


def test_an_output_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    with pytest.raises(StokerError) as problem:
        segment.bring(_asked(tmp_path), _mine(tmp_path), [])
    assert problem.value.code == "STK751"


@pytest.mark.parametrize(("chain", "number"), [("another", 1), ("c", 7)])
def test_the_output_of_another_chain_or_segment_is_not_taken(tmp_path: Path, chain: str, number: int) -> None:
    _left(tmp_path / "input" / "tiny-1", 5, chain=chain, number=number)
    with pytest.raises(StokerError) as problem:
        segment.bring(_asked(tmp_path), _mine(tmp_path), [])
    assert problem.value.code == "STK751"


def test_where_nothing_verifies_the_store_has_it(tmp_path: Path) -> None:
    run_dir = _left(tmp_path / "input" / "tiny-1", 5)
    (newest,) = checkpoints.committed(run_dir.checkpoints)
    store = opening.open_store(str(tmp_path / "copies"), tmp_path)
    target = tmp_path / "copies" / copies.folder_of("tiny", newest.commit)
    target.mkdir(parents=True)
    for path in newest.path.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    assert copies.committed(store, "tiny", store.names("tiny"))
    _damage(run_dir, 5)
    text = f"model: m\ndata: {{train: a.txt}}\nsave: {{store: {tmp_path / 'copies'}}}\n"
    (tmp_path / "tiny.yaml").write_text(text)
    asked = _asked(tmp_path, words=("train", str(tmp_path / "tiny.yaml")))
    assert segment.bring(asked, _mine(tmp_path), []) == 5
    assert [one.step for one in checkpoints.committed(_mine(tmp_path).checkpoints)] == [5]


def test_a_segment_ends_with_0_and_a_report_whatever_happened(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "working").mkdir()
    assert segment.main(_asked(tmp_path).model_dump_json()) == 0
    report = json.loads((tmp_path / "working" / segment.REPORT).read_text())
    assert report["state"] == "failed"
    assert report["error"]["code"] == "STK751"
    assert (report["chain"], report["number"]) == ("c", 2)


def _report(tmp_path: Path) -> SegmentReport:
    return SegmentReport.read(tmp_path / "working" / segment.REPORT)


def test_the_session_s_end_is_counted_from_the_kernel_s_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacking and installing took 20 minutes of it."""
    told: list[dict[str, str]] = []
    monkeypatch.setattr(segment.subprocess, "call", lambda _, env: told.append(env) or 75)
    began = time.time() - 1200
    segment.main(_asked(tmp_path, source=None, began=began).model_dump_json())
    end = datetime.datetime.fromisoformat(told[0]["STOKER_DEADLINE"]).timestamp()
    assert end == pytest.approx(began + 3600 - segment.MARGIN_SECONDS, abs=1)
    assert _report(tmp_path).seconds >= 1200


@pytest.mark.parametrize("fault", [OSError(5, "input/output error"), RuntimeError("surprise")])
def test_what_nobody_foresaw_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def fail(*_: Any) -> int:
        raise fault

    monkeypatch.setattr(segment, "_train", fail)
    assert segment.main(_asked(tmp_path, source=None).model_dump_json()) == 0
    report = _report(tmp_path)
    assert (report.state, (report.error or {})["code"]) == ("failed", "STK900")


@pytest.mark.parametrize("code", [0, 75])
def test_a_segment_whose_end_cannot_be_read_is_one_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_: RunDir) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(segment, "_train", lambda _: code)
    monkeypatch.setattr(segment.pulled, "standing", fail)
    assert segment.main(_asked(tmp_path, source=None).model_dump_json()) == 0
    assert _report(tmp_path).state == "stopped"


@pytest.mark.parametrize("change", [lambda text: text[:-9], lambda text: text.replace("75", "76"), lambda _: "{}"])
def test_a_report_that_is_not_what_was_written_is_none(tmp_path: Path, change: Any) -> None:
    path = tmp_path / segment.REPORT
    written = SegmentReport(chain="c", number=1, state="stopped", exit_code=75)
    path.write_text(json.dumps(written.sealed()))
    assert SegmentReport.read(path) == written
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=r"char|stoker-segment"):
        SegmentReport.read(path)
