"""Full tuning in bf16: updates rounded at random are those of torchao, reach what fp32 reaches, and resume exactly."""

from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from safetensors import safe_open
from torchao.optim import AdamW8bit
from torchao.optim.adam import single_param_adam
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from stoker.engine import checkpoint, optimizer_factory, rounded
from stoker.engine.writers import Writers
from stoker.estimate import memory, rounding
from stoker.estimate.step import Step
from stoker.facts import shapes
from stoker.rows.order import stream_seed

pytestmark = pytest.mark.filterwarnings("default")

_WORDS = """
model: {model}
data: {{train: rows.jsonl, eval: rows.jsonl, length: 64}}
train: {{batch: 8, steps: 8, epochs: 4, learning_rate: 1e-3, precision: {precision}, weight_decay: 0.1, seed: {seed}}}
save: {{every: 3 steps}}
where: {{micro: 4}}
"""


class Weights(torch.nn.Module):
    """A matrix with 8-bit averages, one whose blocks are not full, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.matrix = torch.nn.Parameter(torch.randn(64, 128).bfloat16())
        self.odd = torch.nn.Parameter(torch.randn(65, 65).bfloat16())
        self.vector = torch.nn.Parameter(torch.randn(64).bfloat16())


def optimizer(model: torch.nn.Module, seed: int = 3, **options: Any) -> rounded.RoundedAdamW:
    rates = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, **options}
    return rounded.over(model, seed=seed, **rates)


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for number in range(first, last):
        torch.manual_seed(number)
        for one in model.parameters():
            one.grad = torch.randn_like(one)
        torch.manual_seed(12345 + len(str(first)))  # another history of the generator changes nothing
        optimizer.step()


def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> checkpoint.TrainingState:
    return checkpoint.TrainingState(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0), None)


def test_a_compiled_update_takes_any_number_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles a function eight times and then gives up, unless it is told not to."""
    update = torch.compile(single_param_adam, fullgraph=True, dynamic=False, backend="eager")
    monkeypatch.setattr(rounded, "_is_compiled", lambda _: True)
    monkeypatch.setattr(rounded, "_adam", lambda compiled: update)
    model = torch.nn.ParameterList([torch.ones(size).bfloat16() for size in range(8, 18)])
    steps(model, optimizer(model), 0, 2)


def test_an_update_is_torchaos(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts as at once, for the same random bits."""
    monkeypatch.setattr(rounded, "ROUNDED_AT_ONCE", 64 * 128)
    ours, theirs = Weights(), Weights()
    own = optimizer(ours)
    other = AdamW8bit([theirs.matrix], lr=1e-3, weight_decay=0.1, bf16_stochastic_round=True)
    for number in range(3):
        gradient = torch.randn(64, 128).bfloat16()
        ours.matrix.grad, theirs.matrix.grad = gradient, gradient.clone()
        own.step()
        torch.manual_seed(stream_seed(3, number, -1))
        with torch.compiler.set_stance("force_eager"):
            other.step()
    assert torch.equal(ours.matrix, theirs.matrix)
    assert torch.equal(own.state[ours.matrix]["exp_avg_sq"], other.state[theirs.matrix]["exp_avg_sq"].codes)


def test_small_updates_are_not_lost() -> None:
    """4,096 weights of 1.0 take 100 steps of 1e-4 down; bf16 has nothing between 1 and 0.99609, so none would move."""
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(64, 64).bfloat16())
    update = optimizer(model, lr=1e-4, weight_decay=0.0)
    for _ in range(100):
        model.weight.grad = torch.ones_like(model.weight)
        update.step()
    assert (torch.ones(1).bfloat16() - 1e-4).item() == 1.0
    assert model.weight.float().mean().item() == pytest.approx(0.99, abs=0.001)


def test_states_resume_bit_for_bit_and_rounding_with_them(tmp_path: Path) -> None:
    whole, resumed = Weights(), Weights()
    first, second = optimizer(whole), optimizer(resumed)
    steps(whole, first, 0, 2)
    checkpoint.save_state(tmp_path, *state(whole, first).gather(Writers().take))
    resumed.load_state_dict({key: value.clone() for key, value in whole.state_dict().items()})
    state(resumed, second).load(tmp_path, 2)
    steps(whole, first, 2, 4)
    steps(resumed, second, 2, 4)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    with safe_open(tmp_path / checkpoint.TENSORS_NAME, framework="pt") as tensors:
        assert tensors.get_tensor("matrix/exp_avg").dtype == torch.uint8
        assert tensors.get_tensor("odd/exp_avg").dtype == torch.float32


def test_another_seed_rounds_otherwise() -> None:
    one, other = Weights(), Weights()
    steps(one, optimizer(one), 0, 1)
    steps(other, optimizer(other, seed=4), 0, 1)
    assert not torch.equal(one.matrix, other.matrix)


def test_the_plan_counts_the_bytes_of_its_states() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 320, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).bfloat16()
    update = optimizer(model)
    steps(model, update, 0, 1)
    shape = shapes.from_config({"model_type": "llama", **sizes, **heads})
    assert shape is not None
    step = Step(shape=shape, micro=2, length=16, weights="bf16", autocast=False, optimizer="adamw_rounded")
    tensors = [one for some in update.state.values() for key, one in some.items() if key != "step"]
    real = sum(one.nbytes for one in tensors)
    assert abs(memory.optimizer_bytes(step) - real) <= 512 * len(tensors), "each tensor rounded up to 512 bytes"
    assert rounding.ROUNDED_AT_ONCE % rounding.STATE_BLOCK == 0


def test_the_trainer_makes_it(tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], optim="adamw_torch_8bit")
    make, options = optimizer_factory.rounding(arguments)
    assert isinstance(make()(Weights(), **options), rounded.RoundedAdamW)


def make(folder: Path, base: Path, precision: str = "bf16", seed: int = 42) -> tiny_run.RunDir:
    rows = tiny_run.random_rows(30, seed=5, longest=64, segments=3)
    return tiny_run.make_run(folder, _WORDS.format(model=base, precision=precision, seed=seed), rows, rows[:4])


def test_a_killed_run_in_bf16_resumes_exactly_and_learns_as_in_fp32(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    whole, killed, wide = make(tmp_path / "a", base), make(tmp_path / "b", base), make(tmp_path / "c", base, "fp32")
    assert tiny_run.train(whole) == 0, (whole.path / "child.log").read_text()[-2000:]
    assert tiny_run.train(killed, kill_after=5) == -9
    assert tiny_run.train(killed) == 0, (killed.path / "child.log").read_text()[-2000:]
    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)
    with safe_open(whole.final / "model.safetensors", framework="pt") as tensors:
        assert {tensors.get_tensor(name).dtype for name in tensors.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert tiny_run.train(wide) == 0
    found, expected = ([float.fromhex(one) for one in tiny_run.losses(run).values()] for run in (whole, wide))
    assert found == pytest.approx(expected, abs=0.005)
    assert found[-1] < found[0] - 0.3
