"""Generating in a plan: what it takes of memory, time and money grows with what is asked and falls with the card."""

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.errors import StokerErrors
from stoker.estimate import memory, speed
from stoker.estimate.memory import Estimate
from stoker.estimate.speed import Hardware
from stoker.estimate.step import Adapter, Step
from stoker.facts import cards, shapes
from stoker.facts.intervals import Interval
from stoker.facts.model_parts import ModelParts
from stoker.facts.shapes import ModelShape
from stoker.generating import answer_memory, generated_step
from stoker.generating.generated_step import INTERVAL, NO_ANSWERS, PART, AnswerFacts
from stoker.generating.planned_answers import VLLM_CACHE_BYTES, VLLM_CARD_SHARE, AnswerBytes
from stoker.launch import plan_inputs
from stoker.plan import make
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rent import bill

SHAPE = ModelShape(
    family="qwen2", layers=24, hidden=1024, heads=16, kv_heads=4, head_dim=64, intermediate=4096, vocab=50000
)
HALF: dict[str, Any] = {"weights": "bf16", "compute": "bf16", "autocast": False}
STEP = Step(shape=SHAPE, micro=4, length=1024, accumulation=16, adapter=Adapter(rank=8), **HALF)
FACTS = AnswerFacts(batch=64, prompts=8, prompt=100, longest_prompt=300, longest=512)
CARD = speed.hardware(cards.find("A100-80-SXM4"))
TEXT = """
model: base
data: {{train: rows.jsonl, length: 768, pack: false, rows: 5000, tokens: 300000}}
tune: {{method: lora, rank: 16}}
train: {{objective: {objective}, steps: 100, batch: 64, learning_rate: 1e-5, {options}}}
where: {{price: 2 USD/h}}
"""
GRPO = "grpo: {{group: {group}, max_new_tokens: {longest}, rewards: [{{exact: {{column: answer}}}}]}}"


def used(step: Step = STEP) -> Estimate:
    return memory.estimate(step)


def seconds(facts: AnswerFacts = FACTS, step: Step = STEP, on: Hardware = CARD) -> float:
    return facts.slowing(speed.estimate(step, on), used(step), on).parts[PART]


# ---- memory


def test_twice_the_layers_or_twice_the_key_heads_take_twice_the_cache() -> None:
    one = answer_memory.of_step(STEP).cached
    for doubled in ({"layers": 48}, {"kv_heads": 8}, {"head_dim": 128}):
        shape = dataclasses.replace(SHAPE, **doubled)
        assert answer_memory.of_step(dataclasses.replace(STEP, shape=shape)).cached == 2 * one


def test_twice_the_answers_take_twice_the_memory_beside_what_is_held() -> None:
    held = generated_step._held_bytes(used())
    few, many = (dataclasses.replace(FACTS, batch=batch).peak_bytes(used()) - held for batch in (8, 16))
    assert many == 2 * few


def test_layers_that_carry_a_state_have_no_cache_and_the_state_does_not_grow() -> None:
    mixers = (("linear", 18), ("full", 6))
    parts = ModelParts(family="qwen3_next", model_class="", sizes=(), groups=(), mixers=mixers)
    hybrid = answer_memory.of_step(dataclasses.replace(STEP, shape=dataclasses.replace(SHAPE, parts=parts)))
    assert 4 * hybrid.cached == answer_memory.of_step(STEP).cached
    grown, plain = (one.at_most(8, 4096) - one.at_most(8, 2048) for one in (hybrid, answer_memory.of_step(STEP)))
    assert hybrid.state > 0
    assert grown < plain


@pytest.mark.parametrize("word", ["prompt", "longest"])
def test_a_longer_answer_or_prompt_never_takes_less(word: str) -> None:
    answer = answer_memory.of_step(STEP)
    sizes = [answer.at_most(**{"prompt": 64, "longest": 64, word: length}) for length in (1, 2, 64, 65, 4096)]
    assert sizes == sorted(sizes)


def test_answers_at_once_fit_where_training_has_gradients_and_activations() -> None:
    facts = dataclasses.replace(FACTS, batch=4096)
    together = facts.at_once(used())
    assert 1 < together < facts.batch
    assert facts.peak_bytes(used()) <= used().allocated
    assert facts.beside(used()) is used()


def test_an_answer_that_takes_more_than_training_is_the_peak() -> None:
    facts = dataclasses.replace(FACTS, longest_prompt=200_000)
    found = facts.beside(used())
    assert found.allocated > used().allocated
    assert (found.moment, sum(found.parts.values())) == (PART, found.allocated)
    assert facts.at_once(found) == 1
    figures = facts.figures(found, facts.slowing(speed.estimate(STEP, CARD), found, CARD), None, 1)
    assert figures is not None
    assert figures.training_device_bytes < figures.device_bytes == found.device


