"""The merge program: `python -m stoker.engine.merge RUN_DIR` merges a trained adapter into its base model's weights.

Each adapted tensor is merged in fp32 by PEFT's own layer, from the weights as training used them (4-bit ones: quantised
and dequantised), and stored in the dtype the plan loaded the base in, in the layout of the base's files. One tensor, or
an MoE layer's experts, is in memory at a time, never the model. The parity gate decides whether the result answers like
the trained model.
"""

import dataclasses
import re
import shutil
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig
from transformers.initialization import no_tie_weights

from stoker import messages
from stoker.engine import generate, models, program, reading, trained_on, weights
from stoker.engine.conversion import Conversion, Group, Tensors
from stoker.engine.weights import ADAPTER_FILE, ModelFiles, TensorEntry
from stoker.errors import EXIT_DONE, StokerError
from stoker.facts import native_figures
from stoker.plan.plan import Plan
from stoker.rundir import artifacts, files
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

NAME = "merged"
ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = (ADAPTER_FILE, ADAPTER_CONFIG, "README.md")
_PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
"""How images become tokens; text alone needs none of them, the whole model does."""
_PREFIX = "base_model.model."
_OPEN_GROUPS = 2
"""Groups of tensors in memory: files alternate between the two of an MoE layer, expert by expert."""


def main(path: Path) -> int:
    """Merge into `artifacts/.merged.tmp`, for the parity gate."""
    run_dir = RunDir(path)
    run, plan = run_dir.run(), files.read_record(run_dir.plan_file, Plan)
    started = time.perf_counter()
    check_options(files.read_object(run_dir.final / ADAPTER_CONFIG))
    base = trained_on.folder(run_dir, run)
    merger = Merger(base, run_dir.final, plan)
    placed = merger.placed()
    total = sum(entry.num_bytes for entries in placed.values() for entry in entries)
    run_dir.artifacts.mkdir(parents=True, exist_ok=True)
    files.require_room(run_dir.artifacts, total)
    folder = artifacts.begin(run_dir, NAME)
    with closing(EventLog(run_dir.events_file)) as log:
        done = 0
        for file_name, entries in placed.items():
            weights.write(folder / file_name, entries, merger.tensor)
            done += sum(entry.num_bytes for entry in entries)
            log.write("merging", done_bytes=done, total_bytes=total)
        weights.write_index(folder, placed)
        merger.write_config(folder)
        _copy_processor(base, folder)
        _copy_tokenizer(run_dir.final, folder)
        generate.write_settings(base, merger.config, folder)
        log.write(
            "merged",
            adapter=files.sha256(run_dir.final / ADAPTER_FILE),
            tensors=sum(len(entries) for entries in placed.values()),
            adapted=len(merger.changed),
            bytes=total,
            dtype=plan.native.model["dtype"],
            untied=merger.untied,
            base_verified=bool(trained_on.recorded(run_dir)),
            seconds=round(time.perf_counter() - started, 3),
        )
    return EXIT_DONE


def check_options(adapter: dict[str, Any]) -> None:
    """Refuse adapter options that cannot be merged exactly."""
    from peft import LoraConfig

    defaults = dataclasses.asdict(LoraConfig())
    said = {name: value for name, value in adapter.items() if value != defaults.get(name)}
    for name, value in native_figures.not_merged(said).items():
        raise StokerError("STK612", option=name, value=str(value))


# ---- the tensors


