"""EXACT is never said of another training: what was decided stands in every COMMIT.json, and is compared."""

import subprocess
import sys
from pathlib import Path

import asked_run
import paired_run
import pytest
import tiny_run
from begun_run import again, last

from stoker.engine import opened
from stoker.facts import own_code
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, events, files
from stoker.rundir.layout import RunDir

NO_BITS = {
    "answer_pairs": "answers for a judge",
    "callbacks": "when to save and evaluate",
    "evaluate": "answers to tasks",
    "generate": "samples",
    "isolation": "refuses models that see what they must not",
    "opened": "reads and compares",
    "program": "starts and ends",
    "rollout_files": "keeps answers by their digest",
    "shards": "names the files of a set",
    "pulse": "heartbeats",
    "read_ahead": "brings rows of a store, each checked by its digest",
    "reading": "words for errors",
    "resume": "which checkpoint, and whether it is the same training",
    "samples": "samples",
    "saving": "threads and files; what is saved is engine/checkpoint",
    "spread": "copies of files",
    "tasks": "tasks",
    "template_limits": "bounds of chat templates",
    "tokenizer": "files of a tokenizer; tokens are prepared",
    "trained_on": "which base: its digest is in the fingerprint",
    "writers": "orders between ranks; what they write is engine/shares",
}
"""Modules of a training process that compute nothing of a step."""


TEXT = """
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: 12, epochs: 4, learning_rate: 1e-3}}
save: {{every: 4 steps}}
"""


@pytest.fixture
def stopped(tmp_path: Path) -> RunDir:
    """A run with a checkpoint of step 5 of 12."""
    base = tiny_run.make_base_model(tmp_path / "base")
    rows = tiny_run.random_rows(30, seed=5, longest=64, segments=3)
    run_dir = tiny_run.make_run(tmp_path / "run", TEXT.format(base=base), rows)
    assert tiny_run.train(run_dir, stop_after=5) == 75
    return run_dir


def test_an_edited_run_yaml_does_not_reach_a_run_that_goes_on(stopped: RunDir) -> None:
    stopped.run_file.write_text(stopped.run_file.read_text().replace("1e-3", "1e-2, seed: 7"))
    assert again(stopped) == 0
    assert last(stopped, "attempt")["tier"] == "EXACT"
    rates = [event["learning_rate"] for event in events.steps(stopped.events_file).values()]
    assert max(rates) <= 1e-3


@pytest.mark.parametrize(
    "override", ["train.seed=7", "train.schedule=linear", "train.learning_rate=1e-2", "data.pack=false"]
)
def test_an_edited_manifest_is_refused_with_the_word_that_differs(stopped: RunDir, override: str) -> None:
    manifest = files.read_json(stopped.manifest_file)
    files.write_json(stopped.manifest_file, {**manifest, "overrides": [override]})
    assert again(stopped) == 1
    error = last(stopped, "error")["error"]
    assert error["code"] == "STK410"
    assert override.partition("=")[0] in error["fields"]["reason"]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_another_base_to_compare_with_is_refused_before_its_reference_is_computed(tmp_path: Path, method: str) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    run_dir = tiny_run.make_run(
        tmp_path / "run", paired_run.text(base, steps=8, method=method), paired_run.pairs(40, seed=2)
    )
    assert tiny_run.train(run_dir, stop_after=5) == 75
    kept = (run_dir.data / "reference" / "train.bin").read_bytes()
    tiny_run.make_base_model(base, seed=1)
    assert again(run_dir) == 1
    assert last(run_dir, "error")["error"]["code"] == "STK410"
    assert (run_dir.data / "reference" / "train.bin").read_bytes() == kept


