"""Compares the weights of a folder with the trained model, tensor by tensor, and finds the cause of differences.

Expected is the base's weight plus PEFT's delta, in fp32, in the layout of the files. Memory: the trained model and one
or two tensors, or the experts of a layer.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors import safe_open

from stoker.engine import models
from stoker.engine.conversion import Conversion, Group
from stoker.rundir import safetensors_headers
from stoker.rundir.safetensors_headers import HeaderEntry

_FP32 = torch.finfo(torch.float32).eps
_SUM_ROUNDINGS = 64
"""fp32 roundings allowed for a delta, a sum over the adapter's rank."""

Tensor = torch.Tensor


@dataclass(frozen=True)
class Expected:
    """The expected value of a tensor: the base's part and, if adapted, the delta."""

    dtype: str
    """The safetensors name."""
    base: Callable[[], Tensor]
    delta: Callable[[], Tensor] | None = None

    def parts(self) -> tuple[Tensor, Tensor]:
        """Both in fp32; the delta is zero if there is none."""
        base = self.base().detach().float().cpu()
        return base, torch.zeros_like(base) if self.delta is None else self.delta().detach().float().cpu()


@dataclass(frozen=True)
class Difference:
    """A tensor that is not as expected."""

    name: str
    excess: float
    """Largest difference, as a multiple of the rounding tolerance."""
    elements: int
    touched: bool
    cause: str
    factor: float = 1.0
    """Factor of the delta, if the cause is its scale."""
    other: str = ""
    """The other tensor, if two are swapped."""


def compare(model: Any, folder: Path, dtype: str) -> dict[str, Any]:
    """Compare the tensors of a folder with the trained model's; returns `Observation.weights`."""
    entries = safetensors_headers.read(folder)
    wanted = _as_stored(model, expected(model, dtype), entries)
    names = list(wanted)
    figures: dict[str, Any] = {"compared": len(names), "of": len(entries), "worst": None, "excess": 0.0}
    if not names:
        return {**figures, "cause": "shape", "worst": next(iter(entries), None)}
    odd = sorted(name for name in names if entries[name].dtype != wanted[name].dtype)
    if odd:
        return {**figures, "worst": odd[0], "cause": "dtype"}
    differences = []
    for name in names:
        excess, difference = _compare(name, entries, wanted)
        if excess > figures["excess"]:
            figures |= {"worst": name, "excess": excess}
        differences += [difference] if difference else []
    return {**figures, **_overall(differences, wanted, entries)}


# ---- expected


def expected(model: Any, dtype: str) -> dict[str, Expected]:
    """Expected tensors by their name in a model without adapter; unsupported ones are left out."""
    inner = models.without_adapter(model)
    modules = dict(inner.named_modules())
    found: dict[str, Expected] = {}
    for name, parameter in inner.named_parameters(remove_duplicate=False):
        path, field = _place(name)
        plain, adapted, _ = path.partition(".base_layer")
        if ".lora_" in name or _is_transposed(modules[path]):
            continue
        if adapted and _is_plain_lora(modules[plain]):
            found[f"{plain}.{field}"] = Expected(
                _stored(parameter, dtype), _whole(parameter), _delta(modules[plain], field)
            )
        elif ".modules_to_save." in name:
            outer, _, rest = name.partition(".modules_to_save.")
            found[f"{outer}.{rest.partition('.')[2]}"] = Expected(safetensors_headers.DTYPES[dtype], _whole(parameter))
        elif not any(word in name for word in (".base_layer.", ".original_module.", ".token_adapter.")):
            found[f"{path}.{field}" if path else field] = Expected(_stored(parameter, dtype), _whole(parameter))
    for name, buffer in inner.named_buffers():  # such as the corrections of a router
        if buffer.is_floating_point():
            found[name] = Expected(_stored(buffer, dtype), _whole(buffer))
    return found


def _place(name: str) -> tuple[str, str]:
    """A parameter's module and its name there; of experts in 4 bits, the name they are read by."""
    path, _, field = name.rpartition(".")
    owner, packed, read_by = path.partition(".parametrizations.")
    return (owner, read_by) if packed else (path, field)


def _as_stored(model: Any, wanted: dict[str, Expected], entries: dict[str, HeaderEntry]) -> dict[str, Expected]:
    """Expected tensors by their names in the files, where a layer's experts may be a tensor each."""
    config = models.without_adapter(model).config
    with torch.device("meta"):
        plain = models.auto_class(config).from_config(config)
    shapes = {name: tuple(entry.shape) for name, entry in entries.items()}
    conversion = Conversion(shapes, plain)
    converted = _Converted(conversion, wanted)
    found: dict[str, Expected] = {}
    for name, group in conversion.of_stored.items():
        if group.converter is None and group.first in wanted:
            found[name] = wanted[group.first]
        elif group.converter is not None and wanted.keys() >= set(group.parameters):
            found[name] = converted.expected(group, name)
    return found


class _Converted:
    """Expected tensors of groups that are converted, the last group's in memory: names come group by group."""

    def __init__(self, conversion: Conversion, wanted: dict[str, Expected]) -> None:
        self._conversion = conversion
        self._wanted = wanted
        self._last = ""
        self._base: dict[str, Tensor] = {}
        self._delta: dict[str, Tensor] = {}

    def expected(self, group: Group, name: str) -> Expected:
        """A stored tensor of a group."""
        of = [self._wanted[parameter] for parameter in group.parameters]
        adapted = any(one.delta for one in of)
        return Expected(
            of[0].dtype, lambda: self._open(group)[0][name], (lambda: self._open(group)[1][name]) if adapted else None
        )

    def _open(self, group: Group) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Converting back only moves numbers, so base and delta are converted one by one."""
        if self._last != group.first:
            parts = {name: self._wanted[name].parts() for name in group.parameters}
            self._base = self._conversion.to_stored(group, {name: base for name, (base, _) in parts.items()})
            self._delta = self._conversion.to_stored(group, {name: delta for name, (_, delta) in parts.items()})
            self._last = group.first
        return self._base, self._delta


def _stored(parameter: Any, dtype: str) -> str:
    """The dtype a tensor is stored in; of 4-bit ones, dequantised, the model's."""
    own = str(parameter.dtype).removeprefix("torch.")
    return safetensors_headers.DTYPES.get(own, safetensors_headers.DTYPES[dtype])


