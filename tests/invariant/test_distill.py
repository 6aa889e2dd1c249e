"""Distillation: losses and gradients of TRL's trainer, the same bits on two ranks and after kills, and it learns."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asked_run
import bare
import pytest
import taught_run
import tiny_run
import trl_run

from stoker.engine import rollout_files
from stoker.engine.rollout_files import Rollout
from stoker.rundir import events
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

STEPS = trl_run.STEPS


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_run.teacher(tmp_path_factory.mktemp("models") / "teacher")


def trained(folder: Path, text: str, rows: list[Any], held: list[Any] = ()) -> RunDir:
    run_dir = tiny_run.make_run(folder, text, rows, held)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir


# ---- against TRL


def trl_logs(run_dir: RunDir, base: Path, teacher: Path, output: Path, method: str, **options: Any) -> Any:
    """Every step's figures of `trl.DistillationTrainer`, given the same prompts and answers."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    rows, made = bare.read_rows(run_dir.data / "train"), asked_run.rollouts(run_dir)
    prompts = [[int(~token) for token in rows[row][0]] for one in made for row in one.prompts]
    following: Iterator[Rollout] = iter(made)

    class Given(trl.DistillationTrainer):
        """Its answers are those of our rollouts."""

        def _generate(self, asked: list[str]) -> Any:
            answers = [answer.tolist() for answer in next(following).answers]
            return [prompts[int(number)] for number in asked], answers, None, None, []

    arguments = trl_run.arguments(
        trl.DistillationConfig,
        output,
        max_completion_length=taught_run.LONGEST,
        per_device_train_batch_size=taught_run.BATCH,
        shuffle_dataset=False,
        **options,
    )
    found = Given(
        model=bare.build_model(base, method, {"r": 4, "lora_alpha": 8}, seed=42),
        teacher_model=bare.build_model(teacher, "full", {}, seed=42),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(len(prompts))]),
        processing_class=AutoTokenizer.from_pretrained(run_dir.data / "tokenizer"),
    )
    found.train()
    return [entry for entry in found.state.log_history if "loss" in entry]


