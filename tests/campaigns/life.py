"""The world of C15: a laptop, two boxes that bill, a store that can be made to fail, and what their disks and process
tables show. Nothing here asks Stoker how things stand.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "places")]

import boto3  # noqa: E402
import boxes  # noqa: E402
import quick_python  # noqa: E402
import store_servers  # noqa: E402
from laptop import RUN, Laptop, words  # noqa: E402
from launched import HEAVY  # noqa: E402

import stoker  # noqa: E402

NAME, LAPTOP, BOXES, CLONE = "tiny", "laptop", ("box-1", "box-2"), "clone"
STEPS, EVERY = 240, 8
SLOW, FAST = 0.08, 0.0
"""Seconds that a step takes on top, while things happen and at the end."""
BASE = "root/autodl-tmp/stoker"
QUICK = "/srv/quick"
COMMAND_SECONDS = 240.0


@dataclass
class Said:
    """What a command said, and how it ended."""

    words: tuple[str, ...]
    code: int
    output: str
    errors: str

    @property
    def codes(self) -> list[str]:
        """Stoker's error codes in it."""
        return re.findall(r"\[(STK\d{3})\]", self.output + self.errors)

    def __str__(self) -> str:
        last = [line for line in (self.output + self.errors).splitlines() if line.strip()][-3:]
        return f"stoker {' '.join(self.words)}: exit {self.code} {' | '.join(last)[-500:]}"


