"""Every test there is, folder by folder, and a report (docs/evidence/nightly.json): `just nightly`.

A folder that ended for this commit, well or badly, is skipped by the next call: a night that was cut short goes on.
`--again FOLDER` runs one anew; what failed in it before stays in the report.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "campaigns")]

import campaign  # noqa: E402  # it knows how a report names code and versions
import processor  # noqa: E402
import tiers  # noqa: E402

REPORT = ROOT / "docs" / "evidence" / "nightly.json"
KEPT = ROOT / ".nightly"
"""Records of folders that ended, by commit."""
WORKERS = "3"
LONGEST_TEST_SECONDS = "2400"
ENDED = (0, 1)
"""What pytest ends with when it ran all tests."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", help="of tests/ (default: all)")
    parser.add_argument("--again", action="append", default=[], metavar="FOLDER", help="run it although it ended")
    parser.add_argument("--report", type=Path, default=REPORT)
    asked = parser.parse_args()
    # A shell lets what it starts in the background ignore Ctrl-C, and every program of a test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = campaign.code()
    records = KEPT / _key(code)
    records.mkdir(parents=True, exist_ok=True)
    folders = asked.folders or all_folders()
    for name in folders:
        record = records / f"{name.replace('/', '-')}.json"
        if record.exists() and name not in asked.again:
            print(f"{name}: ended before for this commit", flush=True)
            continue
        found = _run(name, records)
        if record.exists():
            earlier = json.loads(record.read_text(encoding="utf-8"))
            found["failed_before"] = earlier["failed_before"] + earlier["failures"]
        record.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    report = _report(code, records)
    asked.report.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(
        json.dumps(
            {
                key: report[key]
                for key in ("whole", "passed", "minutes", "counts", "failures", "failed_before", "skips")
            },
            indent=1,
        )
    )
    return 0 if report["passed"] else 1


def all_folders() -> list[str]:
    """Of tests/ and of tests/nightly, those with tests in them: what breaks soonest first."""
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    order = ("quick", "check", "nightly")
    return sorted({tiers.folder(file) for file in files}, key=lambda name: (order.index(tiers.tier(f"{name}/")), name))


def _key(code: dict[str, Any]) -> str:
    if code["clean"]:
        return str(code["commit"])
    changed = hashlib.sha256(_git("diff", "HEAD"))
    for name in sorted(_git("ls-files", "-z", "--others", "--exclude-standard").decode().split("\0")):
        changed.update(name.encode())
        changed.update((ROOT / name).read_bytes() if name else b"")
    return f"{code['commit']}-{changed.hexdigest()[:12]}"


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def _run(name: str, records: Path) -> dict[str, Any]:
    """One folder's tests. That pytest did not get through them is a failure, too."""
    outcome = records / f"{name.replace('/', '-')}.xml"
    words = [sys.executable, "-m", "pytest", "-q", "-n", WORKERS, "--dist", "loadfile", "--no-loadscope-reorder"]
    words += ["--timeout", LONGEST_TEST_SECONDS, f"--junitxml={outcome}", f"tests/{name}"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    settings["STOKER_TEST_SHARED"] = str(records / "shared")
    print(f"{name}: {' '.join(words[1:])}", flush=True)
    began = time.monotonic()
    code = subprocess.run(words, cwd=ROOT, env=settings, check=False).returncode
    minutes = {"minutes": round((time.monotonic() - began) / 60, 2), "failed_before": []}
    if code not in ENDED:
        broken = [{"test": f"tests/{name}", "what": f"pytest ended with {code}"}]
        return {
            **minutes,
            "passed": 0,
            "failed": 1,
            "skipped": 0,
            "processor_minutes": 0,
            "failures": broken,
            "skips": [],
        }
    return {**minutes, **read(outcome)}


def read(outcome: Path) -> dict[str, Any]:
    """Counts, processor minutes, failures and reasons of skips from a JUnit file."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures, skips, processor = [], [], 0.0
    for case in ElementTree.parse(outcome).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        bad = [*case.findall("failure"), *case.findall("error")]
        skipped = case.find("skipped")
        if bad:
            counts["failed"] += 1
            failures.append({"test": name, "what": (bad[0].get("message") or "")[:500]})
        elif skipped is not None:
            counts["skipped"] += 1
            skips.append({"test": name, "why": (skipped.get("message") or "")[:200]})
        else:
            counts["passed"] += 1
        processor += sum(float(one.get("value", 0)) for one in case.iter("property") if one.get("name") == "processor")
    return {**counts, "processor_minutes": round(processor / 60, 2), "failures": failures, "skips": skips}


def _report(code: dict[str, Any], records: Path) -> dict[str, Any]:
    names = all_folders()
    done = {name: records / f"{name.replace('/', '-')}.json" for name in names}
    found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in done.items() if path.exists()}
    counts = {word: sum(one[word] for one in found.values()) for word in ("passed", "failed", "skipped")}
    listed = ("minutes", "processor_minutes", "passed", "failed", "skipped")
    before = [one for of in found.values() for one in of["failed_before"]]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": "just nightly",
        "code": code,
        "machine": {"cores": os.cpu_count(), **processor.facts(), "system": platform.platform(terse=True)},
        "versions": campaign.versions(),
        "whole": set(found) == set(names),
        "passed": set(found) == set(names) and not counts["failed"] and not before,
        "minutes": round(sum(one["minutes"] for one in found.values()), 1),
        "counts": counts,
        "folders": {
            name: {"tier": tiers.tier(f"{name}/"), **{k: one[k] for k in listed}} for name, one in found.items()
        },
        "failures": [one for of in found.values() for one in of["failures"]],
        "failed_before": before,
        "skips": [one for of in found.values() for one in of["skips"]],
    }


if __name__ == "__main__":
    if shutil.which("git") is None:
        sys.exit("git names the commit that was tested")
    sys.exit(main())
