"""`stoker recipes` through the door people use."""

import json

import pytest
from made_runs import CommandLine
from rich.cells import cell_len


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_a_recipe_is_for_is_one_sentence_and_whole_in_80_columns(stoker: CommandLine, language: str) -> None:
    sentences = [row["for"] for row in json.loads(stoker("recipes", "--json", language=language).out)]
    assert not [one for one in sentences if one.endswith((".", "。", "；", "，")) or "。" in one]
    shown = stoker("recipes", language=language).out
    assert max(map(cell_len, shown.splitlines())) <= 80
    assert [one for one in sentences if "".join(one.split()) not in "".join(shown.split())] == []
