"""Runs of several nodes: the supervisor of the head, real agents over the loopback address, and ranks that stand in.

The stand-ins meet in files; they write pulses and stacks as the real ones do, and what starts them behaves as torchrun:
when a rank fails it asks the others to end and waits for that, as long as it takes.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stoker.cluster import node_daemon
from stoker.rundir import events
from stoker.rundir.layout import RunDir
from stoker.supervise import processes
from stoker.supervise import wire as lines
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.status import SupervisedRun
from stoker.supervise.supervisor import Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc whose process is whose")

RANK = '''
import faulthandler, json, os, signal, sys, time
from pathlib import Path
run, shared = Path(sys.argv[-1]), Path(os.environ["FAKE_SHARED"])
rank, world, attempt = (int(os.environ[name]) for name in ("FAKE_RANK", "FAKE_WORLD", "STOKER_ATTEMPT"))
if rank:
    log = (run / "logs" / f"train-{attempt}-rank{rank}.log").open("a")
    os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
faulthandler.register(signal.SIGUSR2, all_threads=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it waits in a collective
own, data = 0.01, 0.0

def write(path, text):
    path.with_suffix(".tmp%d" % os.getpid()).write_text(text)
    path.with_suffix(".tmp%d" % os.getpid()).replace(path)

def pulse(mark):
    who = {"rank": rank, "pid": os.getpid(), "node": os.environ.get("STOKER_NODE", ""), "at": time.time(), "step": step}
    said = {**who, "mark": mark, "own_seconds": [own] * min(20, done), "data_seconds": [data] * min(20, done)}
    write(Path(os.environ["STOKER_RENDEZVOUS"]) / f"pulse-{rank}.json", json.dumps(said))

def say(event, **fields):
    with (run / "events.jsonl").open("a") as log:
        log.write(json.dumps({"at": "2026-11-15T00:00:00+00:00", "event": event, **fields}) + "\\n")

def fail(code, **fields):
    say("error", program="train", error={"code": code, "where": "", "fields": fields})
    pulse("failed")
    sys.exit(1)

def kill(number=signal.SIGKILL):
    os.kill(os.getpid(), number)

def meet():
    """All ranks get to this step, or nobody beyond it."""
    write(shared / f"at-{attempt}-{rank}.json", str(step))
    for turn in range(10**6):
        if turn % 20 == 0:
            pulse("sum")
        paths = [shared / f"at-{attempt}-{other}.json" for other in range(world)]
        if all(path.exists() and int(path.read_text()) >= step for path in paths):
            return
        time.sleep(0.005)

committed, done = shared / "committed", 0
step = int(committed.read_text()) if committed.exists() else 0
last = int(os.environ["FAKE_LAST"])
meet()
if rank == 0:
    say("attempt", resumed_step=step)
while step < last:
    step += 1
    pulse("micro 1")
    FAULT
    time.sleep(0.02)
    meet()
    done += 1
    if rank == 0:
        say("step", step=step, seconds=0.02, loss=1.0)
        if step % 2 == 0:
            write(committed, str(step))
            say("checkpoint", step=step, seconds=0.01, bytes=1)
pulse("end")
if rank == 0:
    say("end", status="done", step=step)
'''

TORCHRUN = """
import os, subprocess, sys, time
first, here = int(os.environ.get("STOKER_FIRST_RANK", "0")), HERE
world = os.environ.get("STOKER_RANKS", str(here))
ranks = [
    subprocess.Popen([sys.executable, "-S", "-c", RANK, "stoker.engine.train", sys.argv[-1]], start_new_session=True,
                     env={**os.environ, "FAKE_RANK": str(first + n), "FAKE_WORLD": world})
    for n in range(here)
]
while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
    time.sleep(0.02)
failed = next((n for n, rank in enumerate(ranks) if rank.poll()), None)
if failed is not None:
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        rank.wait()
    code = ranks[failed].returncode
    print(f"Root Cause (first observed failure):\\n[0]:\\n  rank      : {failed} (local_rank: {failed})")
    print(f"  exitcode  : {code} (pid: {ranks[failed].pid})", flush=True)
    sys.exit(1)
