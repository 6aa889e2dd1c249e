"""An adapter is no base: transformers would load it with its own base, and training would replace it in silence."""

import json
from pathlib import Path

import pytest

from stoker.errors import StokerError
from stoker.rundir import inputs
from stoker.rundir.layout import RunDir


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that made an adapter."""
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path))
    run_dir = RunDir(tmp_path / "lora")
    run_dir.final.mkdir(parents=True)
    run_dir.manifest_file.write_text("{}")
    (run_dir.final / inputs.ADAPTER_NAME).write_text("{}")
    return run_dir


def test_a_run_that_made_an_adapter_is_refused_until_it_is_merged(trained: RunDir, tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        inputs.model_path("run:lora", tmp_path)
    assert (caught.value.code, "stoker merge lora" in str(caught.value.hint)) == ("STK143", True)
    merged = trained.artifacts / "merged"
    merged.mkdir()
    (trained.artifacts / "parity.json").write_text(json.dumps({"merged": {"accepted": True}}))
    assert inputs.model_path("run:lora", tmp_path) == str(merged)


def test_a_folder_with_an_adapter_is_refused(trained: RunDir, tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        inputs.model_path("lora/artifacts/final", tmp_path)
    assert caught.value.code == "STK142"


def test_a_run_that_made_a_whole_model_is_taken(trained: RunDir, tmp_path: Path) -> None:
    (trained.final / inputs.ADAPTER_NAME).unlink()
    assert inputs.model_path("run:lora", tmp_path) == str(trained.final)
