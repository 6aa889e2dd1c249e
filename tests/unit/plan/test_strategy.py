"""How several devices work together: what is chosen, what is refused, what DeepSpeed is told."""

import json
from pathlib import Path

import pytest
from plan_case import SEVEN, inputs, machine, plan, processor, reason

from stoker import messages
from stoker.api import plan_page
from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import prices
from stoker.launch import plan_inputs
from stoker.plan import make, search
from stoker.plan.plan import Rung

QLORA = "tune: {method: qlora}"


def test_one_device_needs_no_strategy() -> None:
    made = plan("", machine("RTX4090"))
    assert (made.strategy, reason(made, "strategy")) == ("single", "why.strategy.single")
    assert made.argv == ["-m", "stoker.engine.train"]


def test_the_whole_model_stays_on_each_device_while_it_fits() -> None:
    made = plan("tune: {method: lora}", machine("RTX4090", 4))
    assert (made.strategy, made.batch.devices, reason(made, "strategy")) == ("ddp", 4, "why.strategy.ddp")
    assert made.argv[:2] == ["-m", "torch.distributed.run"]
    assert made.argv[made.argv.index("--nproc-per-node") + 1] == "4"
    assert made.argv[-2:] == ["-m", "stoker.engine.train"]


def test_what_does_not_fit_on_one_is_shared_out() -> None:
    text = "tune: {method: full}\ntrain: {batch: 64}"
    alone, together = (plan(text, machine("A100-80G-SXM", count), model=SEVEN) for count in (1, 8))
    assert alone.fits == "no"
    assert together.sure
    assert (together.strategy, reason(together, "strategy")) == ("fsdp2", "why.strategy.fsdp2")
    assert together.memory.optimizer_bytes == alone.memory.optimizer_bytes // 8


LONG = 100_000_000
"""Tokens of a run so long that a few minutes at its start are worth the attempt."""


