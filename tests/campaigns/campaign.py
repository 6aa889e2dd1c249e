"""The runner of all campaigns: `python tests/campaigns/campaign.py NAME --n N --seed S`, or `just campaign NAME ...`.

A campaign breaks things on purpose, many times, from one seed, and counts. Its negative controls take one safeguard
away, in the campaign and nowhere else: one that is not noticed fails the campaign. The report is written as it goes.
"""

import argparse
import datetime
import hashlib
import importlib
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import stoker

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import processor

os.environ.setdefault("STOKER_METADATA", "off")  # no supervisor of a campaign asks the cloud it may run in

HERE = Path(__file__).parent
EVIDENCE = HERE.parents[1] / "docs" / "evidence" / "campaigns"
MOST_FAILURES = 20
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "safetensors", "bitsandbytes")


class Campaign:
    """One campaign on its way: what was asked, what was counted."""

    def __init__(self, name: str, n: int, seed: int, folder: Path, report: Path | None) -> None:
        self.name, self.n, self.seed, self.folder = name, n, seed, folder
        self._report = report
        self._started = time.time()
        self._shown = 0.0
        self._code = code()
        self.counts: Counter[str] = Counter()
        self.measured: dict[str, Any] = {}
        self.failures: list[dict[str, Any]] = []
        self.controls: dict[str, dict[str, Any]] = {}
        self.done = 0

    def random(self, *words: Any) -> random.Random:
        """The generator of one case: any case can be run again alone."""
        return random.Random(":".join(map(str, (self.name, self.seed, *words))))

    def case(self, *counted: str) -> None:
        """One case is over."""
        self.done += 1
        self.counts.update(counted)
        if time.time() - self._shown > 10:
            self._shown = time.time()
            self.write()
            print(f"{self.name} {self.done}/{self.n} {dict(self.counts)} failures {len(self.failures)}", flush=True)

    def fail(self, case: Any, what: str) -> None:
        """Something was lost, wrong or accepted that must not be."""
        what = self._shown_text(what)
        self.failures.append({"case": case, "what": what[-2000:]})
        print(f"{self.name} FAILED {case}: {what}", flush=True)

    def control(self, name: str, *, caught: bool, what: str = "") -> None:
        """A run with a safeguard taken away; it must be caught at least once."""
        one = self.controls.setdefault(name, {"runs": 0, "caught": 0, "what": ""})
        one["runs"] += 1
        one["caught"] += caught
        one["what"] = one["what"] or self._shown_text(what)[:300]

    def _shown_text(self, text: str) -> str:
        """Without this machine's paths."""
        return text.replace(str(self.folder), "").replace("PosixPath", "")

    @property
    def passed(self) -> bool:
        """Whether all was well, every control was noticed, and the code stayed as it was."""
        same = code()["sha256"] == self._code["sha256"]
        return same and not self.failures and all(one["caught"] for one in self.controls.values())

    @property
    def hopeless(self) -> bool:
        """Whether so much has failed that more of it says nothing new."""
        return len(self.failures) >= MOST_FAILURES

    def report(self) -> dict[str, Any]:
        """What is written down."""
        return {
            "campaign": self.name,
            "what": sys.modules[f"{self.name}"].__doc__.strip().splitlines()[0] if self.name in sys.modules else "",
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": f"just campaign {self.name} --n {self.n} --seed {self.seed}",
            "seed": self.seed,
            "asked": self.n,
            "done": self.done,
            "passed": self.passed and self.done >= self.n,
            "failures": self.failures,
            "counts": dict(sorted(self.counts.items())),
            "controls": self.controls,
            "measured": self.measured,
            "seconds": round(time.time() - self._started),
            "versions": versions(),
            "code": {"start": self._code, "end": code()},
            "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True), "device": "cpu"}
            | processor.facts(),
        }

    def write(self) -> None:
        """Write the report as far as it is known."""
        if self._report:
            self._report.parent.mkdir(parents=True, exist_ok=True)
            self._report.write_text(json.dumps(self.report(), ensure_ascii=False, indent=1) + "\n")


def code() -> dict[str, Any]:
    """Which code runs: the commit, whether anything but evidence differs from it, and a digest of the product."""
    package = Path(stoker.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    changed = _git(package, "status", "--porcelain", "--", ":/", ":(exclude,top)docs/evidence")
    commit = _git(package, "rev-parse", "HEAD")
    return {"commit": commit, "clean": bool(commit) and not changed, "sha256": digest.hexdigest()}


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False).stdout.strip()


def versions() -> dict[str, str]:
    found = {"stoker": _version("stoker"), "python": platform.python_version()}
    return found | {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@contextmanager
def place(path: Path | None) -> Iterator[Path]:
    """A folder for the campaign's own files."""
    if path:
        path.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="campaign-", dir=path))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def run(name: str, n: int, seed: int = 1, *, report: Path | None = None, folder: Path | None = None) -> Campaign:
    """Run one campaign to its end."""
    sys.path[:0] = [str(path) for path in (HERE, HERE.parent) if str(path) not in sys.path]
    module = importlib.import_module(name)
    with place(folder) as made:
        campaign = Campaign(name, n, seed, made, report)
        try:
            module.run(campaign)
        finally:
            campaign.write()
    return campaign


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="c1, c1x, c2, ...")
    parser.add_argument("--n", type=int, required=True, help="cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where its files go while it runs (default: the system's)")
    parser.add_argument("--report", type=Path, help="default: docs/evidence/campaigns/NAME.json")
    asked = parser.parse_args()
    report = asked.report or EVIDENCE / f"{asked.name}.json"
    done = run(asked.name, asked.n, asked.seed, report=report, folder=asked.folder)
    print(json.dumps({key: done.report()[key] for key in ("campaign", "done", "passed", "counts", "controls")}))
    return 0 if done.passed else 1


if __name__ == "__main__":
    sys.exit(main())
