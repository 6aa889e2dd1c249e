"""A run knows the base it was trained on: it goes on with it, and nothing is done with another one in its place."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import adapted_run
import pytest
import tiny_run
from begun_run import again, last

from stoker.api import forking
from stoker.engine import generate, merge, trained_on
from stoker.errors import StokerError
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan
from stoker.rundir import checkpoints, files, layout
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

FIRST, SECOND = "1" * 40, "2" * 40
TEXT = """
model: {model}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 4, steps: 4, learning_rate: 1e-3}}
save: {{every: 2 steps}}
{more}
"""


def make(folder: Path, model: object, more: str = "") -> RunDir:
    text = TEXT.format(model=model, more=more)
    return tiny_run.make_run(folder, text, tiny_run.random_rows(12, seed=5, longest=64))


def refused(run_dir: RunDir) -> str:
    with pytest.raises(StokerError) as caught:
        generate.load(run_dir)
    return caught.value.code


def with_base(run_dir: RunDir, digest: str) -> None:
    """Every checkpoint says that it was trained on this base."""
    for one in checkpoints.committed(run_dir.checkpoints):
        path = one.path / "COMMIT.json"
        commit = files.read_json(path)
        fingerprint = {**commit["fingerprint"], "base": digest}
        files.write_json(path, checkpoints.sealed({**commit, "fingerprint": fingerprint}))


def of_bytes(folder: Path) -> str:
    """The digest of a model folder as Stoker made it before: every byte of every such file."""
    found = sorted([*folder.glob("*.safetensors"), *folder.glob("config.json")])
    return hashlib.sha256("".join(files.sha256(path) for path in found).encode()).hexdigest()


# ---- a hub's


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache of `me/tiny`, whose `main` is at its first commit."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    cache = tmp_path / "hf" / "hub"
    for module in ("huggingface_hub.constants", "transformers.utils.hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    repo = cache / "models--me--tiny"
    tiny_run.make_base_model(repo / "snapshots" / FIRST)
    tiny_run.make_tokenizer(repo / "snapshots" / FIRST)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(FIRST)
    return repo


def move_main(repo: Path, seed: int) -> None:
    """A new commit on `main`, here with other weights: what is trained shows which commit was loaded."""
    tiny_run.make_base_model(repo / "snapshots" / SECOND, seed=seed)
    tiny_run.make_tokenizer(repo / "snapshots" / SECOND)
    (repo / "refs" / "main").write_text(SECOND)


def test_a_hub_model_stays_at_the_commit_the_run_began_with(hub: Path, tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", "me/tiny")
    assert again(whole) == 0
    run_dir = make(tmp_path / "run", "me/tiny")
    assert tiny_run.train(run_dir, stop_after=2) == 75
    move_main(hub, seed=1)
    assert again(run_dir) == 0
    attempt = last(run_dir, "attempt")
    assert (attempt["tier"], attempt["changed"], attempt["base"]) == ("EXACT", [], FIRST)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)
    answers = adapted_run.logits(generate.load(run_dir)[0])
    (hub / "refs" / "main").write_text(FIRST)
    assert adapted_run.logits(generate.load(whole)[0]).equal(answers)


def test_a_fork_stays_at_its_parent_s_commit(hub: Path, tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run", "me/tiny")
    assert tiny_run.train(run_dir, stop_after=2) == 75
    move_main(hub, seed=1)
    for weights_only in (False, True):
        fork = forked(run_dir, f"other-{weights_only}", weights_only=weights_only)
        assert again(fork) == 0
        attempt = last(fork, "attempt")
        assert (attempt["tier"], attempt["base"]) == ("FORK", FIRST)


def test_a_commit_that_cannot_be_had_is_named(hub: Path, tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run", "me/tiny")
    assert tiny_run.train(run_dir, stop_after=2) == 75
    move_main(hub, seed=0)
    shutil.rmtree(hub / "snapshots" / FIRST)
    assert again(run_dir) == 1
    error = last(run_dir, "error")["error"]
    assert (error["code"], error["fields"]["model"]) == ("STK413", f"me/tiny@{FIRST}")


# ---- a folder


@pytest.fixture
def stopped(tmp_path: Path) -> RunDir:
    """A run on `base` with a checkpoint of step 2 of 4."""
    run_dir = make(tmp_path / "run", tiny_run.make_base_model(tmp_path / "base"))
    assert tiny_run.train(run_dir, stop_after=2) == 75
    return run_dir


def test_files_and_spaces_that_load_as_the_same_weights_are_no_other_base(stopped: RunDir, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copy(base / "model.safetensors", base / "consolidated.safetensors")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(dict(reversed(config.items()))) + "\n\n")
    assert again(stopped) == 0
    attempt = last(stopped, "attempt")
    assert (attempt["tier"], attempt["changed"]) == ("EXACT", [])


@pytest.mark.parametrize("added", [False, True])
def test_a_run_of_an_older_stoker_knows_its_base_by_its_bytes(stopped: RunDir, tmp_path: Path, added: bool) -> None:
    base = tmp_path / "base"
    with_base(stopped, of_bytes(base))
    if added:
        shutil.copy(base / "model.safetensors", base / "consolidated.safetensors")
    assert again(stopped) == 0
    attempt = last(stopped, "attempt")
    assert (attempt["tier"], attempt["changed"]) == ("EXACT", [])


def test_a_run_of_an_older_stoker_is_refused_on_another_base(stopped: RunDir, tmp_path: Path) -> None:
    with_base(stopped, of_bytes(tmp_path / "base"))
    tiny_run.make_base_model(tmp_path / "base", seed=1)
    assert again(stopped) == 1
    assert last(stopped, "error")["error"]["code"] == "STK410"


def forked(parent: RunDir, name: str, *, weights_only: bool) -> RunDir:
    run_file = forking.fork(parent, name, (), weights_only=weights_only)
    run_dir = layout.create(run_file)
    plan = make_plan(plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(None, run_file.run)))
    files.write_json(run_dir.plan_file, plan.model_dump())
    return run_dir


@pytest.mark.parametrize("weights_only", [False, True])
def test_an_adapter_is_not_forked_onto_another_base(stopped: RunDir, tmp_path: Path, weights_only: bool) -> None:
    tiny_run.make_base_model(tmp_path / "base", seed=1)
    fork = forked(stopped, "other", weights_only=weights_only)
    assert again(fork) == 1
    assert last(fork, "error")["error"]["code"] == "STK410"


def test_an_adapter_does_not_answer_on_another_base(stopped: RunDir, tmp_path: Path) -> None:
    generate.load(stopped)
    tiny_run.make_base_model(tmp_path / "base", seed=1)
    assert refused(stopped) == "STK611"


def test_a_finished_run_knows_its_base_without_checkpoints(stopped: RunDir, tmp_path: Path) -> None:
    assert again(stopped) == 0
    known = trained_on.recorded(stopped)
    shutil.rmtree(stopped.checkpoints)
    assert trained_on.recorded(stopped) == known != ""
    generate.load(stopped)
    tiny_run.make_base_model(tmp_path / "base", seed=1)
    assert refused(stopped) == "STK611"
    with pytest.raises(StokerError) as caught:
        merge.main(stopped.path)
    assert caught.value.code == "STK611"
