"""Two nodes train together: each with a run directory of its own, on loopback addresses of its own.

The ranks are forked with the environment a node's agent gives them; tests/nightly/engine starts them as the supervisor
does.
"""

import os
import shutil
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest
import tiny_run
from paired_nodes import ADDRESSES, alone, assert_same, make, make_pair, said, train

from stoker.facts import machine
from stoker.rundir import checkpoints, events, files
from stoker.rundir.events import EventLog

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", dropout=0.1)


@pytest.mark.parametrize(("strategy", "here"), [("ddp", 1), ("ddp", 2), ("fsdp2", 1), ("fsdp2", 2)])
def test_two_nodes_train_as_one_process_and_go_on_with_what_only_the_head_has(
    tmp_path: Path, base: Path, strategy: str, here: int
) -> None:
    whole = alone(tmp_path / "whole", base, strategy)
    head, other = pair = make_pair(tmp_path, base, strategy, here)
    assert train(pair, here, kill_after=3)[0] == -signal.SIGKILL, said(pair)
    assert [one.step for one in checkpoints.committed(head.checkpoints)] == [2]
    assert not other.checkpoints.exists()

    assert set(train(pair, here)) == {0}, said(pair)
    assert_same(head, whole)
    (attempt,) = [event for event in events.read(head.events_file) if event.get("resumed_step")]
    assert (attempt["world"], attempt["tier"]) == (2 * here, "EXACT")
    # Of the other node's files, only what it was sent: the head writes for all.
    assert [one.step for one in checkpoints.committed(other.checkpoints)] == [2]
    assert not any(path.exists() for path in (other.events_file, other.final, other.heartbeat_file, other.lock_file))


def test_the_head_goes_on_alone_until_the_other_node_is_back(tmp_path: Path, base: Path) -> None:
    whole = alone(tmp_path / "whole", base, "ddp")
    head, other = pair = make_pair(tmp_path, base, "ddp", 1)
    together = head.plan_file.read_text()
    assert train(pair, 1, kill_after=3)[0] == -signal.SIGKILL, said(pair)
    head.nodes_file.unlink()
    assert tiny_run.train(make(tmp_path / "first", base, "ddp", 1), kill_after=5) == -signal.SIGKILL, said(pair)
    head.plan_file.write_text(together)
    assert train(pair, 1) == [0, 0], said(pair)
    assert_same(head, whole)
    assert [one.step for one in checkpoints.committed(other.checkpoints)] == [4]
    attempts = [event for event in events.read(head.events_file) if event["event"] == "attempt"]
    assert [(one["world"], one["tier"]) for one in attempts] == [(2, "EXACT"), (1, "EXACT"), (2, "EXACT")]


def test_a_node_that_is_not_sent_the_checkpoint_does_not_go_on(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    from stoker.engine import spread

    pair = make_pair(tmp_path, base, "ddp", 1)
    train(pair, 1, kill_after=3)
    monkeypatch.setattr(spread, "_hand_out", lambda *args: None)  # in the forked children
    assert 0 not in train(pair, 1)
    assert "STK403" in said(pair)


def test_nodes_that_share_a_folder_are_sent_nothing(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the machines of a queue do; the head alone writes and removes."""
    from stoker.engine import spread

    whole = alone(tmp_path / "whole", base, "ddp")
    head, _ = make_pair(tmp_path, base, "ddp", 1)
    assert train([head, head], 1, kill_after=5)[0] == -signal.SIGKILL, said([head])
    monkeypatch.delattr(spread, "_hand_out")  # in the forked children
    assert train([head, head], 1) == [0, 0], said([head])
    assert_same(head, whole)
    assert [one.step for one in checkpoints.committed(head.checkpoints)] == [4, 5]


def test_nodes_write_together_what_they_share_and_the_head_alone_what_they_do_not(tmp_path: Path, base: Path) -> None:
    whole = alone(tmp_path / "whole", base, "fsdp2")
    head, other = make_pair(tmp_path, base, "fsdp2", 1)
    for pair, writers in (([head, head], 2), ([head, other], 1)):
        shutil.rmtree(head.checkpoints, ignore_errors=True)
        head.events_file.unlink(missing_ok=True)
        assert train(pair, 1) == [0, 0], said(pair)
        assert_same(head, whole)
        saves = [event["writers"] for event in events.read(head.events_file) if event["event"] == "checkpoint"]
        assert saves == [writers] * 3
    assert not other.checkpoints.exists()


def test_what_a_node_has_that_is_newer_stays_and_is_named(tmp_path: Path, base: Path) -> None:
    """The head goes back behind it; once the head is as far again, the node has the head's."""
    head, other = pair = make_pair(tmp_path, base, "ddp", 1)
    train(pair, 1, kill_after=5)
    train(pair, 1, kill_after=5)  # the node is sent step 4
    assert [one.step for one in checkpoints.committed(other.checkpoints)] == [4]
    (head.checkpoints / "step-00000004" / "state.safetensors").write_bytes(b"")
    (newer,) = checkpoints.committed(other.checkpoints)
    assert train(pair, 1, kill_after=5)[0] == -signal.SIGKILL, said(pair)
    assert [one.step for one in checkpoints.committed(other.checkpoints)] == [2, 4]
    assert newer in checkpoints.committed(other.checkpoints)
    passed_over = [event for event in events.read(head.events_file) if event["event"] == "rejected"]
    assert [event["path"] for event in passed_over] == ["step-00000004", "second:step-00000004"]

    assert set(train(pair, 1)) == {0}, said(pair)
    assert newer not in checkpoints.committed(other.checkpoints)
    assert checkpoints.committed(other.checkpoints)[-1].commit in [
        one.commit for one in checkpoints.committed(head.checkpoints)
    ]


def test_a_step_that_only_the_heads_events_pass_over_is_passed_over_everywhere(tmp_path: Path, base: Path) -> None:
    whole = make(tmp_path / "whole", base, "ddp", 1)
    head, other = pair = make_pair(tmp_path, base, "ddp", 1)
    for one in (whole, head):
        with closing(EventLog(one.events_file)) as log:
            log.write("passed_over", attempt=1, step=2, reason="STK405")
    assert tiny_run.train(whole) == 0, said([whole])
    assert train(pair, 1) == [0, 0], said(pair)
    assert not other.events_file.exists()
    assert events.steps(head.events_file)[2]["loss"] is None
    assert tiny_run.weights_sha(head.final) == tiny_run.weights_sha(whole.final)


def test_a_node_with_another_plan_is_named(tmp_path: Path, base: Path) -> None:
    pair = make_pair(tmp_path, base, "ddp", 1)
    plan = files.read_json(pair[1].plan_file)
    plan["steps"]["total"] += 1
    files.write_json(pair[1].plan_file, plan)
    assert 0 not in train(pair, 1)
    assert "process 1 on second was started with a different plan.json" in said(pair)


def test_a_node_with_another_stoker_is_named(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make_pair(tmp_path, base, "ddp", 1)
    monkeypatch.setattr(machine, "own_build", lambda: f"0.1 as on {os.environ['STOKER_NODE']}")  # in forked children
    assert 0 not in train(pair, 1)
    assert "process 1 on second was started with a different Stoker" in said(pair)


def test_an_address_that_is_taken_is_named(tmp_path: Path, base: Path) -> None:
    pair = make_pair(tmp_path, base, "ddp", 1)
    with socket.create_server((ADDRESSES["first"], 0)) as other:
        assert 0 not in train(pair, 1, port=other.getsockname()[1])
    assert "STK424" in said(pair)
