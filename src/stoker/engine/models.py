"""Builds what the plan names: a model from a shape or trained weights, with or without an adapter.

Options come unchanged from `plan.native`. Options the installed engine refuses are reported by name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)
from transformers.utils import find_adapter_config_file

from stoker.config import objectives
from stoker.config.run import Run, Shape
from stoker.engine import _compat, adapters, reading
from stoker.engine.parallel import ALONE, Ranks
from stoker.engine.shared_build import build_once
from stoker.errors import StokerError
from stoker.plan import checks
from stoker.plan.plan import Plan
from stoker.rundir import inputs, safetensors_headers

NEVER = (
    *("trust_remote_code", "allow_all_kernels", "code_revision", "weights_only"),
    *("gguf_file", "cache_dir", "config", "token"),
)
"""Options that would run code, read a pickle or read other files."""
_SAMPLED_BYTES = 1 << 26
"""Files above this were digested by samples before `code` was part of a fingerprint."""
_COMMIT = re.compile("[0-9a-f]{40}")


def load_tokenizer(folder: Path) -> Any:
    """A tokenizer from a folder of ours."""
    with reading.named_whatever("STK312", tokenizer=folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def auto_class(config: Any, *, scores: bool = False) -> Any:
    """The class that loads a model whole: a language model with its vision tower, else a language model.

    `scores`: with one output in place of its words.
    """
    if scores:
        return AutoModelForSequenceClassification
    has_tower = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if has_tower else AutoModelForCausalLM


def build(
    run: Run, plan: Plan, folder: Path, checkpoint: Path | None = None, base: str = "", ranks: Ranks = ALONE
) -> Any:
    """The model as training starts with it; one whose weights are all trained, from its checkpoint at once.

    A class may save its weights by other names than it has them (towers, experts), which only its own loading undoes.
    Weights of a type that stays are mapped, not read: a rank that keeps rows of them reads no others.

    Args:
        run: The run.
        plan: Its plan.
        folder: Where the run file's relative paths start.
        checkpoint: The checkpoint to resume from.
        base: `base_digest`: a hub model is loaded at this commit.
        ranks: All of them call this; those of one machine share what is built in its main memory.
    """
    if plan.repeat_keys:
        _compat.repeat_keys()

    def make() -> Any:
        torch.manual_seed(run.train.seed)
        return _new(run, plan, folder, checkpoint, base)

    model = build_once(make, ranks) if _is_shared(plan) else make()
    if plan.kernels == "liger":
        _require_its_gate(model)
    model.config.use_cache = False
    _without_balancing(model)
    asked = objectives.facts(run.train.objective)
    if asked.by_row:
        _without_dropout(model)
    if asked.scores:
        # What pads may be the end of text, which rows have. A checkpoint names it, and would load without its gradient.
        model.get_input_embeddings().padding_idx = None
    if run.tune.method == "full":
        adapters.freeze_towers(model)
        return model
    return _with_adapter(run, plan, model)


def _is_shared(plan: Plan) -> bool:
    """Whether a model is built in main memory and not by DeepSpeed, which was not tried with mapped weights.

    bitsandbytes puts a model that is not sharded on each rank's GPU as it reads it.
    """
    on_device = plan.native.quantization and plan.device == "cuda" and plan.strategy == "ddp"
    return plan.strategy in ("ddp", "fsdp2") and not on_device


def _new(run: Run, plan: Plan, folder: Path, checkpoint: Path | None, base: str) -> Any:
    """The model before it gets an adapter."""
    # By default bitsandbytes puts the whole model on each GPU; sharding moves every part to its own.
    placement = {"device_map": {"": "cpu"}} if plan.strategy == "fsdp2" else {}
    if checkpoint and run.tune.method == "full":
        return _from_checkpoint(run, plan, checkpoint, **placement)
    if isinstance(run.model, Shape):
        return _from_shape(plan)
    model = load_base(run, plan, folder, base, **placement)
    if not plan.native.quantization:
        return model
    from peft import prepare_model_for_kbit_training

    # It widens what is not packed: here once, for all who share it. The rest of it is `_with_adapter`'s.
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def _without_balancing(model: Any) -> None:
    """No auxiliary loss of the routers: a mean over a micro batch, it would make the result depend on the cut."""
    for config in (model.config, model.config.get_text_config(decoder=True)):
        if hasattr(config, "output_router_logits"):
            config.output_router_logits = False


def _without_dropout(model: Any) -> None:
    """No dropout of the model's own, as TRL does it: what is compared with was computed without."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def without_adapter(model: Any) -> Any:
    """The model that an adapter is on; any other as it is."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode that leaves the weights as they are.

    bitsandbytes 0.50 repacks a 4-bit layer on its first evaluation on a CPU with AVX512-BF16, rounding its scales:
    training would continue with other weights. Layers in training mode are not packed; they have no dropout.
    Remove when packing is lossless or undone exactly.
    """
    trained = {module for module in model.modules() if module.training}
    model.eval()
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.training = True
    try:
        with torch.no_grad():
            yield
    finally:
        for module in model.modules():
            module.training = module in trained


