"""What is refused before anything is paid for."""

import json
from pathlib import Path

import pytest
from plan_case import machine, plan, processor

from stoker.config import load
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts import shapes
from stoker.facts.machine import Machine
from stoker.plan import checks, optimizers

ALL = {"torch": "2", "peft": "1", "bitsandbytes": "1", "tensorboard": "2", "liger_kernel": "0"}


def check(
    text: str, on: Machine | None = None, model: str = "Qwen/Qwen2.5-0.5B", length: int = 1024
) -> StokerError | None:
    run = load.parse(f"model: {model}\ndata: {{train: a.jsonl, length: {length}}}\n{text}", "run.yaml")
    shape = shapes.resolve(run.model, Path("nowhere"), run.tokenizer, run.data.length).shape
    try:
        checks.check(run, on or machine(), shape)
    except StokerError as error:
        return error
    return None


def without(*missing: str) -> Machine:
    return processor(examined=True, packages={name: version for name, version in ALL.items() if name not in missing})


def test_a_length_beyond_the_learned_positions_is_refused() -> None:
    found = check("", model="gpt2", length=1025)
    assert found is not None
    assert (found.code, found.fields) == ("STK214", {"length": 1025, "positions": 1024})


def test_learned_positions_that_reach_and_rotary_ones_pass() -> None:
    assert check("", model="gpt2", length=1024) is None
    assert check("", length=1_000_000) is None
    shape = "{shape: gpt2, layers: 1, width: 64, heads: 1}\ntokenizer: {train: bpe, vocab: 300}"
    assert check("", model=shape, length=5000) is None, "made as long as asked"


@pytest.mark.parametrize(
    ("text", "missing", "word"),
    [
        ("tune: {method: lora}", "peft", "tune.method"),
        ("tune: {method: qlora}", "peft", "tune.method"),
        ("tune: {method: qlora}", "bitsandbytes", "tune.method"),
        ("train: {optimizer: adamw_8bit}", "bitsandbytes", "train.optimizer"),
        ("train: {optimizer: paged_adamw_8bit}", "bitsandbytes", "train.optimizer"),
        ("native: {trainer: {use_liger_kernel: true}}", "liger_kernel", "native.trainer.use_liger_kernel"),
        ("", "tensorboard", "native.trainer.report_to"),
    ],
)
def test_a_missing_package_is_named_with_the_word_and_the_command(text: str, missing: str, word: str) -> None:
    found = check(text, without(missing))
    assert found is not None
    assert (found.code, found.fields["word"], found.fields["package"]) == ("STK215", word, missing)
    extra = "" if missing == "liger_kernel" else ', or `pip install "stoker[train]"`'
    assert found.hint == f"run `pip install {missing}`{extra}"
    assert check(text, without()) is None


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("tune: {method: lora}", "bitsandbytes"),
        ("train: {optimizer: adafactor}", "bitsandbytes"),
        ("tune: {method: full}", "peft"),
        ("native: {trainer: {report_to: []}}", "tensorboard"),
    ],
)
def test_a_package_that_is_not_needed_may_be_missing(text: str, missing: str) -> None:
    assert check(text, without(missing)) is None


def test_either_package_writes_the_files_of_tensorboard() -> None:
    bare = without("tensorboard")
    assert check("", bare) is not None
    assert check("", bare.model_copy(update={"packages": {**bare.packages, "tensorboardX": "2"}})) is None


