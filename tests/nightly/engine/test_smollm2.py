"""Row 2 of the issue, short form: a real open model learns a real task. The full form is `just smollm2`."""

import sys
from pathlib import Path

import pytest
from tour import ROOT

pytestmark = pytest.mark.filterwarnings("default")


def test_smollm2_learns_dictionary_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import smollm2

    if not smollm2.WORDNET.is_dir():
        pytest.skip("needs Debian's wordnet-base")
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    base = smollm2.fetch_model(tmp_path / "smollm2")
    results = smollm2.measure(tmp_path, base, ["lora"], (160, 24, 2))
    assert results["before"]["exact"] <= 2, "of 24: under 10 %"
    assert results["lora"]["exact"] >= 12, "of 24, after 20 steps; the full form reaches more than 80 %"