"""

AGENT = """
import os, sys
from pathlib import Path
from stoker.cluster import node_daemon as node
from stoker.supervise import wire
wire.LOST_SECONDS, wire.BEAT_SECONDS, node._RETRY_SECONDS, node._LOOK_SECONDS = 1.5, 0.1, 0.1, 0.05
wire._LIVING_SECONDS, node._STACKS_SECONDS, node._PATIENCE_SECONDS = 0.5, 0.3, 20.0
Path(sys.argv[2]).touch()
sys.exit(node.serve(Path(sys.argv[1])))
"""

COMMITTING = """
    if attempt == 1 and rank == 0 and step == 5:
        import threading

        def commit():
            aside = run / "checkpoints" / ".step-00000005.1.tmp"
            aside.mkdir(parents=True, exist_ok=True)
            time.sleep(SECONDS)
            who = json.loads((Path(os.environ["STOKER_RENDEZVOUS"]) / "pulse-1.json").read_text())
            line = Path(f"/proc/{who['pid']}/cmdline")
            write(shared / "other.json", line.read_text() if line.exists() else "")
            write(committed, "5")
            aside.rmdir()

        threading.Thread(target=commit).start()
    if attempt == 1 and rank == world - 1 and step == 6:
        kill()
"""
"""A checkpoint is being written while a rank dies; another one's command line at the end of it is kept."""

STUCK = "while attempt == 1 and step == 6: pulse('micro 1'); time.sleep(0.02)"

QUICK = SupervisorSettings(
    look_seconds=0.05,
    beat_seconds=0.1,
    start_seconds=20,
    hang_floor_seconds=10,
    hang_steps=1,
    first_wait_seconds=0.05,
    longest_wait_seconds=0.2,
    fruitless_most=4,
    rank_silent_seconds=2.5,
    blame_seconds=2.5,
    stacks_seconds=0.3,
    overtime_seconds=15,
    join_seconds=15,
    elastic_seconds=0.5,
)


@dataclass
class Run:
    """A run of nodes `a`, the head, and `b`, ..., and the agents that take part."""

    folder: Path
    names: list[str]
    per_node: int = 1
    apart: bool = False
    """Whether each node has a folder of its own."""
    last: int = 10
    agents: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]

    def run_dir(self, name: str) -> Path:
        return self.folder / (f"run-{name}" if self.apart else "run")

    def plan(self, fault: str, names: list[str], **facts: Any) -> dict[str, Any]:
        rank = RANK.replace("FAULT", fault)
        program = TORCHRUN.replace("HERE", str(self.per_node)).replace("RANK, ", f"{rank!r}, ", 1)
        environment = {"FAKE_SHARED": str(self.folder), "FAKE_LAST": str(self.last)}
        batch = {"devices": self.per_node * max(1, len(names))}
        argv = ["-S", "-c", program, "stoker.engine.train"]
        return {"argv": argv, "env": environment, "strategy": "ddp", "batch": batch, "nodes": names, **facts}

    def make(self, fault: str = "pass", settings: SupervisorSettings = QUICK, **facts: Any) -> Supervisor:
        nodes = [{"name": name, "address": "127.0.0.1", "interface": "lo"} for name in self.names]
        record = {"meeting": "m", "port": self.port, "key": "ab" * 32, "nodes": nodes, "present": self.names}
        for name in self.names or ["a"]:
            (self.run_dir(name) / "logs").mkdir(parents=True, exist_ok=True)
            if self.names:
                (self.run_dir(name) / "nodes.json").write_text(json.dumps(record))
        head = self.run_dir("a")
        (head / "plan.json").write_text(json.dumps(self.plan(fault, self.names, **facts)))
        for name in self.names[1:]:
            self.join(name)
        return Supervisor(head, settings)

    def join(self, name: str) -> "subprocess.Popen[bytes]":
        if name in self.agents:
            self.agents[name].kill()
            self.agents[name].wait()
        ready = self.folder / f"ready-{name}"
        ready.unlink(missing_ok=True)
        with (self.folder / f"agent-{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(
                [sys.executable, "-c", AGENT, str(self.run_dir(name)), str(ready)],
                env={**os.environ, "STOKER_NODE": name},
                stdout=log,
                stderr=log,
            )
        while not ready.exists():
            time.sleep(0.01)
        return self.agents[name]

    def ranks(self, name: str) -> list[int]:
        return processes.members(None, self.run_dir(name), name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # who is killed leaves its folder behind
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lines, "LOST_SECONDS", 1.5)
    monkeypatch.setattr(lines, "_LIVING_SECONDS", 0.5)
    monkeypatch.setattr(processes, "_LAST_WORDS_SECONDS", 1.0)

    def make(*names: str, **facts: Any) -> Run:
        made.append(Run(tmp_path, list(names), **facts))
        return made[-1]

    yield make
    for one in made:
        for agent in one.agents.values():
            agent.kill()
            agent.wait()
        for name in one.names or ["a"]:
            for pid in processes.members(None, one.run_dir(name)):
                processes.kill(pid)


