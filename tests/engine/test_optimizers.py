"""Optimizers by name: each accepted one resumes bit for bit, and the plan counts the bytes of its states."""

import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bitsandbytes.optim import GlobalOptimManager
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from stoker.config.optimizer_names import OptimizerName
from stoker.config.run import Full, Native, Train
from stoker.engine import checkpoint, optimizer_factory, paged
from stoker.engine.writers import Writers
from stoker.estimate import memory
from stoker.estimate.step import Step
from stoker.facts import shapes
from stoker.plan import optimizers

pytestmark = pytest.mark.filterwarnings("default")

_NAMES = set(typing.get_args(OptimizerName))
_USED = sorted(_NAMES - optimizers.REFUSED.keys())
_SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 320, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False}


def _run(name: str, **trainer: Any) -> Any:
    words = {"train": Train(optimizer=name), "native": Native(trainer=trainer), "tune": Full(method="full")}
    return SimpleNamespace(**words)


def _model() -> Any:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**_SIZES, **_HEADS))


@pytest.fixture(autouse=True)
def _no_overrides() -> Iterator[None]:
    """bitsandbytes keeps, for every optimizer of the process, which parameters have 32-bit states: by their number."""
    yield
    GlobalOptimManager.get_instance().initialize()


def _optimizer(name: str, model: Any, folder: Path, **trainer: Any) -> torch.optim.Optimizer:
    """As the Trainer makes it."""
    options = {"optim": optimizers.trainer_name(_run(name), "cpu"), "weight_decay": 0.1, **trainer}
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[], learning_rate=1e-3, **options)
    factory = optimizer_factory.with_muon(arguments) if name == "muon" else None
    trainer = Trainer(model=model, args=arguments, optimizer_cls_and_kwargs=factory)
    return trainer.create_optimizer()


def _steps(model: Any, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for number in range(first, last):
        torch.manual_seed(number)
        ids = torch.randint(0, 320, (2, 16))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _state(name: str, model: Any, optimizer: torch.optim.Optimizer) -> checkpoint.TrainingState:
    kind = paged.PagedState if name.startswith("paged_") else checkpoint.TrainingState
    return kind(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0), None)


def test_every_name_of_transformers_is_a_name_of_the_run_file() -> None:
    assert {one.value for one in OptimizerNames} == _NAMES - {"adamw", "muon"}
    assert optimizers.REFUSED.keys() <= _NAMES


@pytest.mark.parametrize("name", _USED)
def test_an_optimizer_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = _model()
    first = _optimizer(name, whole, tmp_path)
    _steps(whole, first, 0, 2)
    checkpoint.save_state(tmp_path, *_state(name, whole, first).gather(Writers().take))
    resumed = _model()
    resumed.load_state_dict({key: value.clone() for key, value in whole.state_dict().items()})
    second = _optimizer(name, resumed, tmp_path)
    _state(name, resumed, second).load(tmp_path, 2)
    _steps(whole, first, 2, 4)
    _steps(resumed, second, 2, 4)
    for (key, left), right in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(left, right), key
    assert any(
        not torch.equal(left, right) for left, right in zip(whole.parameters(), _model().parameters(), strict=True)
    )


def test_how_an_optimizer_computes_is_the_plan_s_for_this_device_and_not_the_checkpoint_s(tmp_path: Path) -> None:
    """One of a CPU resumes on a GPU, where a scaler needs the fused form, and the other way around."""
    model = _model()
    plain = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.9))
    _steps(model, plain, 0, 1)
    checkpoint.save_state(tmp_path, *_state("adamw", model, plain).gather(Writers().take))
    fused = torch.optim.AdamW(model.parameters(), fused=True)
    _state("adamw", model, fused).load(tmp_path, 1)
    (group,) = fused.param_groups
    assert (group["fused"], group["lr"], list(group["betas"])) == (True, 1e-3, [0.8, 0.9])


_OPTIONS: dict[str, dict[str, Any]] = {"sgd": {"optim_args": "momentum=0.5"}}
_OPTIONS["rmsprop"] = {"optim_args": "momentum=0.5, centered=True"}


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in _USED), *_OPTIONS.items()])
def test_the_plan_counts_the_bytes_of_the_states(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = _model()
    optimizer = _optimizer(name, model, tmp_path, **options)
    _steps(model, optimizer, 0, 1)
    shape = shapes.from_config({"model_type": "llama", **_SIZES, **_HEADS})
    assert shape is not None
    run = _run(name, **options)
    step = Step(shape=shape, micro=2, length=16)
    step = replace(step, optimizer=optimizers.step_name(run), extra_moments=optimizers.extra_moments(run))
    tables = ("qmap1", "qmap2", "step")
    kept = [one for state in optimizer.state.values() for key, one in state.items() if key not in tables]
    tensors = [one for one in kept if isinstance(one, torch.Tensor)]
    real = sum(one.nbytes for one in tensors)
    assert abs(memory.optimizer_bytes(step) - real) <= 512 * len(tensors), "each tensor rounded up to 512 bytes"


def test_muon_takes_hidden_matrices_and_adamw_the_rest(tmp_path: Path) -> None:
    model = _model()
    optimizer = _optimizer("muon", model, tmp_path)
    _steps(model, optimizer, 0, 1)
    fields = {name: set(optimizer.state[one]) for name, one in model.named_parameters()}
    assert fields["model.layers.0.self_attn.q_proj.weight"] == {"momentum_buffer"}
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"):
        assert fields[name] == {"step", "exp_avg", "exp_avg_sq"}
    decays = {id(one): group["weight_decay"] for group in optimizer.param_groups for one in group["params"]}
    assert decays[id(model.lm_head.weight)] == 0.1
    assert decays[id(model.model.norm.weight)] == 0


def test_muon_updates_as_torch_s_own_two_optimizers(tmp_path: Path) -> None:
    ours, theirs = _model(), _model()
    optimizer = _optimizer("muon", ours, tmp_path)
    hidden = [one for name, one in theirs.named_parameters() if "_proj" in name]
    tables = [theirs.model.embed_tokens.weight, theirs.lm_head.weight]
    vectors = [one for name, one in theirs.named_parameters() if "norm" in name]
    of_torch = [
        torch.optim.Muon(hidden, lr=1e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([{"params": tables, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}], lr=1e-3),
    ]
    _steps(ours, optimizer, 0, 2)
    both = SimpleNamespace(
        step=lambda: [one.step() for one in of_torch], zero_grad=lambda: [one.zero_grad() for one in of_torch]
    )
    _steps(theirs, both, 0, 2)  # type: ignore[arg-type]
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(left, right)
