"""What is compared between the nodes of a run before its first step, over a head whose nodes answer in this process."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cluster import preflight
from stoker.cluster.interfaces import Interface
from stoker.cluster.preflight import Answer, NodeLink
from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import nodes
from stoker.launch.nodes import Node, Nodes
from stoker.rundir import events, files, layout
from stoker.rundir.layout import RunDir

RUN = """\
model: {shape: llama, layers: 1, width: 32, heads: 2, ffn: 64, vocab: 300}
tokenizer: {train: bpe, vocab: 300}
data: {train: words.txt, length: 32}
tune: {method: full}
train: {objective: pretrain, steps: 4, batch: 4, learning_rate: 1e-3}
"""
NAMES = ("head", "box", "third")


class Answering:
    """A head whose nodes answer as this machine does, but for what a test changes."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self.change: Callable[[str, Answer, Answer], None] = lambda name, question, said: None

    def ask(self, name: str, question: Answer, seconds: float) -> Answer:
        said = preflight.answer(question, self.run_dir)
        self.change(name, question, said)
        return said


class Told(list[tuple[str, dict[str, Any]]]):
    def __call__(self, key: str, **fields: Any) -> None:
        self.append((key, fields))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_PROBE_SECONDS", 0.02)
    monkeypatch.setattr(preflight, "_REACH_SECONDS", 2.0)


@pytest.fixture
def record() -> Nodes:
    return nodes.of([Node(name=name, address="127.0.0.1", interface="lo") for name in NAMES], 29400)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Nodes) -> RunDir:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN, encoding="utf-8")
    Path("words.txt").write_text("a b c\n", encoding="utf-8")
    made = layout.create(load.load("run.yaml", []))
    nodes.write(made.nodes_file, record)
    return made


def test_nodes_that_are_alike_pass_and_every_way_is_measured(run_dir: RunDir, record: Nodes) -> None:
    told = Told()
    links = preflight.check(Answering(run_dir), run_dir, record, told)
    assert {(link.source, link.target) for link in links} == {(a, b) for a in NAMES for b in NAMES if a != b}
    assert all(link.bytes_per_second > 1e6 and abs(link.skew_seconds) < 1 for link in links)
    written = [event for event in events.read(run_dir.events_file) if event["event"] == "link"]
    assert [(event["from"], event["to"]) for event in written] == [(link.source, link.target) for link in links]
    assert [key for key, _ in told] == ["meeting.link"]


def test_only_those_that_are_present_are_asked(run_dir: RunDir, record: Nodes) -> None:
    links = preflight.check(Answering(run_dir), run_dir, record.only({"head", "third"}), Told())
    assert [(link.source, link.target) for link in links] == [("head", "third"), ("third", "head")]
    assert preflight.check(Answering(run_dir), run_dir, record.only({"head"}), Told()) == []


@pytest.mark.parametrize(
    ("what", "there", "code", "words"),
    [
        ("stoker", "0.0.1 abc", "STK785", "third has Stoker 0.0.1 abc, head has "),
        ("architecture", "riscv64", "STK794", "third has riscv64 CPUs, head has "),
        ("packages", {"torch": "1.0", "peft": "0.1"}, "STK786", "third has .*peft 0.1.*torch 1.0"),
        ("data", "0123", "STK787", "third has a different prepared set: 0123; head has -"),
        ("model", "local 0123", "STK788", "third has a different base model: local 0123; head has -"),
        ("devices", "2 x NVIDIA A100 80 GiB", "STK791", "third trains on 2 x NVIDIA A100 80 GiB, head on "),
    ],
)
def test_what_must_be_equal_is_named_where_it_is_not(
    run_dir: RunDir, record: Nodes, what: str, there: Any, code: str, words: str
) -> None:
    head = Answering(run_dir)
    head.change = lambda name, question, said: said.update(
        {what: there} if (name, question["ask"]) == ("third", "facts") else {}
    )
    with pytest.raises(StokerError, match=words) as caught:
        preflight.check(head, run_dir, record, Told())
    assert caught.value.code == code


def test_a_run_file_that_differs_is_named_with_the_words_that_do(run_dir: RunDir, record: Nodes) -> None:
    head = Answering(run_dir)

    def change(name: str, question: Answer, said: Answer) -> None:
        if (name, question["ask"]) == ("box", "facts"):
            said["run"] = {**said["run"], "train.steps": "5"}

    head.change = change
    with pytest.raises(
        StokerError, match=r"box has a different run file: train.steps 5; head has train.steps 4"
    ) as caught:
        preflight.check(head, run_dir, record, Told())
    assert caught.value.code == "STK790"


