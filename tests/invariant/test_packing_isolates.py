"""Row 4 of the issue: packed documents do not see each other; logits and gradients are those of each alone."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run

pytestmark = pytest.mark.filterwarnings("default")


def model_of(base: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="sdpa").train()
    model.config.use_cache = False
    return model


def micro_batches(rows: list[list[np.ndarray]], kind: str, micro: int, *, flatten: bool = False) -> list[dict]:
    from stoker.engine.dataset import Arrangement

    arrangement = Arrangement(kind, micro, 64, flatten, 0)
    return [arrangement.padded(leaf) for leaf in arrangement.leaves(rows)]


def gradients(model: Any, batches: list[dict], **extra: Any) -> dict[str, Any]:
    import torch

    model.zero_grad()
    items = torch.tensor(1)
    for batch in batches:
        model(**batch, **extra, num_items_in_batch=items).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def largest_difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Over all parameters: the largest difference relative to that parameter's own largest gradient."""
    return max(
        ((found[name] - gradient).abs().max() / gradient.abs().max()).item() for name, gradient in expected.items()
    )


@pytest.mark.parametrize(("micro", "flatten"), [(1, False), (3, False), (3, True)])
def test_packed_rows_give_each_documents_own_logits(base_model: Path, micro: int, flatten: bool) -> None:
    import torch

    model = model_of(base_model)
    rows = tiny_run.random_rows(3, seed=8, longest=64, segments=3)
    found: list[Any] = []
    for batch in micro_batches(rows, "rows", micro, flatten=flatten):
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
        starts = batch.get("position_ids", torch.arange(logits.shape[1]).expand(logits.shape[:2])) == 0
        for b in range(logits.shape[0]):
            edges = [*torch.nonzero(starts[b]).flatten().tolist(), logits.shape[1]]
            found += [logits[b, s:e] for s, e in itertools.pairwise(edges)]
    alone = []
    for row in rows:
        for segment in row:
            ids = torch.from_numpy(np.where(segment < 0, ~segment, segment).astype(np.int64))[None]
            alone.append(model(input_ids=ids).logits[0])
    # Padding of a shorter row is one more "document" in `found`; match by content.
    for expected in alone:
        assert any(
            f.shape[0] >= len(expected) and torch.allclose(f[: len(expected)], expected, atol=1e-5) for f in found
        )


def test_packed_grouped_and_alone_give_the_same_gradients(base_model: Path) -> None:
    model = model_of(base_model)
    rows = tiny_run.random_rows(6, seed=9, longest=64, segments=3)
    alone = gradients(model, micro_batches([[s] for row in rows for s in row], "rows", 1))
    for kind, micro, flatten in [("rows", 2, False), ("rows", 2, True), ("grouped", 2, False)]:
        found = gradients(model, micro_batches(rows, kind, micro, flatten=flatten))
        assert largest_difference(found, alone) <= 1e-5


def test_a_mask_of_ones_contaminates(base_model: Path) -> None:
    """Negative control: the trap that the arrangement avoids is real in the installed version."""
    import torch

    model = model_of(base_model)
    rows = [row for row in tiny_run.random_rows(9, seed=9, longest=64, segments=3) if len(row) > 1]
    alone = gradients(model, micro_batches([[s] for row in rows for s in row], "rows", 1))
    batches = micro_batches(rows, "rows", 1)
    masked = [{**b, "attention_mask": torch.ones_like(b["input_ids"])} for b in batches]
    assert largest_difference(gradients(model, masked), alone) > 1e-2
