"""A run goes on from its store on a machine that has nothing of it, bit for bit."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_run

from stoker.api import store_return
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events
from stoker.rundir.layout import RunDir
from stoker.store import push
from stoker.terminal import console

pytestmark = pytest.mark.filterwarnings("default")

RUN = """
model: base
data: {{train: rows.jsonl, length: 64}}
tune: {tune}
train: {{epochs: 2, batch: 8, learning_rate: 1e-3, seed: 3, warmup: 1}}
save: {{every: 2 steps, keep: 2, store: "{store}"}}
where: {{gpus: 0, micro: 4}}
"""


def run_at(folder: Path, store: Path, tune: str, rows: list[Any]) -> RunDir:
    """The same run file and data in a folder of its own, as on another machine."""
    if not (folder / "base").exists():
        tiny_run.make_base_model(folder / "base", dropout=0.1)
    return tiny_run.make_run(folder, RUN.format(tune=tune, store=store), rows)


@pytest.mark.parametrize("tune", ["{method: lora, rank: 4, dropout: 0.1}", "{method: full}"])
def test_a_fresh_machine_goes_on_bit_for_bit(tmp_path: Path, tune: str) -> None:
    rows = tiny_run.random_rows(36, 1, 40)
    whole = run_at(tmp_path / "whole", tmp_path / "unused", tune, rows)
    assert tiny_run.train(whole) == 0

    first = run_at(tmp_path / "first", tmp_path / "store", tune, rows)
    assert tiny_run.train(first, kill_after=5) == -signal.SIGKILL
    assert push.push(first)["copied"]
    shutil.rmtree(tmp_path / "first")  # the box is gone

    second = run_at(tmp_path / "second", tmp_path / "store", tune, rows)
    assert checkpoints.committed(second.checkpoints) == []
    store_return.check(second, second.run(), console.talk)
    store_return.bring(second, second.run(), console.talk)
    assert [one.step for one in checkpoints.committed(second.checkpoints)] == [4]
    assert tiny_run.train(second) == 0
    attempts = [event for event in events.read(second.events_file) if event["event"] == "attempt"]
    assert (attempts[-1]["resumed_step"], attempts[-1]["tier"]) == (4, "EXACT")
    assert tiny_run.losses(second) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(second.final) == tiny_run.weights_sha(whole.final)


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    tune = "{method: lora, rank: 4}"
    first = run_at(tmp_path / "first", tmp_path / "store", tune, tiny_run.random_rows(36, 1, 40))
    assert tiny_run.train(first, stop_after=2) == 75
    assert push.push(first)["copied"]
    other = run_at(tmp_path / "other", tmp_path / "store", tune, tiny_run.random_rows(36, 2, 40))
    store_return.check(other, other.run(), console.talk)
    with pytest.raises(StokerError) as caught:
        store_return.bring(other, other.run(), console.talk)
    assert caught.value.code == "STK660"
    assert checkpoints.committed(other.checkpoints) == []