class Merger:
    """The merged model, tensor by tensor."""

    def __init__(self, base: Path, adapter: Path, plan: Plan) -> None:
        self.config = _base_config(base, plan)
        self._dtype = models.dtype(plan.native.model["dtype"])
        plain = _skeleton(self.config, self._dtype)
        self._kept = plain._get_dtype_plan(self._dtype)
        self._tied: dict[str, str] = dict(plain.all_tied_weights_keys)
        self._files = ModelFiles(base)
        self._shapes = {name: self._files.entry(name).shape for name in self._files}
        self._conversion = Conversion(self._shapes, plain)
        self._quantized = _Quantized(self.config, self._dtype, plan) if plan.native.quantization else None
        self._adapter = _Adapter(adapter, _skeleton(self.config, self._dtype))
        self.changed = self._adapter.changed
        self._rewritten = self.changed | (self._quantized.names if self._quantized else set())
        self._open: OrderedDict[str, Tensors] = OrderedDict()
        self._check_groups()
        self._added = {
            name: self._stored_name(other)
            for name, other in self._untied_pairs()
            if name not in self._conversion.of_parameter
        }
        self.untied = bool(self._untied_pairs())

    def placed(self) -> dict[str, list[TensorEntry]]:
        """The tensors of each file of the merged model: the base's files, with untied tensors beside their partner."""
        placed = {}
        for file_name in self._files.file_names:
            names = self._files.names(file_name)
            entries = [self._entry(name, name) for name in names]
            entries += [self._entry(added, beside) for added, beside in self._added.items() if beside in names]
            placed[file_name] = entries
        return placed

    def tensor(self, written_name: str) -> torch.Tensor:
        """One tensor of the merged model, by its name in the files."""
        group = self._conversion.of_stored.get(written_name)
        if group is None:
            return self._parameter(written_name) if written_name in self._added else self._files.read(written_name)
        if not self._rewritten.intersection(group.parameters):
            return self._cast(self._files.read(written_name), group.first)
        if written_name not in self._open.get(group.first, {}):
            merged = {name: self._parameter(name) for name in group.parameters}
            self._open[group.first] = self._conversion.to_stored(group, merged)
            while len(self._open) > _OPEN_GROUPS:
                self._open.popitem(last=False)
        return self._open[group.first].pop(written_name)

    def write_config(self, folder: Path) -> None:
        """Write the base's configuration with the dtype of the stored weights."""
        self.config.dtype = self._dtype
        self.config.use_cache = True
        if self.untied:
            self.config.tie_word_embeddings = False
        self.config.save_pretrained(folder)

    def _parameter(self, name: str) -> torch.Tensor:
        """A parameter of the merged model."""
        value = self._adapter.merged(name, self._seen) if name in self.changed else self._trained_with(name)
        return self._cast(value, name).cpu()

    def _seen(self, name: str) -> torch.Tensor:
        """A base parameter as training used it, in fp32 for merging."""
        return self._trained_with(name).to(torch.float32)

    def _trained_with(self, name: str) -> torch.Tensor:
        group = self._group(name)
        made = self._conversion.to_parameters(group, lambda stored: self._cast(self._files.read(stored), name))
        value = made[name] if name in made else made[group.first]
        return self._quantized.there_and_back(name, value) if self._quantized and name in self._quantized else value

    def _cast(self, value: torch.Tensor, name: str) -> torch.Tensor:
        return value.to(self._stored_dtype(name, value.dtype))

    def _stored_dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        if not dtype.is_floating_point:
            return dtype
        return next((kept for pattern, kept in self._kept.items() if re.search(pattern, name)), self._dtype)

    def _entry(self, written_name: str, stored_name: str) -> TensorEntry:
        stored, group = self._files.entry(stored_name), self._conversion.of_stored.get(stored_name)
        if group is None:  # not the model's: stays as it is
            return stored
        name = group.first if written_name == stored_name else written_name
        return TensorEntry(written_name, self._stored_dtype(name, stored.dtype), stored.shape)

    def _group(self, name: str) -> Group:
        """The group a parameter is made from; a tied one's may be its partner's."""
        known = self._conversion.of_parameter
        return known[name] if name in known else known[self._partners()[name]]

    def _stored_name(self, name: str) -> str:
        return next(iter(self._group(name).stored))

    def _partners(self) -> dict[str, str]:
        return {**self._tied, **{source: target for target, source in self._tied.items()}}

    def _untied_pairs(self) -> list[tuple[str, str]]:
        """Tied tensors that the adapter untied by changing one of them; each with the other, both ways."""
        pairs = [pair for pair in self._tied.items() if self.changed.intersection(pair)]
        return pairs + [(other, name) for name, other in pairs]

    def _check_groups(self) -> None:
        """Require every tensor that the adapter or the 4-bit weights need, in a layout that can be written back."""
        known, partners = self._conversion.of_parameter, self._partners()
        for name in sorted(self._rewritten):
            group = known.get(name) or known.get(partners.get(name, name))
            if group is None or not self._conversion.is_reversible(group, self._shapes):
                raise StokerError("STK613", tensor=name)


def _base_config(base: Path, plan: Plan) -> Any:
    without = {"dtype", "attn_implementation", "revision", *models.NEVER}
    options = {k: v for k, v in plan.native.model.items() if k not in without}
    with reading.named("STK413", model=base):
        config, _ = AutoConfig.from_pretrained(base, return_unused_kwargs=True, **options)
    if getattr(config, "quantization_config", None):
        raise StokerError("STK614", kind=config.quantization_config.get("quant_method", "?"))
    return config


def _skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The model on the meta device: names, shapes and layer types."""
    with torch.device("meta"):
        return models.auto_class(config).from_config(config, dtype=dtype)


class _Quantized:
    """The weights that training held in 4 bits, and their round trip through quantisation."""

    def __init__(self, config: Any, dtype: torch.dtype, plan: Plan) -> None:
        from transformers.quantizers import AutoHfQuantizer

        with no_tie_weights():  # as `from_pretrained` does: the quantiser leaves the last tensor alone
            self._skeleton = _skeleton(config, dtype)
        self._quantizer = AutoHfQuantizer.from_config(models.quantization(plan), pre_quantized=False)
        self._quantizer.preprocess_model(self._skeleton, dtype=dtype, device_map=None)
        names = (name for name, _ in self._skeleton.named_parameters())
        self.names = {name for name in names if self._quantizer.param_needs_quantization(self._skeleton, name)}
        self._device = "cuda" if torch.cuda.is_available() else "cpu"

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def there_and_back(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Quantised as by `from_pretrained`, on the kind of device that trained, and dequantised."""
        from bitsandbytes.functional import dequantize_4bit
        from bitsandbytes.nn import Linear4bit
        from transformers.pytorch_utils import Conv1D

        convert = self._quantizer.get_quantize_ops().convert
        packed = convert({name: value.to(self._device)}, model=self._skeleton)[name]
        back = dequantize_4bit(packed.data, packed.quant_state)
        owner = self._skeleton.get_submodule(name.rpartition(".")[0])
        return back.T if isinstance(owner, Linear4bit) and owner.source_cls is Conv1D else back