def noted(watching: Supervisor, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(watching.run_dir / "events.jsonl") if event["event"] == kind]


def status(watching: Supervisor) -> dict[str, Any]:
    return dict(json.loads((watching.run_dir / "supervisor.json").read_text(encoding="utf-8")))


def when(is_so: Callable[[], object], act: Callable[[], object], seconds: float = 20) -> None:
    """Do something beside the supervisor, as soon as something is so."""

    def wait() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError):
                if is_so():
                    act()
                    return
            time.sleep(0.01)

    threading.Thread(target=wait, daemon=True).start()


def at_step(watching: Supervisor, step: int) -> Callable[[], bool]:
    return lambda: watching.status.step >= step


def test_two_nodes_train_to_the_end(run: Callable[..., Run]) -> None:
    one = run("a", "b", per_node=2)
    told = "step == 1 and write(shared / f'told-{rank}.json', json.dumps(dict(os.environ)))"
    watching = one.make(told)
    assert watching.run() == 0
    assert one.agents["b"].wait(10) == 0
    seen = status(watching)
    assert (seen["state"], seen["attempt"], seen["lost"], seen["nodes"]) == (
        "done",
        1,
        None,
        {"a": "joined", "b": "joined"},
    )
    assert not noted(watching, "lost")
    environments = [json.loads((one.folder / f"told-{rank}.json").read_text()) for rank in range(4)]
    assert [env["STOKER_NODE"] for env in environments] == ["a", "a", "b", "b"]
    assert [env["STOKER_FIRST_RANK"] for env in environments] == ["0", "0", "2", "2"]
    assert {env["STOKER_RANKS"] for env in environments} == {"4"}
    assert {(env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) for env in environments} == {("lo", "=lo")}
    (store,) = {env["STOKER_STORE"] for env in environments}
    assert store.startswith("127.0.0.1:")
    assert environments[0]["STOKER_RENDEZVOUS"] != environments[2]["STOKER_RENDEZVOUS"]


def test_a_killed_rank_ends_all_and_all_start_again(run: Callable[..., Run]) -> None:
    """Whoever starts the ranks would wait for the others, which wait for the dead one."""
    one = run("a", "b", per_node=2, apart=True)
    watching = one.make("attempt == 1 and rank == 3 and step == 5 and kill()")
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["node"], lost["step"]) == (3, "b", 5)
    assert lost["reason"] in ("dead", "SIGKILL")
    (restart,) = noted(watching, "restart")
    assert restart["reason"] == "SIGKILL"
    assert [event["resumed_step"] for event in noted(watching, "attempt")] == [0, 4]
    assert status(watching)["lost"]["rank"] == 3
    plans = [(one.run_dir(name) / "plan.json").read_bytes() for name in "ab"]
    assert plans[0] == plans[1]
    for living in range(3):
        log = (watching.run_dir / "logs" / f"train-1-rank{living}.log").read_text()
        assert "most recent call first" in log, f"no stacks of rank {living}"
    assert one.agents["b"].wait(10) == 0


