"""The tests that compare bits, at every level of instructions this processor has: one process of pytest per level.

Writes docs/evidence/bits.json as levels end. Levels without a result are listed as open: those that this processor
lacks, and those that it has and that were not run. A level says which tests it ran: `--only` may have left out most.
Usage: python benchmarks/bits.py [--level LEVEL ...] [--only TEST ...] [--out FILE]
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/campaigns")]

import campaign  # noqa: E402
import processor  # noqa: E402

SUITE = (
    "tests/invariant",
    "tests/engine/test_exact.py",
    "tests/engine/test_nodes.py",
    "tests/engine/test_store.py",
    "tests/engine/test_supervisor.py",
    "tests/engine/test_train.py",
    "tests/nightly/engine/test_fifty_steps.py",
    "tests/nightly/engine/test_kinds.py",
    "tests/nightly/engine/test_ranks.py",
    "tests/nightly/engine/test_resume_anywhere.py",
    "tests/nightly/engine/test_same_maths.py",
    "tests/nightly/engine/test_two_nodes.py",
    "tests/nightly/engine/test_vllm_sampler.py",
)
"""Where weights or losses are compared to the bit, and what tests/invariant left to the night."""


def main() -> int:
    """Run the suite at the levels asked for and say what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=processor.levels(), action="append")
    parser.add_argument("--only", action="append", help="a file or a test instead of the whole suite")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/bits.json")
    asked = parser.parse_args()
    found: dict[str, Any] = json.loads(asked.out.read_text("utf-8"))["levels"] if asked.out.exists() else {}
    ran = asked.level or processor.levels()[::-1]
    for level in ran:
        found[level] = at_level(level, asked.only or SUITE)
        print(level, json.dumps(found[level]), flush=True)
        write(asked.out, found)
    return 0 if all(found[level]["passed"] and not found[level]["failures"] for level in ran) else 1


def at_level(level: str, suite: Sequence[str]) -> dict[str, Any]:
    """Counts of pytest's outcomes, and what failed."""
    began, code = time.monotonic(), campaign.code()
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={outcome}", *suite]
        threads = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(words, cwd=ROOT, env={**os.environ, **threads, **processor.environment(level)}, check=False)
        cases = list(ET.parse(outcome).iter("testcase"))  # written by pytest a moment ago
    failures = [name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [name(case) for case in cases if case.find("skipped") is not None]
    return {
        "suite": "whole" if suite is SUITE else list(suite),
        "passed": len(cases) - len(failures) - len(skipped),
        "failures": failures,
        "skipped": skipped,
        "variables": processor.environment(level),
        "seconds": round(time.monotonic() - began),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "code": code,
        "machine": {**processor.facts(), "level": level},
        "versions": {package: version(package) for package in ("stoker", "torch", "transformers", "peft")},
    }


def name(case: ET.Element) -> str:
    """A test as pytest would be asked for it, but for the file's ending."""
    return f"{case.get('classname')}::{case.get('name')}"


def why(level: str) -> str:
    """A level has no result."""
    return "not run" if level in processor.levels() else "this processor lacks it"


def write(out: Path, found: dict[str, Any]) -> None:
    """The report so far, levels in their order."""
    report = {
        "command": "just bits",
        "suite": SUITE,
        "open": {level: why(level) for level in processor.LEVELS if level not in found},
        "levels": {level: found[level] for level in processor.LEVELS if level in found},
    }
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
