"""The catalogue against what is published: every model's weights, and who says so."""

import json
from importlib import resources
from typing import Any

import pytest

from stoker.facts import model_records, shapes

_CLOSE = 0.005
"""Of a count, an index, or a figure of four digits and more."""
_ROUND = 0.05
"""Of a rounder figure, where one unit of its last digit is less than this: `48B`."""
_UNITS = {"T": 10**12, "B": 10**9, "M": 10**6}


def _read(name: str) -> dict[str, Any]:
    text = resources.files("stoker.facts").joinpath(f"data/{name}").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


_SHAPES, _PARTS = _read("shapes.json"), _read("model_parts.json")


def _published() -> dict[str, str]:
    """What is published of each model: `8030261248`, `36B`."""
    rows = {model: row.get("published") or f"{row['parameters_b']}B" for model, row in _SHAPES["models"].items()}
    return rows | {model: _PARTS["published"][name]["weights"] for model, name in _PARTS["models"].items()}


def _agrees(counted: int, published: str) -> bool:
    unit = _UNITS.get(published[-1], 1)
    figure = published.rstrip("TBM")
    stated = float(figure) * unit
    if len(figure.replace(".", "").lstrip("0")) >= 4:
        # The sources of the oldest rows leave out biases; 0.1 M of rounding counts in the smallest models.
        return abs(counted - stated) <= max(_CLOSE * stated, 10**5)
    last = unit / 10 ** len(figure.partition(".")[2])
    return abs(counted - stated) <= max(last, _ROUND * stated)


def test_a_model_of_the_catalogue_has_the_weights_that_are_published() -> None:
    counted = {model: shape.parameters() for model, shape in shapes.shipped().items()}
    wrong = {model: (counted[model], said) for model, said in _published().items() if not _agrees(counted[model], said)}
    assert not wrong


@pytest.mark.parametrize(
    ("counted", "published", "agrees"),
    [
        (8_030_261_248, "8030261248", True),
        (8_080_000_000, "8030261248", False),
        (36_151_104_512, "36B", True),
        (38_000_000_000, "36B", False),
        (17_000_000_000, "671B", False),  # DeepSeek-V3 as it was once planned
        (3_849_000_000, "3.8B", True),
        (4_100_000_000, "3.8B", False),
        (1_243_000_000, "1.236B", False),
    ],
)
def test_a_count_that_is_not_the_published_one_is_seen(counted: int, published: str, agrees: bool) -> None:
    assert _agrees(counted, published) == agrees


def test_every_row_of_the_catalogue_names_its_sources() -> None:
    sources = _SHAPES["about"]["sources"]
    for model, row in _SHAPES["models"].items():
        assert row["source"] in sources, model
        assert ("parameters_b" in row) or (row["published_by"] in sources), model
    assert set(_PARTS["about"]["sources"]) == set(_PARTS["records"]) == set(_PARTS["published"])
    assert all(said["by"] for said in _PARTS["published"].values())


def test_nothing_in_the_catalogue_is_from_memory() -> None:
    sources = [*_SHAPES["about"]["sources"].values(), *_PARTS["about"]["sources"].values()]
    assert not [source for source in sources if "general knowledge" in source]
    assert not [model for model, row in _SHAPES["models"].items() if "all" in row.get("unverified", ())]


@pytest.mark.parametrize(
    ("model", "mixers"),
    [
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"linear": 20, "full": 7}),
        ("deepseek-ai/DeepSeek-V4-Flash", {"sliding": 2, "full": 41}),
        ("allenai/Olmo-Hybrid-7B", {"linear": 24, "full": 8}),
        ("LiquidAI/LFM2-8B-A1B", {"conv": 18, "full": 6}),
    ],
)
def test_the_blocks_of_a_hybrid_are_those_of_its_own_configuration(model: str, mixers: dict[str, int]) -> None:
    # transformers' defaults for a family are not always those of the checkpoint they name.
    assert dict(model_records.shipped()[model].mixers) == mixers


def test_the_catalogue_has_the_families_that_people_pick() -> None:
    families = {shape.family for shape in shapes.shipped().values()}
    assert {
        *("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_vl_text"),
        *("gemma3_text", "gemma4_text", "llama", "llama4_text", "gpt_oss"),
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm4", "glm4_moe", "glm4_moe_lite"),
        *("mistral", "ministral3", "phi3", "phimoe", "smollm3", "olmo3", "olmo_hybrid", "granite", "granitemoehybrid"),
        *("lfm2", "lfm2_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "seed_oss", "ernie4_5", "ernie4_5_moe"),
        *("kimi_linear", "minimax_m2"),
    } <= families


def test_no_model_is_counted_by_a_formula_and_by_a_record() -> None:
    dense = {model for model, row in _SHAPES["models"].items() if not row.get("experts")}
    assert not dense & model_records.shipped().keys()
