"""Two nodes train together: each with a run directory of its own, on loopback addresses of its own.

Most tests fork the ranks with the environment a node's agent gives them; one starts them as the supervisor does.
"""

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from test_several import family, listening

from stoker.facts import machine
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan
from stoker.rundir import checkpoints, events, files, nodes
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.rundir.nodes import Node
from stoker.supervise import processes

pytestmark = pytest.mark.filterwarnings("default")

ADDRESSES = {"first": "127.0.0.2", "second": "127.0.0.3"}
ROWS = tiny_run.random_rows(37, seed=1, longest=48, segments=2)  # at batch 8: 5 steps, the last of 5 sequences


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", dropout=0.1)


def make(folder: Path, base: Path, strategy: str, here: int, train: str = "", save: str = "2 steps") -> RunDir:
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 48, pack: true}}
tune: {{method: lora, rank: 4, dropout: 0.1}}
train: {{learning_rate: 1e-2, warmup: 0, batch: 8, exact: true, {train}}}
save: {{every: {save}, keep: 2}}
where: {{gpus: 0, micro: 1, arrange: rows, strategy: {strategy}, processes: {here}}}
native: {{trainer: {{report_to: none}}}}
"""
    return tiny_run.make_run(folder, text, ROWS)


def make_pair(folder: Path, base: Path, strategy: str, here: int, **more: str) -> list[RunDir]:
    """The run directories of two nodes with so many ranks each; only the first is the head's."""
    head = make(folder / "first", base, strategy, here, **more)
    both = [Node(name=name, address=address, interface="lo") for name, address in ADDRESSES.items()]
    nodes.write(head.nodes_file, nodes.of(both, free_port()))
    run_file = head.file()
    plan = make_plan(plan_inputs.inputs(run_file, head, plan_inputs.machine(None, run_file.run, head)))
    assert plan.batch.devices == 2 * here
    files.write_json(head.plan_file, plan.model_dump())
    second = folder / "second" / head.name
    shutil.copytree(head.path, second)
    return [head, RunDir(second)]


def free_port() -> int:
    with socket.create_server((ADDRESSES["first"], 0)) as one:
        return int(one.getsockname()[1])


def settings(here: int, port: int | None = None) -> Iterator[dict[str, str]]:
    """What each node's trainer is given, in the order of the nodes."""
    store = f"{ADDRESSES['first']}:{port or free_port()}"
    for number, name in enumerate(ADDRESSES):
        yield {
            "STOKER_STORE": store,
            "STOKER_FIRST_RANK": str(number * here),
            "STOKER_RANKS": str(len(ADDRESSES) * here),
            "STOKER_NODE": name,
            "STOKER_RENDEZVOUS": tempfile.mkdtemp(),
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "192.0.2.1",  # nobody is there, and nobody goes there
            "MASTER_PORT": "1",
        }


def train(pair: list[RunDir], here: int, port: int | None = None, **injury: int) -> list[int]:
    """Train in forked children, numbered on each node from 0; their exit codes. An injury befalls the first rank."""
    given = list(settings(here, port))

    def as_rank(number: int) -> int:
        node, local = divmod(number, here)
        ranks = {"RANK": local, "LOCAL_RANK": local, "WORLD_SIZE": here, "LOCAL_WORLD_SIZE": here}
        os.environ |= {**given[node], **{key: str(value) for key, value in ranks.items()}}
        return tiny_run.trainer(pair[node], **({} if number else injury))(local)

    try:
        return tiny_run.in_children(len(pair) * here, as_rank)
    finally:
        for one in given:
            shutil.rmtree(one["STOKER_RENDEZVOUS"], ignore_errors=True)


def said(pair: list[RunDir]) -> str:
    return "\n".join(log.read_text()[-3000:] for one in pair for log in sorted(one.path.glob("child*.log")))


def alone(folder: Path, base: Path, strategy: str, **more: str) -> RunDir:
    run_dir = make(folder, base, strategy, 1, **more)
    assert tiny_run.train(run_dir) == 0, said([run_dir])
    return run_dir


def assert_same(one: RunDir, other: RunDir) -> None:
    assert tiny_run.losses(one) == tiny_run.losses(other)
    assert tiny_run.weights_sha(one.final) == tiny_run.weights_sha(other.final)


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


# ---- as the supervisor starts them


def pulses(folder: Path) -> dict[int, dict[str, Any]]:
    return {(one := json.loads(path.read_text()))["rank"]: one for path in folder.glob("pulse-*.json")}


def wait(condition: Callable[[], bool], pair: list[RunDir]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("\n".join(log.read_text()[-3000:] for one in pair for log in sorted(one.logs.glob("*.log"))))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the kernel's tables")
def test_a_rank_is_killed_and_both_nodes_go_on(tmp_path: Path, base: Path) -> None:
    more = {"train": "epochs: 50", "save": "10 steps"}
    whole = alone(tmp_path / "whole", base, "ddp", **more)
    head, other = pair = make_pair(tmp_path, base, "ddp", 1, **more)
    store = f"{ADDRESSES['first']}:{free_port()}"
    folders = [Path(tempfile.mkdtemp()) for _ in pair]
    started = []
    for rank, name in enumerate(ADDRESSES):
        here = processes.place({"name": name, "interface": "lo"}, rank, 2, store)
        plan = files.read_json(pair[rank].plan_file)
        started.append(processes.start_trainer(pair[rank].path, plan, 1, str(folders[rank]), here))
    try:
        wait(lambda: any(checkpoints.committed(head.checkpoints)), pair)
        heard = listening(set.union(*(family(one.pid) for one in started)))
        assert "0200007F" in heard  # the store, by rank 0
        assert set(heard) <= {"0100007F", "0200007F"}  # and gloo, on the interface
        wait(lambda: all(one["own_seconds"] for folder in folders for one in pulses(folder).values()), pair)
        (first,), (second,) = (pulses(folder).values() for folder in folders)
        assert (first["node"], first["rank"], second["node"], second["rank"]) == ("first", 0, "second", 1)
        assert second["step"] > 0
        assert second["own_seconds"]
        os.kill(second["pid"], signal.SIGUSR2)
        wait(lambda: "in _beat" in (text := other.log_file(1, 1).read_text()) and "in _loop" in text, pair)
        wait(lambda: pulses(folders[1])[1]["step"] > second["step"], pair)
        os.kill(second["pid"], signal.SIGKILL)
        assert all(one.wait(timeout=120) for one in started)
        assert pulses(folders[0])[0]["mark"] == "failed"
    finally:
        for one in started:
            one.kill()
            one.wait()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    errors = [event["error"]["code"] for event in events.read(head.events_file) if event["event"] == "error"]
    assert errors == ["STK423"]
    assert train(pair, 1) == [0, 0], said(pair)
    assert_same(head, whole)
