"""Every native option that changes memory or speed is in the figures of a plan, or the plan says that it is not."""

import pytest
from plan_case import SEVEN, machine, plan

from stoker.config import native
from stoker.facts import native_figures
from stoker.plan.plan import Plan
from stoker.report import outlook

EIGHT = machine("A100-80-SXM4", 8)
ONE = machine("A100-80-SXM4")
FULL = "tune: {method: full}\ntrain: {batch: 64}\n"
QLORA = "tune: {method: qlora}\ntrain: {batch: 16}\nwhere: {micro: 2, gradient_checkpointing: true}\n"
SHARDED = FULL + "where: {strategy: fsdp2, micro: 2, gradient_checkpointing: true}\n"
ZERO = FULL + "where: {strategy: zero3, micro: 2, gradient_checkpointing: true}\n"


def missing(made: Plan) -> list[str]:
    """What a plan says that it does not know."""
    return [option for one in made.reasons if one.key == "why.not_planned" for option in one.fields["options"]]


@pytest.mark.parametrize("block", sorted(native_figures.COUNTED))
def test_every_option_that_upstream_has_is_counted_neutral_or_named(block: str) -> None:
    assert native_figures.undecided(block, native.OWNED[block]) == set()


def test_compiling_takes_less_memory_and_time() -> None:
    whole = QLORA.replace(
        "micro: 2, gradient_checkpointing: true", "micro: 2, gradient_checkpointing: false, loss: plain"
    )
    plain = plan(whole, ONE, model=SEVEN)
    compiled = plan(whole.replace("loss: plain", "loss: plain, compile: on"), ONE, model=SEVEN)
    assert compiled.native.trainer["torch_compile"]
    assert not plain.native.trainer["torch_compile"]
    assert compiled.speed.tokens_per_second > 1.05 * plain.speed.tokens_per_second
    assert compiled.memory.parts["activations"] < plain.memory.parts["activations"]
    assert missing(compiled) == []


def test_another_backend_of_the_compiler_is_named() -> None:
    made = plan(QLORA + "native: {trainer: {torch_compile_backend: cudagraphs}}\n", ONE, model=SEVEN)
    assert missing(made) == ["`native.trainer.torch_compile_backend`"]


def test_scales_that_are_not_quantised_again_take_three_more_bytes_for_64_weights() -> None:
    twice = plan(QLORA, ONE, model=SEVEN)
    once = plan(QLORA + "native: {quantization: {bnb_4bit_use_double_quant: false}}\n", ONE, model=SEVEN)
    more = once.memory.parts["weights"] - twice.memory.parts["weights"]
    packed = 6_525_288_448  # linear weights of the blocks: 28 x (2 x 3584^2 + 2 x 512 x 3584 + 3 x 18944 x 3584)
    assert more == pytest.approx(packed / 64 * (3 - 4 / 256), rel=0.01)
    assert missing(once) == []


def test_offloaded_shards_leave_the_device_and_cost_time() -> None:
    here = plan(SHARDED, EIGHT, model=SEVEN)
    away = plan(SHARDED + "native: {fsdp: {offload_policy: cpu}}\n", EIGHT, model=SEVEN)
    assert (here.memory.parts["optimizer"] > 0, away.memory.parts["optimizer"]) == (True, 0)
    assert away.memory.peak_allocated_bytes < here.memory.peak_allocated_bytes - here.memory.parts["optimizer"]
    assert away.speed.tokens_per_second < here.speed.tokens_per_second
    assert missing(away) == []


@pytest.mark.parametrize("option", ["offload_optimizer", "offload_param"])
def test_deepspeed_offload_is_counted_and_a_disk_is_named(option: str) -> None:
    def with_device(device: str) -> Plan:
        return plan(
            ZERO + f"native: {{deepspeed: {{zero_optimization: {{{option}: {{device: {device}}}}}}}}}\n",
            EIGHT,
            model=SEVEN,
        )

    assert plan(ZERO, EIGHT, model=SEVEN).memory.parts["optimizer"] > 0
    assert with_device("cpu").memory.parts["optimizer"] == 0
    assert missing(with_device("cpu")) == []
    assert missing(with_device("nvme")) == [f"`native.deepspeed.zero_optimization.{option}.device: nvme`"]


def test_deepspeed_buffers_are_as_large_as_its_configuration_says() -> None:
    def buffers(stated: str) -> int:
        native_words = f"native: {{deepspeed: {{zero_optimization: {{{stated}}}}}}}\n" if stated else ""
        return plan(ZERO + native_words, EIGHT, model=SEVEN).memory.peak_allocated_bytes

    whole = buffers("")
    assert whole == buffers("reduce_bucket_size: 500000000")
    assert whole - buffers("reduce_bucket_size: 100000000") == 2 * 400_000_000 * 2
    assert buffers("reduce_bucket_size: auto") < whole