def test_a_way_that_may_not_fit_is_tried_only_where_the_expected_gain_is_more_than_a_lost_start() -> None:
    """A full 7B on eight A100s: micro 4 fills 78.1 of 78.4 GiB, an eighth faster than micro 2, which surely fits."""
    text, eight = "tune: {method: full}\ntrain: {batch: 64}", machine("A100-80G-SXM", 8)
    short, long = (plan(text, eight, model=SEVEN, sizes="length: 2048", tokens=each) for each in (LONG // 20, LONG))
    assert (short.fits, short.safe, short.batch.micro) == ("yes", None, 2)
    assert (long.fits, long.batch.micro) == ("tight", 4)
    assert long.safe is not None
    assert long.safe.micro == 2
    # With a pencil: what is gained where it fits against a start, 31 GB from disk and a step where it does not.
    way = search.find(make.find(inputs(text, eight, model=SEVEN, sizes="length: 2048", tokens=LONG)).constraints)
    risk = way.risk(way.memory.device)
    assert 0.5 < risk < 0.9
    lost = 15 + 30.6 + way.pace.step_seconds
    assert search.restart_seconds(way) == pytest.approx(lost, rel=0.01)
    saved = long.safe.time_seconds - long.time_seconds
    assert (1 - risk) * saved > risk * lost
    assert (1 - risk) * saved / 20 < risk * lost


def test_the_fastest_that_is_expected_to_fit_is_planned_and_the_safe_way_is_named_with_its_money() -> None:
    """A full 7B on eight A100s: micro 4 is expected to fit; micro 2 surely fits and costs a seventh more."""
    text = "tune: {method: full}\ntrain: {batch: 64}"
    eight, offer = machine("A100-80G-SXM", 8), prices.maintained("A100-80-SXM4")[0]
    made = plan(text, eight, model=SEVEN, sizes="length: 2048", tokens=LONG, offer=offer)
    room = search.USABLE_SHARE * made.memory.available_bytes
    assert (made.fits, made.strategy, made.batch.micro, made.gradient_checkpointing) == ("tight", "fsdp2", 4, False)
    assert made.memory.peak_device_bytes <= room < made.memory.device_bytes_range[1]
    safe = made.safe
    assert safe is not None
    assert (safe.strategy, safe.micro, safe.gradient_checkpointing) == ("fsdp2", 2, False)
    assert safe.device_bytes_range[1] <= room
    # Asked for by name, it is what was said: it surely fits, and takes that time and that money.
    alone = plan(f"{text}\nwhere: {{micro: 2}}", eight, model=SEVEN, sizes="length: 2048", tokens=LONG, offer=offer)
    assert (alone.fits, alone.safe) == ("yes", None)
    assert alone.memory.device_bytes_range == safe.device_bytes_range
    assert alone.time_seconds == pytest.approx(safe.time_seconds)
    assert made.cost is not None
    assert alone.cost is not None
    assert alone.cost.amount == pytest.approx(safe.cost)
    assert 1.10 < alone.cost.amount / made.cost.amount < 1.20
    # The figures of a plan say so.
    rows = dict(plan_page.rows_of(made))
    assert f"{safe.cost:,.2f} {made.cost.currency}" in rows[messages.text("plan.safe")]


def test_what_surely_fits_is_planned_where_it_is_as_fast() -> None:
    """A larger micro batch comes first in the ladder and is expected to fit, but a Mac gains nothing by it."""
    text, mac = "tune: {method: lora}\ntrain: {batch: 64}\n", machine("Apple M2 Max")
    made = plan(text, mac, sizes="length: 2048", tokens=LONG)
    assert (made.fits, made.safe) == ("yes", None)
    larger = plan(f"{text}where: {{micro: {2 * made.batch.micro}}}", mac, sizes="length: 2048", tokens=LONG)
    assert larger.fits == "tight"
    assert larger.speed.tokens_per_second == pytest.approx(made.speed.tokens_per_second)


def test_after_out_of_memory_the_ladder_goes_below_the_way_that_was_only_likely() -> None:
    text = "tune: {method: full}\ntrain: {batch: 64}"
    eight = machine("A100-80G-SXM", 8)
    likely = plan(text, eight, model=SEVEN, sizes="length: 2048", tokens=LONG)
    failed = Rung(strategy="fsdp2", micro=4, gradient_checkpointing=False, card=eight.name, step=0)
    then = plan(text, eight, model=SEVEN, sizes="length: 2048", tokens=LONG, out_of_memory=(failed,))
    assert likely.safe is not None
    assert (then.fits, then.strategy, then.batch.micro) == ("yes", likely.safe.strategy, likely.safe.micro)


def test_after_out_of_memory_the_named_way_is_taken_and_not_a_slower_one_of_the_ladder() -> None:
    """On four A100s the safe way recomputes 16 rows; the ladder's next, one row without, is a sixth slower."""
    text, four = "tune: {method: full}\ntrain: {batch: 64}", machine("A100-80G-SXM", 4)
    likely = plan(text, four, model=SEVEN, sizes="length: 2048", tokens=LONG)
    assert (likely.fits, likely.batch.micro, likely.gradient_checkpointing) == ("tight", 2, False)
    assert likely.safe is not None
    failed = Rung(strategy="fsdp2", micro=2, gradient_checkpointing=False, card=four.name, step=0)
    then = plan(text, four, model=SEVEN, sizes="length: 2048", tokens=LONG, out_of_memory=(failed,))
    assert (then.fits, then.batch.micro, then.gradient_checkpointing) == ("yes", likely.safe.micro, True)
    assert then.time_seconds == pytest.approx(likely.safe.time_seconds)
    slower = plan(f"{text}\nwhere: {{micro: 1}}", four, model=SEVEN, sizes="length: 2048", tokens=LONG)
    assert slower.time_seconds > 1.1 * then.time_seconds


def test_processes_share_a_processor() -> None:
    made = plan("where: {processes: 4}", processor())
    assert (made.strategy, made.batch.devices) == ("ddp", 4)
    assert reason(made, "batch.devices") == "why.asked"


def test_ranks_of_one_machine_talk_over_loopback_and_meet_in_a_file() -> None:
    made = plan("where: {processes: 2}", processor())
    assert made.env["GLOO_SOCKET_IFNAME"] == made.env["NCCL_SOCKET_IFNAME"] == "lo"
    assert "store_type=file" in made.argv
    assert "GLOO_SOCKET_IFNAME" not in plan("", processor()).env


def test_cards_without_peer_access_are_told_so() -> None:
    assert plan("", machine("RTX4090", 2)).env["NCCL_P2P_DISABLE"] == "1"
    assert plan("where: {gpus: 1}", machine("RTX4090", 2)).env["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_P2P_DISABLE" not in plan("", machine("A100-80G-SXM", 2)).env


def test_sharded_four_bit_weights_are_stored_as_floats() -> None:
    """Bytes are not cut: they would lie on every device in full."""
    sharded = plan(f"{QLORA}\nwhere: {{strategy: fsdp2}}", machine("RTX4090", 2))
    assert sharded.native.quantization["bnb_4bit_quant_storage"] == "bfloat16"
    assert "bnb_4bit_quant_storage" not in plan(QLORA, machine("RTX4090", 2)).native.quantization


@pytest.mark.parametrize(
    ("text", "card", "count", "word", "instead"),
    [
        ("where: {strategy: zero2}\ntrain: {exact: true}", "A100-40G", 2, "train.exact", "fsdp2"),
        (f"{QLORA}\nwhere: {{strategy: zero3}}", "A100-40G", 2, "tune.method", "fsdp2"),
        ("where: {strategy: fsdp2}\ntrain: {optimizer: adamw_8bit}", "A100-40G", 2, "train.optimizer", "ddp"),
        ("where: {strategy: zero2}\ntrain: {optimizer: adafactor}", "A100-40G", 2, "train.optimizer", "ddp"),
        ("where: {strategy: fsdp2}\ntune: {method: lora}\ntrain: {batch: 18}", "A100-40G", 3, "train.exact", "ddp"),
        ("where: {strategy: fsdp2}", "T4", 2, "where.precision", "ddp"),
        ("where: {strategy: zero2}", "T4", 2, "where.precision", "ddp"),
        ("where: {strategy: zero3, precision: fp16}", "A100-40G", 2, "where.precision", "ddp"),
        ("native: {deepspeed: {zero_optimization: {stage: 2}}}", "T4", 2, "where.precision", "ddp"),
        ("where: {strategy: ddp}", "M4-Max", 1, "where.strategy", "auto"),
        ("where: {strategy: zero3}", "M4-Max", 1, "where.strategy", "auto"),
    ],
)
def test_words_that_do_not_go_together_are_refused_by_name(
    text: str, card: str, count: int, word: str, instead: str
) -> None:
    with pytest.raises(StokerError) as caught:
        plan(text, machine(card, count))
    assert (caught.value.code, caught.value.fields["word"], caught.value.fields["instead"]) == ("STK216", word, instead)


def test_processes_are_for_processors() -> None:
    with pytest.raises(StokerError) as caught:
        plan("where: {processes: 4}", machine("RTX4090", 2))
    assert caught.value.code == "STK218"


@pytest.mark.parametrize(
    ("strategy", "memory_gib", "shares_memory", "copies"),
    [("fsdp2", 24, True, 1), ("fsdp2", 128, False, 8), ("zero3", 128, True, 8)],
)
def test_main_memory_must_hold_what_is_built_there(
    strategy: str, memory_gib: int, copies: int, *, shares_memory: bool
) -> None:
    """The ranks of a machine share what one of them builds; under ZeRO, or where that is forbidden, each builds one."""
    found = {"memory_bytes": memory_gib << 30, "shares_memory": shares_memory}
    small = machine("A100-80G-SXM", 8, examined=True, **found)
    with pytest.raises(StokerError) as caught:
        plan(f"tune: {{method: full}}\ntrain: {{batch: 64}}\nwhere: {{strategy: {strategy}}}", small, model=SEVEN)
    assert (caught.value.code, caught.value.fields["copies"]) == ("STK220", copies)
    assert copies * 28 * 1.3 <= int(caught.value.fields["needed"]) <= copies * 32 * 1.3


def test_main_memory_must_hold_a_checkpoint() -> None:
    small = machine("A100-80G-SXM", 2, examined=True, memory_bytes=70 << 30)
    text = "tune: {method: full}\ntrain: {batch: 64}\nwhere: {strategy: fsdp2}"
    with pytest.raises(StokerError) as caught:
        plan(text, small, model=SEVEN)
    assert (caught.value.code, caught.value.fields["memory"]) == ("STK225", "75")
    assert (
        plan(text, machine("A100-80G-SXM", 2, examined=True, memory_bytes=128 << 30), model=SEVEN).strategy == "fsdp2"
    )


# ---- DeepSpeed

EXAMPLE = """
native:
  deepspeed:
    train_batch_size: auto
    gradient_clipping: auto
    bf16: {enabled: auto}
    optimizer: {type: AdamW, params: {lr: auto, betas: auto}}
    zero_optimization: {stage: 3, overlap_comm: true}
    wall_clock_breakdown: false
"""


def test_a_users_own_configuration_is_taken_and_its_auto_filled_in() -> None:
    made = plan("train: {batch: 32, clip: 0.5}" + EXAMPLE, machine("A100-40G", 4))
    settings = made.native.deepspeed
    assert made.strategy == "zero3"
    assert settings["zero_optimization"] == {"stage": 3, "overlap_comm": True}
    assert settings["wall_clock_breakdown"] is False
    assert (settings["train_batch_size"], settings["train_micro_batch_size_per_gpu"]) == (32, 8)
    assert settings["gradient_clipping"] == 0.5
    assert "optimizer" not in settings
    assert made.native.trainer["per_device_train_batch_size"] == 8


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("train_batch_size: 64", "train.batch"),
        ("train_micro_batch_size_per_gpu: 2", "where.micro"),
        ("gradient_accumulation_steps: 4", "train.batch"),
        ("gradient_clipping: 2.0", "train.clip"),
        ("optimizer: {type: AdamW, params: {lr: 0.001}}", "train.optimizer"),
        ("optimizer: {type: AdamW, params: {lr: auto, weight_decay: 0.1}}", "train.optimizer"),
        ("scheduler: {type: WarmupLR, params: {warmup_num_steps: 5}}", "train.schedule"),
        ("fp16: {enabled: true}", "where.precision"),
    ],
)
def test_what_a_word_of_the_run_file_decides_is_refused_there(option: str, word: str) -> None:
    with pytest.raises(StokerError) as caught:
        plan(f"where: {{strategy: zero2}}\nnative:\n  deepspeed:\n    {option}\n", machine("A100-40G", 2))
    assert (caught.value.code, caught.value.fields["word"]) == ("STK217", word)


def test_a_stage_that_contradicts_the_strategy_is_refused() -> None:
    with pytest.raises(StokerError) as caught:
        plan("where: {strategy: zero2}" + EXAMPLE, machine("A100-40G", 2))
    assert (caught.value.code, caught.value.fields["option"]) == ("STK217", "zero_optimization.stage")


def test_a_ds_config_file_is_read_beside_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    run = (
        "model: Qwen/Qwen2.5-0.5B\ndata: {train: hub:a/b, rows: 9, tokens: 900}\nnative: {deepspeed: ds_config.json}\n"
    )
    (tmp_path / "run.yaml").write_text(run)
    run_file = load.load(str(tmp_path / "run.yaml"))
    made = plan_inputs.inputs(run_file, None, machine("A100-40G", 2))
    assert made.run.native.deepspeed == {"zero_optimization": {"stage": 2}}
    (tmp_path / "ds_config.json").write_text("{")
    with pytest.raises(StokerError) as caught:
        plan_inputs.inputs(run_file, None, machine("A100-40G", 2))
    assert caught.value.code == "STK219"
