"""What a plan counts besides the steps: the pass over all rows before training, and the second look of `kto`."""

from pathlib import Path
from typing import Any

import pytest

import stoker

TEXT = """
model: Qwen/Qwen3-0.6B
data: {{train: a.jsonl, length: 1024, pack: false, rows: 3200, tokens: 3M}}
tune: {{method: {method}}}
train: {{objective: {objective}, epochs: 4, batch: 32}}
"""


def planned(folder: Path, objective: str, method: str = "lora") -> Any:
    """A plan on a card; its pace does not depend on the objective."""
    path = folder / f"{objective}-{method}.yaml"
    path.write_text(TEXT.format(objective=objective, method=method), encoding="utf-8")
    return stoker.plan(str(path), card="RTX4090")


def keys(plan: Any) -> set[str]:
    return {reason.key for reason in plan.reasons}


@pytest.mark.parametrize(("method", "share"), [("lora", 1 / 2), ("full", 1 / 3)])
def test_the_pass_over_all_rows_is_in_the_time_of_a_plan(tmp_path: Path, method: str, share: float) -> None:
    without, counted = (planned(tmp_path, objective, method) for objective in ("simpo", "dpo"))
    assert counted.time_seconds / without.time_seconds == pytest.approx((4 + share) / 4)
    assert counted.disk_bytes - without.disk_bytes == 3200 * 2 * 4
    assert keys(counted) - keys(without) == {"why.reference.full" if method == "full" else "why.reference.adapter"}


def test_kto_looks_twice_at_every_row(tmp_path: Path) -> None:
    once, twice = (planned(tmp_path, objective) for objective in ("sft", "kto"))
    expected = 4 * 1.5 + 2 * 0.5
    assert twice.time_seconds * twice.speed.tokens_per_second == pytest.approx(expected * 3e6)
    assert keys(twice) >= {"why.reference.adapter", "why.divergence"}
    assert not keys(once) & keys(twice) & {"why.reference.adapter", "why.divergence"}


def test_what_needs_no_reference_has_no_pass(tmp_path: Path) -> None:
    simpo, orpo, reward = (planned(tmp_path, objective).time_seconds for objective in ("simpo", "orpo", "reward"))
    assert simpo == orpo > reward  # which has one output instead of logits