def _is_transposed(module: Any) -> bool:
    """Whether 4-bit weights are transposed relative to the files, as GPT-2's are."""
    return getattr(getattr(module, "source_cls", None), "__name__", "") == "Conv1D"


def _is_plain_lora(layer: Any) -> bool:
    """Whether the weight changes by PEFT's delta only: DoRA also scales the base, and a bias may be trained."""
    more = (getattr(layer, name, {}) for name in ("use_dora", "lora_bias"))
    return hasattr(layer, "get_delta_weight") and not any(any(by_adapter.values()) for by_adapter in more)


def _delta(layer: Any, field: str) -> Callable[[], Tensor] | None:
    """What the adapter adds to a parameter of a layer; each of several adapted ones has a nested layer of its own."""
    while hasattr(layer, "parameter_name") and layer.parameter_name != field:
        layer = layer.base_layer
    if not hasattr(layer, "get_delta_weight") or (not hasattr(layer, "parameter_name") and field != "weight"):
        return None

    def total() -> Tensor:
        return sum(layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)

    return total


def _whole(parameter: Any) -> Callable[[], Tensor]:
    """The weight as training used it: 4-bit ones are dequantised."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return lambda: parameter

    def unpacked() -> Tensor:
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(parameter.data, state)

    return unpacked


# ---- one tensor


def _compare(
    name: str, entries: dict[str, HeaderEntry], wanted: dict[str, Expected]
) -> tuple[float, Difference | None]:
    """A tensor's difference as a multiple of the rounding tolerance; and the cause if it exceeds it."""
    got = _read(entries[name], name)
    base, delta = wanted[name].parts()
    touched = wanted[name].delta is not None
    if got.shape != base.shape:
        return torch.inf, Difference(name, torch.inf, got.numel(), touched, "shape")
    stored = got.dtype
    got = got.float()
    excess = _excess(got, base, delta, torch.finfo(stored).eps)
    if excess <= 1:
        return excess, None
    cause, factor = _cause(got, base, delta, stored) if touched else ("tensor", 1.0)
    return excess, Difference(name, excess, got.numel(), touched, cause, factor)


def _excess(got: Tensor, base: Tensor, delta: Tensor, unit: float) -> float:
    allowed = unit * (base.abs() + delta.abs()) + _SUM_ROUNDINGS * _FP32 * delta.abs().max() + 1e-30
    return ((got - base - delta).abs() / allowed).max().item()


def _cause(got: Tensor, base: Tensor, delta: Tensor, stored: torch.dtype) -> tuple[str, float]:
    """Computed in a shorter dtype, or with another scale; else another tensor."""
    for shorter in (torch.float16, torch.bfloat16):
        unit = torch.finfo(shorter).eps
        if unit > torch.finfo(stored).eps and _excess(got, base, delta, unit) <= 1:
            return "dtype", 1.0
    factor = ((got - base) * delta).sum().item() / max(delta.square().sum().item(), 1e-30)
    if _excess(got, base, factor * delta, 2 * torch.finfo(stored).eps) <= 1:
        return "scale", factor
    return "tensor", 1.0


def _read(entry: HeaderEntry, name: str) -> Tensor:
    with safe_open(entry.file, framework="pt") as file:
        return file.get_tensor(name)


# ---- all of them


def _overall(
    differences: list[Difference], wanted: dict[str, Expected], entries: dict[str, HeaderEntry]
) -> dict[str, Any]:
    """The cause that explains most differences, and the worst tensor."""
    if not differences:
        return {}
    untouched = {name for name, one in wanted.items() if one.delta is None and name in entries}
    size = sum(_elements(entries[name]) for name in untouched)
    changed = sum(difference.elements for difference in differences if not difference.touched)
    if changed > size / 2:
        return _shown("base", differences)
    swapped = _swapped(differences, wanted, entries)
    if swapped:
        return _shown("swapped", [swapped])
    cause, _ = Counter(difference.cause for difference in differences).most_common(1)[0]
    return _shown(cause, [difference for difference in differences if difference.cause == cause])


def _shown(cause: str, differences: list[Difference]) -> dict[str, Any]:
    worst = max(differences, key=lambda difference: difference.excess)
    factor = median(difference.factor for difference in differences)
    return {"cause": cause, "worst": worst.name, "factor": factor, "other": worst.other}


def _elements(entry: HeaderEntry) -> int:
    return torch.Size(entry.shape).numel()


def _swapped(
    differences: list[Difference], wanted: dict[str, Expected], entries: dict[str, HeaderEntry]
) -> Difference | None:
    """A tensor that equals the expected value of another one."""
    for difference in differences:
        if difference.cause != "tensor":
            continue
        got = _read(entries[difference.name], difference.name)
        for other, one in wanted.items():
            if other == difference.name or other not in entries or entries[other].shape != tuple(got.shape):
                continue
            if _excess(got.float(), *one.parts(), torch.finfo(got.dtype).eps) <= 1:
                return Difference(**{**vars(difference), "other": other})
    return None
