"""A fork goes on from another run's checkpoint, with its own words; the parent stays as it was."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import tiny_run
import torch
import transformers

from stoker.api import forking, preparation
from stoker.config.run import Train
from stoker.engine import checkpoint
from stoker.errors import StokerError
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan
from stoker.rundir import checkpoints, events, files, layout
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

TEXT = """
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: {method}}}
train: {{batch: 8, steps: 12, epochs: 4, learning_rate: 1e-3}}
save: {{every: 4 steps}}
"""


@pytest.fixture(params=["lora, rank: 4", "full"])
def parent(tmp_path: Path, request: pytest.FixtureRequest) -> RunDir:
    """A run with a checkpoint of step 5 of 12."""
    base = tiny_run.make_base_model(tmp_path / "base")
    rows = tiny_run.random_rows(30, seed=5, longest=64, segments=3)
    run_dir = tiny_run.make_run(tmp_path / "run", TEXT.format(base=base, method=request.param), rows)
    assert tiny_run.train(run_dir, stop_after=5) == 75
    return run_dir


def forked(parent: RunDir, *overrides: str, weights_only: bool = False) -> RunDir:
    """A fork, ready to train."""
    run_file = forking.fork(parent, "other", overrides, weights_only=weights_only)
    run_dir = layout.create(run_file)
    assert run_dir.path == parent.path.parent / "other"
    plan = make_plan(plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(None, run_file.run)))
    files.write_json(run_dir.plan_file, plan.model_dump())
    return run_dir


def attempts(run_dir: RunDir) -> Sequence[tuple[str, int]]:
    kinds = (event for event in events.read(run_dir.events_file) if event["event"] == "attempt")
    return [(event["tier"], event["resumed_step"]) for event in kinds]


def rates(run_dir: RunDir) -> dict[int, float]:
    return {step: event["learning_rate"] for step, event in events.steps(run_dir.events_file).items()}


@pytest.mark.parametrize("schedule", get_args(Train.model_fields["schedule"].annotation))
@pytest.mark.parametrize("steps", [1, 5, 20])
def test_a_schedule_is_set_to_a_step_as_if_it_had_gone_there(schedule: str, steps: int) -> None:
    gone, placed = (_schedule(schedule) for _ in range(2))
    for _ in range(steps):
        gone.optimizer.step()
        gone.step()
    placed.load_state_dict(checkpoint.schedule_after(placed, steps))
    assert placed.state_dict() == gone.state_dict()
    assert placed.get_last_lr() == gone.get_last_lr()


def _schedule(name: str) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1e-3, 3e-4)]
    return transformers.get_scheduler(name, torch.optim.AdamW(groups), num_warmup_steps=3, num_training_steps=20)


@pytest.mark.filterwarnings("error:Detected call of .lr_scheduler")
def test_a_fork_with_the_same_words_ends_with_the_weights_of_its_parent(parent: RunDir) -> None:
    """What is left out of the state (options, schedule) is made anew as it was."""
    fork = forked(parent)
    assert tiny_run.train(fork) == 0
    assert attempts(fork) == [("FORK", 5)]
    assert tiny_run.train(parent) == 0
    assert tiny_run.weights_sha(fork.final) == tiny_run.weights_sha(parent.final)


def test_a_fork_follows_its_own_rate_and_length(parent: RunDir, tmp_path: Path) -> None:
    before = files.sha256(parent.manifest_file), checkpoints.committed(parent.checkpoints)
    changes = ("train.steps=20", "train.learning_rate=5e-4", "train.weight_decay=0.5")
    fork = forked(parent, *changes)
    assert tiny_run.train(fork, stop_after=7) == 75
    assert tiny_run.train(fork) == 0
    assert attempts(fork) == [("FORK", 5), ("EXACT", 7)]
    rows = tiny_run.random_rows(30, seed=5, longest=64, segments=3)
    begun_so = tiny_run.make_run(tmp_path / "alone", parent.run_file.read_text(), rows, sets=changes)
    assert tiny_run.train(begun_so) == 0
    assert rates(fork) == {step: rate for step, rate in rates(begun_so).items() if step > 5}
    assert (files.sha256(parent.manifest_file), checkpoints.committed(parent.checkpoints)) == before
    origin = fork.manifest().forked_from
    assert origin is not None
    assert (origin["run"], origin["step"], origin["weights_only"]) == (parent.name, 5, False)


def test_a_fork_of_the_weights_starts_at_step_0(parent: RunDir) -> None:
    fork = forked(parent, "train.optimizer=adafactor", weights_only=True)
    assert tiny_run.train(fork) == 0
    assert attempts(fork) == [("FORK", 0)]
    assert sorted(events.steps(fork.events_file)) == list(range(1, 13))
    first = events.steps(parent.events_file)
    # Its first step sees weights that were trained: the parent's loss at that step was higher.
    assert events.steps(fork.events_file)[1]["loss"] < first[1]["loss"]


def test_a_fork_of_the_weights_may_have_other_data(parent: RunDir) -> None:
    run_file = forking.fork(parent, "other", ["data.length=32"], weights_only=True)
    run_dir = layout.create(run_file)
    assert preparation.current(run_dir) is None  # to be prepared, and not refused
    assert not run_dir.data.exists()


def test_what_does_not_fit_is_refused(parent: RunDir) -> None:
    for override, weights_only in (
        ("train.optimizer=adafactor", False),
        ("data.length=32", False),
        ("train.seed=7", False),
        ("train.precision=bf16", False),
        ("model=other", True),
    ):
        with pytest.raises(StokerError) as caught:
            forking.fork(parent, "other", [override], weights_only=weights_only)
        lora = "lora" in str(parent.run().tune.method)  # weights in bf16 are all trained: the run file itself is wrong
        assert caught.value.code == ("STK246" if lora and "bf16" in override else "STK429")
        assert caught.value.code == "STK246" or override.partition("=")[0] in caught.value.what
    assert not (parent.path.parent / "other").exists()


def test_the_same_command_goes_on_and_another_name_is_not_taken(parent: RunDir) -> None:
    fork = forked(parent, "train.steps=20")
    assert forking.fork(parent, "other", ["train.steps=20"], weights_only=False).run == fork.run()
    with pytest.raises(StokerError) as caught:
        layout.create(forking.fork(parent, "other", ["train.steps=30"], weights_only=False))
    assert caught.value.code == "STK401"
    with pytest.raises(StokerError) as caught:
        forking.fork(fork, parent.name, [], weights_only=False)
    assert caught.value.code == "STK427"


def test_a_fork_that_would_end_where_it_starts_is_refused(parent: RunDir) -> None:
    with pytest.raises(StokerError) as caught:
        forking.fork(parent, "other", ["train.steps=5"], weights_only=False)
    assert caught.value.code == "STK432"
    assert not layout.named("other").path.exists()
    forking.fork(parent, "other", ["train.steps=5"], weights_only=True)


@pytest.mark.parametrize("parent", ["lora, rank: 4"], indirect=True)
def test_a_fork_does_not_go_on_from_a_fork_of_another_checkpoint(parent: RunDir) -> None:
    fork = forked(parent, weights_only=True)
    assert tiny_run.train(fork, stop_after=2) == 75
    origin = fork.manifest().forked_from
    assert origin is not None
    layout.record(fork, forked_from={**origin, "commit": "0" * 64})
    assert tiny_run.train(fork) not in (0, 75)
    assert attempts(fork) == [("FORK", 0)]
    layout.record(fork, forked_from=origin)
    assert tiny_run.train(fork, stop_after=3) == 75
    assert attempts(fork) == [("FORK", 0), ("EXACT", 2)]


@pytest.mark.parametrize("parent", ["lora, rank: 4"], indirect=True)
def test_what_a_fork_cannot_be_is_said_before_it_is_made(parent: RunDir) -> None:
    def refused(name: str, *overrides: str, weights_only: bool = False) -> str:
        with pytest.raises(StokerError) as caught:
            forking.fork(parent, name, overrides, weights_only=weights_only)
        return caught.value.code

    assert refused("short", "train.steps=", "train.epochs=1") == "STK432"  # its one epoch has 4 steps, step 5 is done
    assert not layout.named("short").path.exists()
    forked(parent)
    assert refused("other", weights_only=True) == "STK438"
    assert forking.fork(parent, "other", (), weights_only=False).run.name == "other"