def padded(tokenizer: Any, run: Run) -> Any:
    """The tokenizer of a run. A model with one output finds the end of a row by what pads: so something must.

    As in TRL that is the end of text where the tokenizer names nothing.
    """
    if run.train.scores and tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token is None:
            raise StokerError("STK446")
    return tokenizer


def takes_weight(model: Any, run: Run, attention: str, *, said: bool) -> bool:
    """Require a class whose loss is divided by the number it is given; a model with one output computes none.

    Args:
        model: The model.
        run: The run.
        attention: The plan's.
        said: What transformers thinks of the class: some with a vision tower deny it and do it all the same.
    """
    if not said and not run.train.scores and not divides_by_tokens(model, attention):
        raise StokerError("STK414", model=type(model).__name__)
    return True


def divides_by_tokens(model: Any, attention: str) -> bool:
    """Whether the loss is a sum over tokens, divided by the number it is given: half of it for twice the number.

    Asked before autocast and sharding are set up: flash attention takes neither fp32 nor a CPU.
    """
    return bool(small_loss(model, attention) == 2 * small_loss(model, attention, 2))


def small_loss(model: Any, attention: str, count: int = 1) -> torch.Tensor:
    """The sum of the losses of a few tokens over a number, by the attention that every class and type has."""
    ids = torch.arange(1, 9, device=next(model.parameters()).device)[None]
    model.set_attn_implementation("eager")
    types = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    low = min(types, key=lambda one: one.itemsize)
    try:
        # What is trained is wider than a base in 16 bits.
        with evaluating(model), torch.autocast(ids.device.type, low, enabled=low != torch.float32):
            return model(input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(count, device=ids.device)).loss
    finally:
        model.set_attn_implementation(attention)


def base_digest(run: Run, folder: Path, recorded: str = "") -> str:
    """Identifies the base weights: a local model's digest, a hub model's commit; empty for a shape.

    Args:
        run: The run.
        folder: Where the run file's relative paths start.
        recorded: How the run knows its base since it began. A hub model stays at that commit, whatever its revision is
            now; a local one that has this content keeps the digest, also one of an older form.
    """
    if isinstance(run.model, Shape):
        return ""
    return weights_digest(run.model, folder, recorded, run.native.model.get("revision", "main"))


def weights_digest(name: str, folder: Path, recorded: str = "", revision: str = "main") -> str:
    """The same of any model by its name."""
    path = Path(inputs.model_path(name, folder))
    if path.is_dir():
        same = bool(recorded) and safetensors_headers.has_content(path, recorded)
        return recorded if same else safetensors_headers.content_digest(path)
    if _COMMIT.fullmatch(recorded):
        return recorded
    with reading.named("STK413", model=name):
        # The cache keeps a revision in a folder named by its commit.
        return Path(hf_hub_download(name, "config.json", revision=revision)).parent.name


def is_other_base(fingerprint: Mapping[str, str], run: Run, folder: Path) -> bool:
    """Whether a checkpoint was trained on other base weights.

    An older Stoker, which noted no code, knew large files by samples of them: such a digest says nothing.
    """
    recorded = fingerprint.get("base", "")
    if isinstance(run.model, Shape) or recorded == base_digest(run, folder, recorded):
        return False
    path = Path(inputs.model_path(run.model, folder))
    large = (file.stat().st_size > _SAMPLED_BYTES for file in safetensors_headers.digested(path))
    return "code" in fingerprint or not any(large)


def _require_its_gate(model: Any) -> None:
    """Liger computes every gate as SiLU, whatever the configuration says, and says nothing."""
    gate = getattr(model.config.get_text_config(), "hidden_act", "silu")
    if gate not in ("silu", "swish"):
        raise StokerError("STK248", reason=f"`hidden_act: {gate}`")


def _from_shape(plan: Plan) -> Any:
    options = dict(plan.native.model)
    attention, held = options.pop("attn_implementation"), dtype(options.pop("dtype", "float32"))
    # The family's default special tokens belong to its own tokenizer; the Trainer sets those of ours.
    unset = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(options.pop("model_type"), **unset, **options)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=held)


