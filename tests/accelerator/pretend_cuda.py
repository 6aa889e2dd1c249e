"""A pretended CUDA: what is placed on a card stays on the CPU, and `torch.cuda` answers for the cards a test names.

Only for a process of its own, which ends with its training: nothing is undone. It finds faults of placement, types,
the loss scale, the environment, the launcher and the supervisor; not of kernels or speed.
"""

import importlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bitsandbytes  # noqa: F401  # as on a CPU: its library for cards is not here
import torch
import torch.distributed as dist
from accelerate import Accelerator
from counted_waits import Waits, Watched
from separate_places import Place, Places, common, tensors_of
from torch.amp import autocast_mode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from transformers import Trainer

from stoker.engine.callbacks import Schedule
from stoker.engine.dataset import StepItem
from stoker.engine.trainer import ExactSteps

KINDS = ("cuda", "mps")
_CPU = torch.device("cpu")
_ABOUT_DEVICES = {torch.device, torch._C._nn._parse_to}
"""Functions that place nothing: a card's name is all that is left of it."""
_BACKWARD = {"gradient": "grad_tensors"}
"""Names of `Tensor.backward` in the function behind it."""
_CUDA_VERSION, _DRIVER, _NCCL = "12.8", 12080, (2, 27, 5)
_GROWTH_INTERVAL = 3
"""Good steps after which a first scale of the test's own is doubled: soon enough for a short run."""
BACKOFF = 0.25
"""Of such a scale after a bad step: the Trainer's own takes twice as many steps to find a good one."""
_BF16_CAPABILITY = (8, 0)
_NO_MEMORY = {
    "cuda": (
        torch.OutOfMemoryError,
        "CUDA out of memory. Tried to allocate {size:.2f} MiB. GPU 0 has a total capacity of {total:.2f} GiB of which "
        "1.00 MiB is free. Including non-PyTorch memory, this process has {total:.2f} GiB memory in use.",
    ),
    "mps": (
        RuntimeError,
        "MPS backend out of memory (MPS allocated: {total:.2f} GiB, other allocations: 1.00 MiB, max allowed: "
        "{total:.2f} GiB). Tried to allocate {size:.2f} MiB on private pool.",
    ),
}
"""As torch 2.13 begins the sentence."""


@dataclass(frozen=True)
class Pretended:
    """What this process is to believe, from the variables that `pretended_devices` sets."""

    kind: str
    """`cuda` or `mps`."""
    name: str
    capability: tuple[int, int]
    count: int
    memory_bytes: int
    first_scale: float | None
    """Of the loss; None leaves the Trainer's."""
    largest_tokens: int | None
    """Tokens of a micro batch, padding included, for which there is memory."""
    memory_ends_after: int
    """Steps of this process for which there is memory for any number of tokens."""
    fault: str
    """A fault that is planted, to see that it is found."""
    notes: Path | None
    """Where to write down what was computed."""
    counts_waits: bool
    """Whether to write down what waited for the card: every operator is looked at."""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "Pretended":
        """Read the variables."""

        def number(name: str) -> float | None:
            return float(variables[name]) if variables.get(name) else None

        capability = variables["PRETENDED_CAPABILITY"] or "0.0"
        largest = number("PRETENDED_LARGEST_TOKENS")
        notes = variables.get("PRETENDED_NOTES")
        return cls(
            kind=variables["PRETENDED_KIND"],
            name=variables["PRETENDED_CARD"],
            capability=(int(capability[:-2]), int(capability[-1])),
            count=_visible(variables, int(variables["PRETENDED_COUNT"])),
            memory_bytes=int(variables["PRETENDED_MEMORY_MIB"]) << 20,
            first_scale=number("PRETENDED_FIRST_SCALE"),
            largest_tokens=int(largest) if largest else None,
            memory_ends_after=int(number("PRETENDED_MEMORY_ENDS_AFTER") or 0),
            fault=variables.get("PRETENDED_FAULT", ""),
            notes=Path(notes) if notes else None,
            counts_waits=bool(variables.get("PRETENDED_COUNTS_WAITS")),
        )


def _visible(variables: Mapping[str, str], count: int) -> int:
    """How many of the cards CUDA_VISIBLE_DEVICES leaves."""
    setting = variables.get("CUDA_VISIBLE_DEVICES")
    return count if setting is None else len([word for word in setting.split(",") if word.strip()])


