"""The whole stay of a small run on this machine, part by part, against its plan and against its calibrated interval.

From an empty environment: Stoker is installed by pip without torch and plans; then it sees this environment's torch, as
on an image that brings one, prepares, measures the first steps (`plan --calibrate`) and trains, with evaluations and
saves. A second run is killed once. Writes docs/evidence/whole_stay.json.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import site
import subprocess
import time
import venv
from pathlib import Path
from typing import Any

from stoker.facts import failures

ROOT = Path(__file__).resolve().parents[1]
SURE = 2.0
"""A part that was not measured here may be wrong by this factor either way (facts/data/setup.json)."""
RUN = """\
model: {shape: llama, layers: 4, width: 256, heads: 4, tied: false}
tokenizer: {train: bpe, vocab: 2048}
data: {train: "recipe:text/shakespeare.txt", eval: 5%, length: 256, rows: 1, tokens: 85000}
train: {objective: pretrain, epochs: 12, batch: 16, learning_rate: 1e-3, warmup: 10%}
save: {every: epoch}
"""


def main() -> None:
    """Install, plan, prepare, calibrate, train; compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "whole_stay")
    folder = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    load_before = os.getloadavg()[0]
    (folder / "small.yaml").write_text(RUN, encoding="utf-8")
    python, environment = _installed(folder)
    planned = _json(python, folder, "plan", "small.yaml", "--json")["here"]
    _with_torch(python)
    prepared = _seconds(python, folder, "prepare", "small.yaml")
    calibrated = _json(python, folder, "plan", "small.yaml", "--calibrate", "--json")
    whole = _seconds(python, folder, "train", "small.yaml")
    parts = _parts(folder / "runs" / "small", whole)
    restart = _restart(python, folder)
    low, high = calibrated["stay_seconds_range"]
    setup = {**planned["setup_seconds"], **calibrated["setup_seconds"]}
    expected = {
        # One figure: that of `start` was taken from the command to the first step, nothing prepared before.
        "prepare and load": setup["prepare"] + setup["load"],
        "training": calibrated["time_seconds"],
        "evaluation": setup["evaluation"],
        "save": setup["save"],
    }
    measured = {"prepare and load": prepared + parts.pop("load"), **parts}
    report = {
        "what": "seconds of a run's whole stay on this machine: planned, then measured, by part",
        "taken": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {load_before:.1f} before",
        "stay": {
            "planned": round(planned["stay_seconds"], 1),
            "calibrated": round(calibrated["stay_seconds"], 1),
            "range": [round(low, 1), round(high, 1)],
            "measured": round(whole, 1),
            "covered": low <= whole <= high,
        },
        "parts": {part: _against(expected[part], seconds) for part, seconds in measured.items()},
        "restart": {
            "another machine, expected": failures.restart_seconds(),
            "this machine, measured": round(restart, 1),
        },
        "environment": {"light install": round(environment, 1)},
        "steps": calibrated["total_steps"],
        "tokens_per_second": {
            "planned": round(planned["tokens_per_second"]),
            "calibrated": round(calibrated["measured"]["tokens_per_second"]),
        },
    }
    print(json.dumps(report, indent=1))
    evidence = ROOT / "docs/evidence/whole_stay.json"
    evidence.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    assert report["stay"]["covered"], report["stay"]
    outside = [part for part, one in report["parts"].items() if not one["within"]]
    assert not outside, outside


def _against(expected: float, measured: float) -> dict[str, Any]:
    """A part beside its figure; the pace of training was measured, other parts are facts that hold within a factor."""
    within = expected / SURE <= measured <= expected * SURE
    return {"expected": round(expected, 2), "measured": round(measured, 2), "within": within}


def _installed(folder: Path) -> tuple[Path, float]:
    """A fresh environment with Stoker by pip, without torch; its Python, and the seconds that took."""
    began = time.monotonic()
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True, env=_environment(folder))
    seconds = time.monotonic() - began
    missing = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False, env=_environment(folder))
    assert missing.returncode != 0, "torch is there already"
    return python, seconds


def _with_torch(python: Path) -> None:
    """Packages of this environment are seen after those of the fresh one, as those of an image."""
    (target,) = (python.parent.parent / "lib").glob("python*/site-packages")
    (target / "image.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    return {**kept, "HF_HUB_OFFLINE": "1", "STOKER_HOME": str(folder / "home"), "STOKER_LANG": "en"}


def _json(python: Path, folder: Path, *words: str) -> Any:
    command = [python, "-m", "stoker", *words]
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def _seconds(python: Path, folder: Path, *words: str) -> float:
    began = time.monotonic()
    command = [python, "-m", "stoker", *words]
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return time.monotonic() - began


def _events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def _parts(run: Path, whole: float) -> dict[str, float]:
    """Seconds of `stoker train` by part, from its events; loading is what no other part has."""
    found = _events(run)
    spent = {
        "training": sum(one["seconds"] for one in found if one["event"] == "step"),
        "evaluation": sum(one["seconds"] for one in found if one["event"] == "eval"),
        "save": sum(one["stall_seconds"] for one in found if one["event"] == "checkpoint"),
    }
    return {**spent, "load": whole - sum(spent.values())}


def _restart(python: Path, folder: Path) -> float:
    """Seconds from the death of a trainer to its next new step."""
    command = [python, "-m", "stoker", "train", "small.yaml", "--set", "name=killed"]
    run = folder / "runs" / "killed"
    process = subprocess.Popen(command, cwd=folder, env=_environment(folder), stdout=-3, stderr=-3)
    reached = _wait_for_step(run, 0)
    (trainer,) = [one["pid"] for one in _events(run) if one["event"] == "attempt"]
    os.kill(trainer, signal.SIGKILL)
    died = time.monotonic()
    _wait_for_step(run, reached)
    seconds = time.monotonic() - died
    process.send_signal(signal.SIGINT)
    process.wait()
    return seconds


def _wait_for_step(run: Path, after: int) -> int:
    """The newest step, once one after `after` was written."""
    limit = time.monotonic() + 600
    while time.monotonic() < limit:
        if (run / "events.jsonl").exists():
            newest = max((one["step"] for one in _events(run) if one["event"] == "step"), default=0)
            if newest > after:
                return int(newest)
        time.sleep(0.1)
    raise TimeoutError(run)


if __name__ == "__main__":
    main()