class _Adapter:
    """The trained adapter, layer by layer."""

    def __init__(self, folder: Path, plain: Any) -> None:
        from peft import LoraConfig, get_peft_model
        from peft.tuners.lora import LoraLayer

        names = set(plain.state_dict())
        with reading.named("STK512", path=folder):
            self._file = safe_open(folder / ADAPTER_FILE, framework="pt")
            adapted = get_peft_model(plain, LoraConfig.from_pretrained(folder), low_cpu_mem_usage=True)
        inner = adapted.get_base_model()
        self._layers = {name: module for name, module in inner.named_modules() if isinstance(module, LoraLayer)}
        self._parts: dict[str, dict[str, str]] = defaultdict(dict)
        """By layer: the adapter file's key by the name inside the layer."""
        self._whole: dict[str, str] = {}
        """By tensor: the adapter file's key of a tensor that replaces the model's (`modules_to_save`)."""
        for key in self._file.keys():  # noqa: SIM118  # safe_open is no mapping
            self._take(key, names)
        self._check()
        self._layer_of = {weight: name for name, layer in self._layers.items() for weight in _weights(name, layer)}
        self.changed: set[str] = {*self._layer_of, *self._whole}

    def merged(self, name: str, base: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """A tensor the adapter changes; `base` returns base tensors in fp32 by name."""
        whole = self._file.get_tensor(self._whole[name]) if name in self._whole else None
        if name not in self._layer_of:
            assert whole is not None
            return whole
        module = self._layer_of[name]
        layer = self._layers[module]
        # lora_bias needs the layer's bias too; everything else only the weight.
        state = {_inside(layer, weight): base(weight) for weight in _weights(module, layer)}
        if whole is not None:
            state[_inside(layer, name)] = whole.to(torch.float32)
        state |= {part: self._file.get_tensor(key).to(torch.float32) for part, key in self._parts[module].items()}
        return _merged(layer, state, name)

    def _take(self, key: str, names: set[str]) -> None:
        """Classify a key of the adapter file: part of a LoRA layer, or a replaced tensor."""
        plain = key.removeprefix(_PREFIX)
        module, found, rest = plain.partition(".lora_")
        if found and module in self._layers:
            kind, _, leaf = rest.partition(".")
            leaf = leaf or ("" if kind.startswith("embedding") else "weight")
            self._parts[module][".".join(filter(None, [f"lora_{kind}", "default", leaf]))] = key
        elif plain.replace(".base_layer.", ".") in names:
            self._whole[plain.replace(".base_layer.", ".")] = key
        else:
            raise StokerError("STK615", tensor=plain, reason=messages.text("adapter.unknown"))

    def _check(self) -> None:
        """Refuse an incomplete adapter."""
        for name, layer in self._layers.items():
            own = {part for part, _ in layer.named_parameters() if part.startswith("lora_")}
            missing = own - self._parts[name].keys()
            if missing:
                raise StokerError("STK615", tensor=f"{name}.{min(missing)}", reason=messages.text("adapter.missing"))


def _weights(name: str, layer: Any) -> list[str]:
    """The parameters that a LoRA layer changes, by their names without adapter."""
    if hasattr(layer, "parameter_name"):  # one parameter of a module; the layers of several are nested
        return [f"{name.replace('.base_layer', '')}.{layer.parameter_name}"]
    return [f"{name}.weight", *([f"{name}.bias"] if layer.lora_bias.get("default") else [])]


def _inside(layer: Any, name: str) -> str:
    """The name of a parameter inside its LoRA layer, through nested ones."""
    path, inner = "base_layer.", layer.base_layer
    while hasattr(inner, "parameter_name"):
        path, inner = f"{path}base_layer.", inner.base_layer
    return path + name.rpartition(".")[2]


def _merged(layer: Any, state: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Load one layer, merge it by PEFT, take the result and free it."""
    try:
        layer.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:  # another shape
        raise StokerError("STK615", tensor=name, reason=str(error).splitlines()[-1].strip()) from error
    try:
        layer.merge(safe_merge=True)
    except ValueError as error:  # not finite
        raise StokerError("STK615", tensor=name, reason=error) from error
    result = layer.get_parameter(_inside(layer, name)).detach()
    layer.merged_adapters.clear()
    layer.to("meta")
    return result


# ---- other files


def _copy_processor(base: Path, folder: Path) -> None:
    for name in _PROCESSOR_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def _copy_tokenizer(final: Path, folder: Path) -> None:
    """Tokenizer and chat template, byte for byte as trained."""
    for path in files.below(final):
        if path.name not in _ADAPTER_FILES:
            target = folder / path.relative_to(final)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)


if __name__ == "__main__":
    sys.exit(program.run(main))
