"""Training state as files: weights in the Hugging Face layout, everything else as safetensors plus a JSON index.

    state.json           optimizer groups and per-parameter entries by *parameter name*, scheduler, scaler, RNG
    state.safetensors    the tensors the index names, as `<parameter>/<field>` and `rng/<generator>`
    trainer_state.json   the Trainer's own record, as it writes it
No pickle is written or read. Names, not positions, so that another strategy or device count can load it.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from stoker.engine import exact, host_copies, parallel
from stoker.engine.weights import ADAPTER_FILE
from stoker.errors import StokerError
from stoker.rundir import files

FORMAT = 1
INDEX_NAME = "state.json"
TENSORS_NAME = "state.safetensors"

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element."""

Tensors = dict[str, torch.Tensor]
Take = Callable[[torch.Tensor], Any]
"""Copies what this rank writes of a tensor: see `kept` and `shares.part`."""
States = dict[torch.Tensor, dict[str, Any]]
"""An optimizer's state by parameter and field."""


@dataclass(frozen=True)
class TrainingState:
    """The training state beside the weights."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: Any

    def gather(self, take: Take) -> tuple[dict[str, Any], dict[str, Any]]:
        """The index, and what is taken of each of its tensors. A collective call where `take` is one."""
        tensors: dict[str, Any] = {}
        index = {
            "format": FORMAT,
            "optimizer": self.gather_optimizer(tensors, take),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler is not None else None,
            "rng": _rng_index(tensors, take),
        }
        return index, tensors

    def load(self, folder: Path, steps: int) -> None:
        """Load optimizer, scheduler, scaler and random state of a checkpoint after so many steps."""
        index = files.read_object(folder / INDEX_NAME)
        try:
            with safe_open(folder / TENSORS_NAME, framework="pt") as tensors:
                self.load_optimizer(index["optimizer"], tensors)
                _load_rng(index["rng"], tensors)
        except SafetensorError as error:
            raise files.unreadable(folder / TENSORS_NAME, error) from error
        if index["scheduler"] is None:  # of a fork: the schedule is its own
            self.scheduler.load_state_dict(schedule_after(self.scheduler, steps))
        else:
            self.scheduler.load_state_dict(index["scheduler"])
        # Not every strategy saves the groups' learning rates; the scheduler's are the same.
        for group, rate in zip(self.optimizer.param_groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
        if self.scaler is not None and index["scaler"] is not None:
            self.scaler.load_state_dict(index["scaler"])

    def gather_optimizer(self, tensors: dict[str, Any], take: Take) -> dict[str, Any]:
        """The optimizer's groups and per-parameter state by parameter name."""
        return _optimizer_index(self.model, self.optimizer, tensors, take)

    def load_optimizer(self, index: dict[str, Any], tensors: Any) -> None:
        """Load what `gather_optimizer` returned; what is loaded must equal it bit for bit."""
        names, states = _names(self.model), {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                entry = index["parameters"].get(names[id(parameter)])
                if entry is not None:
                    states[parameter] = {field: _value(item, tensors, parameter) for field, item in entry.items()}
        self.put(_groups(self.optimizer, index, names), states)
        _require_loaded(self.model, self.optimizer, index, tensors)

    def put(self, groups: list[dict[str, Any]], states: States) -> None:
        """Put groups and states into the optimizer.

        Its own `load_state_dict` places each tensor, but casts states to their parameter's type: that is undone.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        by_position = {number: states[one] for number, one in enumerate(parameters) if one in states}
        self.optimizer.load_state_dict({"state": by_position, "param_groups": groups})
        for parameter, saved in states.items():
            state = self.optimizer.state[parameter]
            for field, placed in state.items():
                if isinstance(saved[field], torch.Tensor) and saved[field].dtype != placed.dtype:
                    state[field] = saved[field].to(placed.device)


def schedule_after(scheduler: Any, steps: int) -> dict[str, Any]:
    """The state of a schedule after so many steps. Each is a function of the step alone, so none has to be taken."""
    rates = [base * factor(steps) for factor, base in zip(scheduler.lr_lambdas, scheduler.base_lrs, strict=True)]
    return {**scheduler.state_dict(), "last_epoch": steps, "_step_count": steps + 1, "_last_lr": rates}


def save_state(folder: Path, index: dict[str, Any], tensors: Tensors) -> None:
    """Write what `TrainingState.gather` returned of whole tensors into `folder`."""
    save_file(tensors, folder / TENSORS_NAME)
    files.write_json(folder / INDEX_NAME, index)


def copied_weights(model: torch.nn.Module, take: Take) -> dict[str, Any]:
    """What is taken of a model's weights; of an adapter, only its own.

    Tied names share one tensor, so that it is written once.
    """
    adapter = hasattr(model, "peft_config")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    taken: dict[int, Any] = {}
    weights: dict[str, Any] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if adapter and name not in trained:
            continue
        if id(tensor) not in taken:
            taken[id(tensor)] = take(tensor)
        weights[name] = taken[id(tensor)]
    return weights


def save_weights(model: Any, folder: Path, weights: Tensors) -> None:
    """Write copied weights or an adapter as transformers and PEFT do: safetensors, training precision.

    What is given stays whole, for a second try after a disk was full: `save_pretrained` empties the dict it gets.
    """
    # PEFT would ask the hub whether the vocabulary grew; an adapter here never owns the embedding.
    options: dict[str, Any] = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(folder, state_dict=dict(weights), **options)


def weights_writer(model: Any, weights: Tensors) -> Callable[[Path], None]:
    """What writes copied weights like `save_weights`, beside a training that goes on.

    PEFT asks copies of whole modules (`modules_to_save`) for their names, and FSDP then takes their weights from under
    the step that uses them. So what is asked of the modules of an adapter is asked here, before the step goes on.
    """
    if not hasattr(model, "peft_config"):
        return lambda folder: save_weights(model, folder, weights)
    stored, config = as_adapter(model, weights), copy.copy(model.peft_config[model.active_adapter])
    config.inference_mode = True  # as PEFT writes it

    def write(folder: Path) -> None:
        model.create_or_update_model_card(str(folder))
        config.save_pretrained(str(folder))
        last = {id(one): name for name, one in stored.items()}  # a file has each tensor by itself
        apart = {name: one if last[id(one)] == name else one.clone() for name, one in stored.items()}
        save_file(apart, folder / ADAPTER_FILE, metadata={"format": "pt"})

    return write


def as_adapter(model: Any, weights: Tensors) -> Tensors:
    """Weights of an adapter by their names in its file."""
    from peft import get_peft_model_state_dict

    found: Tensors = get_peft_model_state_dict(model, state_dict=weights, save_embedding_layers=False)
    return found


def kept(tensor: torch.Tensor, copy: host_copies.Copy, *, keep: bool) -> torch.Tensor:
    """A contiguous copy of a tensor on the host, gathered; empty on a rank that does not write.

    Always a copy: training continues while it is written, and 8-bit optimizers share tensors between parameters.
    """
    complete = parallel.whole(tensor.detach())
    if not keep:
        return complete.new_empty(0)
    return copy(complete)


def _names(model: torch.nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def _optimizer_index(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Any], take: Take
) -> dict[str, Any]:
    names = _names(model)
    groups = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append({"options": options, "parameters": [names[id(p)] for p in group["params"]]})
    parameters = {}
    for parameter, state in optimizer.state.items():
        name = names[id(parameter)]
        entry: dict[str, Any] = {}
        for field, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{name}/{field}"] = take(value)
                entry[field] = {"tensor": f"{name}/{field}"}
            else:
                entry[field] = {"value": value}
        parameters[name] = entry
    return {"groups": groups, "parameters": parameters}


_HOW = ("fused", "foreach", "capturable", "differentiable")
"""How an optimizer computes, which the plan decides for this device; a checkpoint of another device does not."""


def _groups(optimizer: torch.optim.Optimizer, index: dict[str, Any], names: dict[int, str]) -> list[dict[str, Any]]:
    """The optimizer's groups with the saved options, in the form of `load_state_dict`."""
    saved_options = {name: group["options"] for group in index["groups"] for name in group["parameters"]}
    groups: list[dict[str, Any]] = []
    position = 0
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        if group["params"]:
            saved = saved_options.get(names[id(group["params"][0])], {})
            options |= {key: value for key, value in saved.items() if key not in _HOW}
        groups.append({**options, "params": list(range(position, position + len(group["params"])))})
        position += len(group["params"])
    return groups


def _require_loaded(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: dict[str, Any], tensors: Any
) -> None:
    """Refuse states that are not those of the checkpoint: the training would not be the one it says it is.

    Read from the file again, one at a time: no digest is computed, and no second copy of the state is held.
    """
    saved, parameters = index["parameters"], dict(model.named_parameters())
    loaded = {name: optimizer.state[one] for name, one in parameters.items() if one in optimizer.state}
    for name in {**saved, **loaded}:
        before, now = saved.get(name, {}), loaded.get(name, {})
        for field in {**before, **now}:
            there = field in before and field in now
            if not there or not _same(now[field], _value(before[field], tensors, parameters[name])):
                raise unlike(f"{name}/{field}")


def unlike(state: str) -> StokerError:
    """The error of a state that is not loaded as it was saved."""
    return StokerError("STK430", state=state)


def _same(found: Any, saved: Any) -> bool:
    """Whether two values are equal bit for bit; a number may have become a tensor."""
    if not isinstance(saved, torch.Tensor):
        return bool(found == saved)
    one, other = exact.local(found), exact.local(saved)
    return one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the host as integers: every NaN and both zeros are told apart."""
    return tensor.detach().cpu().view(_INTEGERS[tensor.element_size()])


def _value(item: dict[str, Any], tensors: Any, parameter: torch.Tensor) -> Any:
    """A saved value; of a sharded parameter, only this rank's rows are read.

    Copied: else it would stay a view of the file, which rotation deletes.
    """
    if "tensor" not in item:
        return item["value"]
    stored = tensors.get_slice(item["tensor"])
    if not isinstance(parameter, DTensor) or tuple(stored.get_shape()) != parameter.shape:
        return stored[...].clone()
    mesh, placements = parameter.device_mesh, parameter.placements
    sizes, starts = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    part = stored[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
    own = part.to(parameter.device, copy=True, memory_format=torch.contiguous_format)
    return DTensor.from_local(own, mesh, placements, shape=parameter.shape, stride=parameter.stride())


def _rng_index(tensors: dict[str, Any], take: Take) -> dict[str, Any]:
    """States of the random generators, for callbacks that draw between steps; steps seed their own streams."""
    tensors["rng/torch"] = take(torch.get_rng_state())
    kind, keys, position, has_gauss, cached = np.random.get_state()  # other packages use the global generator
    tensors["rng/numpy"] = take(torch.from_numpy(np.asarray(keys).astype(np.int64)))
    if torch.cuda.is_available():
        tensors["rng/cuda"] = take(torch.cuda.get_rng_state())
    version, internal, gauss = random.getstate()
    return {
        "numpy": {"kind": kind, "position": int(position), "has_gauss": int(has_gauss), "cached": float(cached)},
        "python": {"version": version, "internal": list(internal), "gauss": gauss},
    }


def _load_rng(index: dict[str, Any], tensors: Any) -> None:
    torch.set_rng_state(tensors.get_tensor("rng/torch"))
    numpy = index["numpy"]
    keys = tensors.get_tensor("rng/numpy").numpy().astype(np.uint32)
    np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    if torch.cuda.is_available() and "rng/cuda" in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
        torch.cuda.set_rng_state(tensors.get_tensor("rng/cuda"))
    python = index["python"]
    random.setstate((python["version"], tuple(python["internal"]), python["gauss"]))
