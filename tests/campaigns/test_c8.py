"""Hostile files, C8 in a short form; run directories of strangers are opened at night."""

import io
import pickle
from pathlib import Path

import c8
import hostile
import numpy as np
import pytest
import torch
from campaign_case import INOTIFY, passes

pytestmark = pytest.mark.filterwarnings("default")


@INOTIFY
def test_c8_hostile_files(tmp_path: Path) -> None:
    report = passes("c8", 24, tmp_path)
    assert len(report["controls"]) == 9
    assert {one.kind.split()[0] for one in hostile.corpus()} <= set(report["counts"])


@INOTIFY
def test_the_gadgets_of_c8_are_live(tmp_path: Path) -> None:
    """Read the careless way, every one of them executes: the corpus has no blanks."""
    readers = {
        "torch zip": lambda raw: torch.load(io.BytesIO(raw), weights_only=False),
        "torch old": lambda raw: torch.load(io.BytesIO(raw), weights_only=False),
        "numpy object": lambda raw: np.load(io.BytesIO(raw), allow_pickle=True),
    }
    for name, content in hostile.PICKLES.items():
        case = tmp_path / name.replace(" ", "-")
        for folder in (case / "outside", case / "jail" / "outside"):
            folder.mkdir(parents=True)
        canary = case / "EXECUTED"
        (case / "jail" / f"{hostile.EVIL_MODULE}.py").write_text(f"open({str(canary)!r}, 'w').close()")
        raw = content(canary, case / "outside" / "decoy")
        _, wrong = c8._watched(case, lambda: readers.get(name, pickle.loads)(raw))
        assert ("executed" in wrong) == (name != "safetensors"), (name, wrong)