@pytest.mark.parametrize("names", [(), ("a", "b")])
def test_the_first_rank_commits_what_it_writes_while_all_others_end(run: Callable[..., Run], names: list[str]) -> None:
    one = run(*names, per_node=2 if names else 3)
    watching = one.make(COMMITTING.replace("SECONDS", "4"))
    assert watching.run() == 0
    assert [event["resumed_step"] for event in noted(watching, "attempt")] == [0, 5]
    assert (one.folder / "other.json").read_text() == ""
    assert [event["reason"] for event in noted(watching, "restart")] == ["SIGKILL"]


def test_a_checkpoint_that_is_never_done_is_not_waited_for_without_end(run: Callable[..., Run]) -> None:
    watching = run(per_node=3).make(
        COMMITTING.replace("SECONDS", "60"), SupervisorSettings(**{**QUICK.__dict__, "overtime_seconds": 1.0})
    )
    assert watching.run() == 0
    assert [event["resumed_step"] for event in noted(watching, "attempt")] == [0, 4]


def test_who_starts_the_ranks_of_a_node_is_missed_too(run: Callable[..., Run]) -> None:
    watching = run("a", "b").make("attempt == 1 and rank == 1 and step == 5 and os.kill(os.getppid(), signal.SIGKILL)")
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["node"], lost["reason"]) == (1, "b", "SIGKILL")


def test_a_second_agent_is_turned_away_and_ends_nothing(run: Callable[..., Run]) -> None:
    one = run("a", "b")
    gone = one.folder / "gone"
    watching = one.make(f"while step == 6 and not os.path.exists({str(gone)!r}): pulse('micro 1'); time.sleep(0.02)")
    said: list[str] = []

    def second() -> None:
        hasty = AGENT.replace("node._PATIENCE_SECONDS = 0.5, 0.3, 20.0", "node._PATIENCE_SECONDS = 0.5, 0.3, 0.3")
        command = [sys.executable, "-c", hasty, str(one.run_dir("b")), str(one.folder / "ready-second")]
        environment = {**os.environ, "STOKER_NODE": "b", "STOKER_LANG": "en"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said.append(ended.stderr)
        gone.touch()

    when(at_step(watching, 5), second)
    assert watching.run() == 0
    assert "STK792" in said[0]
    assert "already joined" in said[0]
    assert not noted(watching, "restart")


def test_a_port_that_is_taken_for_a_moment_is_tried_again(run: Callable[..., Run]) -> None:
    one = run("a", "b")
    with socket.create_server(("127.0.0.1", one.port)) as other:
        watching = one.make()
        threading.Timer(1.0, other.close).start()
        assert watching.run() == 0
    assert not noted(watching, "error")


def test_a_port_that_stays_taken_is_named(run: Callable[..., Run]) -> None:
    one = run("a", "b")
    with socket.create_server(("127.0.0.1", one.port)):
        watching = one.make(settings=SupervisorSettings(**{**QUICK.__dict__, "listen_seconds": 0.3}))
        assert watching.run() == 1
    (error,) = noted(watching, "error")
    assert (error["error"]["code"], error["error"]["fields"]["port"]) == ("STK776", one.port)
    assert status(watching)["state"] == "failed"


def test_a_start_that_reaches_nobody_is_a_lost_node(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """That its line is lost was heard before the attempt began."""
    watching = run("a", "b").make()
    plain = lines.Head.tell

    def tell(self: lines.Head, name: str, order: dict[str, Any]) -> None:
        if order.get("start") == 1:
            raise ConnectionError(name)
        plain(self, name, order)

    monkeypatch.setattr(lines.Head, "tell", tell)
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["node"], lost["reason"]) == (1, "b", "node")
    assert [event["reason"] for event in noted(watching, "restart")] == ["node"]


def test_ranks_that_do_not_even_die_are_reported_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        pid = 1 << 30

        def poll(self) -> None:
            return None

        def wait(self, seconds: float) -> int:
            raise subprocess.TimeoutExpired("trainer", seconds)

    class Line:
        def __init__(self) -> None:
            self.said: list[dict[str, Any]] = []
            self.send = self.said.append

    monkeypatch.setattr(processes, "end_ranks", lambda *_: None)
    monkeypatch.setattr(node_daemon, "_STACKS_SECONDS", 0.0)
    agent, line = node_daemon.Agent(RunDir(tmp_path), "b"), Line()
    agent._attempt = node_daemon.Attempt(3, 1, Stuck(), None, 0, 0)  # type: ignore[arg-type]
    agent._end(line, 3)  # type: ignore[arg-type]
    assert [(said["ended"], said["code"], said["asked"]) for said in line.said] == [(3, -9, True)]


def test_a_stopped_rank_is_named_after_the_stated_time(run: Callable[..., Run]) -> None:
    one = run("a", "b")
    watching = one.make("attempt == 1 and rank == 1 and step == 5 and kill(signal.SIGSTOP)")
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["node"], lost["step"], lost["reason"]) == (1, "b", 5, "silent")
    assert [event["reason"] for event in noted(watching, "restart")] == ["silent"]
    assert "in meet" in (watching.run_dir / "logs" / "train-1-rank0.log").read_text()
    assert not one.ranks("b")


