"""Rendezvous mistakes between two machines with networks of their own: each is named in words before the first step.

The head gathers its node as `stoker train` has it, the node serves as `stoker join` has it; the training is left out.
"""

import json
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boxes
import pytest

import stoker
from stoker.cluster import interfaces
from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import nodes
from stoker.launch.nodes import Node
from stoker.rundir import events, files, layout, prepared

RUN = """\
name: met
model: base
data: {train: words.txt, length: 32}
tune: {method: full}
train: {objective: pretrain, steps: 4, batch: 4, learning_rate: 1e-3}
"""
_CAUGHT = """
import json, sys
from pathlib import Path
from stoker.errors import StokerError

def run(work):
    told = []
    try:
        work(lambda key, **fields: told.append([key, fields]))
        error = None
    except StokerError as caught:
        error = [caught.code, caught.what, caught.hint]
    print(json.dumps({"error": error, "told": told}))
"""
HEAD = (
    _CAUGHT
    + """
from stoker.cluster import assemble
from stoker.rundir.layout import RunDir
run_dir = RunDir(Path(sys.argv[1]))
run(lambda tell: assemble.gathered(run_dir, run_dir.run(), tell, float(sys.argv[2])))
"""
)
NODE = (
    _CAUGHT
    + """
from stoker.cluster import node_daemon
from stoker.supervise import wire
wire._GREETING_SECONDS, node_daemon._PATIENCE_SECONDS = 3.0, float(sys.argv[2])
run(lambda tell: node_daemon.serve(Path(sys.argv[1])))
"""
)
FOLDER = "root/met"
"""Where all of a test stands on a box."""


@dataclass
class Met:
    """What was said by both."""

    error: list[str] | None
    node_error: list[str] | None
    told: list[tuple[str, dict[str, Any]]]
    links: list[dict[str, Any]]


@dataclass
class Two:
    """A head and a node, each on a box of its own."""

    head: boxes.Box
    node: boxes.Box
    lan: boxes.Lan
    extra: dict[str, str] = field(default_factory=dict)
    """Files of the node that come before its packages: a sitecustomize, metadata, programs."""

    def __post_init__(self) -> None:
        machines = [("head", self.head), ("box", self.node)]
        found = [Node(name=name, address=self.lan.address(one), interface="lan0") for name, one in machines]
        self.record = nodes.of(found, 29400)
        for name, one in machines:
            self.writes(one)
            nodes.write(self.run_dir(name).nodes_file, self.record)

    def box(self, name: str) -> boxes.Box:
        return self.head if name == "head" else self.node

    def run_dir(self, name: str) -> layout.RunDir:
        return layout.RunDir(self.box(name).root / FOLDER / "runs/met")

    def writes(self, box: boxes.Box, run: str = RUN, words: int = 5) -> None:
        """The run, its data and its base model on a box, as `put` and `prepare` leave them."""
        there = box.root / FOLDER
        shutil.rmtree(there, ignore_errors=True)
        (there / "base").mkdir(parents=True)
        (there / "base/config.json").write_text("{}", encoding="utf-8")
        (there / "base/model.safetensors").write_bytes(b"weights")
        run_dir = layout.RunDir(there / "runs/met")
        run_file = load.again(run, "run.yaml", Path("/") / FOLDER, [], "met")
        layout.write(run_dir, run_file)
        _prepared(run_dir.data, words)

    def meet(self, *, joins: bool = True) -> Met:
        """Start both; the node is ended once the head has its answer, unless it is to give up by itself."""
        lib = f"/{FOLDER}/extra"
        for name, text in self.extra.items():
            path = self.node.root / lib.lstrip("/") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        run_dir, patience = f"/{FOLDER}/runs/met", ("60", "60") if joins else ("6", "3")
        head = _start(self.head, HEAD, [run_dir, patience[0]], {"PYTHONPATH": "/opt/lib", "STOKER_NODE": "head"})
        if not joins:
            boxes._until(lambda: "198.18.0.1:29400" in self.head.listeners(), "the head does not listen")
        own = {"PYTHONPATH": f"{lib}:/opt/lib", "PATH": f"{lib}:{self.node._path}", "STOKER_NODE": "box"}
        node = _start(self.node, NODE, [run_dir, patience[1]], own)
        said = _said(head)
        if joins:
            _end(node)
        its = _said(node)
        links = [one for one in events.read(self.run_dir("head").events_file) if one["event"] == "link"]
        return Met(said["error"], its["error"], said["told"], links)