def test_where_the_run_is_done_may_differ(run_dir: RunDir) -> None:
    assert not [word for word in preflight.facts(run_dir)["run"] if word.startswith("where")]


@pytest.mark.parametrize("off", [-6.0, 6.0])
def test_a_clock_that_is_off_is_named(run_dir: RunDir, record: Nodes, off: float) -> None:
    head = Answering(run_dir)
    head.change = lambda name, question, said: said.update({"now": said["now"] + off} if "now" in said else {})
    with pytest.raises(StokerError, match=rf"the clock of box differs from that of head by \{off:+.1f} s") as caught:
        preflight.check(head, run_dir, record, Told())
    assert caught.value.code == "STK789"


def test_a_slow_answer_is_no_skew(run_dir: RunDir, record: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the way is taken out by half, and the quickest answer counts: 7 s off, asked over a slow line."""
    passed, waits = [0.0], iter([3.0, 0.5, 9.0, 1.0, 2.0])
    clock = type("Clock", (), {"monotonic": lambda: passed[0], "time": lambda: 1000 + passed[0]})
    monkeypatch.setattr(preflight, "time", clock)

    class Slow:
        def ask(self, name: str, question: Answer, seconds: float) -> Answer:
            wait = next(waits)
            passed[0] += wait * 0.6  # the way there is longer than the way back
            said = {"now": 1007 + passed[0]}
            passed[0] += wait * 0.4
            return said

    asked = preflight._Members(Slow(), run_dir, list(record.nodes[:2]))
    assert asked._skew("box") == pytest.approx(7 + 0.5 * 0.1)


def test_a_way_that_is_closed_in_one_direction_is_named(run_dir: RunDir, record: Nodes) -> None:
    head = Answering(run_dir)

    def change(name: str, question: Answer, said: Answer) -> None:
        if name == "box" and "port" in said:
            with socket.socket() as nobody:
                nobody.bind(("127.0.0.1", 0))
                said["port"] = nobody.getsockname()[1]

    head.change = change
    with pytest.raises(
        StokerError, match=r"directions: head -> box \(.*refused\), third -> box \(.*refused\)"
    ) as caught:
        preflight.check(head, run_dir, record, Told())
    assert caught.value.code == "STK784"


def test_one_machine_by_two_names_is_named(run_dir: RunDir, record: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Interface("eth0", "127.0.0.1", 24)]  # a loopback address that is told as one of a network
    monkeypatch.setattr(Interface, "is_loopback", False)
    monkeypatch.setattr(preflight.interfaces, "here", lambda: found)
    with pytest.raises(StokerError, match=r"box and head are the same machine: 127.0.0.1") as caught:
        preflight.check(Answering(run_dir), run_dir, record, Told())
    assert caught.value.code == "STK793"


def test_what_may_differ_is_told(run_dir: RunDir, record: Nodes) -> None:
    head, told = Answering(run_dir), Told()
    head.change = lambda name, question, said: said.update(
        {"python": "3.99", "instructions": "none"} if (name, question["ask"]) == ("box", "facts") else {}
    )
    preflight.check(head, run_dir, record, told)
    assert [key for key, _ in told] == ["meeting.python", "meeting.instructions", "meeting.link"]
    assert (told[0][1]["node"], told[0][1]["there"]) == ("box", "3.99")


def test_a_node_without_an_answer_is_named(run_dir: RunDir, record: Nodes) -> None:
    head = Answering(run_dir)

    def gone(name: str, question: Answer, said: Answer) -> None:
        if name == "third":
            raise TimeoutError(name)

    head.change = gone
    with pytest.raises(StokerError, match=r"third did not respond \(facts\)") as caught:
        preflight.check(head, run_dir, record, Told())
    assert caught.value.code == "STK783"


def test_an_error_of_a_node_is_told_with_its_name(run_dir: RunDir, record: Nodes) -> None:
    head = Answering(run_dir)
    its = StokerError("STK311", "data/report.json", reason="it was changed", folder="data")

    def change(name: str, question: Answer, said: Answer) -> None:
        if name == "box":
            said.update(error=its.to_json())

    head.change = change
    with pytest.raises(StokerError, match=r"^box: data/report.json: ") as caught:
        preflight.check(head, run_dir, record, Told())
    assert caught.value.code == "STK311"


def test_a_machine_without_the_interface_of_the_record_says_so() -> None:
    lo = Node(name="a", address="127.0.0.1", interface="lo")
    assert preflight.own(nodes.of([lo], 1), "a").name == "lo"
    assert preflight.own(nodes.of([lo.model_copy(update={"interface": ""})], 1), "a").name == "lo"
    assert preflight.own(nodes.of([lo.model_copy(update={"address": "127.0.0.7"})], 1), "a").address == "127.0.0.7"
    for wrong in ({"interface": "eth9"}, {"address": "198.18.0.9"}):
        with pytest.raises(StokerError, match=r"a has no network interface `.*lo 127.0.0.1/8") as caught:
            preflight.own(nodes.of([lo.model_copy(update=wrong)], 1), "a")
        assert caught.value.code == "STK780"


def test_a_node_that_cannot_join_says_why(record: Nodes) -> None:
    closed = preflight.unreachable(record, "box", TimeoutError("timed out"))
    assert closed.what == "box cannot reach head at 127.0.0.1:29400: timed out"
    assert preflight.stranger(record, "box").what.startswith("head at 127.0.0.1:29400 did not let box join")


def test_a_local_model_is_told_by_its_content_and_one_of_a_hub_by_its_commit(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_dir.run()
    assert preflight._model(run, tmp_path) == ""
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text("{}")
    first = preflight._model(run.model_copy(update={"model": "base"}), tmp_path)
    (tmp_path / "base/config.json").write_text('{"vocab_size": 7}')
    assert first.startswith("local ")
    assert preflight._model(run.model_copy(update={"model": "base"}), tmp_path) != first
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    hub = run.model_copy(update={"model": "owner/name"})
    assert preflight._model(hub, tmp_path) == ""
    reference = tmp_path / "hf/hub/models--owner--name/refs/main"
    reference.parent.mkdir(parents=True)
    reference.write_text("0123456789abcdef")
    assert preflight._model(hub, tmp_path) == "hub 0123456789ab"


def test_a_hub_model_that_is_still_to_be_fetched_is_no_difference() -> None:
    assert preflight._is_to_fetch({"model": ""}, {"model": "hub 01"})
    assert preflight._is_to_fetch({"model": "hub 01"}, {"model": ""})
    assert not preflight._is_to_fetch({"model": ""}, {"model": "local 01"})
    assert not preflight._is_to_fetch({"model": "hub 02"}, {"model": "hub 01"})


def test_who_does_not_know_the_token_is_not_counted() -> None:
    port = preflight._listen("127.0.0.1", {"token": "right", "times": 1, "lasts_seconds": 5})
    wrong = preflight._reach("127.0.0.1", {"address": "127.0.0.1", "port": port, "token": "wrong"})
    assert "failed" in wrong
    right = preflight._reach("127.0.0.1", {"address": "127.0.0.1", "port": port, "token": "right"})
    assert right["bytes_per_second"] > 1e6


@pytest.mark.parametrize("comes", [True, False])
def test_listening_ends_by_itself(comes: bool) -> None:
    """When all senders have come, or none comes any more."""
    before = threading.active_count()
    lasts = 60 if comes else 0.1
    port = preflight._listen("127.0.0.1", {"token": "any", "times": 1, "lasts_seconds": lasts})
    if comes:
        preflight._reach("127.0.0.1", {"address": "127.0.0.1", "port": port, "token": "any"})
    until = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_every_way_is_tried_once_and_no_node_has_two_at_a_time() -> None:
    many = [Node(name=str(number), address="", interface="") for number in range(8)]
    rounds = preflight._rounds(many)
    ways = [way for ways in rounds for way in ways]
    assert len(ways) == len({(a.name, b.name) for a, b in ways}) == 8 * 7
    assert all(len({node.name for way in ways for node in way}) == 2 * len(ways) for ways in rounds)
    assert len(rounds) <= 4 * 7


def test_what_a_link_means_for_a_step_follows_from_the_plan(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """One million trained weights, two nodes: each sends 4 MB; the slower way decides."""
    links = [NodeLink("a", "b", 2e6, 0.0), NodeLink("b", "a", 1e6, 0.0)]
    assert preflight.exchange_seconds(links, run_dir) is None
    files.write_json(run_dir.plan_file, {"any": "plan"})
    plan = type("P", (), {"model": type("M", (), {"trainable_parameters": 1_000_000})})
    monkeypatch.setattr(preflight.files, "read_record", lambda path, kind: plan)
    assert preflight.exchange_seconds(links, run_dir) == pytest.approx(4.0)
    told = Told()
    preflight._say_slowest(links, run_dir, told)
    assert told == [("meeting.link.step", {"source": "b", "target": "a", "speed": "1 MB/s", "seconds": "4"})]