def test_packages_matter_only_where_training_can_happen() -> None:
    asked = "tune: {method: qlora}"
    assert check(asked, machine()) is None, "a card of the catalogue: nothing is known of its packages"
    assert check(asked, without(*ALL)) is None, "a laptop without torch plans for others"


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (StokerError("STK214", length=2048, positions=1024), "run.yaml:2: data.length"),
        (StokerError("STK215", word="tune.method", asked="qlora", package="peft", more=""), "run.yaml:3: tune.method"),
        (StokerError("STK671", currency="CNY", card="A100"), "run.yaml:4: budget.money"),
    ],
)
def test_the_error_names_the_line(tmp_path: Path, error: StokerError, where: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: gpt2\ndata: {train: a, length: 2048}\ntune: {method: qlora}\nbudget: {money: 9 CNY}\n")
    read: RunFile = load.load(str(file))
    with pytest.raises(StokerError), read.located():
        raise error
    assert error.where == where


@pytest.mark.parametrize("text", ["tune: {method: qlora}", "where: {strategy: zero2}"])
def test_elsewhere_what_the_run_needs_is_installed(text: str) -> None:
    bare = without("peft", "bitsandbytes", "tensorboard", "deepspeed")
    assert check(text, bare) is not None
    run = load.parse(f"model: Qwen/Qwen2.5-0.5B\ndata: {{train: a.jsonl}}\n{text}", "run.yaml")
    shape = shapes.resolve(run.model, Path("nowhere"), run.tokenizer, run.data.length).shape
    checks.check(run, bare, shape, elsewhere=True)


@pytest.mark.parametrize(
    ("trainer", "packages"),
    [
        ("report_to: [wandb, tensorboard, swanlab]", ("wandb", "swanlab")),
        ("report_to: mlflow", ("mlflow",)),
        ("use_liger_kernel: true, report_to: none", ("liger-kernel",)),
        ("report_to: tensorboard", ()),
    ],
)
def test_the_trackers_a_run_names_are_installed_elsewhere(trainer: str, packages: tuple[str, ...]) -> None:
    run = load.parse(f"model: gpt2\ndata: {{train: a}}\nnative: {{trainer: {{{trainer}}}}}\n", "run.yaml")
    assert checks.extra_packages(run) == packages


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("galore_adamw_layerwise", "backward pass"),
        ("lomo", "backward pass"),
        ("schedule_free_adamw", "not tested"),
        ("adamw_torch_8bit", "pickle"),
        ("paged_ademamix_8bit", "page"),
        ("adamw_torch_xla", "device"),
    ],
)
def test_an_optimizer_that_is_not_known_to_resume_exactly_is_refused_with_the_reason(name: str, word: str) -> None:
    run = load.parse(f"model: m\ndata: {{train: a}}\ntrain: {{optimizer: {name}}}\n", "run.yaml")
    with pytest.raises(StokerError) as caught:
        optimizers.check(run)
    assert caught.value.code == "STK240"
    assert word in str(caught.value)


def test_muon_is_given_to_the_trainer_as_a_factory_and_planned_as_itself() -> None:
    run = load.parse("model: m\ndata: {train: a}\ntrain: {optimizer: muon}\n", "run.yaml")
    optimizers.check(run)
    assert (optimizers.trainer_name(run, "cuda"), optimizers.step_name(run)) == ("adamw_torch", "muon")


@pytest.mark.parametrize(
    ("words", "moments"),
    [
        ("train: {optimizer: sgd}\nnative: {trainer: {optim_args: momentum=0.9}}", 1),
        ("train: {optimizer: sgd}", 0),
        ('train: {optimizer: rmsprop}\nnative: {trainer: {optim_args: "momentum=0.9, centered=true"}}', 2),
        ("train: {optimizer: adamw}\nnative: {trainer: {optim_args: momentum=0.9}}", 0),
    ],
)
def test_momentum_that_an_option_asks_for_is_planned(words: str, moments: int) -> None:
    assert optimizers.extra_moments(load.parse(f"model: m\ndata: {{train: a}}\n{words}\n", "run.yaml")) == moments


@pytest.mark.parametrize(
    ("model", "kind", "copy"),
    [
        ("openai/gpt-oss-20b", "mxfp4", "unsloth/gpt-oss-20b-BF16"),
        ("mistralai/Ministral-3-8B-Instruct-2512", "fp8", "mistralai/Ministral-3-8B-Instruct-2512-BF16"),
        ("deepseek-ai/deepseek-v3", "fp8", "-BF16"),
    ],
)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_model_that_is_published_in_few_bits_is_refused_with_a_copy_in_16(
    model: str, kind: str, copy: str, method: str
) -> None:
    with pytest.raises(StokerError) as caught:
        plan(f"tune: {{method: {method}}}", machine("H100", 8), model=model)
    assert (caught.value.code, caught.value.fields["kind"]) == ("STK238", kind)
    assert copy in caught.value.hint


def test_a_folder_with_quantised_weights_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    config |= {"vocab_size": 320, "intermediate_size": 128, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    found = shapes.resolve("base", tmp_path)
    run = load.parse("model: base\ndata: {train: a.jsonl}", "run.yaml")
    with pytest.raises(StokerError) as caught:
        checks.check_stored(run, found)
    assert (caught.value.code, caught.value.fields["kind"]) == ("STK238", "awq")


def test_every_copy_in_16_bits_is_planned_like_its_model() -> None:
    for model, (kind, copy) in shapes._data()["quantised"].items():
        assert kind
        assert shapes.shipped()[model]
        if copy:
            assert shapes.shipped()[copy] == shapes.shipped()[model]
            assert shapes.published_quantised(copy) == ("", "")