def _start(box: boxes.Box, program: str, words: list[str], env: dict[str, str]) -> "subprocess.Popen[str]":
    settings = {"STOKER_LANG": "en", "STOKER_METADATA": "off", **env}
    argv = ["python3", "-c", program, *words]
    return box.start(argv, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(program: "subprocess.Popen[str]") -> None:
    """The program itself, which is a child of the one that leads into its box."""
    for child in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text(encoding="utf-8").split():
        os.kill(int(child), signal.SIGTERM)


def _said(program: "subprocess.Popen[str]") -> dict[str, Any]:
    try:
        output, errors = program.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    assert "Traceback" not in errors, errors
    return dict(json.loads(output)) if output.strip() else {"error": None}


def _prepared(data: Path, words: int) -> None:
    """A prepared set of one sequence, written by hand."""
    shard = data / "train/shard-00000"
    shard.mkdir(parents=True)
    (data / "tokenizer").mkdir()
    (data / "tokenizer/tokenizer.json").write_text("{}", encoding="utf-8")
    contents = {
        "tokens.bin": struct.pack(f"<{words}i", *range(words)),
        "segments.bin": struct.pack("<2q", 0, words),
        "rows.bin": struct.pack("<2q", 0, 1),
        "trained.bin": struct.pack("<i", words),
    }
    for name, content in contents.items():
        (shard / name).write_bytes(content)
    digests = {f"train/shard-00000/{name}": files.sha256(shard / name) for name in contents}
    counts = {"tokens": words, "trained_tokens": words, "longest": words, "longest_segment": words}
    split = prepared.Split(sequences=1, segments=1, shards=["shard-00000"], files=digests, **counts)
    report = prepared.Report(
        digest=prepared.digest(split, None, files.sha256(data / "tokenizer/tokenizer.json")),
        key="",
        length=32,
        packed=True,
        vocab=300,
        objective="pretrain",
        detected=[],
        rows_read=1,
        bad_rows=0,
        truncated_rows=0,
        length_histogram={},
        pack_efficiency=1.0,
        unigram_entropy=1.0,
        train=split,
    )
    prepared.write_report(data, report)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[boxes.Box, boxes.Box, boxes.Lan]]:
    folder = tmp_path_factory.mktemp("meeting")
    source = folder / "lib"
    shutil.copytree(Path(stoker.__file__).parent, source / "stoker")
    given = {"sshd": None, "inputs": {"/opt/lib": source}}
    with (
        boxes.plain(folder, hostname="head", **given) as head,
        boxes.plain(folder, hostname="box", **given) as box,
        boxes.joined(head, box) as lan,
    ):
        yield head, box, lan


@pytest.fixture
def two(machines: tuple[boxes.Box, boxes.Box, boxes.Lan]) -> Two:
    return Two(*machines)


def test_without_a_mistake_they_meet_and_both_ways_are_measured(two: Two) -> None:
    """The control of all others."""
    met = two.meet()
    assert met.error is None, met
    assert {(one["from"], one["to"]) for one in met.links} == {("head", "box"), ("box", "head")}
    assert all(one["bytes_per_second"] > 50e6 for one in met.links)
    assert all(abs(one["skew_seconds"]) < 1 for one in met.links)
    assert met.told[-1][0] == "meeting.link"


def test_a_slow_way_is_measured_in_its_direction(two: Two) -> None:
    two.lan.throttle(two.node, "10mbit", "from")
    try:
        met = two.meet()
    finally:
        two.lan.throttle(two.node, "", "from")
    speeds = {one["from"]: one["bytes_per_second"] for one in met.links}
    assert 0.6e6 < speeds["box"] < 2.5e6
    assert speeds["head"] > 10 * speeds["box"]
    key, fields = met.told[-1]
    assert (key, fields["source"]) == ("meeting.link", "box")


def named(met: Met, code: str, *words: str) -> None:
    """The error has this code and says who and what, in both languages."""
    assert met.error is not None, met
    assert met.error[0] == code, met
    for word in words:
        assert word in met.error[1], met.error
    assert met.links == []


def test_another_stoker_is_named(two: Two) -> None:
    copied = two.node.root / FOLDER / "extra/stoker"
    shutil.copytree(Path(stoker.__file__).parent, copied)
    with (copied / "cluster/preflight.py").open("a", encoding="utf-8") as file:
        file.write("# another one\n")
    named(two.meet(), "STK785", "box has Stoker", "head has")