def test_vllm_has_the_model_once_more_and_keeps_some_of_a_card_while_it_sleeps() -> None:
    facts = dataclasses.replace(FACTS, vllm=True)
    found, whole = facts.beside(used()), SHAPE.parameters() * 2
    assert found.device == used().device + generated_step.VLLM_ASLEEP_BYTES
    assert facts.peak_bytes(found) * VLLM_CARD_SHARE > generated_step._held_bytes(used()) + whole
    large = dataclasses.replace(facts, longest_prompt=100_000_000 // answer_memory.of_step(STEP).cached * 1000)
    assert large.beside(used()).moment == PART


def test_without_a_card_vllm_does_not_sleep() -> None:
    alone = memory.estimate(STEP, "cpu")
    found = dataclasses.replace(FACTS, vllm=True).beside(alone)
    added = SHAPE.parameters() * 2 + VLLM_CACHE_BYTES
    assert (found.allocated - alone.allocated, found.parts["sampler"]) == (added, added)


def test_what_a_plan_stores_is_what_the_engine_reads() -> None:
    stored = answer_memory.of_step(STEP)
    assert AnswerBytes.model_validate(json.loads(stored.model_dump_json())) == stored


# ---- time


def test_longer_answers_and_more_of_them_are_never_cheaper() -> None:
    for word in ("longest", "batch", "prompt"):
        times = [seconds(dataclasses.replace(FACTS, **{word: size})) for size in (1, 8, 64, 65, 512)]
        assert times == sorted(times), word


def test_twice_the_length_takes_about_twice_as_long() -> None:
    short, long = (seconds(dataclasses.replace(FACTS, longest=longest)) for longest in (512, 1024))
    assert long / short == pytest.approx(2, rel=0.1)


def test_a_card_with_twice_the_bandwidth_is_faster_where_bandwidth_decides() -> None:
    shape = dataclasses.replace(SHAPE, hidden=8192, intermediate=28672, heads=64, head_dim=128, layers=80)
    step = dataclasses.replace(STEP, shape=shape, adapter=None)
    twice = dataclasses.replace(CARD, bandwidth=2 * CARD.bandwidth)
    assert 1.5 < seconds(step=step) / seconds(step=step, on=twice) <= 2
    small = dataclasses.replace(STEP, adapter=None)  # launches decide: no card makes those faster
    assert seconds(step=small) == pytest.approx(seconds(step=small, on=twice), rel=0.01)


def test_less_memory_means_fewer_answers_at_once_and_more_time() -> None:
    facts = dataclasses.replace(FACTS, batch=4096)
    small = dataclasses.replace(STEP, micro=1)
    assert facts.at_once(used(small)) < facts.at_once(used())
    assert seconds(facts, small) > seconds(facts)


def test_devices_share_the_answers_and_shards_cost_a_gather_for_each_token() -> None:
    facts = dataclasses.replace(FACTS, batch=4096)
    both = dataclasses.replace(STEP, devices=2, shard_devices=2, strategy="ddp")
    assert seconds(facts, both) < seconds(facts)
    sharded = dataclasses.replace(both, strategy="fsdp2")
    few = dataclasses.replace(FACTS, batch=8)
    assert seconds(few, sharded) > seconds(few, both)


def published() -> list[dict[str, str]]:
    lines = Path(__file__).with_name("published_speeds.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("row", published(), ids=lambda row: f"{row['model']} {row['card']}")
def test_published_speeds_of_one_answer_lie_within_the_interval(row: dict[str, str]) -> None:
    shape = shapes.resolve(row["model"], Path()).shape
    on = speed.hardware(cards.find(row["card"]))
    each = generated_step.token_seconds(Step(shape=shape, micro=1, length=1, **HALF), on, 1)
    assert INTERVAL[0] < 1 / float(row["tokens_per_second"]) / each < INTERVAL[1]


def test_the_interval_would_not_hold_without_the_time_of_launches() -> None:
    rows = [row for row in published() if "0.5B" in row["model"]]
    shape = shapes.resolve(rows[0]["model"], Path()).shape
    weights = 2 * shape.parameters() / speed.hardware(cards.find(rows[0]["card"])).bandwidth
    assert 1 / float(rows[0]["tokens_per_second"]) / weights > INTERVAL[1]


def test_the_pace_gets_the_wider_interval_for_the_share_that_is_generating() -> None:
    training = Interval(0.8, 1.25, 9, "any")
    pace = FACTS.slowing(speed.estimate(STEP, CARD), used(), CARD)
    low, high = FACTS.around(training, pace)
    assert 1 / INTERVAL[1] < low < training.low
    assert training.high < high < 1 / INTERVAL[0]
    assert NO_ANSWERS.around(training, speed.estimate(STEP, CARD)) == (training.low, training.high)


# ---- plans


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936, **sizes}
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 2}))
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    return tmp_path