def test_an_agent_that_is_killed_is_a_lost_node_and_may_come_back(run: Callable[..., Run]) -> None:
    one = run("a", "b")
    watching = one.make(STUCK)
    orphans: list[int] = []

    def lose() -> None:
        one.agents["b"].kill()
        orphans.extend(one.ranks("b"))
        one.join("b")

    when(at_step(watching, 5), lose)
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["node"], lost["reason"]) == (1, "b", "node")
    assert lost["step"] >= 5
    assert [event["reason"] for event in noted(watching, "restart")] == ["node"]
    assert orphans
    assert not [pid for pid in orphans if processes.words_of(pid)]


def test_a_line_that_falls_silent_ends_the_ranks_at_both_ends(run: Callable[..., Run]) -> None:
    """As a cut cable does: nobody is told that the other one is gone."""
    one = run("a", "b")
    watching = one.make(STUCK, settings=SupervisorSettings(**{**QUICK.__dict__, "rank_silent_seconds": 10}))
    when(at_step(watching, 5), lambda: one.agents["b"].send_signal(signal.SIGSTOP))
    when(lambda: status(watching)["lost"], lambda: one.agents["b"].send_signal(signal.SIGCONT))
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["node"], lost["reason"]) == (1, "b", "node")
    assert status(watching)["restarts"] == 1


def test_a_node_that_does_not_come_is_named(run: Callable[..., Run]) -> None:
    one = run("a", "b", "c")
    watching = one.make(settings=SupervisorSettings(**{**QUICK.__dict__, "join_seconds": 1.5}))
    one.agents["c"].kill()
    seen: list[Any] = []
    when(lambda: status(watching)["state"] == "waiting", lambda: seen.append(status(watching)))
    assert watching.run() == 1
    (error,) = noted(watching, "error")
    assert error["error"] == {"code": "STK795", "where": "", "fields": {"node": "c", "seconds": 2}}
    assert (seen[0]["reason"], seen[0]["nodes"]["c"]) == ("away", "away")
    assert one.agents["b"].wait(10) == 1
    assert not noted(watching, "attempt")


def test_waiting_for_a_node_can_be_stopped(run: Callable[..., Run]) -> None:
    one = run("a", "b")
    watching = one.make()
    one.agents["b"].kill()
    when(lambda: status(watching)["state"] == "waiting", lambda: (watching.run_dir / "stop").touch())
    assert watching.run() == 75