def install(pretended: Pretended) -> None:
    """Make this process believe in its cards."""
    _forget_answers()
    if pretended.kind == "cuda":
        _answer_for_cuda(pretended)
        _answer_for_memory(pretended)
        _answer_for_random_state(pretended.count)
        torch.cuda.Event = _Moment
    else:
        _answer_for_mps(pretended)
    _answer_for_the_accelerator(pretended)
    _compute_on_the_cpu(pretended)
    _send_by_gloo()
    if pretended.first_scale is not None:
        _begin_scaling_at(pretended.first_scale)
    _plant(pretended.fault)


# ---- answers


def _forget_answers() -> None:
    """A forked process may have asked already whether there is a card."""
    for name in ("transformers.utils.import_utils", "accelerate.utils.imports"):
        for function in vars(importlib.import_module(name)).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()


def _answer_for_cuda(pretended: Pretended) -> None:
    major, minor = pretended.capability
    properties = SimpleNamespace(
        name=pretended.name,
        major=major,
        minor=minor,
        total_memory=pretended.memory_bytes,
        multi_processor_count=64,
        warp_size=32,
    )
    _set(
        torch.cuda,
        is_available=True,
        is_initialized=True,
        init=None,
        _lazy_init=None,
        device_count=pretended.count,
        current_device=0,
        set_device=None,
        get_device_name=pretended.name,
        get_device_capability=pretended.capability,
        get_device_properties=properties,
        is_bf16_supported=pretended.capability >= _BF16_CAPABILITY,
        synchronize=None,
        empty_cache=None,
    )
    _set(torch._C, _cuda_getDriverVersion=_DRIVER, _cuda_getCurrentRawStream=0)
    _set(torch.cuda.nccl, version=_NCCL)
    torch.version.cuda = _CUDA_VERSION


def _answer_for_mps(pretended: Pretended) -> None:
    before = _resident("VmRSS")
    _set(torch.backends.mps, is_available=True, is_built=True)
    _set(torch.mps, device_count=1, synchronize=None, empty_cache=None, manual_seed=None)
    _set(torch.mps, recommended_max_memory=pretended.memory_bytes)
    for name in ("current_allocated_memory", "driver_allocated_memory"):
        setattr(torch.mps, name, lambda: max(0, _resident("VmRSS") - before))


def _answer_for_the_accelerator(pretended: Pretended) -> None:
    stream = SimpleNamespace(is_capturing=lambda: False, synchronize=lambda: None)
    _set(
        torch.accelerator,
        is_available=True,
        current_accelerator=torch.device(pretended.kind),
        device_count=pretended.count,
        current_device_index=0,
        set_device_index=None,
        current_stream=stream,
        synchronize=None,
    )


def _set(module: Any, **answers: Any) -> None:
    """Functions that give these answers, whatever they are asked with."""
    for name, answer in answers.items():
        setattr(module, name, lambda *_, answer=answer, **__: answer)


