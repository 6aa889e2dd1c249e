"""`import stoker`: what it offers, how it shows itself, and that it loads only what is used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker.api import html_tables
from stoker.errors import StokerError
from stoker.facts import prices

LIGHT = """
import json, sys
import stoker
first = sorted(name for name in sys.modules if name.startswith(("stoker.", "pydantic", "rich", "typer")))
run = stoker.load("scratch_tiny", {"train.epochs": 1})
stoker.plan(run, card="RTX4090")
heavy = [name for name in ("torch", "transformers", "numpy", "typer") if name in sys.modules]
print(json.dumps([first, heavy, stoker.plan.__name__, sorted(dir(stoker)) == sorted(stoker.__all__)]))
"""


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.chdir(tmp_path)


def test_importing_loads_nothing_and_planning_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIGHT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[], [], "plan", True]


def test_plan_is_the_function_also_after_the_room_of_that_name_is_imported() -> None:
    from stoker.plan import plan as room

    assert stoker.plan is not room
    assert callable(stoker.plan)


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="teach"):
        stoker.teach  # noqa: B018


def test_overrides_are_what_set_takes_on_the_command_line() -> None:
    run = stoker.load("scratch_tiny", {"train.epochs": 1, "name": "door", "train.seed": 7})
    assert (run.run.train.epochs, run.run.name, run.run.train.seed) == (1, "door", 7)
    assert run.overrides == ("train.epochs=1", 'name="door"', "train.seed=7")
    again = stoker.load(run, {"train.epochs": 2})
    assert (again.run.train.epochs, again.run.name, again.run.train.seed) == (2, "door", 7)
    assert stoker.load(run, {"name": "other"}).run.name == "other"


@pytest.mark.parametrize(("language", "word"), [("en", "fits"), ("zh", "放得下")])
def test_a_plan_shows_as_a_table_and_as_text(language: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    plan = stoker.plan("scratch_tiny", card="RTX4090")
    assert plan.fits == "yes"
    assert word in plan._repr_html_()
    assert repr(plan) == str(plan)
    assert word in repr(plan)
    assert all(reason.text in repr(plan) for reason in plan.reasons)


def test_errors_of_overrides_name_the_mapping_and_no_flag() -> None:
    with pytest.raises(StokerError) as caught:
        stoker.load("scratch_tiny", {"train.step": 40, "tune": {"method": "lora", "rnk": 1}})
    assert [one.where for one in caught.value.errors] == ["overrides tune: rnk", "overrides train.step"]
    with pytest.raises(StokerError) as caught:
        stoker.load(stoker.load("scratch_tiny"), {"train.step": 40})
    assert caught.value.where == "overrides train.step"


def test_a_plan_that_does_not_fit_says_what_would_and_no_time_or_money() -> None:
    plan = stoker.plan("lora_qwen2.5_7b_rank64", card="T4")
    assert (plan.fits, plan.is_possible) == ("no", False)
    assert plan.cost is not None
    labels = [line.split("  ")[0] for line in str(plan).splitlines()]
    assert not {"speed", "time", "cost"} & set(labels)
    fits = stoker.plan("lora_qwen2.5_7b_rank64", card="H200")
    assert fits.is_possible
    assert {"speed", "time", "cost"} <= {line.split("  ")[0] for line in str(fits).splitlines()}
    assert "What would fit:" in plan._repr_html_()
    assert "What would fit:" in str(plan)


def test_a_card_without_a_known_price_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no known price" not in str(stoker.plan("scratch_tiny", card="RTX4090"))
    monkeypatch.setattr(prices, "maintained", lambda card, market=None: [])
    assert "cost  no known price; give `--price` (`where.price`)" in str(stoker.plan("scratch_tiny", card="RTX4090"))


def test_a_comparison_shows_as_a_table_and_as_text() -> None:
    table = stoker.compare("lora_qwen2.5_7b_rank64", goal="speed")
    assert table.rows[0].seconds <= 1.1 * min(row.seconds for row in table.rows if row.fits == "yes")
    assert table.recommended is not None
    assert table.to_json()["recommended"]["card"] == table.recommended.card
    assert table._repr_html_().count("<tr>") == 1 + len(table.table(table.shortlist)[1])
    assert table.recommended.card in repr(table)


def test_a_goal_that_is_none_is_refused() -> None:
    with pytest.raises(StokerError) as caught:
        stoker.compare("lora_qwen2.5_7b_rank64", goal="taste")
    assert (caught.value.code, caught.value.where) == ("STK108", "goal")


def test_text_in_a_table_is_escaped() -> None:
    shown = html_tables.table([["<b>", ("1 & 2", "<0.01")]], ["<i>"])
    assert shown == (
        "<table><thead><tr><th>&lt;i&gt;</th></tr></thead>"
        "<tbody><tr><td>&lt;b&gt;</td><td>1 &amp; 2<br><small>&lt;0.01</small></td></tr></tbody></table>"
    )
    assert html_tables.paragraph("a\n<script>") == "<p>a<br>&lt;script&gt;</p>"
    assert html_tables.items(["<", ">"]) == "<ul><li>&lt;</li><li>&gt;</li></ul>"


def test_a_run_on_another_machine_is_not_started_from_python() -> None:
    with pytest.raises(stoker.StokerError) as caught:
        stoker.train("scratch_tiny", {"where.place": "ssh", "where.host": "box"})
    error = caught.value
    assert error.as_dict() == {
        "code": "STK514",
        "where": "",
        "message": "`stoker.train` trains on this machine, and the run's place is `ssh`",
        "hint": 'start it with `stoker train --on HOST`, or train here with `{"where.place": "local"}`',
        "fields": {"place": "ssh"},
        "file": None,
        "line": None,
        "key": None,
        "choices": [],
    }


def test_all_problems_of_a_run_file_come_at_once() -> None:
    with pytest.raises(stoker.StokerErrors) as caught:
        stoker.load("scratch_tiny", {"train.epoch": 1, "train.batches": 8})
    assert [error["code"] for error in caught.value.as_dict()["errors"]] == ["STK104", "STK104"]


@pytest.mark.parametrize(
    ("words", "given"),
    [((3,), "int"), ((None,), "NoneType"), (({"model": "m"},), "dict"), (("scratch_tiny", ["train.epochs=1"]), "list")],
    ids=str,
)
def test_what_is_no_run_file_is_an_error_with_a_code(words: tuple[object, ...], given: str) -> None:
    with pytest.raises(stoker.StokerError) as caught:
        stoker.load(*words)
    assert (caught.value.code, caught.value.fields["given"]) == ("STK153", given)
    assert "stoker.load(" in caught.value.hint
