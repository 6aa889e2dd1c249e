"""However many processes train, and however the model is split: fifty steps stay close without the canonical order."""

from pathlib import Path

import pytest
import tiny_run
from ranked_run import trained

pytestmark = pytest.mark.filterwarnings("default")

SPLITS = [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("zero2", 2), ("zero3", 2)]


def test_fifty_steps_stay_close_without_the_canonical_order(tmp_path: Path) -> None:
    """Same sequences at every step, losses equal but for rounding: DDP, FSDP2 and DeepSpeed's ZeRO."""
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    where, train = "micro: 2, arrange: rows", "batch: 8, exact: false, epochs: 10, eval_every: never"
    alone = trained(tmp_path / "alone", base, "full", where, train)
    expected = {step: float.fromhex(loss) for step, loss in tiny_run.losses(alone).items()}
    assert len(expected) == 50
    for strategy, count in SPLITS:
        several = f"{where}, strategy: {strategy}, processes: {count}"
        run_dir = trained(tmp_path / f"{strategy}-{count}", base, "full", several, train)
        assert tiny_run.sequences(run_dir) == tiny_run.sequences(alone)
        for step, loss in tiny_run.losses(run_dir).items():
            assert float.fromhex(loss) == pytest.approx(expected[step], rel=1e-5), f"{strategy} {count} step {step}"
