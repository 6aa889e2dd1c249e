"""What a plan decides, and that every decision has its reason."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_case import SEVEN, SMALL, inputs, machine, plan, processor, reason

from stoker.config import load
from stoker.errors import StokerError
from stoker.estimate.step import Foreign
from stoker.facts import cards, families, shapes
from stoker.facts.families import FamilyCell, KnownFamily
from stoker.facts.machine import Device, Machine
from stoker.launch import plan_inputs
from stoker.messages import CATALOGUES
from stoker.plan import checks, choices, make
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan

# ---- batch


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(batch=st.integers(1, 4096), devices=st.integers(1, 64))
def test_a_batch_is_split_exactly_or_refused_with_the_nearest_that_can(batch: int, devices: int) -> None:
    text, on = f"train: {{batch: {batch}}}", machine("H100-SXM", devices)
    if batch % devices == 0:
        split = plan(text, on).batch
        assert split.micro * split.accumulation * split.devices == split.effective == batch
        assert split.devices == devices
        return
    with pytest.raises(StokerError) as caught:
        plan(text, on)
    nearest = caught.value.fields["nearest"]
    assert caught.value.code == "STK201"
    assert all(one > 0 and one % devices == 0 and abs(one - batch) < devices for one in nearest)
    assert len(nearest) == (1 if batch < devices else 2)


def test_the_batch_is_said_with_its_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    made = plan("train: {batch: 64}\nwhere: {micro: 4}", machine("A100-80G-SXM", 2))
    (said,) = [one.text for one in made.reasons if one.about == "batch"]
    assert said == "batch 64 = 4 micro x 8 accumulation x 2 devices"


@pytest.mark.parametrize("micro", [1, 2, 4, 8, 16])
def test_a_stated_micro_batch_is_taken(micro: int) -> None:
    made = plan(f"where: {{micro: {micro}}}", machine("A100-80G-SXM"), sizes="length: 64")
    assert (made.batch.micro, made.batch.accumulation) == (micro, 16 // micro)
    assert reason(made, "batch.micro") == "why.asked"


@pytest.mark.parametrize("micro", [3, 5, 32])
def test_a_micro_batch_that_does_not_divide_is_refused_with_those_that_do(micro: int) -> None:
    with pytest.raises(StokerError) as caught:
        plan(f"where: {{micro: {micro}}}")
    assert (caught.value.code, caught.value.fields["choices"]) == ("STK207", [16, 8, 4, 2, 1])


def test_a_larger_micro_batch_is_not_expected_to_fit_or_is_not_faster() -> None:
    """Of a run so long that a lost start does not count."""
    long = 10_000_000_000
    micros = []
    for card in ("T4", "RTX4090", "A100-40G", "A100-80G-SXM", "H200"):
        made = plan("tune: {method: lora}\ntrain: {batch: 64}", machine(card), sizes="length: 1024", tokens=long)
        assert made.sure
        micros.append(made.batch.micro)
        larger = [size for size in (1, 2, 4, 8, 16, 32, 64) if size > made.batch.micro]
        if larger and not made.gradient_checkpointing:
            forced = plan(
                f"tune: {{method: lora}}\ntrain: {{batch: 64}}\n"
                f"where: {{micro: {larger[0]}, gradient_checkpointing: false}}",
                machine(card),
                sizes="length: 1024",
                tokens=long,
            )
            assert forced.fits == "no" or 0.99 * forced.speed.tokens_per_second <= made.speed.tokens_per_second
    assert micros == sorted(micros)
    assert micros[0] < micros[-1]


def test_activations_are_recomputed_where_it_does_not_surely_fit_without() -> None:
    tight = plan("tune: {method: qlora}", machine("RTX4090"), model=SEVEN, sizes="length: 8192")
    assert tight.gradient_checkpointing
    assert reason(tight, "gradient_checkpointing") == "why.checkpointing.on"
    one = plan(
        "tune: {method: qlora}\nwhere: {micro: 1, gradient_checkpointing: false}", model=SEVEN, sizes="length: 8192"
    )
    assert one.fits != "yes"
    roomy = plan("tune: {method: qlora}", machine("A100-80G-SXM"), model=SEVEN, sizes="length: 512")
    assert not roomy.gradient_checkpointing
    assert reason(roomy, "gradient_checkpointing") == "why.checkpointing.off"
    assert tight.memory.parts["activations"] < one.memory.parts["activations"]


@pytest.mark.parametrize("asked", ["true", "false"])
def test_stated_recomputing_is_taken(asked: str) -> None:
    made = plan(f"where: {{gradient_checkpointing: {asked}}}", sizes="length: 64")
    assert made.gradient_checkpointing is (asked == "true")
    assert made.native.trainer["gradient_checkpointing"] is (asked == "true")
    assert reason(made, "gradient_checkpointing") == "why.asked"


def test_what_does_not_fit_is_planned_as_small_as_it_goes_and_says_so() -> None:
    made = plan("where: {loss: plain}", machine("T4"), model=SEVEN)
    assert made.fits == "no"
    assert (made.batch.micro, made.gradient_checkpointing) == (1, True)
    assert made.memory.peak_device_bytes > made.memory.available_bytes
    assert reason(made, "fits") == "why.fits.not"
    assert reason(made, "batch.micro") == "why.micro.smallest"


def test_length_and_batch_are_never_touched() -> None:
    made = plan("train: {batch: 64}", machine("T4"), model=SEVEN, sizes="length: 4096")
    assert (made.batch.effective, made.data.longest) == (64, 4096)


def test_a_processor_gets_small_micro_batches() -> None:
    assert plan("train: {batch: 64}", processor(), sizes="length: 128").batch.micro == 16
    assert plan("train: {batch: 64}", processor(), sizes="length: 4096").batch.micro == 1
    assert reason(plan("", processor()), "batch.micro") == "why.micro.cpu"


# ---- precision, kernels, support


@pytest.mark.parametrize(
    ("card", "precision", "why"),
    [
        ("T4", "fp16", "why.precision.fp16"),
        ("RTX2080Ti", "fp16", "why.precision.fp16"),
        ("RTX3090", "bf16", "why.precision.bf16"),
        ("RTX4090", "bf16", "why.precision.bf16"),
        ("A100-80G-SXM", "bf16", "why.precision.bf16"),
        ("H100-SXM", "bf16", "why.precision.bf16"),
        ("M2-Max", "fp32", "why.precision.mps"),
    ],
)
def test_precision_follows_the_card(card: str, precision: str, why: str) -> None:
    made = plan("", machine(card))
    assert made.precision == precision
    assert reason(made, "precision") == why
    trainer = made.native.trainer
    assert (trainer["bf16"], trainer["fp16"]) == (precision == "bf16", precision == "fp16")


def test_a_processor_computes_in_fp32() -> None:
    made = plan("", processor())
    assert (made.precision, made.device, made.card) == ("fp32", "cpu", "a CPU")
    assert made.native.trainer["use_cpu"] is True


@pytest.mark.parametrize(("card", "asked"), [("T4", "fp32"), ("RTX4090", "fp16"), ("RTX4090", "fp32")])
def test_a_stated_precision_is_taken(card: str, asked: str) -> None:
    made = plan(f"where: {{precision: {asked}}}", machine(card))
    assert made.precision == asked
    assert reason(made, "precision") == "why.asked"


def test_an_impossible_precision_is_refused() -> None:
    for on, asked in ((machine("T4"), "bf16"), (processor(), "fp16")):
        with pytest.raises(StokerError) as caught:
            plan(f"where: {{precision: {asked}}}", on)
        assert caught.value.code == "STK210"


@pytest.mark.parametrize("card", ["P100", "V100"])
def test_a_card_that_torch_no_longer_runs_on_is_named(card: str) -> None:
    made = plan("tune: {method: lora}", machine(card), sizes="length: 64")
    assert made.fits == "no"
    (why,) = [one for one in made.reasons if one.key == "why.card.old"]
    assert (why.about, why.fields["card"]) == ("fits", made.card)
    assert made.memory.peak_device_bytes < made.memory.available_bytes, "memory is not the reason"


def test_every_other_card_of_the_catalogue_is_supported() -> None:
    old = {card.name for card in cards.cards() if card.kind == "cuda" and (card.compute_capability or 0) < 7.5}
    refused = {
        card.name
        for card in cards.cards()
        if any(one.key == "why.card.old" for one in plan("", machine(card.name)).reasons)
    }
    assert refused == old
    assert {"P100"} <= {name[:4] for name in old}


@pytest.mark.parametrize(
    ("card", "packages", "attention", "arrange"),
    [
        ("RTX4090", {"flash_attn": "2.8"}, "flash_attention_2", "rows"),
        ("RTX4090", {}, "sdpa", "grouped"),
        ("T4", {"flash_attn": "2.8"}, "sdpa", "grouped"),
    ],
)
def test_attention_and_arrangement_follow_what_can_be_imported(
    card: str, packages: dict[str, str], attention: str, arrange: str
) -> None:
    made = plan("", machine(card, packages=packages))
    assert (made.attention, made.arrange) == (attention, arrange)
    assert made.native.model["attn_implementation"] == attention


def test_fp32_has_no_flash_attention() -> None:
    assert plan("where: {precision: fp32}", machine("RTX4090", packages={"flash_attn": "2"})).attention == "sdpa"


@pytest.mark.parametrize(
    ("card", "words", "repeated"),
    [
        ("T4", "", True),
        ("RTX4090", "", False),
        ("RTX4090", "precision: fp32", True),
        ("RTX4090", "precision: fp32, attention: sdpa", True),
        ("RTX4090", "precision: fp32, attention: eager", False),
        ("M2-Max", "", False),
    ],
)
def test_keys_are_repeated_where_torch_has_no_flash_kernel(card: str, words: str, repeated: bool) -> None:
    """Flash needs compute capability 8.0 and 16 bits; the memory-efficient kernel refuses grouped heads."""
    made = plan(f"where: {{{words}}}", machine(card))
    assert made.repeat_keys is repeated
    assert "attention" in words or (reason(made, "attention") == "why.attention.repeated") is repeated


@pytest.mark.parametrize("asked", ["sdpa", "eager"])
def test_a_stated_kernel_is_taken(asked: str) -> None:
    made = plan(f"where: {{attention: {asked}}}", machine("RTX4090", packages={"flash_attn": "2"}))
    assert (made.attention, reason(made, "attention")) == (asked, "why.asked")


def test_flash_attention_is_refused_where_it_cannot_run() -> None:
    words = "where: {attention: flash_attention_2}"
    assert plan(words, machine("RTX4090")).attention == "flash_attention_2", "a machine that is not here may have it"
    for on in (machine("T4"), machine("RTX4090", examined=True), processor()):
        with pytest.raises(StokerError) as caught:
            plan(words, on)
        assert caught.value.code == "STK212"


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_exactness_depends_on_the_recipe_and_never_on_the_hardware(method: str) -> None:
    exact = method != "full"
    for on in (machine("T4"), machine("H100-SXM", 8), processor()):
        made = plan(f"tune: {{method: {method}}}", on)
        assert made.exact is exact
        assert plan(f"tune: {{method: {method}}}\ntrain: {{exact: {str(not exact).lower()}}}", on).exact is not exact


# ---- devices


def gpus(*capabilities: float, card: str | None = None) -> tuple[Device, ...]:
    return tuple(
        Device(name="GPU", card=card, memory_bytes=(24 - n) << 30, compute_capability=c, index=n, uuid=f"GPU-{n}")
        for n, c in enumerate(capabilities)
    )


@pytest.mark.parametrize(
    ("asked", "devices", "visible"),
    [
        ("all", 4, "GPU-0,GPU-1,GPU-2,GPU-3"),
        ("1", 1, "GPU-0"),
        ("2", 2, "GPU-0,GPU-1"),
        ("'1,3'", 2, "GPU-1,GPU-3"),
        ("'0'", 1, "GPU-0"),
        ("'2'", 1, "GPU-2"),
    ],
)
def test_only_the_gpus_that_were_asked_for_are_seen_by_the_trainer(asked: str, devices: int, visible: str) -> None:
    on = machine("RTX4090", devices=gpus(8.9, 8.9, 8.9, 8.9), examined=True)
    made = plan(f"where: {{gpus: {asked}}}", on)
    assert made.batch.devices == devices
    assert made.env["CUDA_VISIBLE_DEVICES"] == visible
    # Which strategy follows from memory: on four, the smallest with 21 GiB, sharding is expected to fit twice the
    # micro batch of whole copies and to be 3 % faster.
    assert (made.strategy == "single") == (devices == 1)


def test_memory_and_precision_are_those_of_the_gpus_that_train() -> None:
    on = machine("RTX4090", devices=gpus(8.9, 7.5), examined=True)
    assert plan("", on).precision == "fp16", "the oldest decides"
    chosen = plan("where: {gpus: 1}", on)
    assert (chosen.precision, chosen.memory.available_bytes) == ("bf16", 24 << 30)
    assert plan("", on).memory.available_bytes == 23 << 30


@pytest.mark.parametrize("asked", ["5", "'0,7'", "'0,1,2,3,4'"])
def test_more_gpus_than_there_are_is_an_error(asked: str) -> None:
    with pytest.raises(StokerError) as caught:
        plan(f"where: {{gpus: {asked}}}", machine("RTX4090", devices=gpus(8.9, 8.9, 8.9, 8.9)))
    assert caught.value.code == "STK208"


@pytest.mark.parametrize("asked", ["1", "2", "'0'", "'0,1'"])
def test_gpus_asked_for_where_there_are_none_is_an_error(asked: str) -> None:
    with pytest.raises(StokerError) as caught:
        plan(f"where: {{gpus: {asked}}}", processor())
    assert (caught.value.code, caught.value.fields["found"]) == ("STK208", 0)


@pytest.mark.parametrize("asked", ["0", "all"])
def test_a_machine_without_gpus_trains_on_its_processor(asked: str) -> None:
    assert plan(f"where: {{gpus: {asked}}}", processor()).device == "cpu"


def test_no_gpu_means_the_processor() -> None:
    made = plan("where: {gpus: 0}", machine("RTX4090", devices=gpus(8.9), examined=True, processor="a CPU"))
    assert (made.device, made.card, made.precision, made.batch.devices) == ("cpu", "a CPU", "fp32", 1)
    assert made.native.trainer["use_cpu"] is True
    assert made.env["CUDA_VISIBLE_DEVICES"] == ""
    assert reason(made, "batch.devices") == "why.asked"


def test_a_machine_that_is_not_here_has_no_devices_to_name() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in plan("", machine("RTX4090", 2)).env


def test_the_plan_says_what_other_programs_hold_of_a_card() -> None:
    on = machine("RTX4090")
    busy = on.model_copy(update={"devices": (on.devices[0].model_copy(update={"held_bytes": 8 << 30}),)})
    made = plan("", busy)
    assert made.memory.available_bytes == plan("", on).memory.available_bytes - (8 << 30)
    assert [reason.fields for reason in made.reasons if reason.key == "why.held"] == [{"index": "0", "held": "8.0"}]
    assert not [reason for reason in plan("", on).reasons if reason.key == "why.held"]


def test_deterministic_kernels_need_their_workspace_only_on_cuda() -> None:
    words = "train: {deterministic: true}"
    assert plan(words).env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert plan(words).env["FLASH_ATTENTION_DETERMINISTIC"] == "1"
    # It would set CUDA_LAUNCH_BLOCKING and another workspace (transformers' `enable_full_determinism`).
    assert "full_determinism" not in plan(words).native.trainer
    assert "CUBLAS_WORKSPACE_CONFIG" not in plan(words, processor()).env
    assert "CUBLAS_WORKSPACE_CONFIG" not in plan("").env


def test_threads_and_workers() -> None:
    made = plan("", machine("RTX4090", cpu_count=12, threads=12))
    assert (made.threads, made.env["OMP_NUM_THREADS"]) == (12, "12")
    assert made.native.trainer["dataloader_num_workers"] == 4
    assert plan("", machine("RTX4090", cpu_count=2)).native.trainer["dataloader_num_workers"] == 1
    assert plan("", processor()).native.trainer["dataloader_num_workers"] == 0
    assert plan("where: {workers: 7}").native.trainer["dataloader_num_workers"] == 7
    assert plan("", processor()).native.trainer["dataloader_pin_memory"] is False


# ---- steps and data


def test_paper_r64_has_steps_40_80_and_120() -> None:
    made = recipe("lora_qwen2.5_7b_rank64")
    assert (made.steps.per_epoch, made.steps.epochs, made.steps.total) == (40, 3, 120)
    assert made.intervals.save == "epoch"
    assert made.batch.effective == 64


@pytest.mark.parametrize(
    ("words", "total", "epochs"),
    [("epochs: 3", 30, 3), ("steps: 25", 25, 3), ("steps: 5", 5, 1), ("steps: 10, epochs: 9", 10, 1)],
)
def test_steps_by_epochs_or_as_stated(words: str, total: int, epochs: int) -> None:
    made = plan(f"train: {{batch: 10, {words}}}", sizes="pack: false, rows: 91")
    assert (made.steps.per_epoch, made.steps.total, made.steps.epochs) == (10, total, epochs)
    assert made.native.trainer["max_steps"] == total


@pytest.mark.parametrize(("warmup", "steps"), [("0", 0), ("7", 7), ("10%", 10), ("2.4%", 2), ("100%", 100)])
def test_warm_up_in_steps(warmup: str, steps: int) -> None:
    made = plan(f"train: {{steps: 100, warmup: {warmup}}}")
    assert (made.steps.warmup, made.native.trainer["warmup_steps"]) == (steps, steps)


def test_declared_data_is_marked_as_estimated() -> None:
    assert {"data", "steps", "memory", "time_seconds"} <= set(plan("").estimated)


@pytest.mark.parametrize(("every", "interval"), [("auto", "auto"), ("epoch", "epoch"), ("500 steps", "500 steps")])
def test_save_intervals(every: str, interval: str) -> None:
    assert plan(f"save: {{every: {every}}}").intervals.save == interval


def test_an_auto_interval_names_the_place_its_failures_and_the_cap() -> None:
    made = plan("save: {every: auto}")
    (reason,) = [r for r in made.reasons if r.about == "intervals.save"]
    assert reason.fields["place"] == "local"
    assert made.intervals.between_failures_seconds > 0
    assert "3.5 %" in reason.text


def test_a_save_is_written_in_the_background_unless_its_copy_would_fill_the_memory() -> None:
    assert plan("").intervals.background
    little = machine("H100-SXM").model_copy(update={"memory_bytes": 1 << 20, "examined": True})
    assert not choices.background(little, 1 << 30).value


def test_the_eval_loss_is_measured_only_where_there_is_eval_data() -> None:
    assert plan("").intervals.evaluate == "never"
    assert plan("", sizes="eval: 5%").intervals.evaluate == "epoch"
    assert plan("train: {eval_every: 20 steps}", sizes="eval: 5%").intervals.evaluate == "20 steps"


# ---- the whole plan


def recipe(name: str) -> Plan:
    return make_plan(plan_inputs.inputs(load.load(name), None, machine("RTX4090")))


HERE = [name for name in load.recipe_names() if not str(load.load(name).run.model).startswith("runs/")]
"""Recipes that do not go on from another one's result."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))


