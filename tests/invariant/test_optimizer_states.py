"""Optimizer states resume as they were saved: bits, types, and the memory they live in."""

from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import tiny_run
import torch
from safetensors.torch import load_file
from transformers.optimization import Adafactor

from stoker.engine import checkpoint, models, paged
from stoker.engine.writers import Writers
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.rundir import events, files

pytestmark = pytest.mark.filterwarnings("default")


def _text(base: Path, **words: str) -> str:
    sections = {
        "data": "{train: rows.jsonl, length: 64, pack: true}",
        "tune": "{method: lora, rank: 4}",
        "train": "{batch: 8, steps: 8, learning_rate: 1e-3, optimizer: adafactor}",
        "save": "{every: 2 steps, keep: 9}",
        "where": "{micro: 4, precision: bf16}",
        "native": "{lora: {modules_to_save: [lm_head]}}",
    } | words
    return f"model: {base}\n" + "\n".join(f"{key}: {value}" for key, value in sections.items())


def test_a_whole_module_next_to_an_adapter_is_trained_in_fp32_and_resumes_exactly(
    tmp_path: Path, base_model: Path
) -> None:
    """PEFT copies it in the base's type, here bf16."""
    rows = tiny_run.random_rows(61, seed=5, longest=64, segments=3)
    whole = tiny_run.make_run(tmp_path / "whole", _text(base_model), rows, [])
    assert tiny_run.train(whole) == 0, (whole.path / "child.log").read_text()
    killed = tiny_run.make_run(tmp_path / "killed", _text(base_model), rows, [])
    assert tiny_run.train(killed, kill_after=5) == -9
    assert tiny_run.train(killed) == 0, (killed.path / "child.log").read_text()
    attempts = [event for event in events.read(killed.events_file) if event["event"] == "attempt"]
    assert [(one["resumed_step"], one["tier"]) for one in attempts] == [(0, "EXACT"), (4, "EXACT")]
    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)
    trained = load_file(killed.final / "adapter_model.safetensors")
    assert any("lm_head" in name for name in trained)
    assert {tensor.dtype for tensor in trained.values()} == {torch.float32}


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["lm_head", "embed_tokens"])
def test_every_trained_weight_is_fp32_and_the_model_still_computes(
    tmp_path: Path, base_model: Path, name: str, low: torch.dtype
) -> None:
    text = _text(base_model, native=f"{{lora: {{modules_to_save: [{name}]}}}}")
    run_dir = tiny_run.make_run(tmp_path, text, tiny_run.random_rows(9, seed=5, longest=64))
    plan = files.read_record(run_dir.plan_file, Plan)
    plan.native.model["dtype"] = str(low).removeprefix("torch.")  # no CPU is planned with fp16
    model = models.build(run_dir.run(), plan, run_dir.folder())
    types = {trained: {p.dtype for p in model.parameters() if p.requires_grad is trained} for trained in (True, False)}
    assert types == {True: {torch.float32}, False: {low}}
    assert models.divides_by_tokens(model, "sdpa")


def test_states_of_another_type_than_their_parameter_are_loaded_as_they_were(tmp_path: Path) -> None:
    """Adafactor keeps fp32 states of a bf16 parameter; torch casts loaded states to the parameter's type."""
    model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    optimizer = Adafactor(model.parameters(), lr=0.1, relative_step=False)
    _trained(optimizer, model)
    _saved(tmp_path, _state(checkpoint.TrainingState, optimizer, model))
    again = Adafactor(model.parameters(), lr=0.1, relative_step=False)
    _state(checkpoint.TrainingState, again, model).load(tmp_path, 2)
    before, now = ([one.state[p] for p in model.parameters()] for one in (optimizer, again))
    for state, loaded in zip(before, now, strict=True):
        tensors = {field: value for field, value in state.items() if isinstance(value, torch.Tensor)}
        assert torch.float32 in {value.dtype for value in tensors.values()}
        assert all(loaded[field].dtype == value.dtype for field, value in tensors.items())
        assert all(torch.equal(loaded[field], value) for field, value in tensors.items())


def _trained(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    for _ in range(2):
        model(torch.ones(2, model.in_features, dtype=model.weight.dtype)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _state(kind: Any, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> checkpoint.TrainingState:
    return kind(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0), None)


def _saved(folder: Path, state: checkpoint.TrainingState) -> None:
    checkpoint.save_state(folder, *state.gather(Writers().take))


class Rounding(torch.optim.AdamW):
    """Loads moments with half their bits, as an optimizer of another package might."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["exp_avg"] = state["exp_avg"].half().float()


class Forgetful(torch.optim.AdamW):
    """Loads its groups only."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({**state_dict, "state": {}})


@pytest.mark.parametrize("kind", [Rounding, Forgetful])
def test_a_state_that_is_not_loaded_as_it_was_saved_is_refused(tmp_path: Path, kind: Any) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    _trained(optimizer, model)
    _saved(tmp_path, _state(checkpoint.TrainingState, optimizer, model))
    _state(checkpoint.TrainingState, torch.optim.AdamW(model.parameters(), lr=0.1), model).load(tmp_path, 2)
    with pytest.raises(StokerError) as error:
        _state(checkpoint.TrainingState, kind(model.parameters(), lr=0.1), model).load(tmp_path, 2)
    assert error.value.code == "STK430"


class PagedOnTheHost(bitsandbytes.optim.PagedAdamW8bit):
    """Stand-in for paging on a GPU: buffers as upstream makes them there, with a stand-in for `get_paged`."""

    def get_state_buffer(self, p: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if p.numel() < 1e5:
            return torch.zeros_like(p, dtype=dtype)
        buffer = torch.zeros(p.shape, dtype=dtype)
        buffer.is_paged = True
        self.page_mng.paged_tensors.append(buffer)
        return buffer

    def prefetch_state(self, p: torch.Tensor) -> None:
        """Nothing to move."""


def test_paged_states_are_paged_again_after_a_resume_stand_in(tmp_path: Path) -> None:
    """Not run on a GPU: the stand-in has the optimizer's contract, not its memory."""

    def made() -> tuple[torch.nn.Linear, PagedOnTheHost]:
        torch.manual_seed(0)
        model = torch.nn.Linear(400, 300)
        return model, PagedOnTheHost(model.parameters(), lr=0.1)

    def where(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> list[bool]:
        states = [optimizer.state[parameter] for parameter in (model.weight, model.bias)]
        return [hasattr(state[field], "is_paged") for state in states for field in ("state1", "state2")]

    model, optimizer = made()
    _trained(optimizer, model)
    assert where(model, optimizer) == [True, True, False, False]
    _saved(tmp_path, _state(paged.PagedState, optimizer, model))
    again, resumed = made()
    again.load_state_dict(model.state_dict())
    _state(paged.PagedState, resumed, again).load(tmp_path, 2)
    assert where(again, resumed) == [True, True, False, False]
    managed = {id(one) for one in resumed.page_mng.paged_tensors}
    assert all(id(resumed.state[again.weight][field]) in managed for field in ("state1", "state2"))
    _trained(optimizer, model)
    _trained(resumed, again)
    assert torch.equal(model.weight, again.weight)

    other, plain = made()
    _state(checkpoint.TrainingState, plain, other).load(tmp_path, 2)
    assert where(other, plain) == [False] * 4  # the control: bitsandbytes' own way
