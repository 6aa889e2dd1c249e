"""Training state as files: weights in the Hugging Face layout, everything else as safetensors plus a JSON index.

    state.json           optimizer groups and per-parameter entries by *parameter name*, scheduler, scaler, RNG
    state.safetensors    the tensors the index names, as `<parameter>/<field>` and `rng/<generator>`
    trainer_state.json   the Trainer's own record, as it writes it
No pickle is written or read. Names, not positions, so that another strategy or device count can load it.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from stoker.rundir import files

FORMAT = 1
INDEX_NAME = "state.json"
TENSORS_NAME = "state.safetensors"

Tensors = dict[str, torch.Tensor]


def save_state(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, scaler: Any
) -> None:
    """Write optimizer, scheduler, scaler and random state into `folder`."""
    tensors: Tensors = {}
    index = {
        "format": FORMAT,
        "optimizer": _optimizer_index(model, optimizer, tensors),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
        "rng": _rng_index(tensors),
    }
    save_file(_unshared(tensors), folder / TENSORS_NAME)
    files.write_json(folder / INDEX_NAME, index)


def load_state(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, scaler: Any
) -> None:
    """Put optimizer, scheduler, scaler and random state back."""
    index = files.read_json(folder / INDEX_NAME)
    with safe_open(folder / TENSORS_NAME, framework="pt") as tensors:
        _load_optimizer(model, optimizer, index["optimizer"], tensors)
        _load_rng(index["rng"], tensors)
    scheduler.load_state_dict(index["scheduler"])
    if scaler is not None and index["scaler"] is not None:
        scaler.load_state_dict(index["scaler"])


def _unshared(tensors: Tensors) -> Tensors:
    """Contiguous tensors with storage of their own: 8-bit optimizers share their code books between parameters."""
    seen: set[int] = set()
    out: Tensors = {}
    for name, tensor in tensors.items():
        shared = tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        out[name] = tensor.clone() if shared else tensor.contiguous()
    return out


def _names(model: torch.nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def _optimizer_index(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> dict[str, Any]:
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
                tensors[f"{name}/{field}"] = value.detach().cpu()
                entry[field] = {"tensor": f"{name}/{field}"}
            else:
                entry[field] = {"value": value}
        parameters[name] = entry
    return {"groups": groups, "parameters": parameters}


def _load_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: dict[str, Any], tensors: Any
) -> None:
    """Fill the optimizer through its own `load_state_dict`, so that it places each tensor as it wants."""
    names = _names(model)
    saved_options = {name: group["options"] for group in index["groups"] for name in group["parameters"]}
    state: dict[int, dict[str, Any]] = {}
    groups = []
    position = 0
    for group in optimizer.param_groups:
        first = position
        for parameter in group["params"]:
            entry = index["parameters"].get(names[id(parameter)])
            if entry is not None:
                state[position] = {field: _value(item, tensors) for field, item in entry.items()}
            position += 1
        options = {key: value for key, value in group.items() if key != "params"}
        if group["params"]:
            options |= saved_options[names[id(group["params"][0])]]
        groups.append({**options, "params": list(range(first, position))})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _value(item: dict[str, Any], tensors: Any) -> Any:
    return tensors.get_tensor(item["tensor"]) if "tensor" in item else item["value"]


def _rng_index(tensors: Tensors) -> dict[str, Any]:
    """The generators' states. Steps key their own streams; these serve callbacks that draw between steps."""
    tensors["rng/torch"] = torch.get_rng_state()
    kind, keys, position, has_gauss, cached = np.random.get_state()  # the global one is what others use
    tensors["rng/numpy"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
    if torch.cuda.is_available():
        tensors["rng/cuda"] = torch.cuda.get_rng_state()
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
