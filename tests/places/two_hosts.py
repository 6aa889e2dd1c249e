"""Two hosts that train one run together, from a laptop's one command; and what may befall them meanwhile.

Hosts are boxes with a private network between them, each with its own sshd, files, processes and network. The yardstick
is the same run by one process of this machine.
"""

import contextlib
import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boxes
from laptop import Laptop, laptop, words
from launched import HEAVY, wait

from stoker.rundir import events

RUN = """\
model: {{shape: llama, layers: 2, width: 64, heads: 2, ffn: 192, vocab: 300}}
tokenizer: {{train: bpe, vocab: 300}}
data: {{train: words.txt, length: 64}}
tune: {{method: full}}
train: {{objective: pretrain, exact: {exact}, steps: {steps}, epochs: 999, batch: 12, learning_rate: 1e-3}}
save: {{every: 20 steps, keep: 2}}
where: {{{where}, micro: 2, arrange: rows}}
native: {{trainer: {{report_to: none}}}}
"""
BASE = "root/stoker"
FIRST, SECOND = "node-a", "node-b"


@dataclass
class Hosts:
    """A laptop, two hosts, and the network between these."""

    laptop: Laptop
    first: boxes.Box
    second: boxes.Box
    network: Any
    name: str = "pair"
    faults: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path:
        """The run directory on the deciding host."""
        return self.first.root / BASE / "runs" / self.name

    def train(self, **options: Any) -> Any:
        """The one command of the user."""
        return self.laptop.stoker("train", f"{self.name}.yaml", "--yes", **options)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in events.read(self.run / "events.jsonl") if event["event"] in kinds]

    @property
    def step(self) -> int:
        return max(events.steps(self.run / "events.jsonl"), default=0)

    @property
    def state(self) -> str:
        try:
            return str(json.loads((self.run / "supervisor.json").read_text(encoding="utf-8"))["state"])
        except (OSError, ValueError, KeyError):
            return ""

    def until_step(self, step: int, seconds: float = 120.0) -> None:
        wait(lambda: self.step >= step or self.state in ("done", "failed"), f"step {step} does not come", seconds)
        assert self.state not in ("done", "failed"), f"over before step {step}: {self.state}"

    def until_done(self, seconds: float = 240.0) -> None:
        wait(lambda: self.state in ("done", "failed", "stopped"), "no end", seconds)
        assert self.state == "done", self.said()

    def attempts(self) -> int:
        return len(self.events("attempt"))

    def until_attempt(self, number: int, seconds: float) -> float:
        """Until so many attempts began; how long that took."""
        began = time.monotonic()
        wait(lambda: self.attempts() >= number, f"attempt {number} does not begin: {self.said()}", seconds)
        return time.monotonic() - began

    def sha(self) -> str:
        return sha(self.run)

    def ranks(self, box: boxes.Box) -> list[int]:
        """Processes of ranks on a host, by their numbers there."""
        shown = box.run(["ps", "-e", "-ww", "-o", "pid=,args="], timeout=30).stdout.splitlines()
        lines = [line.split() for line in shown]
        return [int(line[0]) for line in lines if "stoker.engine.train" in line and "torch.distributed.run" not in line]

    def signal(self, box: boxes.Box, number: int) -> None:
        """A signal to a rank of a host."""
        box.run(["kill", f"-{signal.Signals(number).value}", str(self.ranks(box)[0])], check=True)

    def said(self) -> str:
        """What the hosts left in words, for a test that fails."""
        found = []
        for box in (self.first, self.second):
            logs = sorted((box.root / BASE / "runs" / self.name / "logs").glob("*.log"))
            found += [f"== {box.kind.hostname} {one.name}\n{one.read_text(errors='replace')[-1500:]}" for one in logs]
        return "\n".join([json.dumps(self.events("attempt", "lost", "restart", "error"))[-3000:], *found])


@contextlib.contextmanager
def hosts(folder: Path, steps: int, more: str = "", exact: str = "true") -> Iterator[Hosts]:
    """Two hosts that know the run, and nothing started yet."""
    with (
        laptop(folder) as mine,
        boxes.plain(folder, hostname=FIRST, without=HEAVY) as first,
        boxes.plain(folder, hostname=SECOND, without=HEAVY) as second,
        boxes.joined(first, second) as network,
    ):
        one = Hosts(mine, first, second, network)
        where = f"place: ssh, hosts: [{FIRST}, {SECOND}]{more}"
        (mine.folder / f"{one.name}.yaml").write_text(
            RUN.format(steps=steps, where=where, exact=exact), encoding="utf-8"
        )
        (mine.folder / "words.txt").write_text(words(), encoding="utf-8")
        mine.stoker("prepare", f"{one.name}.yaml")
        mine.knows(first, FIRST)
        mine.knows(second, SECOND)
        yield one


def yardstick(folder: Path, steps: int) -> str:
    """The final weights of the same run by one process."""
    with laptop(folder) as mine:
        (mine.folder / "alone.yaml").write_text(
            RUN.format(steps=steps, where="processes: 1", exact="true"), encoding="utf-8"
        )
        (mine.folder / "words.txt").write_text(words(), encoding="utf-8")
        mine.stoker("train", "alone.yaml")
        return sha(mine.runs / "alone")


def sha(run: Path) -> str:
    return hashlib.sha256((run / "artifacts/final/model.safetensors").read_bytes()).hexdigest()


# ---- what may befall them; each returns when it is over


def kill_rank(one: Hosts) -> None:
    one.signal(one.second, signal.SIGKILL)


def kill_first_rank(one: Hosts) -> None:
    one.signal(one.first, signal.SIGKILL)


def stop_rank(one: Hosts) -> None:
    """It stands still, and is never let go on."""
    one.signal(one.second, signal.SIGSTOP)


def kill_host(one: Hosts) -> None:
    """Nobody is told that it is gone; it comes back, and the user says the same command again."""
    before = len(one.events("lost"))
    one.network.cut(one.second)
    one.second.power_off()
    wait(lambda: len(one.events("lost")) > before, "it is not missed", 60)
    one.second.power_on()
    one.network.mend(one.second)
    one.train()


def cut_link(one: Hosts) -> None:
    before = len(one.events("lost"))
    one.network.cut(one.second)
    wait(lambda: len(one.events("lost")) > before, "it is not missed", 60)
    one.network.mend(one.second)


FAULTS: dict[str, Callable[[Hosts], None]] = {
    "a rank is killed": kill_rank,
    "the first rank is killed": kill_first_rank,
    "a rank stands still": stop_rank,
    "a host is gone": kill_host,
    "the link is cut": cut_link,
}
