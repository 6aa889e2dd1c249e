"""Training on generated answers: losses and gradients of TRL's trainer, the same bits on two ranks and after kills."""

import copy
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asked_run
import bare
import numpy as np
import pytest
import tiny_run
import trl_run

from stoker.engine import rollout_files, sampler
from stoker.engine.rollout_files import Rollout
from stoker.report import happening_words
from stoker.rundir import events
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

STEPS = trl_run.STEPS


def eval_rewards(run_dir: RunDir) -> list[float]:
    return [one["figures"]["reward"] for one in events.read(run_dir.events_file) if one["event"] == "eval"]


# ---- against TRL


def trl_logs(run_dir: RunDir, base: Path, output: Path, method: str, *, corrects: bool, **options: Any) -> Any:
    """Every step's figures of `trl.GRPOTrainer`, given the same prompts, answers and rewards."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    rows, made = bare.read_rows(run_dir.data / "train"), asked_run.rollouts(run_dir)
    prompts = [[int(~token) for token in rows[row][0]] for one in made for row in one.prompts]
    following: Iterator[Rollout] = iter(made)
    now: list[Rollout] = []

    def rollout_func(asked: list[str], trainer: Any) -> dict[str, Any]:
        one = next(following)
        now[:] = [one]
        repeated = [prompts[int(number)] for number in asked]
        return {
            "prompt_ids": repeated,
            "completion_ids": [answer.tolist() for answer in one.answers],
            "logprobs": [values.tolist() for values in one.sampled],
        }

    def reward(**given: Any) -> list[float]:
        return now[0].rewards

    arguments = trl_run.arguments(
        trl.GRPOConfig,
        output,
        num_generations=asked_run.GROUP,
        max_completion_length=asked_run.LONGEST,
        per_device_train_batch_size=asked_run.BATCH,
        shuffle_dataset=False,
        vllm_importance_sampling_mode="token_truncate",
        **options,
    )
    found = trl.GRPOTrainer(
        model=bare.build_model(base, method, {"r": 4, "lora_alpha": 8}, seed=42),
        args=arguments,
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(len(prompts))]),
        processing_class=AutoTokenizer.from_pretrained(run_dir.data / "tokenizer"),
        rollout_func=rollout_func,
    )
    if corrects:  # as with vLLM, whose place `rollout_func` takes
        found.use_vllm = True
        found._last_loaded_step = -1
        found.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    found.train()
    return [entry for entry in found.state.log_history if "loss" in entry]


def noisy(plain: Any, *words: Any, **options: Any) -> list[sampler.Generated]:
    """A sampler that rounds otherwise: its log-probabilities are off, some of them by more than is corrected."""
    drawn = np.random.default_rng(0)
    return [
        sampler.Generated(one.tokens, one.log_probs - drawn.normal(0.3, 0.7, len(one.tokens)).astype("f4"), one.ended)
        for one in plain(*words, **options)
    ]


CASES = {
    "dapo": ("full", "", {}),
    "grpo": (
        "lora",
        ", loss: grpo, beta: 0.05, scale_rewards: batch",
        {"loss_type": "grpo", "beta": 0.05, "scale_rewards": "batch"},
    ),
    "dr_grpo": (
        "full",
        ", loss: dr_grpo, temperature: 0.7, scale_rewards: none",
        {"loss_type": "dr_grpo", "temperature": 0.7, "scale_rewards": "none"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_figures_are_those_of_trl(
    tmp_path: Path, base_model: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, options, theirs = CASES[case]
    monkeypatch.setattr("stoker.engine.rollouts._LARGEST_GAP", {"fp32": 1.0})  # what is corrected is more than rounding
    text = asked_run.text(base_model, steps=STEPS, method=method, options=options, save="100 steps")
    run_dir = asked_run.made(tmp_path, text, asked_run.prompts(6 * asked_run.PROMPTS, seed=1))
    corrects = case == "dr_grpo"
    with tiny_run.replaced(sampler, "generate", noisy if corrects else lambda plain, *w, **o: plain(*w, **o)):
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    ours = events.steps(run_dir.events_file)
    logs = trl_logs(run_dir, base_model, tmp_path / "trl", method, corrects=corrects, **theirs)
    assert len(ours) == len(logs) == STEPS
    for step, wanted in zip(ours.values(), logs, strict=True):
        assert step["loss"] == pytest.approx(wanted["loss"], abs=1e-6)
        assert step["grad_norm"] == pytest.approx(wanted["grad_norm"], abs=1e-6)
        assert step["figures"]["reward"] == pytest.approx(wanted["reward"], abs=1e-6)
        assert step["figures"]["length"] == pytest.approx(wanted["completions/mean_length"])
        if "beta" in theirs:
            assert step["figures"]["divergence"] == pytest.approx(wanted["kl"], abs=1e-6)
    assert (ours[1]["figures"]["gap"] > 0.3) == corrects


# ---- one SHA


def test_two_ranks_give_the_bits_of_one_on_the_same_committed_answers(tmp_path: Path, base_model: Path) -> None:
    rows, held = asked_run.prompts(22, seed=2), asked_run.prompts(7, seed=3)  # the last step of an epoch is short
    shas, rewards, first = [], [], None
    for number, where in enumerate(("", ", processes: 2, strategy: ddp", ", processes: 2, strategy: fsdp2")):
        more = ", exact: true, eval_every: 4 steps"
        text = asked_run.text(base_model, steps=8, more=more, where=where, save="100 steps")
        run_dir = asked_run.made(tmp_path / str(number), text, rows, held)
        if first:
            shutil.copytree(rollout_files.folder(first), rollout_files.folder(run_dir))
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        assert generated(run_dir) == (set() if first else set(range(1, 9)))
        first = first or run_dir
        shas.append(tiny_run.weights_sha(run_dir.final))
        rewards.append(eval_rewards(run_dir))
    assert len(set(shas)) == 1
    assert rewards[0] == rewards[1] == rewards[2] != []


def generated(run_dir: RunDir) -> set[int]:
    """The steps whose answers were generated and committed."""
    made = [one for one in events.read(run_dir.events_file) if one["event"] == "rollout"]
    assert all(0 <= one["scoring_seconds"] < one["seconds"] for one in made)
    found = [one["step"] for one in made]
    assert len(found) == len(set(found))  # none twice
    return set(found)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_is_drawn_does_not_depend_on_who_generates(tmp_path: Path, base_model: Path, method: str) -> None:
    found = []
    for number, where in enumerate(("", ", processes: 2, strategy: ddp", ", processes: 2, strategy: fsdp2")):
        text = asked_run.text(base_model, steps=2, method=method, where=where)
        run_dir = asked_run.trained(tmp_path / str(number), text, asked_run.prompts(6, seed=2))
        assert all(step["figures"]["gap"] < 1e-5 for step in events.steps(run_dir.events_file).values())
        found.append([[answer.tolist() for answer in one.answers] for one in asked_run.rollouts(run_dir)])
    assert found[0] == found[1] == found[2]
    assert found[0][0] != found[0][1]


def test_a_run_killed_in_a_rollout_behind_it_and_in_training_ends_with_the_same_bits(
    tmp_path: Path, base_model: Path
) -> None:
    rows, text = asked_run.prompts(10, seed=4), asked_run.text(base_model, steps=10, method="lora")
    whole = asked_run.trained(tmp_path / "whole", text, rows)
    run_dir = asked_run.made(tmp_path / "killed", text, rows)
    calls: list[int] = []

    def killed_inside(plain: Any, *words: Any, **options: Any) -> Any:
        calls.append(0)
        found = plain(*words, **options)
        if len(calls) == 3:  # the rehearsal's and the first step's went before
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def killed_behind(plain: Any, folder: Path, step: int, *words: Any) -> Any:
        found = plain(folder, step, *words)
        if step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    with tiny_run.replaced(sampler, "generate", killed_inside):
        assert tiny_run.train(run_dir) == -signal.SIGKILL
    assert generated(run_dir) == {1}
    with tiny_run.replaced(rollout_files, "write", killed_behind):
        assert tiny_run.train(run_dir) == -signal.SIGKILL
    assert generated(run_dir) == {1, 2, 3, 4}
    assert tiny_run.train(run_dir, kill_after=8) == -signal.SIGKILL
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert generated(run_dir) == {*range(1, 11)} - {5}  # committed before its event was written
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)
    assert tiny_run.sequences(run_dir) == tiny_run.sequences(whole)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_changed_file_of_answers_is_refused_and_made_again(tmp_path: Path, base_model: Path, renamed: bool) -> None:
    rows, text = asked_run.prompts(8, seed=5), asked_run.text(base_model, steps=6)
    whole = asked_run.trained(tmp_path / "whole", text, rows)
    run_dir = asked_run.made(tmp_path / "changed", text, rows)
    assert tiny_run.train(run_dir, kill_after=5) == -signal.SIGKILL
    path = rollout_files.find(rollout_files.folder(run_dir), 4)
    assert path is not None
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    if renamed:  # as somebody would who knows what the name says; the event says otherwise
        digest = rollout_files.sha256(changed).hexdigest()
        path = path.rename(path.with_name(f"step-00000004.{digest[:16]}.safetensors"))
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert [one["file"] for one in events.read(run_dir.events_file) if one["event"] == "refused"] == [path.name]
    assert path.with_name(path.name + ".refused").exists()
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)


def test_a_corrected_reward_function_scores_what_is_committed_again_and_the_tier_says_so(
    tmp_path: Path, base_model: Path
) -> None:
    rows, text = asked_run.prompts(8, seed=5), asked_run.text(base_model, steps=6)
    run_dir = asked_run.made(tmp_path, text, rows)
    assert tiny_run.train(run_dir, kill_after=5) == -signal.SIGKILL
    before = rollout_files.find(rollout_files.folder(run_dir), 5)
    assert before is not None
    (tmp_path / "rewards.py").write_text(asked_run.REWARDS.replace("word % 2 == 0", "word % 2 == 1"))
    assert tiny_run.train(run_dir) != 0, "another reward is another training, unless it is asked for"
    assert "STK410" in tiny_run.said(run_dir)
    tiny_run.rewrite(run_dir, "save: {", "save: {resume: any, ")
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    found = list(events.read(run_dir.events_file))
    assert {one["isolation"] for event in found if event["event"] == "rewards" for one in event["rewards"]} == {"none"}
    assert len({event["digest"] for event in found if event["event"] == "rewards"}) == 2
    attempts = [event for event in found if event["event"] == "attempt"]
    assert [event["tier"] == "EXACT" for event in attempts] == [True, False]
    assert [one.partition(":")[0] for one in attempts[1]["changed"]] == ["rewards"]
    assert before.name in [event["file"] for event in found if event["event"] == "refused"]


def test_answers_from_before_the_run_file_was_changed_are_not_trained_on(tmp_path: Path, base_model: Path) -> None:
    """Before the first step is recorded, any word may be changed."""
    run_dir = asked_run.made(tmp_path, asked_run.text(base_model, steps=3), asked_run.prompts(8, seed=5))

    def killed(plain: Any, *words: Any) -> Any:
        plain(*words)
        os.kill(os.getpid(), signal.SIGKILL)

    with tiny_run.replaced(rollout_files, "write", killed):
        assert tiny_run.train(run_dir) == -signal.SIGKILL
    left = rollout_files.find(rollout_files.folder(run_dir), 1)
    tiny_run.rewrite(run_dir, "learning_rate: 1e-3", "learning_rate: 2e-3")
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    refused = [one["file"] for one in events.read(run_dir.events_file) if one["event"] == "refused"]
    assert left is not None
    assert refused == [left.name]


def test_a_reward_function_is_given_the_tokens_too(tmp_path: Path, base_model: Path) -> None:
    run_dir = asked_run.made(tmp_path, asked_run.text(base_model, steps=2), asked_run.prompts(8, seed=5))
    counted = "\ndef even(completion_ids, **columns):\n    return [float(len(one)) for one in completion_ids]\n"
    (tmp_path / "rewards.py").write_text(asked_run.REWARDS + counted)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert all(
        one["figures"]["reward"] == one["figures"]["length"] for one in events.steps(run_dir.events_file).values()
    )


def test_answers_behind_the_oldest_checkpoint_are_deleted(tmp_path: Path, base_model: Path) -> None:
    text = asked_run.text(base_model, steps=10).replace("every: 3 steps", "every: 2 steps, keep: 2")
    run_dir = asked_run.trained(tmp_path, text, asked_run.prompts(8, seed=5))
    assert len(asked_run.rollouts(run_dir)) < 6
    assert {step["figures"]["reward"] > 0 for step in events.steps(run_dir.events_file).values()} == {True}


# ---- it says when it cannot learn


def test_steps_in_which_all_answers_score_alike_are_said_once(tmp_path: Path, base_model: Path) -> None:
    said = {}
    for value in ("1.0", "share(one)"):
        run_dir = asked_run.made(tmp_path / value, asked_run.text(base_model, steps=7), asked_run.prompts(8, seed=5))
        constant = f"\ndef even(completions, **columns):\n    return [{value} for one in completions]\n"
        (run_dir.folder() / "rewards.py").write_text(asked_run.REWARDS + constant)
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        said[value] = [one for one in events.read(run_dir.events_file) if one["event"] == "alike"]
    assert [(one["step"], one["steps"], one["reward"]) for one in said["1.0"]] == [(5, 5, 1.0)]
    assert "got the same reward (mean 1)" in happening_words.sentence(said["1.0"][0])
    assert said["share(one)"] == []


def test_a_sampler_with_older_weights_is_noticed(tmp_path: Path, base_model: Path) -> None:
    older: list[Any] = []

    def stale(plain: Any, model: Any, *words: Any, **options: Any) -> Any:
        if not older:
            older.append(copy.deepcopy(model))
        return plain(older[0], *words, **options)

    run_dir = asked_run.made(tmp_path, asked_run.text(base_model, steps=6), asked_run.prompts(8, seed=7))
    with tiny_run.replaced(sampler, "generate", stale):
        assert tiny_run.train(run_dir) not in (0, -signal.SIGKILL)
    assert "STK448" in tiny_run.said(run_dir)
    assert set(events.steps(run_dir.events_file)) <= {1, 2}
    assert list(rollout_files.folder(run_dir).glob("*.refused"))  # so that the next start is not refused likewise
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
