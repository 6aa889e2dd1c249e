"""Hostile files, secrets and run directories of strangers, C8 in a medium form."""

from pathlib import Path

import hostile
import pytest
from campaign_case import INOTIFY, passes

pytestmark = pytest.mark.filterwarnings("default")


@INOTIFY
def test_c8_hostile_files(tmp_path: Path) -> None:
    report = passes("c8", 150, tmp_path)
    assert len(report["controls"]) == 9
    assert {one.kind.split()[0] for one in hostile.corpus()} <= set(report["counts"])


@INOTIFY
def test_c8_run_directories_of_strangers(tmp_path: Path) -> None:
    report = passes("c8_directories", 100, tmp_path)
    assert len(report["controls"]) == 6
    assert {"link_file", "hard_link", "escape_in_events", "strange_number", "strange_name"} <= set(report["counts"])
