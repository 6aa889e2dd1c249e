"""`stoker prove` in its short form on this machine's CPU, by real processes; and a planted bit."""

import getpass
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tour import run

from stoker.facts import machine
from stoker.prove import resuming, sequence
from stoker.prove.trials import Trials
from stoker.supervise import processes

pytestmark = pytest.mark.filterwarnings("default")


def test_the_short_form_passes_and_its_report_names_nobody(tmp_path: Path) -> None:
    done = run("stoker prove --quick", tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "proof.json").read_text(encoding="utf-8"))
    outcomes = {one["name"]: one["outcome"] for one in report["checks"]}
    assert outcomes == dict.fromkeys(sequence.QUICK, "passed")
    figures = {one["name"]: one["figures"] for one in report["checks"]}
    assert figures["resume_exact"]["digest"] == figures["resume_exact"]["other_digest"]
    assert figures["resume_exact"]["attempts"] == 2
    assert 0 < figures["saves"]["stall_seconds"] <= figures["saves"]["commit_seconds"]
    assert len(report["logs"]) >= 4
    for page in ("proof.json", "proof.html"):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert not [name for name in (str(tmp_path), socket.gethostname()) if name in text]
    assert f'"{getpass.getuser()}"' not in json.dumps(report)
    assert not list(tmp_path.glob("prove-*")), "trial runs of a proof that passed are removed"


def test_a_planted_bit_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    on = Trials(tmp_path, machine.examine())
    assert sequence.tried("resume_exact", resuming.resume_exact, on).outcome == "passed"
    path = on.trained("whole", resuming.DETERMINISTIC).final / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[:-2] + bytes([raw[-2] ^ 4]) + raw[-1:])
    found = sequence.tried("resume_exact", resuming.resume_exact, on)
    assert (found.outcome, found.figures["elements_differing"], found.figures["bits_differing"]) == ("failed", 1, 1)


def test_a_proof_that_is_ended_leaves_no_trial_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stoker", "prove", "--quick"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=settings) as proof:
        while not (trainers := list(tmp_path.glob("prove-*/*/process.json"))):
            assert proof.poll() is None
            time.sleep(0.1)
        run_dir = trainers[0].parent
        assert processes.known_trainer(run_dir)
        proof.terminate()
        assert proof.wait(120) == 130
    assert not [words for _, _, words in processes._living() if str(run_dir) in words]
    assert not list(tmp_path.glob("prove-*"))
