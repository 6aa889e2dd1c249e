"""A real Slurm: jobs whose time is up, requeued or followed by another, end with the weights of an uninterrupted run.

The notice comes by hand here, as Slurm looks at time limits every 30 s only; `benchmarks/slurm.py` waits for those.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import queued_run
import slurm_cluster
import store_servers
import tiny_run
from slurm_cluster import Slurm

from stoker.errors import StokerError
from stoker.hosts import known
from stoker.hosts.known import Host
from stoker.hosts.shell import Ssh
from stoker.terminal import console

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not slurm_cluster.is_possible(), reason="no Slurm, or not root, or no namespaces"),
]
CANARY = "hf_canarycanarycanarycanary"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    before = dict(os.environ)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        os.environ |= running.environment
        yield running
    os.environ.clear()
    os.environ.update(before)


def test_it_listens_on_the_loopback_address_only(slurm: Slurm) -> None:
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line.split()[3] for line in listening if '"slurm' in line]
    assert len(ours) >= 3
    assert [address for address in ours if not address.startswith("127.0.0.1:")] == []


def test_a_run_is_requeued_then_followed_by_another_job_and_ends_with_the_same_weights(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = queued_run.make(tmp_path, queued_run.words(steps=100, session="30m"))
    queue = queued_run.queue(tmp_path, made)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    queue.start(made)
    first = queued_run.jobs(queue)
    with pytest.raises(StokerError, match="STK742"):
        queue.start(made)

    queued_run.until(lambda: queued_run.steps(tmp_path) >= 10, slurm, tmp_path)
    slurm.say("scancel", "--batch", "--signal=USR1", *first)
    queued_run.until(lambda: slurm.job(*first)["JobState"] == "PENDING", slurm, tmp_path)
    once = max(queued_run.committed(tmp_path))

    queued_run.until(lambda: queued_run.steps(tmp_path) >= once + 10, slurm, tmp_path)
    slurm.say("scontrol", "update", f"JobId={first[0]}", "Requeue=0")
    slurm.say("scancel", "--batch", "--signal=USR1", *first)
    queued_run.until(lambda: queued_run.jobs(queue) not in (first, []), slurm, tmp_path)
    (second,) = set(queued_run.jobs(queue)) - set(first)

    queued_run.until(lambda: slurm.job(second)["JobState"] == "COMPLETED", slurm, tmp_path)
    verdicts = [words[5:] for words in queued_run.segments(tmp_path) if words[-1] != "started"]
    assert verdicts == [["requeue"], ["requeue"], ["next", second], ["ended", "0", "by-itself"]]
    assert queued_run.state(queue) == "done"
    assert tiny_run.weights_sha(queued_run.run_dir(tmp_path).final) == queued_run.uninterrupted(tmp_path)

    assert queued_run.had_token(tmp_path) == [first[0], first[0], second]
    seen = subprocess.run(["grep", "-rl", CANARY, str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert seen == ""


def test_a_run_of_two_nodes_is_requeued_and_ends_with_the_weights_of_one_process(slurm: Slurm, tmp_path: Path) -> None:
    made = queued_run.make(tmp_path, queued_run.words(steps=40, session="30m", where="nodes: 2"))
    queue = queued_run.queue(tmp_path, made)
    queue.start(made)
    (job,) = queued_run.jobs(queue)
    queued_run.until(lambda: queued_run.steps(tmp_path) >= 10, slurm, tmp_path)
    slurm.say("scancel", "--batch", "--signal=USR1", job)
    queued_run.until(lambda: slurm.job(job)["JobState"] == "PENDING", slurm, tmp_path)
    queued_run.until(lambda: slurm.job(job)["JobState"] in ("COMPLETED", "FAILED"), slurm, tmp_path)

    verdicts = [words[5:] for words in queued_run.segments(tmp_path) if words[-1] != "started"]
    assert verdicts == [["requeue"], ["ended", "0", "by-itself"]]
    assert sorted(queued_run.parts(tmp_path)) == ["n1 train", "n1 train", "n2 join", "n2 join"]
    assert queued_run.worlds(tmp_path) == [2, 2]
    assert tiny_run.weights_sha(queued_run.run_dir(tmp_path).final) == queued_run.uninterrupted(tmp_path)


class LoginNode(Ssh):
    """Reached by ssh; its login shells know where Slurm is."""

    def run(self, script: str, **more: Any) -> str:
        return super().run(f"export SLURM_CONF={os.environ['SLURM_CONF']}\n{script}", **more)


@pytest.fixture
def login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginNode]:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    with store_servers.sshd(tmp_path / "sshd") as server:
        host = Host(name="login", host="127.0.0.1", port=server.port, key=str(tmp_path / "sshd" / "user_key"))
        known.pin(host.name, [" ".join((tmp_path / "sshd" / "host_key.pub").read_text().split()[:2])])
        line = LoginNode(host)
        yield line
        line.close()


def test_a_job_that_waits_says_why_and_is_taken_out_of_the_queue(
    slurm: Slurm, tmp_path: Path, login_node: LoginNode
) -> None:
    made = queued_run.make(tmp_path, queued_run.words(steps=4, session="30m", native="begin: now+1hour"))
    queue = queued_run.queue(tmp_path, made)
    queue.shell = login_node
    queue.start(made)
    with pytest.raises(StokerError, match="BeginTime"):
        queue.watch(queued_run.NAME, console, once=False, as_json=False)
    assert queued_run.state(queue) == "queued"
    assert queue.stop(queued_run.NAME) == 0
    assert queued_run.jobs(queue) == []


def test_what_the_cluster_does_not_have_is_told_in_its_own_words(slurm: Slurm, tmp_path: Path) -> None:
    made = queued_run.make(tmp_path, queued_run.words(steps=4, session="30m", native="qos: nosuch, gres: 'gpu:9'"))
    with pytest.raises(StokerError, match=r"(?i)generic resource|gres") as caught:
        queued_run.queue(tmp_path, made).start(made)
    assert caught.value.code == "STK741"


@pytest.mark.parametrize(("nodes", "partition"), [(3, "short"), (2, "single")])
def test_more_nodes_than_there_are_is_told_in_its_own_words(
    slurm: Slurm, tmp_path: Path, nodes: int, partition: str
) -> None:
    text = queued_run.words(steps=4, session="30m", where=f"nodes: {nodes}").replace(
        "partition: short", f"partition: {partition}"
    )
    made = queued_run.make(tmp_path, text)
    with pytest.raises(StokerError, match=r"(?i)node (configuration|count)") as caught:
        queued_run.queue(tmp_path, made).start(made)
    assert caught.value.code == "STK741"
