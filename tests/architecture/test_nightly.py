"""`just nightly`: folder by folder, not again what ended, and a report that hides nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nightly
import pytest

JUNIT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.engine.test_a" name="test_good" time="1.5">
  <properties><property name="processor" value="60.0"/><property name="shared" value="1.0"/></properties></testcase>
<testcase classname="tests.engine.test_a" name="test_bad[x]" time="0.5"><failure message="1 == 2"/></testcase>
<testcase classname="tests.engine.test_a" name="test_late" time="0.5"><error message="no disk">...</error></testcase>
<testcase classname="tests.engine.test_a" name="test_not_here" time="0"><skipped message="no Slurm"/></testcase>
</testsuite></testsuites>
"""
FOLDERS = ["unit", "engine", "nightly/places"]


class Night:
    """Calls of the tool, with pytest's part played: which folders ran, and which fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder = monkeypatch, folder
        self.ran: list[str] = []
        self.fails: set[str] = set()
        self.broken: set[str] = set()
        monkeypatch.setattr(nightly, "KEPT", folder / "kept")
        monkeypatch.setattr(nightly, "all_folders", lambda: FOLDERS)
        monkeypatch.setattr(nightly, "_run", self._run)
        monkeypatch.setattr(nightly.campaign, "code", lambda: {"commit": "abc", "clean": True, "sha256": ""})

    def _run(self, name: str, records: Path) -> dict[str, Any]:
        self.ran.append(name)
        if name in self.broken:
            raise KeyboardInterrupt
        failures = [{"test": f"tests/{name}/test_a.py::test_a", "what": "no"}] if name in self.fails else []
        counts = {"passed": 2, "failed": len(failures), "skipped": 0, "processor_minutes": 1.0}
        return {"minutes": 1.5, "failed_before": [], "failures": failures, "skips": [], **counts}

    def __call__(self, *words: str) -> tuple[int, dict[str, Any]]:
        self._patch.setattr(sys, "argv", ["nightly", *words, "--report", str(self._folder / "report.json")])
        code = nightly.main()
        report = self._folder / "report.json"
        return code, json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Night:
    return Night(monkeypatch, tmp_path)


def test_outcomes_are_counted_and_every_failure_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(JUNIT)
    found = nightly.read(tmp_path / "a.xml")
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 1)
    assert found["processor_minutes"] == 1.0
    assert [one["test"] for one in found["failures"]] == [
        "tests/engine/test_a.py::test_bad[x]",
        "tests/engine/test_a.py::test_late",
    ]
    assert found["skips"] == [{"test": "tests/engine/test_a.py::test_not_here", "why": "no Slurm"}]


def test_a_night_that_was_cut_short_goes_on(night: Night) -> None:
    night.broken = {"engine"}
    with pytest.raises(KeyboardInterrupt):
        night()
    night.broken = set()
    code, report = night()
    assert code == 0
    assert night.ran == ["unit", "engine", "engine", "nightly/places"]
    assert (report["whole"], report["passed"], report["minutes"]) == (True, True, 4.5)
    assert list(report["folders"]) == FOLDERS
    assert report["folders"]["nightly/places"]["tier"] == "nightly"


def test_a_failure_stays_in_the_report_when_its_folder_is_run_again(night: Night) -> None:
    night.fails = {"engine"}
    code, report = night()
    assert (code, report["passed"], len(report["failures"])) == (1, False, 1)
    night.fails = set()
    code, report = night("--again", "engine")
    assert (code, report["passed"]) == (1, False)  # nothing is run until it passes
    assert night.ran == [*FOLDERS, "engine"]
    assert report["failures"] == []
    assert [one["test"] for one in report["failed_before"]] == ["tests/engine/test_a.py::test_a"]


def test_some_folders_are_not_a_whole_night(night: Night) -> None:
    code, report = night("unit")
    assert (code, report["whole"], report["passed"]) == (1, False, False)


def test_a_folder_that_pytest_does_not_get_through_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 2))
    found = nightly._run("engine", tmp_path)
    assert (found["failed"], found["failures"][0]["what"]) == (1, "pytest ended with 2")
