"""`stoker prove` in its short form on this machine's CPU, by real processes; and a planted bit."""

import getpass
import json
import socket
from pathlib import Path

import pytest
from tour import run

from stoker.facts import machine
from stoker.prove import resuming, sequence
from stoker.prove.trials import Trials

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
