"""Objectives: the built-in ones, those of installed packages, and a package that lacks something."""

import sys
from pathlib import Path

import pytest
from installed_package import install

from stoker import plugins
from stoker.config import load, objectives
from stoker.config.objectives import ObjectiveFacts
from stoker.errors import StokerError, StokerErrors

CODE = """
class Whole:
    trains_all = True
    pairs = reference = labels = scores = False

WHOLE, NOTHING = Whole(), object()
"""
TEXT = "model: Qwen/Qwen2.5-0.5B\ndata: {{train: a.jsonl}}\ntrain: {{objective: {name}}}\n"


@pytest.fixture
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme-goals", {plugins.OBJECTIVES: {"whole": "WHOLE", "void": "NOTHING"}}, CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_goals", raising=False)


def test_of_the_built_in_ones_only_pairs_have_two_segments() -> None:
    assert {name: one.segments for name, one in objectives.BUILT_IN.items()} == {
        **dict.fromkeys(("pretrain", "sft", "kto", "grpo", "distill"), 1),
        **dict.fromkeys(("dpo", "simpo", "orpo", "reward"), 2),
    }


@pytest.mark.usefixtures("_package")
def test_an_objective_of_a_package_is_known_by_its_attributes() -> None:
    assert load.parse(TEXT.format(name="whole"), "run.yaml").train.objective == "whole"
    assert objectives.facts("whole") == ObjectiveFacts("whole", trains_all=True)
    assert objectives.title("whole") == "whole (acme-goals 1.0)"
    assert objectives.title("sft") == "sft"


@pytest.mark.usefixtures("_package")
def test_one_that_lacks_something_is_named_with_what() -> None:
    with pytest.raises(StokerError) as caught:
        objectives.facts("void")
    assert caught.value.code == "STK124"
    assert "`trains_all`" in caught.value.fields["reason"]


@pytest.mark.usefixtures("_package")
def test_an_unknown_one_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(StokerErrors) as caught:
        load.parse(TEXT.format(name="dop"), "run.yaml")
    assert all(name in str(caught.value) for name in ("`dpo`", "`kto`", "`whole` (acme-goals 1.0)"))