def test_other_packages_are_named(two: Two) -> None:
    two.extra["peft-0.0.1.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: peft\nVersion: 0.0.1\n"
    named(two.meet(), "STK786", "box has peft 0.0.1; head has peft ")


def test_other_data_is_named(two: Two) -> None:
    two.writes(two.node, words=6)
    nodes.write(two.run_dir("box").nodes_file, two.record)
    named(two.meet(), "STK787", "box has a different prepared set")


def test_data_that_was_damaged_is_named_with_its_node(two: Two) -> None:
    (two.run_dir("box").data / "train/shard-00000/tokens.bin").write_bytes(bytes(20))
    met = two.meet()
    named(met, "STK311", "tokens.bin has another digest")


def test_another_base_model_is_named(two: Two) -> None:
    (two.node.root / FOLDER / "base/model.safetensors").write_bytes(b"others!")
    named(two.meet(), "STK788", "box has a different base model: local ")


def test_a_base_model_that_is_missing_is_named(two: Two) -> None:
    shutil.rmtree(two.node.root / FOLDER / "base")
    named(two.meet(), "STK788", "box has a different base model: -; head has local ")


def test_a_clock_that_is_off_is_named(two: Two) -> None:
    two.extra["sitecustomize.py"] = "import time\nright = time.time\ntime.time = lambda: right() + 9\n"
    named(two.meet(), "STK789", "the clock of box differs from that of head by +9.")


def test_another_run_file_is_named(two: Two) -> None:
    two.writes(two.node, RUN.replace("1e-3", "2e-3"))
    nodes.write(two.run_dir("box").nodes_file, two.record)
    named(
        two.meet(),
        "STK790",
        "box has a different run file: train.learning_rate 0.002; head has train.learning_rate 0.001",
    )


def test_other_devices_are_named(two: Two) -> None:
    two.extra["nvidia-smi"] = "#!/bin/sh\necho '0, NVIDIA GeForce RTX 4090, 24564, 3, 8.9, GPU-1, 570.1'\n"
    named(two.meet(), "STK791", "box trains on 1 x NVIDIA GeForce RTX 4090 24 GiB, head on cpu")


def test_another_architecture_is_named(two: Two) -> None:
    two.extra["sitecustomize.py"] = "import platform\nplatform.machine = lambda: 'aarch64'\n"
    named(two.meet(), "STK794", "box has aarch64 CPUs, head has ")


def test_ports_that_are_closed_in_one_direction_are_named(two: Two) -> None:
    """The node reaches the head's port, the head does not reach the node: training would wait for ever."""
    two.lan.close(two.node, two.head)
    try:
        met = two.meet()
    finally:
        two.lan.open(two.node)
    named(met, "STK784", "directions: head -> box (timed out)")
    assert met.error is not None
    assert "box -> head" not in met.error[1]


def test_other_ports_of_the_head_that_are_closed_are_named(two: Two) -> None:
    """Only the port where they meet is open, as behind many firewalls."""
    two.lan.close(two.head, two.node, "1-29399", "reject with tcp reset")
    two.lan.close(two.head, two.node, "29401-65535", "reject with tcp reset")
    try:
        met = two.meet()
    finally:
        two.lan.open(two.head)
    named(met, "STK784", "directions: box -> head (connection refused)")


def test_a_closed_port_of_the_head_is_named_by_both(two: Two) -> None:
    two.lan.close(two.head, two.node)
    try:
        met = two.meet(joins=False)
    finally:
        two.lan.open(two.head)
    named(met, "STK775", "box did not join head at 198.18.0.1:29400")
    assert met.node_error is not None
    assert met.node_error[0] == "STK782"
    assert "box cannot reach head at 198.18.0.1:29400" in met.node_error[1]


def test_an_interface_that_is_missing_is_named(two: Two) -> None:
    wrong = two.record.nodes[1].model_copy(update={"interface": "ib0"})
    record = two.record.model_copy(update={"nodes": (two.record.nodes[0], wrong)})
    nodes.write(two.run_dir("box").nodes_file, record)
    named(two.meet(), "STK780", "box has no network interface `ib0` 198.18.0.2; it has lo 127.0.0.1/8, eth0 ")


def test_a_node_with_another_key_is_named(two: Two) -> None:
    other = nodes.of(list(two.record.nodes), two.record.port)
    nodes.write(two.run_dir("box").nodes_file, other)
    met = two.meet(joins=False)
    named(met, "STK792", "head at 198.18.0.1:29400 did not let box join")
    assert met.node_error == met.error


def test_one_machine_by_two_names_is_named(two: Two) -> None:
    """The second name is a second address of the first machine."""
    again = Two(two.head, two.head, two.lan)
    two.head._inside("ip", "addr", "add", "198.18.0.77/24", "dev", "lan0")
    try:
        second = two.record.nodes[1].model_copy(update={"address": "198.18.0.77"})
        again.record = two.record.model_copy(update={"nodes": (two.record.nodes[0], second)})
        nodes.write(again.run_dir("head").nodes_file, again.record)
        met = again.meet()
    finally:
        two.head._inside("ip", "addr", "del", "198.18.0.77/24", "dev", "lan0")
    named(met, "STK793", "box and head are the same machine", "198.18.0.77")


def test_boxes_find_the_network_they_share_or_say_that_there_is_none(two: Two) -> None:
    seen = {
        name: interfaces.parse(two.box(name).run(["sh", "-c", interfaces.SCRIPT], timeout=20).stdout)
        for name in ("head", "box")
    }
    assert {name: one.name for name, one in interfaces.common(seen, None).items()} == {"head": "lan0", "box": "lan0"}
    assert [one.address for one in interfaces.common(seen, None).values()] == ["198.18.0.1", "198.18.0.2"]
    without = {name: [one for one in found if one.name != "lan0"] for name, found in seen.items()}
    with pytest.raises(StokerError, match=r"box and head share no network: box has lo .*eth0 ") as caught:
        interfaces.common(without, None)
    assert caught.value.code == "STK781"
    with pytest.raises(StokerError, match="box has no network interface `lan0`"):
        interfaces.common({**seen, "box": without["box"]}, "lan0")
