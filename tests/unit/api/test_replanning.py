"""The sentence about a changed plan names its reason."""

from stoker.api import replanning

SPLIT: dict[str, object] = {"micro": 8, "accumulation": 1, "strategy": "ddp", "devices": 2}


def test_less_memory_and_other_machines_are_told_apart() -> None:
    assert replanning.said(SPLIT, {**SPLIT, "micro": 4, "accumulation": 2}) == (
        "train.replanned",
        ["micro 8 -> 4", "accumulation 1 -> 2"],
    )
    assert replanning.said(SPLIT, {**SPLIT, "devices": 1, "accumulation": 2})[0] == "train.regrouped"
