"""Two nodes of one run on loopback addresses of their own, each with a run directory."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tiny_run

from stoker.launch import nodes, plan_inputs
from stoker.launch.nodes import Node
from stoker.plan.make import make_plan
from stoker.rundir import files
from stoker.rundir.layout import RunDir

ADDRESSES = {"first": "127.0.0.2", "second": "127.0.0.3"}
ROWS = tiny_run.random_rows(37, seed=1, longest=48, segments=2)  # at batch 8: 5 steps, the last of 5 sequences


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
