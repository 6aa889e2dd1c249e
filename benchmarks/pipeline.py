"""`data.pipeline` on real text with planted duplicates and leaks: what datatrove finds, and what kills do to it.

    plain        parquet and jsonl -> filter -> exact -> MinHash -> decontaminate -> PII -> shards, two workers
                 (bars: F1 of planted duplicates >= 0.97, no leak left)
    workers      the same with one worker: the same output and the same prepared set
    no_dedup     control: without the two deduplications every planted duplicate stays
    no_decont    control: without decontamination every leak stays
    slurm        the same as jobs of a real Slurm of two nodes: the same prepared set
    kills        killed at points spread evenly over a run, each time started again: the same prepared set

Text is from /usr/share/doc (tests/engine/planted_text.py). Needs the `datatrove` environment (`just tools datatrove`);
for `slurm` root, Debian's `slurm-wlm` and `munge`. Usage: python benchmarks/pipeline.py [--documents N] [--only plain]
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engine"), str(ROOT / "tests" / "places")]

import planted_text  # noqa: E402
import processor  # noqa: E402
import slurm_cluster  # noqa: E402
from planted_text import Planted  # noqa: E402

from stoker import tools  # noqa: E402
from stoker.rundir import prepared  # noqa: E402
from stoker.rundir.layout import RunDir  # noqa: E402

SEED = 18
FILES = 6
STEPS: list[dict[str, Any]] = [
    {"step": "GopherQualityFilter", "options": {"min_doc_words": 50, **planted_text.ONLY_BY_LENGTH}},
    {"step": "ExactDedup"},
    {"step": "MinhashDedup"},
    {"step": "NGramsDecont", "against": "eval.jsonl", "options": {"n_grams": 12}},
    {"step": "PIIFormatter"},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "pipeline.json")
    given = parser.parse_args()
    before = json.loads(given.out.read_text("utf-8")) if given.only and given.out.exists() else {}
    cases: dict[str, Any] = before.get("cases", {})
    planted = planted_text.plant(given.documents, SEED)
    with tempfile.TemporaryDirectory(prefix="stoker-pipeline-") as folder:
        planted_text.write(planted, Path(folder), FILES, parquet=True)
        for name in [given.only] if given.only else CASES:
            started = time.monotonic()
            found = CASES[name](Path(folder), planted, given.kills)
            cases[name] = {"seconds": round(time.monotonic() - started, 1), **found}
            print(name, json.dumps(cases[name]), flush=True)
            report = {**_facts(planted, given.documents), "cases": cases, "same": _same(cases)}
            given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def plain(folder: Path, planted: Planted, _: int) -> dict[str, Any]:
    return _whole(folder, "plain", planted)


def workers(folder: Path, planted: Planted, _: int) -> dict[str, Any]:
    return _whole(folder, "workers", planted, native={"workers": 1})


def no_dedup(folder: Path, planted: Planted, _: int) -> dict[str, Any]:
    return _whole(folder, "no_dedup", planted, [one for one in STEPS if not one["step"].endswith("Dedup")])


def no_decont(folder: Path, planted: Planted, _: int) -> dict[str, Any]:
    return _whole(folder, "no_decont", planted, [one for one in STEPS if one["step"] != "NGramsDecont"])


def slurm(folder: Path, planted: Planted, _: int) -> dict[str, Any]:
    if not slurm_cluster.is_possible():
        return {"skipped": "no Slurm, or not root, or no namespaces"}
    with slurm_cluster.cluster(folder / "cluster") as running:
        more = {"partition": "short", "time": "00:30:00", "qos": "", "mem_per_cpu_gb": 0, "tasks_per_job": 4}
        found = _whole(folder, "slurm", planted, native=more, environment=running.environment)
        jobs = list(_pipeline(folder, "slurm").glob("stages/*/slurm_logs/*.out"))
        return {"version": running.say("sinfo", "--version"), "jobs": len(jobs), **found}


def kills(folder: Path, planted: Planted, wanted: int) -> dict[str, Any]:
    """Each attempt is killed a moment after something new was on disk, at 20 different amounts of it."""
    stages, attempts = [], 0
    total = sum(1 for _ in _pipeline(folder, "plain").glob("stages/*/*/*")) if wanted else 0
    assert total, "`kills` compares with `plain`: run that first, in the same command"
    for number in range(wanted):
        process = _start(folder, "kills", STEPS)
        goal = (number + 1) * total // (wanted + 1)
        while process.poll() is None and _progress(folder) < goal:
            time.sleep(0.02)
        if process.poll() is None:
            attempts += 1
            os.killpg(process.pid, signal.SIGKILL) if number % 2 else _kill_pipeline(process)
            stages.append(_newest_stage(folder))
        process.wait()
    return {"kills": attempts, "killed_in": sorted(set(stages)), **_whole(folder, "kills", planted)}


CASES = {
    "plain": plain,
    "workers": workers,
    "no_dedup": no_dedup,
    "no_decont": no_decont,
    "slurm": slurm,
    "kills": kills,
}


# ---- one run


def _whole(
    folder: Path,
    name: str,
    planted: Planted,
    steps: list[dict[str, Any]] = STEPS,
    native: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    process = _start(folder, name, steps, native, environment)
    assert process.wait() == 0, (folder / f"{name}.log").read_text("utf-8")
    run_dir = RunDir(folder / "runs" / name)
    report = prepared.read_report(run_dir.data)
    assert report is not None
    place = _pipeline(folder, name)
    result = json.loads((place / "done.json").read_text("utf-8"))
    return {
        "rows_in": len(planted.rows),
        "rows_out": len(planted_text.names(place / "output")),
        **planted_text.scored(planted, place),
        "steps": dict(_steps(result["stages"])),
        "output_digest": _digest(result["files"]),
        "set_digest": report.digest,
        "tokens": report.train.tokens,
    }


def _start(
    folder: Path,
    name: str,
    steps: list[dict[str, Any]],
    native: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    words = {
        "name": name,
        "model": {"shape": "llama", "layers": 1, "width": 64, "heads": 1},
        "tokenizer": {"train": "bpe", "vocab": 1000},
        "data": {"train": "raw", "pipeline": steps, "length": 256},
        "train": {"objective": "pretrain", "seed": SEED},
        "native": {"datatrove": native or {"workers": 2}},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(words), encoding="utf-8")
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stoker", "prepare", f"{name}.yaml"],
            cwd=folder,
            env={**os.environ, "STOKER_RUNS": str(folder / "runs"), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _pipeline(folder: Path, name: str) -> Path:
    return next(iter((folder / "runs" / name / "pipeline").glob("*")), folder / "none")


def _progress(folder: Path) -> int:
    return sum(1 for _ in _pipeline(folder, "kills").glob("stages/*/*/*"))


def _newest_stage(folder: Path) -> str:
    stages = sorted(_pipeline(folder, "kills").glob("stages/*"))
    return stages[-1].name if stages else "before the first"


def _kill_pipeline(process: "subprocess.Popen[bytes]") -> None:
    """Kill datatrove's main process alone: its workers must not go on without it."""
    said = subprocess.run(["pgrep", "-g", str(process.pid), "-f", "stoker_pipeline.py"], capture_output=True, text=True)
    for number in sorted(map(int, said.stdout.split()))[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def _steps(stages: list[dict[str, Any]]) -> list[tuple[str, dict[str, int]]]:
    blocks = [block for stage in stages for block in stage["blocks"] if "forwarded" in block["counts"]]
    return [
        (block["block"], {name: block["counts"].get(name, 0) for name in ("total", "forwarded", "dropped")})
        for block in blocks
    ]


def _digest(files: dict[str, list[Any]]) -> str:
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def _same(cases: dict[str, Any]) -> dict[str, bool]:
    """Whether a case's prepared set is the plain one's."""
    wanted = cases.get("plain", {}).get("set_digest")
    return {name: cases[name].get("set_digest") == wanted for name in ("workers", "kills", "slurm") if name in cases}


def _facts(planted: Planted, documents: int) -> dict[str, Any]:
    python = tools.require(tools.DATATROVE)
    return {
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: tools.version(python, name) for name in ("datatrove", "spacy")},
            **{name: metadata.version(name) for name in ("tokenizers", "pyarrow")},
        },
        "machine": processor.facts(),
        "seed": SEED,
        "documents": documents,
        "files": FILES,
        "words_each": planted_text.WINDOW,
        "characters": sum(len(row["text"]) for row in planted.rows),
        "edited": planted_text.EDITED,
        "decoy_edited": planted_text.DECOY_EDITED,
    }


if __name__ == "__main__":
    main()
