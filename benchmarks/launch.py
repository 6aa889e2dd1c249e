"""From the laptop to training on a fresh AutoDL-like box by one command, and prepared data over a slow line.

    launch      the command on a box with nothing but sshd and conda, where its time goes, and until the first step;
                again for a second run on the same box
    transfer    alternating pairs: ours against bare rsync over one throttled line; what is sent again after a cut
A box is a set of namespaces on this machine (tests/places/boxes.py); packages are in its image, so that "install" is
pip finding them there. Writes docs/evidence/launch.json.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/places")]

import boxes  # noqa: E402
from laptop import Laptop, laptop  # noqa: E402

import stoker  # noqa: E402
from stoker.errors import StokerError  # noqa: E402
from stoker.hosts import known  # noqa: E402
from stoker.hosts.shell import Ssh  # noqa: E402

OVERHEAD_BAR, SECOND_BAR, TRANSFER_BAR = 20.0, 10.0, 0.9
HOST = "autodl-1"
TIMED = """
import json, sys, time
from stoker.cli import main
from stoker.hosts import shell
from stoker.places import box

parts = {}

def timed(owner, name, part):
    plain = getattr(owner, name)
    def measured(*words, **options):
        began = time.monotonic()
        try:
            return plain(*words, **options)
        finally:
            parts[part] = parts.get(part, 0.0) + time.monotonic() - began
    setattr(owner, name, measured)

timed(shell.Ssh, "send", "transfer")
timed(box.Box, "_set_up", "install")
report = sys.argv.pop(1)
try:
    main.main()
finally:
    open(report, "w").write(json.dumps(parts))
