"""`save.best`: wherever a run goes its best checkpoint goes, too. Without it the finished model is another one."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.hosts.known import Host
from stoker.hosts.shell import LocalShell
from stoker.places import box, box_pull, package
from stoker.places.box import Box
from stoker.rundir import checkpoints, layout, pulled, training_words
from stoker.rundir.layout import RunDir
from stoker.settle import other_runs

RUN = """
model: {shape: llama, layers: 2, width: 64, heads: 2}
tokenizer: {train: bpe, vocab: 300}
data: {train: a.txt, eval: a.txt, length: 64}
train: {objective: pretrain, steps: 12}
save: {best: eval_loss}
"""
FACTS: dict[str, Any] = {"data_digest": "d1", "order_version": 1, "world": 1, "fingerprint": {}}
BEST, OTHER, NEWEST = (checkpoints.folder_name(step) for step in (1, 6, 7))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night.yaml").write_text(RUN, encoding="utf-8")
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")


def begun(monkeypatch: pytest.MonkeyPatch, runs: Path) -> RunDir:
    """A run without a checkpoint, in a folder of runs that counts as this machine's from now on."""
    monkeypatch.setenv("STOKER_RUNS", str(runs))
    return layout.create(load.load("night.yaml"))


def trained(monkeypatch: pytest.MonkeyPatch, runs: Path, *steps: int) -> RunDir:
    """The same, with these steps committed; the best of all is step 1."""
    run_dir = begun(monkeypatch, runs)
    for step in steps:
        with checkpoints.writing(run_dir.checkpoints, step, words=training_words.of(run_dir.run()), **FACTS) as aside:
            (aside / "model.safetensors").write_bytes(str(step).encode())
            (aside / "trainer_state.json").write_text(json.dumps({"best_global_step": 1}), encoding="utf-8")
    return run_dir


def damage(run_dir: RunDir, name: str) -> None:
    (run_dir.checkpoints / name / "model.safetensors").write_bytes(b"x")


def saved(run_dir: RunDir) -> list[str]:
    return [one.path.name for one in checkpoints.committed(run_dir.checkpoints)]


def packed() -> package.Package:
    return package.make("night.yaml", load.load("night.yaml"), [], moving=True)


def sent(base: Path) -> set[str]:
    """Checkpoints that a box with this base would be sent."""
    missing = Box(LocalShell(), Host(name="box", host="box", base=str(base)), None)._missing(packed())
    return {name.split("/")[3] for name in missing if "/checkpoints/" in name}


def test_a_run_that_moves_takes_its_best_checkpoint_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = trained(monkeypatch, tmp_path / "laptop", 1, 6, 7)
    assert set(packed().saved) == {BEST, NEWEST}
    assert f"runs/night/checkpoints/{BEST}/model.safetensors" in packed().files
    damage(run_dir, BEST)
    assert set(packed().saved) == {NEWEST}


@pytest.mark.parametrize(
    ("there", "expected"),
    [((), {BEST, NEWEST}), ((1, 6), {NEWEST}), ((7,), {BEST}), ((1, 7), set()), ((6, 8), set())],
    ids=["nothing", "older ones", "the newest alone", "both", "a newer one"],
)
def test_a_box_is_sent_what_it_lacks_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[int, ...], expected: set[str]
) -> None:
    on_box = trained(monkeypatch, tmp_path / "box/runs")
    laptop = trained(monkeypatch, tmp_path / "laptop", 1, 6, 7, 8)
    for step in there:
        name = checkpoints.folder_name(step)
        shutil.copytree(laptop.checkpoints / name, on_box.checkpoints / name)
    shutil.rmtree(laptop.checkpoints / checkpoints.folder_name(8))
    assert sent(tmp_path / "box") == expected


@pytest.mark.parametrize(("step", "expected"), [(1, {BEST, NEWEST}), (7, set())])
def test_a_checkpoint_of_the_same_step_and_other_files_is_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, expected: set[str]
) -> None:
    on_box = begun(monkeypatch, tmp_path / "box/runs")
    with checkpoints.writing(on_box.checkpoints, step, words=training_words.of(on_box.run()), **FACTS) as aside:
        (aside / "model.safetensors").write_bytes(b"trained apart")
    trained(monkeypatch, tmp_path / "laptop", 1, 7)
    assert sent(tmp_path / "box") == expected


def test_a_broken_line_leaves_no_record_of_files_that_were_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_box = trained(monkeypatch, tmp_path / "box/runs", 1, 6)
    trained(monkeypatch, tmp_path / "laptop", 1, 7)

    class Cut(LocalShell):
        def send(self, files: Mapping[str, Path], target: str) -> None:
            raise StokerError("STK701", host="box", reason="cut")

    with pytest.raises(StokerError):
        box._send(Cut(), str(tmp_path / "box"), packed().files)
    assert saved(on_box) == [OTHER]


def test_a_pull_brings_the_newest_and_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = trained(monkeypatch, tmp_path / "box", 1, 6, 7)
    here = begun(monkeypatch, tmp_path / "laptop")
    box_pull.pull(LocalShell(), str(there.path), here)
    assert saved(here) == [BEST, NEWEST]
    assert pulled.read(there) == pulled.standing(there)
    shutil.rmtree(here.checkpoints / BEST)  # as an earlier Stoker left it
    box_pull.pull(LocalShell(), str(there.path), here)
    assert saved(here) == [BEST, NEWEST]


def test_a_folder_that_the_box_cannot_list_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trained(monkeypatch, tmp_path / "box", 6, 7)
    here = begun(monkeypatch, tmp_path / "laptop")
    profile = tmp_path / "home" / ".bash_profile"
    profile.parent.mkdir()
    monkeypatch.setenv("HOME", str(profile.parent))
    profile.write_text(
        "ls() { echo 'ls: checkpoints: Input/output error' >&2; return 2; }\n"
    )  # a box whose disk is away
    with pytest.raises(StokerError, match="Input/output error"):
        box_pull.pull(LocalShell(), str(there.path), here)
    assert pulled.read(there) is None
    profile.unlink()
    box_pull.pull(LocalShell(), str(there.path), here)
    assert saved(here) == [NEWEST]


def test_a_best_that_is_gone_there_is_no_reason_not_to_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = trained(monkeypatch, tmp_path / "box", 6, 7)
    here = begun(monkeypatch, tmp_path / "laptop")
    box_pull.pull(LocalShell(), str(there.path), here)
    assert saved(here) == [NEWEST]
    assert pulled.read(there) == pulled.standing(there)


def test_a_pull_without_the_best_is_not_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = trained(monkeypatch, tmp_path / "box", 1, 6, 7)
    home = RunDir(tmp_path / "laptop/night")
    shutil.copytree(there.path, home.path)
    for is_whole in (True, False):
        pulled.write(there, pulled.standing(home))
        assert (pulled.read(there) == pulled.standing(there)) == is_whole
        assert other_runs._is_elsewhere(there) == is_whole
        damage(home, BEST)
