"""A training on a pretended card waits for it in no micro batch; every other wait is listed here with its reason."""

from collections import Counter
from pathlib import Path

import counted_waits
import pretended_devices
import pytest
import tiny_run
from pretended_devices import DEVICES

pytestmark = pytest.mark.filterwarnings("default")

LENGTH, STEPS, SAVED, LOGGED = 48, 12, 6, 10

LISTED = {
    "callbacks.flush: tolist": "losses of the steps since the last one, for their events: each 10 steps and at a save",
    "callbacks.flush: _local_scalar_dense": "their gradient norms",
    "trainer._maybe_log_save_evaluate: _local_scalar_dense": "loss and norm for the Trainer's loggers, each 10 steps",
    "checkpoint.gather: _local_scalar_dense": "a save in fp16: the scale and how many steps it was good for",
}
"""What waits outside a micro batch, and why."""

CASES = {
    "lora": ("4090", "tune: {method: lora, rank: 4}\nwhere: {micro: 1, arrange: grouped}"),
    "full": ("T4", "tune: {method: full}\nwhere: {micro: 2, arrange: rows, gradient_checkpointing: true}"),
}


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, case: str, steps: int = STEPS, **more: str
) -> list[Counter[str]]:
    """The waits of each step of a training with several micro batches a step."""
    device, words = CASES[case]
    base = tiny_run.make_base_model(folder / "base", dropout=0.1)
    pretended_devices.use(monkeypatch, DEVICES[device], COUNTS_WAITS="1", **more)
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: {LENGTH}, pack: true}}
train: {{batch: 4, steps: {steps}, epochs: 4, learning_rate: 1e-2}}
save: {{every: {SAVED} steps, keep: 20}}
{words}
"""
    run_dir = tiny_run.make_run(folder, text, tiny_run.random_rows(12, seed=5, longest=LENGTH, segments=3))
    assert pretended_devices.train(run_dir) == 0, tiny_run.said(run_dir)
    return counted_waits.read(run_dir.path)


@pytest.mark.parametrize("case", CASES)
def test_no_micro_batch_waits_and_few_steps_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    first, *others = trained(tmp_path, monkeypatch, case)
    assert all(name.startswith("start: ") for name in first)
    assert [number for number, waits in enumerate(others, 1) if waits] == [SAVED, LOGGED]
    saved, logged = others[SAVED - 1], others[LOGGED - 1]
    assert {name.removeprefix("step: ") for name in (*saved, *logged)} <= LISTED.keys()
    assert saved["step: callbacks.flush: tolist"] == saved["step: callbacks.flush: _local_scalar_dense"] == SAVED
    assert logged == {"step: trainer._maybe_log_save_evaluate: _local_scalar_dense": 2}


def test_a_number_that_each_micro_batch_reads_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = trained(tmp_path, monkeypatch, "lora", steps=2, FAULT="number read")
    assert all(waits["micro batch: pretend_cuda.forward_backward: _local_scalar_dense"] > 1 for waits in found[1:])
