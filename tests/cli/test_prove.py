"""`stoker prove` through the door people use, with checks that need no torch."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from made_runs import CommandLine

from stoker.cli import prove_command
from stoker.facts import proven
from stoker.facts.proven import ProvenRow
from stoker.launch import programs
from stoker.prove import sequence
from stoker.prove.check import Check, absent, passed
from stoker.prove.trials import Trials


def fine(on: Trials) -> Check:
    return passed("saves", stall_seconds=0.25)


def missing(on: Trials) -> Check:
    return absent("vllm", "prove.reason.no_vllm")


def broken(on: Trials) -> Check:
    (on.folder / "left.txt").write_text("what a failed check leaves")
    raise OSError(28, "No space left on device", str(on.folder))


@pytest.fixture(autouse=True)
def _checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "check_engine", lambda: None)
    monkeypatch.setattr(sequence, "WHOLE", {"saves": fine, "vllm": missing})
    monkeypatch.setattr(sequence, "QUICK", {"saves": fine})


@pytest.mark.parametrize(("language", "word"), [("en", "passed"), ("zh", "通过")])
def test_what_passed_is_said_and_written(stoker: CommandLine, tmp_path: Path, language: str, word: str) -> None:
    done = stoker("prove", "--folder", str(tmp_path / "out"), language=language)
    assert done.code == 0, done.err
    assert f"✓ {word}" in done.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["proof.html", "proof.json"]
    assert word in (tmp_path / "out" / "proof.html").read_text(encoding="utf-8")


def test_a_failed_check_is_named_the_report_is_whole_and_the_code_is_1(
    stoker: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "WHOLE", {"saves": fine, "memory": broken, "vllm": missing})
    done = stoker("prove", "--folder", str(tmp_path))
    assert done.code == 1
    assert "✗ failed" in done.out
    assert "No space left on device" in done.out
    report = json.loads((tmp_path / "proof.json").read_text(encoding="utf-8"))
    assert [one["outcome"] for one in report["checks"]] == ["passed", "failed", "absent"]
    (kept,) = tmp_path.glob("prove-*/left.txt")
    assert str(kept.parent) in done.err.replace("\n", "")


@pytest.mark.skipif(os.name == "nt", reason="a process is ended there, not asked")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_what_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    """A check that is under way cleans up after itself, as after Ctrl-C, and so does the command."""
    ended, before = [], signal.getsignal(signal.SIGTERM)

    def asked_to_end(on: Trials) -> Check:
        try:
            os.kill(os.getpid(), getattr(signal, number))
            time.sleep(60)
        finally:
            ended.append(on.folder)
        return fine(on)

    monkeypatch.setattr(sequence, "WHOLE", {"saves": asked_to_end})
    with pytest.raises(KeyboardInterrupt):
        prove_command.prove(str(tmp_path), quick=False, as_json=False)
    assert len(ended) == 1
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_row_of_a_report_is_one_that_a_plan_reads(stoker: CommandLine, tmp_path: Path) -> None:
    stoker("prove", "--folder", str(tmp_path))
    done = stoker("prove", "--share", "--folder", str(tmp_path))
    assert done.code == 0, done.err
    row = ProvenRow.model_validate(json.loads(done.out))
    assert row.passed("saves")
    assert not row.passed("vllm")
    assert f"{row.card}-{row.date}.json" in done.err


def test_there_is_nothing_to_share_before_a_proof_or_after_a_short_one(stoker: CommandLine, tmp_path: Path) -> None:
    assert "STK518" in stoker("prove", "--share", "--folder", str(tmp_path)).err
    stoker("prove", "--quick", "--folder", str(tmp_path))
    assert "STK519" in stoker("prove", "--share", "--folder", str(tmp_path)).err


def test_models_says_who_has_run_a_card(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven, "rows", tuple)
    assert "Nobody has run Stoker on a GPU yet" in stoker("models").err
    row = {"card": "T4", "count": 1, "memory_bytes": 1, "driver": "", "power_limit_watts": None, "date": "2026-12-01"}
    more = {"stoker": "0", "packages": {"torch": "2.13.0"}, "checks": {}}
    monkeypatch.setattr(proven, "rows", lambda: (ProvenRow.model_validate({**row, **more}),))
    assert "T4 (torch 2.13, 2026-12-01)" in stoker("models").err


def test_a_plan_says_whether_somebody_has_run_the_card(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven, "rows", tuple)
    assert "card: nobody has run this card yet" in stoker("plan", "qlora_qwen2.5_7b", "--card", "RTX4090").out
