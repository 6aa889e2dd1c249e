"""Recurrent layers on torch's own path: told where documents end, as transformers' collator tells its kernels, they
refuse it or carry their state on. So such models are arranged `grouped`, and packed rows are left to the rehearsal.

What a kernel of a card does (flash-linear-attention, causal-conv1d, mamba-ssm) is not seen here.
"""

from typing import Any

import pytest
import tiny_families
import torch

from stoker.engine import isolation, models, weigh
from stoker.engine.dataset import MicroBatch

pytestmark = pytest.mark.filterwarnings("default")
REFUSING = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "falcon_h1", "lfm2", "nemotron_h")
LEAKING = ("jamba", "mamba2", "minimax")


def marked(row: MicroBatch) -> dict[str, Any]:
    """What `DataCollatorWithFlattening` tells of where documents end."""
    return {**row, "seq_idx": ((row["position_ids"] == 0).cumsum(1) - 1).to(torch.int32)}


def made(family: str) -> Any:
    config = tiny_families.config(family)
    assert weigh.weigh(config).recurrent, "the plan groups what the record calls recurrent"
    torch.manual_seed(0)
    return models.auto_class(config).from_config(config, dtype=torch.float32)


@pytest.mark.parametrize("family", REFUSING)
def test_transformers_refuses_packed_rows_without_its_kernels(family: str) -> None:
    model = made(family)
    assert isolation.leaks(model, 96, dict, flat=False)
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        isolation.leaks(model, 96, marked, flat=True)


@pytest.mark.parametrize("family", LEAKING)
def test_others_carry_their_state_on_whatever_they_are_told(family: str) -> None:
    model = made(family)
    assert isolation.leaks(model, 96, dict, flat=False)
    assert isolation.leaks(model, 96, marked, flat=True)


def test_granite_s_blocks_are_known_as_recurrent() -> None:
    assert weigh.weigh(tiny_families.config("granitemoehybrid")).recurrent == ("mamba",)