@pytest.mark.parametrize("name", HERE)
def test_every_recipe_plans_for_an_rtx4090(name: str) -> None:
    made = recipe(name)
    assert made.sure or name not in (
        "scratch_tiny",
        "scratch_wikitext2",
        "scratch_wikitext2_768",
        "qlora_qwen2.5_7b",
    )
    assert made.name == name
    assert made.steps.total >= made.steps.per_epoch >= 1
    assert made.time_seconds > 0
    assert made.cost is not None
    assert made.cost.amount == pytest.approx(made.time_seconds / 3600 * made.cost.price_per_hour, abs=0.01)


PLANS = {
    "small": lambda: plan(""),
    "too large": lambda: plan("", machine("T4"), model=SEVEN),
    "several": lambda: plan("tune: {method: qlora}", machine("A100-80G-SXM", 4), model=SEVEN, sizes="eval: 2%"),
    "processor": lambda: plan("train: {exact: true}", processor()),
    "apple": lambda: plan("tune: {method: lora}", machine("M2-Max")),
    "old": lambda: plan("", machine("V100")),
    "stated": lambda: plan(
        "where: {micro: 1, precision: fp32, attention: eager, gradient_checkpointing: true, arrange: rows, "
        "workers: 0, gpus: 1}\nsave: {every: 5m}\ntrain: {exact: true}"
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_choice_has_one_reason_in_both_languages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PLANS[name]()
    decided = {"batch", "batch.devices", "batch.micro", "precision", "attention", "arrange", "exact"}
    decided |= {"gradient_checkpointing", "intervals.save", "strategy", "threads"}
    decided |= {f"native.trainer.dataloader_{name}" for name in ("num_workers", "pin_memory")}
    about = [one.about for one in made.reasons]
    assert decided <= set(about)
    assert [key for key in decided if about.count(key) != 1] == []
    assert made.fits == "yes" or "fits" in about
    for language in CATALOGUES:
        monkeypatch.setenv("STOKER_LANG", language)
        assert all(one.text for one in made.reasons)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_survives_json(name: str) -> None:
    made = PLANS[name]()
    assert Plan.model_validate(json.loads(json.dumps(made.model_dump()))) == made


def test_a_plan_of_another_version_stays_readable() -> None:
    dumped = plan("").model_dump()
    assert Plan.model_validate({**dumped, "news": 1, "batch": {**dumped["batch"], "news": 2}}) == plan("")


def test_a_plan_is_a_pure_function() -> None:
    assert plan("train: {batch: 32}") == plan("train: {batch: 32}")


def test_the_same_maths_on_every_machine() -> None:
    """What the trainer is told about learning is the same on a laptop and on four cards."""
    learning = (
        "learning_rate",
        "lr_scheduler_type",
        "warmup_steps",
        "weight_decay",
        "max_grad_norm",
        "max_steps",
        "seed",
    )
    words = "train: {batch: 64, epochs: 2, learning_rate: 1e-4}"
    made = [plan(words, on) for on in (processor(), machine("T4"), machine("RTX4090"), machine("A100-80G-SXM", 4))]
    assert len({tuple(one.native.trainer[name] for name in learning) for one in made}) == 1
    assert {one.batch.effective for one in made} == {64}
    assert {one.data for one in made} == {made[0].data}


def test_a_tokenizer_of_its_own_decides_the_vocabulary() -> None:
    shape = "{shape: llama, layers: 2, width: 64, heads: 1}\ntokenizer: {train: bpe, vocab: 500}"
    declared = plan("", model=shape)
    assert declared.native.model["vocab_size"] == 500
    counted = plan("", model=shape, vocab=480)
    assert counted.native.model["vocab_size"] == 500, "never fewer rows than the run file states"
    more = plan("", model=shape, vocab=512)
    assert more.native.model["vocab_size"] == 512
    assert more.model.parameters > declared.model.parameters


def test_a_trained_model_keeps_its_own_vocabulary() -> None:
    assert plan("", vocab=5).model.parameters == plan("").model.parameters == shapes.shipped()[SMALL].parameters()


def test_rows_with_a_token_for_which_a_trained_model_has_no_weights_are_refused() -> None:
    own = shapes.shipped()[SMALL].vocab
    assert plan("", vocab=own + 1, highest_token=own - 1), "a tokenizer may know a token that no row has"
    with pytest.raises(StokerError) as caught:
        plan("", vocab=own + 1, highest_token=own)
    assert caught.value.code == "STK244"
    shape = "{shape: llama, layers: 2, width: 64, heads: 1}\ntokenizer: {train: bpe, vocab: 500}"
    assert plan("", model=shape, vocab=512, highest_token=511), "a new model gets as many as there are"


def test_disk_counts_the_data_the_checkpoints_kept_one_more_and_the_result() -> None:
    few, many = (plan(f"save: {{keep: {keep}}}").disk_bytes for keep in (2, 5))
    one = plan("").model.trainable_parameters * 12 + (16 << 20)
    assert many - few == pytest.approx(3 * one, rel=1e-3)
    best = plan("save: {keep: 2, best: eval_loss}", sizes="eval: 2%").disk_bytes
    assert best - few == pytest.approx(one, rel=1e-3)


def test_native_options_are_laid_on_top() -> None:
    made = plan(
        "tune: {method: lora}\nnative: {trainer: {adam_beta1: 0.8}, lora: {use_rslora: true}, model: {revision: x}}"
    )
    assert made.native.trainer["adam_beta1"] == 0.8
    assert made.native.lora == {**made.native.lora, "r": 16, "lora_alpha": 32, "use_rslora": True}
    assert made.native.model["revision"] == "x"
    assert plan("").native.lora == {}
    assert plan("tune: {method: lora}").native.quantization == {}
    assert plan("tune: {method: qlora}").native.quantization["bnb_4bit_compute_dtype"] == "bfloat16"


def test_memory_is_counted_for_the_allocator_the_run_is_started_with() -> None:
    for on, grows in ((machine("RTX4090"), True), (processor(), False)):
        made = plan("", on)
        assert ("PYTORCH_CUDA_ALLOC_CONF" in made.env) is grows
    asked = make.find(inputs("")).way.step
    assert asked.expandable


def test_no_price_no_cost() -> None:
    assert plan("").cost is None, "the offer is an input, not looked up"


@pytest.mark.parametrize("recipe", load.recipe_names())
def test_no_run_of_ours_does_what_only_other_tools_do(recipe: str) -> None:
    run_file = load.load(recipe, ["where.gpus=8"])
    on = plan_inputs.machine("H100-SXM", run_file.run)
    try:
        found = make.find(plan_inputs.inputs(run_file, None, on))
    except StokerError as refused:
        assert refused.code == "STK201"  # noqa: PT017  # a batch that eight devices cannot share
        return
    assert found.way.step.foreign == Foreign()


def test_packed_rows_are_not_planned_for_layers_with_a_state() -> None:
    """As attention kernels do, and as the rehearsal would refuse (STK433)."""
    hybrid = shapes.shipped()["Qwen/Qwen3-Next-80B-A3B-Instruct"]
    chosen = choices.arrangement(inputs().run, "flash_attention_2", hybrid)
    assert (chosen.value, chosen.reason.key) == ("grouped", "why.arrange.recurrent")
    dense = shapes.shipped()["Qwen/Qwen3-8B"]
    assert choices.arrangement(inputs().run, "flash_attention_2", dense).value == "rows"


def test_packed_rows_are_not_planned_for_a_family_that_was_seen_to_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = FamilyCell(outcome="works", how="grouped", date="2026-11-16", transformers="5.22.1")
    monkeypatch.setattr(families, "leaks", lambda shape: seen)
    dense = shapes.shipped()["Qwen/Qwen3-8B"]
    chosen = choices.arrangement(inputs().run, "flash_attention_2", dense)
    assert (chosen.value, chosen.reason.key) == ("grouped", "why.arrange.leaks")


@pytest.mark.parametrize(
    ("cells", "key"),
    [({}, "why.family.untested"), ({"lora": "5.0.0"}, "why.family.version"), ({"lora": "5.22.1"}, None)],
)
def test_a_plan_says_what_the_table_of_families_has_not_seen(
    monkeypatch: pytest.MonkeyPatch, cells: dict[str, str], key: str | None
) -> None:
    found = {name: FamilyCell(outcome="works", date="2026-11-16", transformers=by) for name, by in cells.items()}
    row = KnownFamily(family="qwen3", model_class="Qwen3ForCausalLM", text="qwen3", cells=found)
    monkeypatch.setattr(families, "of_shape", lambda shape: row)
    run = load.parse("model: m\ndata: {train: a}\ntune: {method: lora}\n", "run.yaml")
    card = Machine.of_card(cards.find("H100"))
    here = card.model_copy(update={"examined": True, "packages": {"transformers": "5.22.4"}})
    reasons = checks.family_reasons(run, here, shapes.shipped()["Qwen/Qwen3-8B"])
    assert [reason.key for reason in reasons] == ([key] if key else [])
    assert all(reason.text for reason in reasons)
