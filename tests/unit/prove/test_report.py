"""The report and its page: complete when a check fails, without names and paths; the row that is shared."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from plan_case import processor

from stoker.errors import StokerError
from stoker.prove import report, report_page, sequence
from stoker.prove.check import Check, absent, passed
from stoker.prove.trials import Trials


@pytest.fixture
def made(tmp_path: Path) -> tuple[dict[str, Any], list[Check]]:
    def fine(on: Trials) -> Check:
        return passed("saves", stall_seconds=0.25, places={"torch/optim/adamw.py:1": 3}, points=[{"micro": 1}])

    def broken(on: Trials) -> Check:
        raise OSError(28, "No space left on device", str(on.folder / "secret"))

    def missing(on: Trials) -> Check:
        return absent("vllm", "prove.reason.no_vllm")

    on = Trials(tmp_path, processor())
    checks = [sequence.tried(name, step, on) for name, step in (("saves", fine), ("memory", broken), ("vllm", missing))]
    return report.make(processor(), checks, {"whole/logs/train.log": "0" * 64}, 12.34, quick=False), checks


def test_an_error_fails_its_check_and_the_others_are_done(made: tuple[dict[str, Any], list[Check]]) -> None:
    assert [check.outcome for check in made[1]] == ["passed", "failed", "absent"]
    assert all("seconds" in check.figures for check in made[1])


def test_the_report_names_no_path(made: tuple[dict[str, Any], list[Check]], tmp_path: Path) -> None:
    text = json.dumps(made[0])
    assert "No space left on device" in text
    assert str(tmp_path) not in text
    assert "secret" not in text


def test_the_page_is_one_file_without_scripts_and_has_every_check(made: tuple[dict[str, Any], list[Check]]) -> None:
    page = report_page.page(*made)
    assert not re.search(r"<script|https?:|src=|href=", page)
    for check in made[1]:
        assert check.title.replace("`", "") in page.replace("`", "")
    assert page.count('class="failed"') == 1
    assert "torch/optim/adamw.py:1" in page


def test_the_row_has_every_check_and_nothing_of_the_machine_but_its_card(
    made: tuple[dict[str, Any], list[Check]],
) -> None:
    row = report.row(made[0])
    assert row["card"] == "cpu"
    assert {name: one["outcome"] for name, one in row["checks"].items()} == {
        "saves": "passed",
        "memory": "failed",
        "vllm": "absent",
    }
    assert "processor" not in json.dumps(row)


def test_a_short_report_and_a_foreign_file_are_not_shared(made: tuple[dict[str, Any], list[Check]]) -> None:
    for wrong, code in (({**made[0], "quick": True}, "STK519"), ({"machine": {}}, "STK518")):
        with pytest.raises(StokerError) as caught:
            report.row(wrong)
        assert caught.value.code == code


def test_every_check_has_a_title_and_quick_ones_are_among_all() -> None:
    assert all(passed(name).title for name in sequence.WHOLE)
    assert set(sequence.QUICK) < set(sequence.WHOLE)
