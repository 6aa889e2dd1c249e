"""The tables of docs/concepts/scale.* are those of the evidence, and the planner still says what they say."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import scale  # noqa: E402
import scale_report  # noqa: E402


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(scale.EVIDENCE.read_text(encoding="utf-8"))
    return found


def test_every_part_was_taken_and_stands_in_both_pages(told: dict[str, Any], tmp_path: Path) -> None:
    assert set(scale.PARTS) <= set(told)
    for name in scale_report.PAGES.values():
        page = shutil.copy(ROOT / "docs" / "concepts" / name, tmp_path / name)
        text = page.read_text(encoding="utf-8")
        scale_report.write_page(page, told)
        assert page.read_text(encoding="utf-8") == text


def test_the_planner_says_what_the_table_says(told: dict[str, Any]) -> None:
    for row in told["planner"]["rows"][::9]:
        nodes = row["devices"] // scale.PER_NODE
        assert scale._figure(row["model"], scale.MODELS[row["model"]], row["method"], row["card"], nodes) == row


def test_control_does_not_grow_in_the_evidence(told: dict[str, Any]) -> None:
    several = {name: one for name, one in told["control"].items() if name != "steps" and not name.endswith(" 1")}
    assert len(several) == 6
    for one in several.values():
        assert one["control"] == {"all_reduce": 1, "broadcast": 1, "bytes": 16}
        assert one["store_bytes"] == one["main"].get("open", 0) == 0