def test_a_reference_that_is_there_is_part_of_an_exact_resume(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    text = paired_run.text(base, steps=8).replace("{every: 5 steps}", "{every: 5 steps, resume: exact}")
    run_dir = tiny_run.make_run(tmp_path / "run", text, paired_run.pairs(40, seed=2))
    assert tiny_run.train(run_dir, stop_after=5) == 75
    assert again(run_dir) == 0
    assert (last(run_dir, "attempt")["tier"], last(run_dir, "attempt")["changed"]) == ("EXACT", [])


def test_an_edited_reward_is_another_training(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    rows = asked_run.prompts(16, seed=8)
    run_dir = asked_run.made(tmp_path / "run", asked_run.text(base, steps=6), rows)
    assert tiny_run.train(run_dir, stop_after=3) == 75
    rewards = run_dir.folder() / "rewards.py"
    rewards.write_text(rewards.read_text() + "\n# worth another thought\n")
    assert again(run_dir) == 1
    assert "reward" in last(run_dir, "error")["error"]["fields"]["reason"]
    manifest = files.read_json(run_dir.manifest_file)
    files.write_json(run_dir.manifest_file, {**manifest, "overrides": ["save.resume=any"]})
    assert again(run_dir) == 0
    assert last(run_dir, "attempt")["tier"] == "OTHER"


def test_an_edited_plan_is_no_longer_exact(stopped: RunDir) -> None:
    plan = files.read_json(stopped.plan_file)
    plan["native"]["trainer"]["adam_beta2"] = 0.5
    files.write_json(stopped.plan_file, plan)
    assert again(stopped) == 0
    attempt = last(stopped, "attempt")
    assert (attempt["tier"], attempt["changed"]) == ("SAMPLE-EXACT", ["trainer.adam_beta2: None -> 0.5"])


def test_other_code_is_no_longer_exact(stopped: RunDir) -> None:
    changed(stopped, code="0" * 16)
    assert again(stopped) == 0
    attempt = last(stopped, "attempt")
    assert (attempt["tier"], attempt["changed"]) == ("SAMPLE-EXACT", [f"code: {'0' * 16} -> {own_code.digest()}"])


def test_a_checkpoint_of_an_older_stoker_is_sample_exact(stopped: RunDir) -> None:
    (path,) = [one.path / "COMMIT.json" for one in checkpoints.committed(stopped.checkpoints)][-1:]
    commit = files.read_json(path)
    older = {key: value for key, value in commit["fingerprint"].items() if key != "code" and "." not in key}
    del commit["words"]
    files.write_json(path, checkpoints.sealed({**commit, "fingerprint": older}))
    assert again(stopped) == 0
    attempt = last(stopped, "attempt")
    assert (attempt["tier"], attempt["changed"]) == ("SAMPLE-EXACT", [f"code: None -> {own_code.digest()}"])


def test_the_same_code_and_words_are_exact(stopped: RunDir) -> None:
    """The control of all of these."""
    assert again(stopped) == 0
    assert (last(stopped, "attempt")["tier"], last(stopped, "attempt")["changed"]) == ("EXACT", [])


def test_every_module_of_a_training_process_is_judged() -> None:
    program = (
        "import sys, stoker.engine.train; print(*(name for name in sys.modules if name.startswith('stoker.engine.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    decides = {name.removeprefix("engine/") for name in own_code.DECIDES_BITS if name.startswith("engine/")}
    if_needed = {"experts"}  # in 4 bits
    found = {name.removeprefix("stoker.engine.") for name in loaded}
    elsewhere = {"foreign/stoker_vllm"}  # in vLLM's process
    assert found | if_needed | elsewhere == decides | NO_BITS.keys()


def changed(run_dir: RunDir, **parts: str) -> None:
    """Parts of the newest checkpoint's fingerprint, replaced."""
    path = checkpoints.committed(run_dir.checkpoints)[-1].path / "COMMIT.json"
    commit = files.read_json(path)
    files.write_json(path, checkpoints.sealed({**commit, "fingerprint": {**commit["fingerprint"], **parts}}))


@pytest.mark.parametrize("name", ["MAX_CPU_ISA", "DEFAULT_FPMATH_MODE"])
def test_what_onednn_is_told_is_in_the_fingerprint_by_both_of_its_names(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    names = [f"{prefix}_{name}" for prefix in ("ONEDNN", "DNNL")]
    for one in names:
        monkeypatch.delenv(one, raising=False)
    plan = Plan.model_construct(device="cpu")
    without = opened._instructions(plan)
    for one in names:
        with monkeypatch.context() as patched:
            patched.setenv(one, "AVX2")
            assert opened._instructions(plan) not in ("", without)