class QuickLaptop(Laptop):
    """A laptop whose Stoker is a fork of the server."""

    python: Path

    def start(self, *words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        enter = ["nsenter", "--target", str(self._pid), "--pid", "--mount", f"--wd={self.folder}"]
        return subprocess.Popen(
            [*enter, str(self.python), "-m", "stoker", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.env, **(env or {})},
        )

    def says(self, *words: str, env: dict[str, str] | None = None) -> Said:
        """`stoker WORDS` to its end; one that hangs is ended, with exit code 99."""
        started = self.start(*words, env=env)
        try:
            output, errors = started.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            return Said(words, 99, *started.communicate())
        return Said(words, started.returncode, output, errors)


@dataclass
class Machine:
    """One machine: where its files are seen from here, and who runs on it."""

    name: str
    runs: Path
    home: Path
    box: boxes.Box | None
    laptop: QuickLaptop | None
    inside: str
    """The folder of runs as programs there see it."""
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.runs / NAME

    @property
    def is_on(self) -> bool:
        return self.box is None or self.box.alive

    def programs(self, module: str, alive: "Clients | None" = None) -> list[tuple[int, str]]:
        """Living programs of ours there: their pids as seen from here, and the last word of their command lines."""
        if not self.is_on:
            return []
        first = self.box._pid if self.box else self.laptop._pid  # type: ignore[union-attr]
        found = []
        for pid, said in clients() if alive is None else alive:
            with contextlib.suppress(OSError):
                if module in said and _namespace(pid) == _namespace(first):
                    found.append((pid, said[-1]))
        return found

    def trainers(self, alive: "Clients | None" = None) -> list[tuple[int, str]]:
        """Who trains, and the run's folder as it is seen there."""
        return self.programs("stoker.engine.train", alive)

    def signal(self, module: str, number: int) -> int:
        """A signal to such programs of the run; to how many."""
        pids = [_child(pid) for pid, path in self.programs(module) if path == f"{self.inside}/{NAME}"]
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    def change(self, **changes: Any) -> None:
        """Changes in every program that starts there from now on; None takes one back."""
        self.changes = {key: value for key, value in {**self.changes, **changes}.items() if value is not None}
        (self.home / quick_python.CHANGES).write_text(json.dumps(self.changes))


Clients = list[tuple[int, list[str]]]


def clients() -> Clients:
    """Programs of all worlds that asked for a child, and their command lines; a child's own ends in zeros."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            said = path.read_bytes()
            if b"\0-m\0stoker" in said and not said.startswith(b"nsenter") and not said.endswith(b"\0\0"):
                found.append((int(path.parent.name), said.decode("utf-8", "replace").split("\0")[:-1]))
    return found


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def _child(client: int) -> int:
    """The process that does a client's work; 0 where there is none."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == quick_python.name_of(client):
                return int(path.parent.name)
    return 0


# ---- what disks show


def events(run: Path) -> list[dict[str, Any]]:
    """Whole lines of a run's events."""
    try:
        lines = (run / "events.jsonl").read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def commits(run: Path) -> dict[int, dict[str, Any]]:
    """COMMIT.json of each checkpoint, by its step."""
    found = {}
    with contextlib.suppress(OSError):
        for path in (run / "checkpoints").glob("step-*/COMMIT.json"):
            with contextlib.suppress(OSError, ValueError):
                found[int(path.parent.name[5:])] = json.loads(path.read_text())
    return found


def newest(run: Path) -> int:
    return max(commits(run), default=0)


def record(run: Path, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((run / name).read_text()))
    except (OSError, ValueError):
        return {}


def weights(run: Path) -> str:
    """SHA-256 of the finished model's weights; empty where there are none."""
    digest, found = hashlib.sha256(), False
    with contextlib.suppress(OSError):
        for path in sorted((run / "artifacts/final").glob("*.safetensors")):
            digest.update(path.read_bytes())
            found = True
    return digest.hexdigest() if found else ""


# ---- the store


class FaultyStore:
    """An S3-compatible server behind a line that passes all, answers by itself, or takes its time."""

    def __init__(self, address: str, backend: int) -> None:
        self.mode, self.address = "ok", address
        self._backend = backend
        self._listening = socket.create_server((address, 0), backlog=64)
        self.port = int(self._listening.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def set(self, mode: str) -> None:
        """From now on; connections that are open end."""
        self.mode = mode
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self.set("down")
        self._listening.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                threading.Thread(target=self._attend, args=(line,), daemon=True).start()

    def _attend(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            if self.mode in ("403", "500"):
                while b"\r\n\r\n" not in line.recv(1 << 16, socket.MSG_PEEK):
                    time.sleep(0.005)
                code = "AccessDenied" if self.mode == "403" else "InternalError"
                body = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
                line.sendall(f"HTTP/1.1 {self.mode} no\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                time.sleep(0.05)
                return
            if self.mode == "slow":
                time.sleep(1.0)
            with socket.create_connection(("127.0.0.1", self._backend)) as there:
                self._open += [line, there]
                back = threading.Thread(target=_pipe, args=(there, line), daemon=True)
                back.start()
                _pipe(line, there)
                back.join()


def _pipe(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


# ---- all of it


@dataclass
class World:
    """What all walks of one place share."""

    folder: Path
    mine: QuickLaptop
    machines: dict[str, Machine]
    stores: dict[str, FaultyStore]
    quick: Path

    def pace(self, seconds: float) -> None:
        (self.quick / "pace.new").write_text(str(seconds))
        (self.quick / "pace.new").replace(self.quick / "pace")

    def trainers(self) -> list[tuple[str, str]]:
        """Machine and folder of everyone who trains."""
        alive = clients()
        return [(one.name, folder) for one in self.machines.values() for _, folder in one.trainers(alive)]

    def writes(self, store: str, name: str = NAME, before: str = "", after: str = "") -> None:
        """The run file, with some words changed."""
        text = RUN.format(steps=STEPS, every=f"{EVERY} steps", store=f', store: "{store}"' if store else "")
        assert before in text, before
        (self.mine.folder / f"{name}.yaml").write_text(text.replace(before, after) if before else text)

    def writes_data(self, more: str = "") -> None:
        (self.mine.folder / "words.txt").write_text(words() + more)

    def clear(self, pristine: Path | None) -> None:
        """As before the first walk: boxes on, no run anywhere but a prepared one on the laptop, nothing running."""
        for store in self.stores.values():
            store.set("ok")
        for machine in self.machines.values():
            if machine.box:
                if machine.box.alive:
                    machine.box.mend()
                machine.box.power_off()
                machine.box.unfill("/root/autodl-tmp")
                machine.box.power_on()
            else:
                self.mine.kill()
                self.mine.switch_on()
            machine.changes = {}
            machine.change(pace=str(self.quick / "pace") if machine.box is None else f"{QUICK}/pace")
            shutil.rmtree(machine.runs, ignore_errors=True)
            machine.runs.mkdir(parents=True)
        shutil.rmtree(self.mine.folder / CLONE, ignore_errors=True)
        if pristine is not None:
            shutil.copytree(pristine, self.mine.runs / NAME)
        self.writes_data()
        self.pace(SLOW)


@contextlib.contextmanager
def world(folder: Path, quick: Path) -> Iterator[World]:
    """A laptop that knows two boxes, and two stores that all of them reach."""
    folder.mkdir()
    tree, tests = Path(stoker.__file__).parents[1], HERE.parent
    seen = {QUICK: quick} | {
        str(path): path for path in (Path(sys.prefix), Path(sysconfig.get_path("stdlib")), tree, tests)
    }
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(QuickLaptop(folder).powered())
        kinds = {
            "inputs": seen, "without": HEAVY, "disks": {"/root/autodl-tmp": "250m"}, "system_size": "200m"
        }  # fmt: skip
        pair = [stack.enter_context(boxes.autodl(folder, hostname=f"autodl-{name}", **kinds)) for name in BOXES]
        mine.python = _quick_laptop(folder, quick, mine)
        for box in pair:
            _quick_box(folder, box)
        machines = {LAPTOP: Machine(LAPTOP, mine.runs, mine.home, None, mine, str(mine.runs))}
        for name, box in zip(BOXES, pair, strict=True):
            machines[name] = Machine(name, box.root / BASE / "runs", box.root / "root", box, None, f"/{BASE}/runs")
        stores = _stores(stack, folder, pair)
        one = World(folder, mine, machines, stores, quick)
        one.pace(FAST)
        mine.env |= store_servers.s3_settings(0)
        for name, box in zip(BOXES, pair, strict=True):
            mine.knows(box, name)
        yield one


def _quick_laptop(folder: Path, quick: Path, mine: QuickLaptop) -> Path:
    target = mine.folder / "bin" / "python"
    target.parent.mkdir()
    quick_python.install(folder.parent / "quick/python", target, sys.executable, str(quick / "socket"))
    return target


def _quick_box(folder: Path, box: boxes.Box) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = box.root / box.kind.python.lstrip("/") / "bin" / version
    quick_python.install(folder.parent / "quick/python", target, "", f"{QUICK}/socket")


def _stores(stack: contextlib.ExitStack, folder: Path, pair: list[boxes.Box]) -> dict[str, FaultyStore]:
    """Behind an address of this machine that both boxes have a way to; it goes with the first one's cable."""
    number = pair[0].gateway.split(".")[2]
    address = f"10.78.{number}.1"
    subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", pair[0]._link], check=True)
    for box in pair:
        box.route(address)
    servers = {"heedless": store_servers.rclone(folder / "bucket")}
    if store_servers.has_moto():
        servers["s3"] = store_servers.moto(folder)
    made = {}
    for name, server in servers.items():
        started = stack.enter_context(server)
        _create_bucket(started.settings)
        made[name] = FaultyStore(address, started.port)
        stack.callback(made[name].close)
    return made


def _create_bucket(settings: dict[str, str]) -> None:
    names = {"endpoint_url": "AWS_ENDPOINT_URL", "region_name": "AWS_DEFAULT_REGION"}
    names |= {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    client = boto3.client("s3", **{name: settings[variable] for name, variable in names.items()})
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket=store_servers.BUCKET)


def until(true: Callable[[], Any], seconds: float, every: float = 0.1) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True