def _answer_for_memory(pretended: Pretended) -> None:
    """What this process has taken since now stands for what it has taken of the card."""
    before = _resident("VmRSS")

    def used(word: str) -> int:
        return max(0, _resident(word) - before)

    for name in ("memory_allocated", "memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: used("VmRSS"))
    for name in ("max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: used("VmHWM"))
    torch.cuda.mem_get_info = lambda *_, **__: (pretended.memory_bytes - used("VmRSS"), pretended.memory_bytes)
    torch.cuda.reset_peak_memory_stats = lambda *_, **__: Path("/proc/self/clear_refs").write_text("5")


def _resident(word: str) -> int:
    """Bytes of this process in main memory: now (`VmRSS`) or at most (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{word}:"))


def _answer_for_random_state(count: int) -> None:
    """A generator for each card, which a checkpoint must keep; dropout itself draws from the CPU's."""
    own = [torch.Generator() for _ in range(count)]

    def number(device: Any = None) -> int:
        return (torch.device(device).index or 0) if isinstance(device, str | torch.device) else device or 0

    def seed_all(seed: int) -> None:
        for generator in own:
            generator.manual_seed(seed)

    torch.cuda.manual_seed_all = torch.cuda.manual_seed = seed_all
    torch.cuda.get_rng_state = lambda device=None: own[number(device)].get_state()
    torch.cuda.set_rng_state = lambda state, device=None: own[number(device)].set_state(state)
    torch.cuda.get_rng_state_all = lambda: [generator.get_state() for generator in own]


class _Moment:
    """An event of a stream that is always done."""

    def __init__(self, **_: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: "_Moment") -> float:
        return (later._at - self._at) * 1000


# ---- placement


class _OnTheCpu(TorchFunctionMode):
    """Every operation of a thread, with the CPU wherever a card is named."""

    def __init__(self, kind: str, memory: "_Memory", types: "_Types", places: Places, waits: Waits | None) -> None:
        super().__init__()
        self._kind = kind
        self._memory = memory
        self._types = types
        self._places = places
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, options = _named(self._kind, func, args, kwargs or {})
        if func in _ABOUT_DEVICES:
            return func(*args, **options)
        if func is torch.Tensor.backward:
            options = {_BACKWARD.get(name, name): value for name, value in options.items()}
            with self:  # a mode is off while it answers, and blocks are computed again in there
                return torch.autograd.backward(*args, **options)
        if func is torch.Tensor.pin_memory:
            return self._places.pinned(self._places.put(args[0].clone(), "host"))
        if func is torch.Tensor.is_pinned:
            return self._places.is_pinned(args[0])
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]  # a property of C
            return self._places.is_cuda(args[0])
        given = [*tensors_of(args), *tensors_of(options.values())]
        where = [self._places.of(tensor) for tensor in given]
        self._places.require_one(func, given, where)
        self._memory.require(func, args, options)
        if func is torch.Tensor.cuda:
            return self._places.put(args[0], "card", moved=True)
        asked = _asked_place(func, (*args, *options.values()))
        if self._waits is not None:
            self._waits.called(func, args, options, asked)
        placed = {name: _placed(value) for name, value in options.items() if name != "pin_memory"}
        result = func(*map(_placed, args), **placed)
        self._types.note(func, result)
        if options.get("pin_memory"):
            return self._places.pinned(self._places.put(result, "host"))
        if func is torch.Tensor.copy_:
            return result
        return self._places.put(result, asked or common(where), moved=bool(asked and given))


def _named(kind: str, func: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments in which a card that is meant by its number alone has its kind too."""
    if func is torch.device and args and isinstance(args[0], int):
        return (kind, *args), options
    if isinstance(options.get("device"), int):
        return args, {**options, "device": torch.device(kind, options["device"])}
    return args, options


def _asked_place(func: Any, values: Any) -> Place | None:
    """The place that a device among the arguments names; "cpu" as a device may be that of a tensor on a card."""
    if func is torch.Tensor.cpu:
        return "host"
    for value in values:
        if isinstance(value, torch.device) and value.type != "meta":
            return "card" if value.type in KINDS else "unknown"
        if isinstance(value, str) and value.partition(":")[0] in (*KINDS, "cpu"):
            return "host" if value.startswith("cpu") else "card"
    return None


def _placed(value: Any) -> Any:
    """A device on a card becomes the CPU; all else stays."""
    if isinstance(value, torch.device):
        return _CPU if value.type in KINDS else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] in KINDS else value


def _compute_on_the_cpu(pretended: Pretended) -> None:
    places = Places(pretended.kind)
    waits = Waits(pretended.notes, places) if pretended.counts_waits and pretended.notes else None
    own = pretended.kind, _Memory(pretended), _Types(pretended.notes), places, waits
    _OnTheCpu(*own).__enter__()
    if waits is not None:
        Watched(waits, places).__enter__()
    plain_run, plain_autocast = threading.Thread.run, autocast_mode.autocast.__init__
    plain_mesh, plain_ddp = DeviceMesh.__init__, DistributedDataParallel.__init__
    plain_gathered = FSDPParam.init_unsharded_param

    def run(thread: threading.Thread) -> None:
        with _OnTheCpu(*own):  # a mode is a thread's own
            plain_run(thread)

    def autocast(self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
        plain_autocast(self, _placed(device_type), *arguments, **options)

    def mesh(self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
        plain_mesh(self, _placed(device_type), *arguments, **options)

    def ddp(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **options: Any) -> None:
        plain_ddp(self, module, **options)

    def gathered(self: Any) -> None:
        plain_gathered(self)
        places.put(self._unsharded_param, "card")

    threading.Thread.run = run
    FSDPParam.init_unsharded_param = gathered
    autocast_mode.autocast.__init__ = autocast
    DeviceMesh.__init__ = mesh
    DistributedDataParallel.__init__ = ddp


def _send_by_gloo() -> None:
    plain = dist.init_process_group

    def init_process_group(backend: str, **options: Any) -> None:
        plain("gloo", **options)

    dist.init_process_group = init_process_group


# ---- memory that ends


class _Memory:
    """Memory for so many tokens at once; more of them, and the embedding of a micro batch finds none."""

    def __init__(self, pretended: Pretended) -> None:
        self._kind = pretended.kind
        self._total = pretended.memory_bytes
        self._largest = pretended.largest_tokens
        self._ends_after = pretended.memory_ends_after
        self._steps = 0
        plain = Schedule.on_step_end

        def on_step_end(*arguments: Any, **options: Any) -> Any:
            self._steps += 1  # an optimizer may be two, and one in fp16 makes no step where gradients are not finite
            return plain(*arguments, **options)

        Schedule.on_step_end = on_step_end

    def require(self, func: Any, args: Any, options: Any) -> None:
        """Refuse what a card of this size would."""
        if func is torch.empty and args and isinstance(args[0], int) and args[0] > self._total:
            raise self._error(args[0])
        if func is torch.nn.functional.embedding and self._largest and self._steps >= self._ends_after:
            ids = args[0] if args else options["input"]
            if ids.numel() > self._largest:
                raise self._error(ids.numel() << 20)

    def _error(self, size: int) -> Exception:
        kind, words = _NO_MEMORY[self._kind]
        return kind(words.format(size=size / 2**20, total=self._total / 2**30))


# ---- types


class _Types:
    """How many products of matrices were computed for gradients in each type, written down after every step."""

    def __init__(self, notes: Path | None) -> None:
        self._found: dict[str, int] = {}
        self._notes = notes
        if notes is not None:
            register_optimizer_step_post_hook(self._write)

    def note(self, func: Any, result: Any) -> None:
        """Count a product."""
        if func is torch.nn.functional.linear and torch.is_grad_enabled():
            name = str(result.dtype).removeprefix("torch.")
            self._found[name] = self._found.get(name, 0) + 1

    def _write(self, *_: Any) -> None:
        assert self._notes is not None
        words = "".join(f"{name} {count}\n" for name, count in sorted(self._found.items()))
        self._notes.with_suffix(f".{os.getpid()}").write_text(words, encoding="utf-8")


# ---- the scaler, and planted faults


def _begin_scaling_at(first_scale: float) -> None:
    plain = torch.amp.GradScaler.__init__

    def scaler(self: Any, device: str = "cuda", **options: Any) -> None:
        own = {"init_scale": first_scale, "growth_interval": _GROWTH_INTERVAL, "backoff_factor": BACKOFF}
        plain(self, device, **{**options, **own})

    torch.amp.GradScaler.__init__ = scaler


def _plant(fault: str) -> None:
    """Plant the fault that a test names."""
    if fault:
        {
            "lost scaler": _lose_the_scaler,
            "wrong type": _compute_in_another_type,
            "host tensor": _leave_rows_on_the_host,
            "wrong device": _leave_weights_on_the_host,
            "number read": _read_each_loss,
        }[fault]()


def _lose_the_scaler() -> None:
    torch.amp.GradScaler.load_state_dict = lambda *_: None


def _compute_in_another_type() -> None:
    plain = autocast_mode.autocast.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, **options: Any) -> None:
        other = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}.get(dtype, dtype)
        plain(self, device_type, other, **options)

    autocast_mode.autocast.__init__ = autocast


def _leave_rows_on_the_host() -> None:
    StepItem.to = lambda item, _: item
    Trainer._prepare_inputs = lambda _, inputs: inputs


def _leave_weights_on_the_host() -> None:
    plain = Accelerator.prepare_model

    def prepare_model(self: Any, *arguments: Any, **options: Any) -> Any:
        model = plain(self, *arguments, **options)
        first = next(model.parameters())
        first.data = first.data.cpu()
        return model

    Accelerator.prepare_model = prepare_model


def _read_each_loss() -> None:
    plain = ExactSteps.forward_backward

    def forward_backward(self: Any, *arguments: Any, **options: Any) -> Any:
        found = plain(self, *arguments, **options)
        found.loss.item()
        return found

    ExactSteps.forward_backward = forward_backward