def test_weights_gathered_in_16_bits_are_counted_where_gradients_are_added_in_fp32() -> None:
    plain = plan(SHARDED, EIGHT, model=SEVEN)
    words = "native: {fsdp: {param_dtype: bfloat16, reduce_dtype: float32}}\n"
    lowered = plan(SHARDED + words, EIGHT, model=SEVEN)
    assert lowered.memory.parts["activations"] < plain.memory.parts["activations"]
    assert missing(lowered) == []
    only = plan(SHARDED + "native: {fsdp: {param_dtype: bfloat16}}\n", EIGHT, model=SEVEN)
    assert missing(only) == ["`native.fsdp.param_dtype`"]
    assert only.memory == plain.memory


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("lora: {use_dora: true}", ["`native.lora.use_dora`"]),
        ("lora: {use_dora: false}", []),
        ("lora: {rank_pattern: {q_proj: 64}}", ["`native.lora.rank_pattern`"]),
        ("lora: {bias: all}", ["`native.lora.bias`"]),
        ("lora: {modules_to_save: [lm_head, score]}", ["`native.lora.modules_to_save: score`"]),
        ("lora: {use_rslora: true}", []),
        ("trainer: {neftune_noise_alpha: 5}", []),
        ("trainer: {label_smoothing_factor: 0.1}", ["`native.trainer.label_smoothing_factor`"]),
        ("trainer: {use_liger_kernel: true}", ["all of `native.trainer.use_liger_kernel` but its loss"]),
        ("quantization: {bnb_4bit_compute_dtype: bfloat16}", []),
        ("quantization: {bnb_4bit_compute_dtype: float32}", ["`native.quantization.bnb_4bit_compute_dtype`"]),
        ("quantization: {llm_int8_skip_modules: [o_proj]}", ["`native.quantization.llm_int8_skip_modules`"]),
        ("fsdp: {reshard_after_forward: false}", []),  # nothing is sharded on one card
    ],
)
def test_what_no_figure_knows_is_named(words: str, named: list[str]) -> None:
    assert missing(plan(QLORA + f"native: {{{words}}}\n", ONE, model=SEVEN)) == named


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("layer_replication: [[0, 2]]", ["`native.lora.layer_replication`"]),
        ("trainable_token_indices: [5]", ["`native.lora.trainable_token_indices`"]),
        ("alora_invocation_tokens: [1]", ["`native.lora.alora_invocation_tokens`"]),
        ("bias: all, use_dora: true", ["`native.lora.bias`"]),
        ("bias: none, use_dora: true", []),
        ("layer_replication: null, trainable_token_indices: []", []),
        ("init_lora_weights: orthogonal", []),
        ("modules_to_save: [lm_head]", []),
    ],
)
def test_what_keeps_an_adapter_from_being_merged_is_said_before_it_is_trained(words: str, named: list[str]) -> None:
    made = plan(QLORA + f"native: {{lora: {{{words}}}}}\n", ONE, model=SEVEN)
    said = [one for one in made.reasons if one.key == "why.not_merged"]
    assert [option for one in said for option in one.fields["options"]] == named
    assert [one.text for one in said if one.text in outlook.uncertain(made)] == [one.text for one in said]
    assert bool(made.disk_parts["merged"]) != bool(named)


def test_every_option_that_is_merged_is_an_option_of_an_adapter() -> None:
    assert set(native.known_options()["lora"]) >= native_figures.MERGED


@pytest.mark.parametrize(
    ("targets", "counted", "named"),
    [
        ("[q_proj, self_attn.v_proj]", "[q_proj, v_proj]", []),
        ("[q_proj, lm_head]", "[q_proj]", ["`tune.targets: lm_head`"]),
        ("[q_proj, layers.0.self_attn.v_proj]", "[q_proj]", ["`tune.targets: layers.0.self_attn.v_proj`"]),
    ],
)
def test_a_target_that_is_no_layer_of_every_block_is_named(targets: str, counted: str, named: list[str]) -> None:
    made, expected = (
        plan(f"tune: {{method: lora, rank: 8, targets: {one}}}\n", ONE, model=SEVEN) for one in (targets, counted)
    )
    assert made.model.trainable_parameters == expected.model.trainable_parameters
    assert missing(made) == named


def test_an_option_of_deepspeed_that_nobody_looked_at_is_named() -> None:
    words = "native: {deepspeed: {steps_per_print: 5, zero_optimization: {overlap_comm: false, stage: 3}}}\n"
    assert missing(plan(ZERO + words, EIGHT, model=SEVEN)) == ["`native.deepspeed.zero_optimization.overlap_comm`"]


def test_an_option_of_a_new_model_that_changes_its_block_is_named() -> None:
    shape = "{shape: llama, layers: 4, width: 256, heads: 4, ffn: 512, vocab: 1000}"
    words = FULL + "tokenizer: {train: bpe, vocab: 1000}\n"
    made = plan(words + "native: {model: {mlp_bias: true, rms_norm_eps: 1e-5}}\n", ONE, model=shape)
    assert missing(made) == ["`native.model.mlp_bias`"]
