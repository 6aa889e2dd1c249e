"""How a trained model is served: engine, tensor-parallel size, memory, length, dtype, each with its reason. Pure.

Sizes are coarse: vLLM measures its own peak when it starts. Decided here is whether the model fits at all, on how many
devices, and the context length.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stoker.errors import StokerError
from stoker.facts.machine import Machine
from stoker.facts.shapes import ModelShape
from stoker.plan.plan import Reason

Engine = Literal["vllm", "transformers"]

_WHY_ENGINE: dict[Engine, str] = {"vllm": "why.serve.vllm", "transformers": "why.serve.transformers"}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_GPU_SHARE = 0.9
_RUNTIME_BYTES = 2 << 30
"""CUDA context, captured graphs and activations of one prefill."""
_CPU_SHARE = 0.8
_ROOM_SEQUENCES = 8
"""Concurrent conversations of the trained length that should fit before another device is used."""
_CPU_SEQUENCES = 4
"""Concurrent conversations of maximum length in main memory, which other programs need too."""
_SMALLEST_CACHE_BYTES = 256 << 20
_BLOCK_TOKENS = 16
_BFLOAT16_CAPABILITY = 8.0
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks vLLM supports; an adapter uses the next larger one."""


class Serving(BaseModel):
    """What will be started, and why."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    engine: Engine
    """Which server."""
    device: Literal["cuda", "mps", "cpu"]
    """The kind of device."""
    tensor_parallel: int
    """Devices that share each layer."""
    gpus: list[int]
    """Their numbers; empty on a CPU."""
    dtype: str
    """Arithmetic, as the model was trained and saved."""
    max_model_len: int
    """Longest conversation in tokens, prompt and answer."""
    weights_bytes: int
    """Weights over all devices."""
    cache_bytes: int
    """Room for keys and values over all devices (estimated on a GPU, where vLLM measures it)."""
    options: dict[str, Any]
    """Options handed to vLLM under its own names, the run file's `native.vllm` on top."""
    reasons: list[Reason]
    """A reason for every choice."""


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter that is served beside its base."""

    rank: int
    """The largest rank of its layers."""
    targets: tuple[str, ...] = ()
    """Names of the adapted layers."""


@dataclass(frozen=True)
class ServingInputs:
    """Everything a serving plan follows from."""

    name: str
    """The run's."""
    shape: ModelShape
    machine: Machine
    engine: Engine
    dtype: str
    """What the model was saved in, or its base was loaded in."""
    length: int
    """The trained length: the minimum context length."""
    adapter: ServedAdapter | None = None
    """Served beside its base."""
    native: dict[str, Any] = field(default_factory=dict)
    """`native.vllm`."""


def make_serving(inputs: ServingInputs) -> Serving:
    """Decide how to serve."""
    dtype, why_dtype = _dtype(inputs)
    weights = inputs.shape.parameters() * _BYTES[dtype]
    parallel, room_tokens, why_parallel = _tensor_parallel(inputs, dtype)
    longest, why_longest = _longest(inputs, room_tokens)
    cache = _cache_bytes(inputs, dtype, parallel, longest)
    options: dict[str, Any] = {
        "tensor_parallel_size": parallel,
        "dtype": dtype,
        "max_model_len": longest,
        "load_format": "safetensors",
        **_memory(inputs, cache),
        **({"enforce_eager": True} if inputs.machine.kind == "cpu" else {}),
        **_adapter(inputs.adapter, inputs.name),
        **inputs.native,
    }
    return Serving(
        engine=inputs.engine,
        device=inputs.machine.kind,
        tensor_parallel=parallel,
        gpus=[device.index for device in inputs.machine.devices[:parallel]] if inputs.machine.kind == "cuda" else [],
        dtype=dtype,
        max_model_len=longest,
        weights_bytes=weights,
        cache_bytes=cache,
        options=options if inputs.engine == "vllm" else {},
        reasons=[
            _reason("engine", _WHY_ENGINE[inputs.engine]),
            why_parallel,
            why_dtype,
            why_longest,
            *_memory_reasons(inputs, cache),
        ],
    )


