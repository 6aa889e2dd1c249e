"""Two hosts as network namespaces: what befalls them, how soon it is noticed and named, and the final weights.

    just hosts                      all faults -> docs/evidence/hosts.json, about ten minutes
    just hosts --only "the link is cut"
Every fault has a run of its own; the yardstick is the same run by one process. The control is a run without the
canonical sum: it must end with other weights.
"""

import argparse
import datetime
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/places")]

import processor  # noqa: E402
import two_hosts  # noqa: E402  # lies with the tests

STEPS = 400
STATED_SECONDS = {
    "a rank is killed": 2.0,
    "the first rank is killed": 2.0,
    "a rank stands still": 30.0,
    "a host is gone": 15.0,
    "the link is cut": 15.0,
}
SLOW = "10 Mbit/s"


def main() -> int:
    """Run what was asked for, and write the report."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", action="append", choices=[*two_hosts.FAULTS, SLOW])
    words = asked.parse_args()
    chosen = words.only or [*two_hosts.FAULTS, SLOW]
    with tempfile.TemporaryDirectory() as folder:
        wanted = two_hosts.yardstick(Path(folder), STEPS)
        rows = [_row(Path(folder), name, wanted) for name in chosen]
        control = _plain(Path(folder), wanted)
    report = {**_facts(), "steps": STEPS, "yardstick_sha256": wanted, "rows": rows, "control": control}
    if not words.only:
        path = ROOT / "docs/evidence/hosts.json"
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return 0 if all(row["same_sha"] and row["named"] for row in rows) and not control["same_sha"] else 1


def _row(folder: Path, name: str, wanted: str) -> dict[str, Any]:
    with two_hosts.hosts(folder, STEPS) as one:
        if name == SLOW:
            one.network.throttle(one.second, "10mbit")
        one.train()
        one.until_step(40)
        found = _befallen(one, name) if name != SLOW else _slow(one)
        one.until_done(600)
        return {"fault": name, **found, "attempts": one.attempts(), "same_sha": one.sha() == wanted}


def _plain(folder: Path, wanted: str) -> dict[str, Any]:
    """The engine's own sum instead of the canonical one: other weights, or the comparison shows nothing."""
    with two_hosts.hosts(folder, STEPS, exact="false") as one:
        one.train()
        one.until_done(600)
        return {"train.exact": False, "same_sha": one.sha() == wanted}


def _befallen(one: two_hosts.Hosts, name: str) -> dict[str, Any]:
    began, step = time.time(), one.step
    two_hosts.FAULTS[name](one)
    again = one.until_attempt(2, 180)
    (lost,) = one.events("lost")
    noticed = datetime.datetime.fromisoformat(lost["at"]).timestamp() - began
    return {
        "at_step": step,
        "noticed_seconds": round(noticed, 1),
        "stated_seconds": STATED_SECONDS[name],
        "again_seconds": round(again, 1),
        "named": {key: lost[key] for key in ("node", "rank", "step", "reason")},
    }


def _slow(one: two_hosts.Hosts) -> dict[str, Any]:
    """Nothing is lost on a slow line; its speed is said before the first step."""
    links = one.events("link")
    slowest = min(event["bytes_per_second"] for event in links)
    return {"named": {"links": len(links), "slowest_bytes_per_second": round(slowest)}, "lost": one.events("lost")}


def _facts() -> dict[str, Any]:
    import torch

    import stoker

    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    versions = {"stoker": stoker.__version__, "torch": torch.__version__, "python": platform.python_version()}
    machine = "two hosts as network namespaces on 2 shared cores, gloo"
    return {"date": now, "versions": versions, "machine": machine, **processor.facts()}


if __name__ == "__main__":
    sys.exit(main())