CASES = {
    "reverse": ("full", "", {}),
    "between": ("lora", ", beta: 0.3, temperature: 0.7", {"beta": 0.3, "temperature": 0.7}),
    "forward": ("full", ", beta: 0", {"beta": 0.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_trl(tmp_path: Path, base_model: Path, teacher: Path, case: str) -> None:
    method, options, theirs = CASES[case]
    text = taught_run.text(base_model, teacher, steps=STEPS, method=method, options=options, save="100 steps")
    run_dir = trained(tmp_path, text, asked_run.prompts(5 * taught_run.BATCH, seed=1))
    ours = events.steps(run_dir.events_file)
    logs = trl_logs(run_dir, base_model, teacher, tmp_path / "trl", method, **theirs)
    assert len(ours) == len(logs) == STEPS
    for step, wanted in zip(ours.values(), logs, strict=True):
        assert step["loss"] == pytest.approx(wanted["loss"], abs=1e-6)
        assert step["grad_norm"] == pytest.approx(wanted["grad_norm"], abs=1e-6)
        assert step["figures"]["gap"] < 1e-5
    assert {round(step["figures"]["divergence"], 4) for step in ours.values()} != {0.0}


# ---- the same bits


def test_one_and_two_ranks_train_the_same_bits_on_the_same_answers(
    tmp_path: Path, base_model: Path, teacher: Path
) -> None:
    rows, held = asked_run.prompts(3 * taught_run.BATCH, seed=2), asked_run.prompts(6, seed=3)
    more = ", eval_every: 3 steps"
    text = taught_run.text(base_model, teacher, steps=6, method="lora", more=more, save="100 steps")
    alone = trained(tmp_path / "alone", text, rows, held)
    text = taught_run.text(
        base_model, teacher, steps=6, method="lora", more=more, where=", strategy: ddp, processes: 2", save="100 steps"
    )
    run_dir = tiny_run.make_run(tmp_path / "two", text, rows, held)
    shutil.copytree(rollout_files.folder(alone), rollout_files.folder(run_dir))
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert "rollout" not in {one["event"] for one in events.read(run_dir.events_file)}
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(alone.final)
    assert tiny_run.losses(run_dir) == tiny_run.losses(alone)
    assert [one["eval_loss"] for one in evaluations(run_dir)] == [one["eval_loss"] for one in evaluations(alone)] != []


def test_a_run_killed_in_a_rollout_and_in_training_ends_with_the_same_bits(
    tmp_path: Path, base_model: Path, teacher: Path
) -> None:
    rows = asked_run.prompts(3 * taught_run.BATCH, seed=4)
    text = taught_run.text(base_model, teacher, steps=6, method="lora")
    whole = trained(tmp_path / "whole", text, rows)
    run_dir = tiny_run.make_run(tmp_path / "killed", text, rows)

    def killed(write: Any, folder: Path, step: int, *words: Any) -> Any:
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)  # generated, and not committed
        return write(folder, step, *words)

    with tiny_run.replaced(rollout_files, "write", killed):
        assert tiny_run.train(run_dir) == -signal.SIGKILL
    assert tiny_run.train(run_dir, kill_after=5) == -signal.SIGKILL
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)
    assert tiny_run.sequences(run_dir) == tiny_run.sequences(whole)
    made = [one["step"] for one in events.read(run_dir.events_file) if one["event"] == "rollout"]
    assert made == sorted(set(made)) == list(range(1, 7))  # none was generated twice once it was committed


def test_a_teacher_with_other_weights_is_another_training(tmp_path: Path, base_model: Path, teacher: Path) -> None:
    own = Path(shutil.copytree(teacher, tmp_path / "own"))
    text = taught_run.text(base_model, own, steps=4, save="2 steps")
    run_dir = tiny_run.make_run(tmp_path / "run", text, asked_run.prompts(16, seed=8))
    assert tiny_run.train(run_dir, kill_after=3) == -signal.SIGKILL
    tiny_run.make_base_model(own, seed=6, width=96, layers=3)
    assert tiny_run.train(run_dir) != 0
    assert "STK410" in tiny_run.said(run_dir)


# ---- it learns


def evaluations(run_dir: RunDir) -> list[dict[str, Any]]:
    return [one for one in events.read(run_dir.events_file) if one["event"] == "eval"]


def test_a_student_comes_nearer_to_its_teacher_and_from_itself_it_learns_nothing(
    tmp_path: Path, base_model: Path, teacher: Path
) -> None:
    rows, held = asked_run.prompts(64, seed=6), asked_run.prompts(24, seed=7)
    more = ", eval_every: 10 steps"
    run_dir = trained(tmp_path / "other", taught_run.text(base_model, teacher, steps=40, more=more), rows, held)
    found = [one["figures"]["divergence"] for one in evaluations(run_dir)]
    assert found[-1] < 0.8 * found[0]
    assert set(evaluations(run_dir)[-1]["figures"]) == {"divergence", "gap", "length", "cut"}
    assert set(events.steps(run_dir.events_file)[1]["figures"]) == {"divergence", "gap", "length", "cut"}
    alone = trained(tmp_path / "itself", taught_run.text(base_model, base_model, steps=1), rows)
    assert abs(events.steps(alone.events_file)[1]["loss"]) < 1e-6  # Adam makes a step of rounding's gradients, too


def test_a_tokenizer_with_other_words_is_refused_before_the_first_step(
    tmp_path: Path, base_model: Path, teacher: Path
) -> None:
    other = Path(shutil.copytree(teacher, tmp_path / "other"))
    tiny_run.make_tokenizer(other)
    path = other / "tokenizer.json"
    text = taught_run.text(base_model, other, steps=1)
    good = tiny_run.make_run(tmp_path / "good", text, asked_run.prompts(8, seed=9))
    assert tiny_run.train(good) == 0, tiny_run.said(good)
    path.write_text(path.read_text().replace('"w10"', '"v10"'))
    bad = tiny_run.make_run(tmp_path / "bad", text, asked_run.prompts(8, seed=9))
    assert tiny_run.train(bad) != 0
    assert "STK471" in tiny_run.said(bad)
    assert not events.steps(bad.events_file)
