"""A teacher in a plan: its memory and its time are counted, and one that cannot teach is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.errors import StokerError, StokerErrors
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan

TEXT = """
model: student
data: {{train: rows.jsonl, length: 512, pack: false, rows: 2000, tokens: 200000}}
tune: {{method: lora, rank: 16}}
train: {{objective: {objective}, batch: 16, learning_rate: 1e-5, {options}}}
where: {{micro: 4, gradient_checkpointing: false}}
"""


def model(folder: Path, name: str, width: int, vocab: int = 32000, **more: Any) -> None:
    shape = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 16, "num_attention_heads": 16}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, **shape, **more}
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 16}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model(tmp_path, "student", 512)
    model(tmp_path, "small", 1024, num_hidden_layers=32)
    model(tmp_path, "large", 8192, num_hidden_layers=96)
    model(tmp_path, "other", 1024, vocab=32064)
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    return tmp_path


def planned(folder: Path, distill: str, card: str = "A100-80-SXM4", objective: str = "distill", *sets: str) -> Plan:
    path = folder / "run.yaml"
    path.write_text(TEXT.format(objective=objective, options=distill))
    read = load.load(str(path), list(sets))
    with read.located():
        return make_plan(plan_inputs.inputs(read, None, plan_inputs.machine(card, read.run)))


def taught(folder: Path, teacher: str, options: str = "", *sets: str) -> Plan:
    return planned(
        folder, f"distill: {{teacher: {teacher}, max_new_tokens: 128{options}}}", "A100-80-SXM4", "distill", *sets
    )


def test_weights_logits_and_the_forward_pass_of_a_teacher_are_counted(folder: Path) -> None:
    itself, small = taught(folder, "student"), taught(folder, "small")
    weights = small.memory.parts["teacher"] - itself.memory.parts["teacher"]
    both = [plan_inputs.weighing.resolve(name, folder).shape.parameters() for name in ("small", "student")]
    assert weights == pytest.approx(2 * (both[0] - both[1]), rel=0.01)  # bf16
    assert sum(small.memory.parts.values()) == small.memory.peak_allocated_bytes
    assert small.speed.parts["teacher"] > 1.5 * itself.speed.parts["teacher"] > 0
    assert small.time_seconds > itself.time_seconds
    assert sum(small.speed.parts.values()) == pytest.approx(small.speed.step_seconds)


def test_a_mixture_of_both_models_takes_more_and_shards_take_less(folder: Path) -> None:
    whole = taught(folder, "small")
    assert taught(folder, "small", ", beta: 0.5").memory.parts["teacher"] > whole.memory.parts["teacher"]
    shared = taught(folder, "small", "", "where.gpus=2", "where.strategy=fsdp2", "train.batch=32")
    assert shared.memory.parts["teacher"] < whole.memory.parts["teacher"]


def test_a_teacher_that_does_not_fit_beside_its_student_makes_the_plan_say_so(folder: Path) -> None:
    assert (taught(folder, "small").fits, taught(folder, "large").fits) == ("yes", "no")


def test_a_run_without_a_teacher_has_nothing_of_one(folder: Path) -> None:
    plan = planned(folder, "epochs: 1", "A100-80-SXM4", "sft")
    assert "teacher" not in plan.memory.parts
    assert "teacher" not in plan.speed.parts


@pytest.mark.parametrize(("teacher", "code"), [("other", "STK469"), ("missing", "STK205"), ("run:missing", "STK501")])
def test_a_teacher_that_cannot_teach_is_refused_with_its_line(folder: Path, teacher: str, code: str) -> None:
    with pytest.raises(StokerError) as caught:
        taught(folder, teacher)
    assert caught.value.code == code
    assert caught.value.where == "run.yaml:5: train.distill.teacher"


@pytest.mark.parametrize(
    ("sets", "codes"),
    [
        (["data.pack=true"], ["STK191"]),
        (["where.arrange=rows"], ["STK192"]),
        (["train.distill.max_new_tokens=512"], ["STK452"]),
        (["train.objective=sft"], ["STK190"]),
    ],
)
def test_words_that_do_not_go_with_it_are_refused(folder: Path, sets: list[str], codes: list[str]) -> None:
    with pytest.raises(StokerErrors) as caught:
        taught(folder, "small", "", *sets)
    assert [one.code for one in caught.value.errors] == codes


def test_a_distillation_without_a_teacher_is_refused(folder: Path) -> None:
    with pytest.raises(StokerErrors) as caught:
        planned(folder, "epochs: 1")
    assert [one.code for one in caught.value.errors] == ["STK470"]