def cache_bytes_per_token(shape: ModelShape, dtype: str, parallel: int = 1) -> int:
    """KV cache of one token on one of `parallel` devices; heads that cannot be split are replicated."""
    heads = max(1, shape.kv_heads // parallel)
    return 2 * shape.layers * heads * shape.head_dim * _BYTES[dtype]


def parallel_sizes(shape: ModelShape, devices: int) -> list[int]:
    """Tensor-parallel sizes that split every layer evenly."""
    return [
        size
        for size in range(1, devices + 1)
        if shape.heads % size == 0
        and shape.intermediate % size == 0
        and (shape.kv_heads % size == 0 or size % shape.kv_heads == 0)
    ]


def _reason(about: str, key: str, **fields: Any) -> Reason:
    return Reason(about=about, key=key, fields=fields)


def _dtype(inputs: ServingInputs) -> tuple[str, Reason]:
    machine = inputs.machine
    if inputs.dtype == "bfloat16" and machine.kind == "cuda" and machine.compute_capability < _BFLOAT16_CAPABILITY:
        return "float16", _reason("dtype", "why.serve.dtype.old", capability=machine.compute_capability)
    return inputs.dtype, _reason("dtype", "why.serve.dtype", dtype=inputs.dtype)


def _share(inputs: ServingInputs) -> float:
    if inputs.machine.kind == "cuda":
        return float(inputs.native.get("gpu_memory_utilization", _GPU_SHARE))
    return _CPU_SHARE


def _room_bytes(inputs: ServingInputs, dtype: str, parallel: int) -> int:
    """Bytes left for the KV cache on one device."""
    machine = inputs.machine
    there = int(machine.memory_per_device * _share(inputs))
    return there - _own_bytes(machine) - inputs.shape.parameters() * _BYTES[dtype] // parallel


def _own_bytes(machine: Machine) -> int:
    return _RUNTIME_BYTES if machine.kind == "cuda" else 0


def _needed_bytes(inputs: ServingInputs, dtype: str, parallel: int) -> int:
    """Memory one device needs for a single conversation of the trained length."""
    weights = inputs.shape.parameters() * _BYTES[dtype] // parallel
    return _own_bytes(inputs.machine) + weights + inputs.length * cache_bytes_per_token(inputs.shape, dtype, parallel)


def _tensor_parallel(inputs: ServingInputs, dtype: str) -> tuple[int, int, Reason]:
    """The smallest number of devices with enough memory, and the tokens that fit there."""
    sizes = parallel_sizes(inputs.shape, max(1, len(inputs.machine.devices)))
    room = {
        size: _room_bytes(inputs, dtype, size) // cache_bytes_per_token(inputs.shape, dtype, size) for size in sizes
    }
    enough = [size for size in sizes if room[size] >= _ROOM_SEQUENCES * inputs.length]
    chosen = enough[0] if enough else max(sizes, key=lambda size: room[size])
    if room[chosen] < inputs.length:
        raise StokerError(
            "STK624",
            needed=f"{_needed_bytes(inputs, dtype, chosen) / 2**30:.1f}",
            available=f"{inputs.machine.memory_per_device * _share(inputs) / 2**30:.1f}",
            card=inputs.machine.name,
        )
    if len(inputs.machine.devices) <= 1:
        why = _reason("tensor_parallel", "why.serve.parallel.one")
    else:
        key = "why.serve.parallel.fits" if enough else "why.serve.parallel.most"
        why = _reason("tensor_parallel", key, size=chosen, devices=len(inputs.machine.devices))
    return chosen, room[chosen], why


def _longest(inputs: ServingInputs, room_tokens: int) -> tuple[int, Reason]:
    stated = inputs.native.get("max_model_len")
    if isinstance(stated, int) and stated > 0:
        return stated, _reason("max_model_len", "why.asked", word="native.vllm.max_model_len")
    context = inputs.shape.context or inputs.length
    if context <= room_tokens:
        return context, _reason("max_model_len", "why.serve.length.context", tokens=context)
    tokens = room_tokens // _BLOCK_TOKENS * _BLOCK_TOKENS
    return tokens, _reason("max_model_len", "why.serve.length.memory", tokens=tokens, context=context)


def _cache_bytes(inputs: ServingInputs, dtype: str, parallel: int, longest: int) -> int:
    """On a GPU all that is left; in main memory, which other programs need too, enough for some conversations."""
    room = _room_bytes(inputs, dtype, parallel)
    if inputs.machine.kind == "cuda":
        return room * parallel
    wanted = _CPU_SEQUENCES * longest * cache_bytes_per_token(inputs.shape, dtype)
    return min(room, max(wanted, _SMALLEST_CACHE_BYTES))


def _memory(inputs: ServingInputs, cache: int) -> dict[str, Any]:
    return {"gpu_memory_utilization": _GPU_SHARE} if inputs.machine.kind == "cuda" else {"kv_cache_memory_bytes": cache}


def _memory_reasons(inputs: ServingInputs, cache: int) -> list[Reason]:
    if inputs.engine != "vllm":
        return []
    word = "gpu_memory_utilization" if inputs.machine.kind == "cuda" else "kv_cache_memory_bytes"
    if word in inputs.native:
        return [_reason("memory", "why.asked", word=f"native.vllm.{word}")]
    if inputs.machine.kind == "cuda":
        return [_reason("memory", "why.serve.memory.cuda", share=f"{_GPU_SHARE:.0%}")]
    return [_reason("memory", "why.serve.memory.cpu", mib=cache >> 20), _reason("enforce_eager", "why.serve.eager")]


def _adapter(adapter: ServedAdapter | None, name: str) -> dict[str, Any]:
    if adapter is None:
        return {}
    room = next((size for size in _RANKS if size >= adapter.rank), None)
    if room is None:
        raise StokerError("STK625", option=f"tune.rank: {adapter.rank}", name=name)
    # Only layers it has: with the output layer among them, vLLM 0.32 crashes on a request for prompt log-probabilities.
    targets = {"lora_target_modules": list(adapter.targets)} if adapter.targets else {}
    return {"enable_lora": True, "max_lora_rank": room, **targets}
