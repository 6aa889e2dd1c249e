"""A run with the fused loss has the losses of the plain one; it is exact on one, two and four ranks and over a kill."""

from pathlib import Path

import pytest
import tiny_run
from ranked_run import make, trained
from tiny_run import said

from stoker.estimate import fused_rows

pytestmark = pytest.mark.filterwarnings("default")

WHERE = "micro: 2, arrange: rows, loss: {}, strategy: {}, processes: {}"


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that a micro batch takes several turns; the forked ranks inherit it."""
    monkeypatch.setattr(fused_rows, "_BYTES", 4 * tiny_run.VOCAB * 16)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_one_sha_on_one_two_and_four_ranks_and_the_plain_losses(tmp_path: Path, method: str) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    cases = [("ddp", 1), ("ddp", 2), ("ddp", 4), ("fsdp2", 2)]
    runs = [
        trained(tmp_path / f"{one}-{count}", base, method, WHERE.format("fused", one, count)) for one, count in cases
    ]
    assert len({tiny_run.weights_sha(run.final) for run in runs}) == 1
    plain = trained(tmp_path / "plain", base, method, WHERE.format("plain", "ddp", 1))
    for step_number, loss in tiny_run.losses(plain).items():
        found = float.fromhex(tiny_run.losses(runs[0])[step_number])
        assert found == pytest.approx(float.fromhex(loss), rel=1e-6)


def test_a_kill_changes_no_bit(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    where = WHERE.format("fused", "auto", 1)
    whole, killed = trained(tmp_path / "whole", base, "full", where), make(tmp_path / "killed", base, "full", where)
    assert tiny_run.train(killed, kill_after=3) == -9, said(killed)
    assert tiny_run.train(killed) == 0, said(killed)
    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)
