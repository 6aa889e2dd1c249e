"""Who owns which native option."""

import pytest

from stoker.config import load, native
from stoker.errors import StokerErrors

SHAPE = "model: {{shape: {family}, layers: 1, width: 64, heads: 1}}\ntokenizer: {{train: bpe, vocab: 300}}\n"


def problems(native_text: str, model: str = "model: m\n", tune: str = "qlora") -> list[tuple[str, str]]:
    text = f"{model}data: {{train: a}}\ntune: {{method: {tune}}}\nnative: {native_text}\n"
    try:
        load.parse(text, "run.yaml")
    except StokerErrors as several:
        return [(error.code, error.fields["option"]) for error in several.errors]
    return []


@pytest.mark.parametrize(("block", "name"), [(b, n) for b, owned in native.OWNED.items() for n in owned])
def test_an_owned_option_is_refused(block: str, name: str) -> None:
    code = native.REFUSED.get(native.OWNED[block][name], "STK110")
    assert problems(f"{{{block}: {{{name}: 1}}}}") == [(code, name)]


@pytest.mark.parametrize("block", list(native.OWNED))
def test_every_other_option_of_the_engine_passes(block: str) -> None:
    free = [name for name in native.known_options()[block] if name not in native.OWNED[block]]
    assert len(free) >= 5
    assert problems(f"{{{block}: {{{', '.join(f'{name}: 1' for name in free)}}}}}") == []


@pytest.mark.parametrize("value", list(native.REFUSED_VALUES["lora", "init_lora_weights"]))
def test_an_adapter_that_cannot_be_set_up_or_resumed_is_refused_by_its_value(value: str) -> None:
    code = native.REFUSED[native.REFUSED_VALUES["lora", "init_lora_weights"][value]]
    found = problems(f"{{lora: {{init_lora_weights: {value}}}}}")
    assert found == [(code, f"init_lora_weights: {value}")]
    assert problems("{lora: {init_lora_weights: orthogonal}}") == []
    assert problems("{lora: {init_lora_weights: pissa_niter_16}}") == [("STK146", "init_lora_weights: pissa_niter_16")]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gpt2"])
def test_a_shape_takes_the_options_of_its_configuration(family: str) -> None:
    shape = SHAPE.format(family=family)
    taken = "layer_norm_epsilon" if family == "gpt2" else "rope_parameters"
    assert problems(f"{{model: {{{taken}: 1}}}}", shape, "full") == []
    assert problems("{model: {revision: main}}", shape, "full") == [("STK111", "revision")]
    layers = "n_layer" if family == "gpt2" else "num_hidden_layers"
    assert problems(f"{{model: {{{layers}: 3, use_cache: true}}}}", shape, "full") == [
        ("STK110", layers),
        ("STK112", "use_cache"),
    ]


def test_options_that_work_beside_the_plan_stay_free() -> None:
    free = (
        "use_liger_kernel",
        "torch_compile_mode",
        "neftune_noise_alpha",
        "logging_steps",
        "logging_first_step",
        "report_to",
    )
    assert set(free) <= set(native.known_options()["trainer"]) - set(native.OWNED["trainer"])


def test_what_could_execute_or_leak_cannot_be_set() -> None:
    names = ("trust_remote_code", "use_safetensors", "weights_only", "token")
    assert [problems(f"{{model: {{{name}: x}}}}")[0][0] for name in names] == ["STK112"] * 4
    assert problems("{trainer: {hub_token: x}}") == [("STK112", "hub_token")]


def test_native_options_are_checked_even_where_the_rest_of_the_file_is_wrong() -> None:
    with pytest.raises(StokerErrors) as caught:
        load.parse("model: m\ntrain: {epochs: 0}\nnative: {trainer: {seed: 1}}\n", "run.yaml")
    assert [error.code for error in caught.value.errors] == ["STK105", "STK107", "STK110"]


def test_vllms_own_options_pass_and_words_of_serving_are_refused_by_name() -> None:
    assert problems("{vllm: {max_num_seqs: 64, max_num_batched_tokens: 8192, block_size: 16}}") == []
    assert problems("{vllm: {max_batch_size: 32}}") == [("STK111", "max_batch_size")]
    words = ("host", "port", "api_key", "model", "tensor_parallel_size", "trust_remote_code", "middleware", "dtype")
    assert [problems(f"{{vllm: {{{word}: x}}}}") for word in words] == [[("STK122", word)] for word in words]


def test_sbatchs_own_options_pass_and_words_of_the_job_are_refused_by_name() -> None:
    assert problems("{slurm: {partition: gpu, gres: 'gpu:a100:2', cpus_per_task: 8, mem: 64G, tres_per_task: x}}") == []
    assert problems("{slurm: {partion: gpu}}") == [("STK111", "partion")]
    assert problems("{slurm: {time: 60}}") == [("STK110", "time")]
    assert problems("{slurm: {nodes: 2}}") == [("STK110", "nodes")]
    words = ("signal", "requeue", "wrap", "export", "ntasks", "chdir")
    assert [problems(f"{{slurm: {{{word}: x}}}}") for word in words] == [[("STK138", word)] for word in words]
