"""How several devices work together: what is chosen, what is refused, what DeepSpeed is told."""

import json
from pathlib import Path

import pytest
from plan_case import SEVEN, machine, plan, processor, reason

from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import plan_inputs

QLORA = "tune: {method: qlora}"


def test_one_device_needs_no_strategy() -> None:
    made = plan("", machine("RTX4090"))
    assert (made.strategy, reason(made, "strategy")) == ("single", "why.strategy.single")
    assert made.argv == ["-m", "stoker.engine.train"]


def test_the_whole_model_stays_on_each_device_while_it_fits() -> None:
    made = plan("", machine("RTX4090", 4))
    assert (made.strategy, made.batch.devices, reason(made, "strategy")) == ("ddp", 4, "why.strategy.ddp")
    assert made.argv[:2] == ["-m", "torch.distributed.run"]
    assert made.argv[made.argv.index("--nproc-per-node") + 1] == "4"
    assert made.argv[-2:] == ["-m", "stoker.engine.train"]


def test_what_does_not_fit_on_one_is_shared_out() -> None:
    text = "tune: {method: full}\ntrain: {batch: 64}"
    alone, together = (plan(text, machine("A100-80G-SXM", count), model=SEVEN) for count in (1, 8))
    assert alone.fits == "no"
    assert together.fits == "yes"
    assert (together.strategy, reason(together, "strategy")) == ("fsdp2", "why.strategy.fsdp2")
    assert together.memory.optimizer_bytes == alone.memory.optimizer_bytes // 8


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
