"""Preference training: the same bits on two ranks and after kills, and it learns what it is to learn."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import paired_run
import pytest
import tiny_run
import torch

from stoker.engine import reference
from stoker.rundir import events, files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

OBJECTIVES = pytest.mark.parametrize("objective", ["dpo", "orpo", "kto", "reward"])
"""`simpo` differs from `orpo` in its last line."""


def trained(folder: Path, text: str, rows: list[Any], held: list[Any] = ()) -> RunDir:
    run_dir = tiny_run.make_run(folder, text, rows, held)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir


# ---- one SHA


@OBJECTIVES
def test_two_ranks_give_the_bits_of_one_with_ddp_and_fsdp2(tmp_path: Path, base_model: Path, objective: str) -> None:
    rows, held = (paired_run.rows_of(objective, count, seed) for count, seed in ((40, 2), (11, 3)))
    more = ", exact: true, eval_every: 5 steps"
    shas, losses = [], []
    for number, where in enumerate(("", ", processes: 2, strategy: ddp", ", processes: 2, strategy: fsdp2")):
        text = paired_run.text(base_model, steps=10, objective=objective, more=more, where=where)
        run_dir = trained(tmp_path / str(number), text, rows, held)
        shas.append(tiny_run.weights_sha(run_dir.final))
        losses.append([one["eval_loss"] for one in events.read(run_dir.events_file) if one["event"] == "eval"])
    assert len(set(shas)) == 1
    assert losses[0] == losses[1] == losses[2] != []


def test_an_adapter_with_a_whole_module_is_saved_beside_a_sharded_training(tmp_path: Path, base_model: Path) -> None:
    """A reward model's output layer is one: asked for its names while a step runs, FSDP took its weights away."""
    rows = paired_run.rows_of("reward", 40, seed=2)
    shas = []
    for number, where in enumerate(("", ", processes: 2, strategy: fsdp2")):
        text = paired_run.text(
            base_model, steps=12, objective="reward", method="lora", more=", exact: true", where=where
        )
        run_dir = trained(tmp_path / str(number), text.replace("every: 5 steps", "every: 1 steps"), rows)
        assert len([one for one in events.read(run_dir.events_file) if one["event"] == "checkpoint"]) == 12
        shas.append(tiny_run.weights_sha(run_dir.final))
    assert shas[0] == shas[1]


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_a_run_killed_in_the_reference_pass_and_in_training_ends_with_the_same_bits(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    rows = paired_run.rows_of(objective, 60, seed=4)
    text = paired_run.text(base_model, steps=10, method="lora", objective=objective)
    whole = trained(tmp_path / "whole", text, rows)
    run_dir = tiny_run.make_run(tmp_path / "killed", text, rows)
    monkeypatch.setattr(reference, "_COMMIT_SECONDS", 0.0)

    def killed(append: Any, path: Path, values: torch.Tensor) -> None:
        append(path, values[: len(values) // 2] if path.stat().st_size else values)  # the second write is torn
        if path.stat().st_size > values.numel() * 4:
            os.kill(os.getpid(), signal.SIGKILL)

    with tiny_run.replaced(reference, "_append", killed):
        assert tiny_run.train(run_dir) == -signal.SIGKILL
    assert not events.steps(run_dir.events_file)
    assert tiny_run.train(run_dir, kill_after=7) == -signal.SIGKILL
    done = [one for one in events.read(run_dir.events_file) if one["event"] == "reference"]
    tables = ["train", "train_mismatched"] if objective == "kto" else ["train"]
    counts = [8, 16, 24, 32, 40, 48, 56, 60]
    assert [(one["split"], one["done"]) for one in done] == [(name, count) for name in tables for count in counts]
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)


@pytest.mark.parametrize("left", [0, 20])
def test_rows_of_a_reference_that_are_counted_and_gone_are_computed_again(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Not filled with zeros, which would be trained on."""
    rows, text = paired_run.pairs(60, seed=4), paired_run.text(base_model, steps=4, method="lora")
    whole = trained(tmp_path / "whole", text, rows)
    run_dir = tiny_run.make_run(tmp_path / "cut", text, rows)
    monkeypatch.setattr(reference, "_COMMIT_SECONDS", 0.0)

    def killed(count: Any, path: Path, rows: int) -> None:
        count(path, rows)
        if rows > 30:
            os.kill(os.getpid(), signal.SIGKILL)

    with tiny_run.replaced(reference, "_count", killed):
        assert tiny_run.train(run_dir) == -signal.SIGKILL
    os.truncate(run_dir.data / "reference" / "train.bin", left)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)


def test_another_batch_goes_on_with_the_whole_batches_of_a_reference(
    tmp_path: Path,
) -> None:
    path = tmp_path / "reference" / "train.bin"
    path.parent.mkdir()
    path.write_bytes(bytes(8 * 30))
    files.write_json(path.parent / "index.json", {"rows": {"train.bin": 30}})
    assert reference._done_items(path, 60, batch=16, together=2) == 1
    assert path.stat().st_size == 8 * 16
    assert reference._index(path.parent)["rows"] == {"train.bin": 16}


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_killed_reward_model_ends_with_the_same_bits_and_loads_with_one_output(
    tmp_path: Path, base_model: Path, method: str
) -> None:
    rows, held = paired_run.pairs(60, seed=4), paired_run.pairs(11, seed=3)
    more = ", eval_every: 5 steps"
    text = paired_run.text(base_model, steps=10, method=method, objective="reward", more=more)
    whole = trained(tmp_path / "whole", text, rows, held)
    run_dir = tiny_run.make_run(tmp_path / "killed", text, rows, held)
    assert tiny_run.train(run_dir, kill_after=7) == -signal.SIGKILL
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)
    last = [one for one in events.read(run_dir.events_file) if one["event"] == "eval"][-1]["figures"]
    scores = scored(run_dir.final, method, base_model, held)
    assert sum(chosen - rejected for chosen, rejected in scores) / 11 == pytest.approx(last["margin"], abs=1e-5)
    assert sum(chosen > rejected for chosen, rejected in scores) / 11 == pytest.approx(last["accuracy"])


def scored(folder: Path, method: str, base: Path, pairs: list[Any]) -> list[list[float]]:
    """The scores of both answers of each pair, as transformers and PEFT load the model."""
    import numpy as np
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if method == "full":
        model = AutoModelForSequenceClassification.from_pretrained(folder)
    else:
        from peft import PeftModel

        pad = AutoTokenizer.from_pretrained(folder).pad_token_id
        plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, pad_token_id=pad)
        model = PeftModel.from_pretrained(plain, folder)
    assert model.config.num_labels == 1
    model.eval()
    ids = [[torch.from_numpy(np.where(one < 0, ~one, one).astype(np.int64))[None] for one in pair] for pair in pairs]
    with torch.no_grad():
        return [[float(model(input_ids=one).logits) for one in pair] for pair in ids]


def test_a_damaged_reference_is_computed_again(tmp_path: Path, base_model: Path) -> None:
    rows = paired_run.pairs(20, seed=5)
    run_dir = tiny_run.make_run(tmp_path, paired_run.text(base_model, steps=6), rows)
    assert tiny_run.train(run_dir, stop_after=2) == 75
    path = run_dir.data / "reference" / "train.bin"
    before = path.read_bytes()
    path.write_bytes(before[:-4] + b"\0\0\0\0")
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert path.read_bytes() == before
    attempt = [one for one in events.read(run_dir.events_file) if one["event"] == "attempt"][-1]
    assert (attempt["resumed_step"], attempt["tier"]) == (2, "EXACT")


def test_a_base_model_with_dropout_is_compared_with_itself_without(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    run_dir = trained(tmp_path, paired_run.text(base, steps=2), paired_run.pairs(16, seed=8))
    assert events.steps(run_dir.events_file)[1]["loss"] == pytest.approx(math.log(2), abs=1e-6)


# ---- it learns


def test_held_out_pairs_are_told_apart_and_with_shuffled_labels_they_are_not(tmp_path: Path, base_model: Path) -> None:
    """The other objectives at night."""
    accuracy = paired_run.accuracy_learned(tmp_path, base_model, "dpo")
    assert accuracy["right"] > 0.9
    assert 0.3 < accuracy["shuffled"] < 0.7