def test_an_elastic_run_goes_on_without_a_node_and_takes_it_back_later(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run("a", "b", last=16)
    back = one.folder / "back"
    fault = f"""
    while (attempt, step) in ((1, 6), (2, 12)):
        pulse("micro 1")
        os.path.exists({str(back)!r}) and kill()
"""
    asked: list[tuple[str, ...]] = []

    def replan(self: SupervisedRun, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        asked.append((command, *words))
        plan = one.plan(fault, words[2].split(","), elastic=True)
        return subprocess.Popen(
            [sys.executable, "-S", "-c", f"open({str(self.run_dir / 'plan.json')!r}, 'w').write({json.dumps(plan)!r})"]
        )

    monkeypatch.setattr(SupervisedRun, "start_stoker", replan)
    watching = one.make(fault, elastic=True)
    when(at_step(watching, 5), one.agents["b"].kill)
    when(at_step(watching, 9), lambda: one.join("b"))
    when(lambda: watching.status.attempt == 2 and watching.status.nodes["b"] == "joined", back.touch)
    assert watching.run() == 0
    assert [words[2:] for words in asked] == [("--nodes", "a"), ("--nodes", "a,b")]
    assert [event["node"] for event in noted(watching, "lost")] == ["b", "a"]
    assert one.agents["b"].wait(10) == 0


def test_what_a_rank_of_another_node_says_decides(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs out of memory there, a while after this one missed it."""
    one = run("a", "b", apart=True)
    patient = SupervisorSettings(**{**QUICK.__dict__, "blame_seconds": 20, "rank_silent_seconds": 20})
    asked: list[tuple[str, ...]] = []

    def replan(self: SupervisedRun, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        asked.append((command, *words))
        return subprocess.Popen([sys.executable, "-S", "-c", ""])

    monkeypatch.setattr(SupervisedRun, "start_stoker", replan)
    fault = """
    if attempt == 1 and step > 4:
        rank or fail("STK423", rank=0, reason="")
        time.sleep(1.5)
        fail("STK408", reason="no room")
"""
    watching = one.make(fault, patient)
    assert watching.run() == 0
    assert [words[0] for words in asked] == ["replan"]
    assert [event["reason"] for event in noted(watching, "restart")] == ["memory"]
    (error,) = [event for event in noted(watching, "error") if event["error"]["code"] == "STK408"]
    assert error["node"] == "b"


@pytest.mark.parametrize("slow", [True, False])
def test_a_slow_node_is_named_once_and_alike_ones_are_not(run: Callable[..., Run], slow: bool) -> None:
    one = run("a", "b", last=24)
    watching = one.make(f"own = 0.2 if {slow} and rank == 1 else 0.01")
    assert watching.run() == 0
    named = [(event["rank"], event["node"], event["cause"], event["times"]) for event in noted(watching, "straggler")]
    assert named == ([(1, "b", "compute", 20.0)] if slow else [])


@pytest.mark.parametrize("ignored", [False, True])
def test_a_signal_ends_the_agent_and_its_ranks_unless_it_was_to_be_ignored(
    run: Callable[..., Run], ignored: bool
) -> None:
    one = run("a", "b")
    watching = one.make(settings=SupervisorSettings(**{**QUICK.__dict__, "join_seconds": 0.2}))
    if ignored:
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        one.join("b")
        signal.signal(signal.SIGTERM, before)
    agent = one.agents["b"]
    with lines.Head(json.loads((watching.run_dir / "nodes.json").read_text())) as head:
        while head.joined() != {"b"}:
            time.sleep(0.01)
        plan = (watching.run_dir / "plan.json").read_text()
        head.tell("b", {"start": 1, "plan": plan, "first_rank": 1, "world": 2, "store": "127.0.0.1:1"})
        while len(one.ranks("b")) < 2:
            time.sleep(0.01)
        agent.terminate()
        if ignored:
            time.sleep(0.5)
            assert agent.poll() is None
            assert len(one.ranks("b")) == 2
            head.tell("b", {"over": "stopped"})
        assert agent.wait(10) == 75
    assert not one.ranks("b")


def test_a_question_is_answered_while_the_agent_beats(run: Callable[..., Run]) -> None:
    one = run("a", "b")
    watching = one.make()
    with lines.Head(json.loads((watching.run_dir / "nodes.json").read_text())) as head:
        while head.joined() != {"b"}:
            time.sleep(0.01)
        assert abs(head.ask("b", {"ask": "clock"}, 10)["now"] - time.time()) < 5
        assert head.ask("b", {"ask": "something else"}, 10)["error"]["code"] == "STK900"
        head.tell("b", {"over": "failed"})
        assert one.agents["b"].wait(10) == 1


def test_processes_of_another_node_on_the_same_machine_are_left_alone(run: Callable[..., Run]) -> None:
    one = run("a", "b", "c")
    watching = one.make("time.sleep(60)")
    with lines.Head(json.loads((watching.run_dir / "nodes.json").read_text())) as head:
        while head.joined() != {"b", "c"}:
            time.sleep(0.01)
        plan = (watching.run_dir / "plan.json").read_text()
        for number, name in ((1, "b"), (2, "c")):
            head.tell(name, {"start": 1, "plan": plan, "first_rank": number, "world": 3, "store": "127.0.0.1:1"})
        while len(one.ranks("b")) < 2 or len(one.ranks("c")) < 2:
            time.sleep(0.01)
        head.tell("b", {"end": 1})
        while one.ranks("b"):
            time.sleep(0.01)
        assert len(one.ranks("c")) == 2
    while one.ranks("c"):  # its line ended with the head
        time.sleep(0.01)


# ---- several ranks on one machine


def test_a_killed_rank_of_one_machine_is_named_at_once(run: Callable[..., Run]) -> None:
    watching = run(per_node=3).make("attempt == 1 and rank == 2 and step == 5 and kill()")
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["node"], lost["step"]) == (2, socket.gethostname(), 5)
    assert [event["reason"] for event in noted(watching, "restart")] == ["SIGKILL"]


def test_an_error_of_one_rank_ends_the_others_though_they_wait_for_it(run: Callable[..., Run]) -> None:
    """Whoever starts them asks them to end and waits for half an hour."""
    fault = "if attempt == 1 and rank == 1 and step == 5: pulse('failed'); raise ValueError"
    watching = run(per_node=2).make(fault)
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["step"], lost["reason"]) == (1, 5, "surprise")
    assert [event["reason"] for event in noted(watching, "restart")] == ["surprise"]


def test_a_stopped_rank_of_one_machine_is_named_after_the_stated_time(run: Callable[..., Run]) -> None:
    watching = run(per_node=2).make("attempt == 1 and rank == 1 and step == 5 and kill(signal.SIGSTOP)")
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["step"], lost["reason"]) == (1, 5, "silent")
    assert "in meet" in (watching.run_dir / "logs" / "train-1-rank0.log").read_text()


def test_a_hang_names_the_rank_that_the_others_wait_for(run: Callable[..., Run]) -> None:
    """All of them give a pulse; one stands still in its step."""
    fault = "while attempt == 1 and rank == 1 and step == 5: pulse('micro 1'); time.sleep(0.05)"
    watching = run(per_node=2).make(fault, SupervisorSettings(**{**QUICK.__dict__, "hang_floor_seconds": 1.5}))
    assert watching.run() == 0
    (lost,) = noted(watching, "lost")
    assert (lost["rank"], lost["step"], lost["reason"]) == (1, 5, "hang")
    assert [event["reason"] for event in noted(watching, "restart")] == ["hang"]
    for rank, place in ((0, "in meet"), (1, "in <module>")):
        assert place in (watching.run_dir / "logs" / f"train-1-rank{rank}.log").read_text()


def test_ranks_that_go_well_are_left_alone(run: Callable[..., Run]) -> None:
    watching = run(per_node=2, last=60).make()
    assert watching.run() == 0
    assert not noted(watching, "lost")
    assert not noted(watching, "restart")