def _from_checkpoint(run: Run, plan: Plan, folder: Path, **placement: Any) -> Any:
    """The model of a checkpoint, by its own configuration."""
    reading.require_safetensors(folder)
    shape = isinstance(run.model, Shape)
    held = plan.native.model.get("dtype", "float32")
    stated = {"attn_implementation": plan.attention, "dtype": held} if shape else plan.native.model
    options = {**_options(stated), **placement, "local_files_only": True, "output_loading_info": True}
    with reading.named("STK512", path=folder):
        model, found = _from_files(folder, options, run.train.objective)
        require_none([*found["missing_keys"], *found["unexpected_keys"]])
    # Mapped tensors end with their file, which rotation deletes; sharding copies parameters.
    for tensor in model.buffers() if plan.strategy == "fsdp2" else (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model


def require_none(names: Iterable[str]) -> None:
    """Refuse a model by the weights that it lacks, or has too many of."""
    if first := sorted(names)[:3]:
        raise ValueError(", ".join(first))


def _from_files(path: Path | str, options: dict[str, Any], objective: str) -> Any:
    if (index := Path(path) / safetensors_headers.INDEX_NAME).is_file():
        safetensors_headers.listed(index)  # transformers would follow names that leave the folder
    place = {name: options[name] for name in ("revision", "local_files_only", "subfolder") if name in options}
    if find_adapter_config_file(str(path), **place):  # a hub's; transformers would load it with its base
        raise StokerError("STK142", path=path)
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, **place)
    if stated := getattr(config, "quantization_config", None):  # it would win over the plan's own
        raise checks.in_few_bits(str(path), stated.get("quant_method", "?"))
    scores = objectives.facts(objective).scores
    if scores and type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise StokerError("STK445", family=config.model_type)
    if not scores and str((config.architectures or [""])[0]).endswith("ForSequenceClassification"):
        # Its output for words would be made of random numbers.
        raise StokerError("STK444", name=path, command=f"train.objective: {objective}", path=path)
    one_output = {"num_labels": 1} if scores else {}
    kind = auto_class(config, scores=scores)
    return kind.from_pretrained(path, use_safetensors=True, trust_remote_code=False, **options, **one_output)


def _options(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `from_pretrained` from the plan, which has the dtype by name."""
    # A plan may come from an untrusted run directory.
    allowed = {name: value for name, value in stated.items() if name not in NEVER}
    return {**allowed, "dtype": dtype(allowed["dtype"])}


def load_base(run: Run, plan: Plan, folder: Path, base: str = "", **placement: Any) -> Any:
    """The trained model a run starts from, in the precision and bits the plan states; see `runnable` and `build`."""
    options = {**_options(plan.native.model), **placement}
    if plan.native.quantization:
        options["quantization_config"] = quantization(plan)
    assert isinstance(run.model, str)
    try:
        return load(run.model, folder, run.train.objective, base, **options)
    except TypeError as error:
        raise StokerError("STK412", option="native.model", engine="transformers", reason=error) from error


def load(name: str, folder: Path, objective: str, digest: str = "", **options: Any) -> Any:
    """A trained model by its name, for an objective, with options of `from_pretrained`.

    Args:
        name: As a run file has it.
        folder: Where paths start.
        objective: What it is for, which says what its output is.
        digest: Of a hub's, the commit that is loaded.
        options: Of `from_pretrained`.
    """
    path = inputs.model_path(name, folder)
    if _COMMIT.fullmatch(digest) and not Path(path).is_dir():
        options["revision"], name = digest, f"{name}@{digest}"
    with reading.named("STK413", model=name):
        return _from_files(path, options, objective)


def dtype(name: str) -> torch.dtype:
    """A torch dtype by its name in a plan."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise StokerError("STK412", option="native.model.dtype", engine="torch", reason=name)
    return found


def quantization(plan: Plan) -> Any:
    """The plan's 4-bit quantisation of frozen weights."""
    from stoker.engine import experts

    options = dict(plan.native.quantization)
    options["bnb_4bit_compute_dtype"] = dtype(options["bnb_4bit_compute_dtype"])
    return experts.ExpertsConfig(**options)


def _with_adapter(run: Run, plan: Plan, model: Any) -> Any:
    from peft import get_peft_model, prepare_model_for_kbit_training

    if plan.native.quantization:
        model = prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=plan.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},  # the Trainer sets its own, which says more
        )
    torch.manual_seed(run.train.seed)
    try:
        config = _for_packed(model, plan, adapters.config(model, plan.native.lora))
        return runnable(_trained_in_fp32(get_peft_model(model, config)), plan)
    except (TypeError, ValueError) as error:
        raise StokerError("STK412", option="tune", engine="peft", reason=error) from error


def _trained_in_fp32(model: Any) -> Any:
    """PEFT 0.21 widens low-rank weights only; copies of whole modules (`modules_to_save`) have the base's type."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def with_trained_adapter(base: Any, plan: Plan, folder: Path) -> Any:
    """A base as it was loaded, with the adapter of a folder; whole modules in the base's type, as merged ones."""
    from peft import LoraConfig, PeftModel

    config = _for_packed(base, plan, LoraConfig.from_pretrained(folder))
    return runnable(PeftModel.from_pretrained(base, folder, config=config), plan)


def _for_packed(model: Any, plan: Plan, config: Any) -> Any:
    """PEFT's configuration; of a model with experts in 4 bits, with layers that adapt those."""
    if not plan.native.quantization:
        return config
    from stoker.engine import experts

    return experts.adapted_by(model, config)


def runnable(model: Any, plan: Plan) -> Any:
    """A model as it was loaded, ready to compute: experts in 4 bits are unpacked whenever they are read."""
    if not plan.native.quantization:
        return model
    from stoker.engine import experts

    return experts.unpack_at_use(model)