"""
"""`stoker`, with a clock on two of its steps."""


def launch(mine: Laptop, box: boxes.Box, name: str) -> dict[str, float]:
    """One `stoker train --on`, and where its time went."""
    mine.writes(name, steps=20)
    mine.stoker("prepare", f"{name}.yaml")
    report = mine.folder / f"{name}.json"
    words = [sys.executable, "-c", TIMED, str(report), "train", f"{name}.yaml", "--on", HOST, "--yes"]
    enter = ["nsenter", "--target", str(mine._pid), "--pid", "--mount", f"--wd={mine.folder}"]
    began, began_at = time.monotonic(), time.time()
    done = subprocess.run([*enter, *words], env=mine.env, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    parts = json.loads(report.read_text())
    return {
        "command_seconds": seconds,
        "transfer_seconds": parts["transfer"],
        "install_seconds": parts["install"],
        "overhead_seconds": seconds - parts["transfer"] - parts["install"],
        "first_step_seconds": first_step_at(box, name) - began_at,
    }


def first_step_at(box: boxes.Box, name: str) -> float:
    """When the trainer wrote its first step."""
    path = box.root / "root/autodl-tmp/stoker/runs" / name / "events.jsonl"
    until = time.monotonic() + 600
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            for event in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                if event["event"] == "step":
                    return datetime.datetime.fromisoformat(event["at"]).timestamp()
        time.sleep(0.1)
    raise RuntimeError(f"no step of {name}")


def launches(folder: Path, times: int) -> list[dict[str, Any]]:
    """On a fresh box each time: the first launch, then a second run on it."""
    found = []
    for number in range(times):
        with laptop(folder) as mine, boxes.autodl(folder) as box:
            mine.knows(box, HOST)
            first = launch(mine, box, "first")
            box.run(["pkill", "-KILL", "-f", "stoker"])
            found.append({"first": first, "second": launch(mine, box, "second")})
            print(f"launch {number + 1}/{times} {json.dumps(found[-1])}", flush=True)
    return found


@contextlib.contextmanager
def line_to(box: boxes.Box, folder: Path) -> Iterator[Ssh]:
    os.environ["STOKER_HOME"] = str(folder / "home")
    known.pin("box", [(box.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()])
    opened = Ssh(known.Host(name="box", host=box.address, user="root", port=box.port, key=str(box.key)))
    try:
        yield opened
    finally:
        opened.close()


def transfers(folder: Path, pairs: int, mebibytes: int, rate: str) -> dict[str, Any]:
    data = folder / "data"
    names = [f"train/shard-{number:05}/tokens.bin" for number in range(4)]
    for name in names:
        (data / name).parent.mkdir(parents=True)
        (data / name).write_bytes(os.urandom((mebibytes << 20) // len(names)))
    sent = {name: data / name for name in names}
    found: dict[str, Any] = {"mebibytes": mebibytes, "rate": rate, "ours_seconds": [], "rsync_seconds": []}
    with boxes.autodl(folder, python="") as box, line_to(box, folder) as line:
        box.throttle(rate)
        for number in range(pairs):
            both = [("ours_seconds", ours), ("rsync_seconds", bare)]
            for key, way in both if number % 2 else both[::-1]:
                line.close()
                target = f"/root/autodl-tmp/{key}-{number}"
                began = time.monotonic()
                way(line, sent, data, target)
                found[key].append(round(time.monotonic() - began, 2))
                box.run(["rm", "-rf", target])
            print(f"transfer {number + 1}/{pairs}", flush=True)
        found["after_a_cut"] = cut(box, line, folder)
    ratios = [bare / ours for bare, ours in zip(found["rsync_seconds"], found["ours_seconds"], strict=True)]
    return {**found, "median_ratio": round(statistics.median(ratios), 3), "least_ratio": round(min(ratios), 3)}


def ours(line: Ssh, sent: dict[str, Path], data: Path, target: str) -> None:
    line.send(sent, target)


def bare(line: Ssh, sent: dict[str, Path], data: Path, target: str) -> None:
    words = ["rsync", "-a", "--rsh", " ".join(line.command()), f"{data}/", f"{line.host.host}:{target}/"]
    subprocess.run(words, check=True)


def cut(box: boxes.Box, line: Ssh, folder: Path) -> dict[str, int]:
    """The line goes dead in the middle of one large file; what the next attempt sends."""
    large = folder / "large.bin"
    large.write_bytes(os.urandom(16 << 20))
    before = box.moved[0]

    def sending() -> None:
        with contextlib.suppress(StokerError):
            line.send({"large.bin": large}, "/root/autodl-tmp/cut")

    thread = threading.Thread(target=sending)
    thread.start()
    while box.moved[0] - before < 10 << 20:
        time.sleep(0.02)
    box.cut()
    thread.join()
    first = box.moved[0] - before
    box.mend()
    line.close()
    line.send({"large.bin": large}, "/root/autodl-tmp/cut")
    rest = box.moved[0] - before - first
    return {"bytes": 16 << 20, "sent_before_the_cut": first, "sent_after_it": rest}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--mebibytes", type=int, default=48)
    parser.add_argument("--rate", default="40mbit")
    parser.add_argument("--report", type=Path, default=ROOT / "docs/evidence/launch.json")
    asked = parser.parse_args()
    if why_not := boxes.available():
        print(why_not)
        return 1
    with tempfile.TemporaryDirectory(prefix="launch-") as made:
        transfer = transfers(Path(made), asked.pairs, asked.mebibytes, asked.rate)
        found = launches(Path(made), asked.launches)
    overhead = statistics.median(one["first"]["overhead_seconds"] for one in found)
    second = statistics.median(one["second"]["command_seconds"] for one in found)
    report = {
        "what": "laptop to training on a fresh AutoDL-like box by one command, and prepared data over a slow line",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": f"just launch --launches {asked.launches} --pairs {asked.pairs}",
        "launches": [{key: rounded(part) for key, part in one.items()} for one in found],
        "transfer": transfer,
        "bars": {
            "overhead_seconds": {"bar": OVERHEAD_BAR, "median": round(overhead, 2), "met": overhead <= OVERHEAD_BAR},
            "second_launch_seconds": {"bar": SECOND_BAR, "median": round(second, 2), "met": second <= SECOND_BAR},
            "transfer_ratio": {
                "bar": TRANSFER_BAR,
                "median": transfer["median_ratio"],
                "met": transfer["median_ratio"] >= TRANSFER_BAR,
            },
        },
        "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True), "load": os.getloadavg()},
        "versions": {"stoker": stoker.__version__, "python": platform.python_version()},
    }
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["bars"], indent=1))
    return 0 if all(one["met"] for one in report["bars"].values()) else 1


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 2) for key, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
