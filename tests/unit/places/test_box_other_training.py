"""A run of the same name on a box that is another training: nothing is put into it, and nothing of it replaces ours."""

from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.hosts.known import Host
from stoker.hosts.shell import LocalShell
from stoker.places import box_pull, package
from stoker.places.box import Box
from stoker.rundir import checkpoints, files, layout, training_words
from stoker.rundir.layout import RunDir

RUN = """
model: {shape: llama, layers: 2, width: 64, heads: 2}
tokenizer: {train: bpe, vocab: 300}
data: {train: a.txt, length: 64}
train: {objective: pretrain, steps: 12}
"""
FACTS: dict[str, Any] = {"data_digest": "d1", "order_version": 1, "world": 1, "fingerprint": {}}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night.yaml").write_text(RUN, encoding="utf-8")
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")


def trained(monkeypatch: pytest.MonkeyPatch, runs: Path, step: int, *overrides: str, final: bytes = b"") -> RunDir:
    """A run on a machine whose runs are in this folder, which counts as this machine from now on."""
    monkeypatch.setenv("STOKER_RUNS", str(runs))
    run_dir = layout.create(load.load("night.yaml", overrides))
    with checkpoints.writing(run_dir.checkpoints, step, words=training_words.of(run_dir.run()), **FACTS) as aside:
        (aside / "model.safetensors").write_bytes(str(step).encode())
    if final:
        run_dir.final.mkdir(parents=True)
        (run_dir.final / "model.safetensors").write_bytes(final)
    return run_dir


def steps(run_dir: RunDir) -> list[int]:
    return [one.step for one in checkpoints.committed(run_dir.checkpoints)]


def sent(box: Path, *overrides: str) -> dict[str, Path]:
    run_file = load.load("night.yaml", overrides)
    made = package.make("night.yaml", run_file, list(overrides), moving=True)
    return Box(LocalShell(), Host(name="box", host="box", base=str(box)), run_file.run)._missing(made)


def test_a_checkpoint_is_not_sent_into_another_training_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(monkeypatch, tmp_path / "box/runs", 12)
    trained(monkeypatch, tmp_path / "laptop", 16, "train.steps=16")
    with pytest.raises(StokerError) as caught:
        sent(tmp_path / "box", "train.steps=16")
    assert caught.value.code == "STK401"
    assert "train.steps 12 -> 16" in str(caught.value.what)


def test_a_newer_checkpoint_of_the_same_training_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(monkeypatch, tmp_path / "box/runs", 4)
    trained(monkeypatch, tmp_path / "laptop", 8)
    assert "runs/night/checkpoints/step-00000008/COMMIT.json" in sent(tmp_path / "box")


def test_a_pull_from_a_box_leaves_a_run_of_other_words_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trained(monkeypatch, tmp_path / "box", 16, "train.seed=7", final=b"theirs")
    here = trained(monkeypatch, tmp_path / "laptop", 12, final=b"ours")
    with pytest.raises(StokerError) as caught:
        box_pull.pull(LocalShell(), str(there.path), here)
    assert caught.value.code == "STK663"
    assert steps(here) == [12]
    assert (here.final / "model.safetensors").read_bytes() == b"ours"


def test_a_checkpoint_that_is_not_of_the_manifest_beside_it_is_not_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = trained(monkeypatch, tmp_path / "other", 16, "train.seed=7")
    there = trained(monkeypatch, tmp_path / "box", 12)
    (other.checkpoints / "step-00000016").rename(there.checkpoints / "step-00000016")
    here = trained(monkeypatch, tmp_path / "laptop", 8)
    with pytest.raises(StokerError) as caught:
        box_pull.pull(LocalShell(), str(there.path), here)
    assert caught.value.code == "STK663"
    assert steps(here) == [8]


def test_a_finished_model_is_replaced_only_where_it_was_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = trained(monkeypatch, tmp_path / "box", 12, final=b"first")
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "laptop"))
    here = layout.create(load.load("night.yaml"))
    weights = here.final / "model.safetensors"
    box_pull.pull(LocalShell(), str(there.path), here)
    (there.final / "model.safetensors").write_bytes(b"second")
    box_pull.pull(LocalShell(), str(there.path), here)
    assert weights.read_bytes() == b"second"
    files.write_text(weights, "made here")
    with pytest.raises(StokerError) as caught:
        box_pull.pull(LocalShell(), str(there.path), here)
    assert caught.value.code == "STK664"
    assert weights.read_text() == "made here"


def test_a_box_says_the_words_of_the_training_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = trained(monkeypatch, tmp_path / "box/runs", 12, "train.seed=7")
    box = Box(LocalShell(), Host(name="box", host="box", base=str(tmp_path / "box")), None)
    assert box.words("night") == there.words()
    assert box.words("day") is None