def inputs(folder: Path, options: str, objective: str = "grpo", card: str = "RTX4090", *sets: str) -> make.Inputs:
    path = folder / "run.yaml"
    path.write_text(TEXT.format(objective=objective, options=options))
    read = load.load(str(path), list(sets))
    with read.located():
        return plan_inputs.inputs(read, None, plan_inputs.machine(card, read.run))


def planned(folder: Path, longest: int = 256, group: int = 8, card: str = "RTX4090", *sets: str) -> Plan:
    return make_plan(inputs(folder, GRPO.format(group=group, longest=longest), "grpo", card, *sets))


def test_time_and_money_of_a_plan_include_generating(folder: Path) -> None:
    plan = planned(folder)
    assert plan.generating is not None
    assert plan.generating.step_seconds == plan.speed.parts[PART]
    assert sum(plan.speed.parts.values()) == pytest.approx(plan.speed.step_seconds)
    trained = plan.speed.step_seconds - plan.generating.step_seconds
    assert plan.time_seconds > plan.steps.total * trained * 1.5
    assert plan.memory.peak_device_bytes >= max(plan.generating.device_bytes, plan.generating.training_device_bytes)
    low, high = plan.time_seconds_range
    assert high / low > INTERVAL[1] / INTERVAL[0]


def test_a_thousand_prompts_cost_what_the_run_costs_for_each_of_its_prompts(folder: Path) -> None:
    plan = planned(folder)
    assert plan.generating is not None
    assert plan.cost is not None
    prompts = plan.steps.total * plan.generating.prompts
    assert plan.generating.cost_per_1000_prompts == pytest.approx(1000 * plan.cost.amount / prompts, rel=0.01)
    more = planned(folder, group=16).generating
    assert more is not None
    assert more.cost_per_1000_prompts == pytest.approx(2 * plan.generating.cost_per_1000_prompts, rel=0.1)


def test_longer_answers_make_a_plan_longer_and_dearer(folder: Path) -> None:
    short, long = planned(folder, 64), planned(folder, 512)
    assert short.cost is not None
    assert long.cost is not None
    assert short.time_seconds < long.time_seconds
    assert short.cost.amount < long.cost.amount


def test_the_pass_without_the_adapter_is_in_time_memory_and_reasons(folder: Path) -> None:
    asked = ("where.micro=8", "where.gradient_checkpointing=true")
    plain, compared = (planned(folder, 256, 8, "RTX4090", *asked, f"train.grpo.beta={beta}") for beta in (0, 0.05))
    assert compared.time_seconds > plain.time_seconds
    assert plain.generating is not None
    assert compared.generating is not None
    more = compared.generating.training_device_bytes - plain.generating.training_device_bytes
    assert more == pytest.approx(8 * 768 * 151936 * 2, rel=0.02)
    assert any(reason.key == "why.beta" for reason in compared.reasons)
    assert not any(reason.key == "why.beta" for reason in plain.reasons)


def test_every_card_that_can_run_it_has_a_figure(folder: Path) -> None:
    for card in cards.cards():
        plan = planned(folder, 256, 8, card.name)
        assert plan.generating is not None
        assert 0 < plan.generating.share < 1
        assert math.isfinite(plan.generating.step_seconds)


def test_a_run_that_generates_nothing_has_nothing_of_it(folder: Path) -> None:
    plan = make_plan(inputs(folder, "epochs: 1", "sft"))
    assert plan.generating is None
    assert PART not in plan.speed.parts
    assert PART not in plan.memory.parts


def test_an_evaluation_is_one_answer_to_each_held_out_prompt(folder: Path) -> None:
    options = GRPO.format(group=8, longest=256)
    each = [f"data.eval={share}" for share in ("5%", "10%")]
    found = [make.find(inputs(folder, options, "grpo", "RTX4090", one, "train.eval_every=10 steps")) for one in each]
    few, many = (bill.setup(one, "runpod")["evaluation"] for one in found)
    assert many / few == pytest.approx(2, rel=0.1)
    rows, times = 5000 * 0.05, found[0].steps.total // 10
    assert few == pytest.approx(times * rows * found[0].way.pace.parts[PART] / 64, rel=0.01)


def test_an_answer_without_room_for_its_prompt_has_no_plan(folder: Path) -> None:
    with pytest.raises(StokerErrors) as caught:
        planned(folder, longest=768)
    assert [one.code for one in caught.value.errors] == ["STK452"]
