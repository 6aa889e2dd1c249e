"""`Run`: what was asked. One frozen type per section of the run file; the field docstrings are the reference page.

These types do no work: no I/O, no environment, no defaults that depend on hardware (`auto` is decided in `plan`).
"""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticKnownError

from stoker.config import layouts, place_names, values


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, strict=False, allow_inf_nan=False
    )


def _no_truth(value: Any) -> Any:
    """`epochs: true` is a mistake, not one epoch."""
    if isinstance(value, bool):
        raise PydanticKnownError("finite_number")
    return value


NotTruth = BeforeValidator(_no_truth)


def _at_most_all(text: str) -> str:
    if values.share(text) > 1:
        raise PydanticKnownError("less_than_equal", {"le": 100})
    return text


def _share_or_path(text: str) -> str:
    """What ends in `%` is a share and must read as one."""
    if not text.rstrip().endswith(("%", "％")):
        return text
    if not re.fullmatch(values.PERCENT_PATTERN, text.strip()):
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": values.PERCENT_PATTERN})
    return _at_most_all(text)


def _not_zero(text: str) -> str:
    interval = values.every(text)
    if interval.kind in ("steps", "seconds") and not interval.amount:
        raise PydanticKnownError("greater_than", {"gt": 0})
    return text


Auto = Literal["auto"]
FormatName = Annotated[
    str,
    BeforeValidator(layouts.check),
    WithJsonSchema({"enum": [layouts.AUTO, *layouts.BUILT_IN], "type": "string"}),
]
Percent = Annotated[str, Field(pattern=values.PERCENT_PATTERN), AfterValidator(_at_most_all)]
Duration = Annotated[str, Field(pattern=values.DURATION_PATTERN)]
Money = Annotated[str, Field(pattern=values.MONEY_PATTERN)]
Price = Annotated[str, Field(pattern=values.PRICE_PATTERN)]
EveryText = Annotated[str, Field(pattern=values.EVERY_PATTERN), AfterValidator(_not_zero)]
IntervalText = Annotated[str, Field(pattern=values.INTERVAL_PATTERN), AfterValidator(_not_zero)]
NonEmpty = Annotated[str, Field(min_length=1)]
PlaceName = Annotated[
    str,
    BeforeValidator(place_names.check),
    WithJsonSchema({"enum": list(place_names.BUILT_IN), "type": "string"}),
]


def _kind(value: Any) -> str:
    """Which member of a text-or-mapping union a value belongs to."""
    return "mapping" if isinstance(value, dict | BaseModel) else "text"


def _kind_or_list(value: Any) -> str:
    return "list" if isinstance(value, list) else _kind(value)


def _text_or_list(value: Any) -> str:
    return "list" if isinstance(value, list) else "text"


def _number_kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else "text"


def _auto_kind(value: Any) -> str:
    return "auto" if value == "auto" else "value"


class Shape(_Section):
    """A model to train from scratch."""

    shape: Literal["llama", "qwen2", "qwen3", "mistral", "gpt2"]
    """The architecture family, by its name in transformers."""
    layers: Annotated[int, Field(ge=1, le=1000), NotTruth]
    """Number of transformer blocks."""
    width: Annotated[int, Field(ge=8), NotTruth]
    """Hidden size."""
    heads: Annotated[int, Field(ge=1), NotTruth]
    """Attention heads. `width / heads` is the head size; 64 or 128 run on every kernel."""
    kv_heads: Annotated[int, Field(ge=1), NotTruth] | None = None
    """Key/value heads; fewer than `heads` is grouped-query attention. Default: `heads`."""
    ffn: Annotated[int, Field(ge=8), NotTruth] | None = None
    """Inner size of the feed-forward part. Default: 8/3 of the width, rounded up to 64."""
    vocab: Annotated[int, Field(ge=257), NotTruth] | None = None
    """Vocabulary size. Default: what the tokenizer has."""
    tied: bool = True
    """Share the embedding with the output layer."""
    dropout: Annotated[float, Field(ge=0, lt=1), NotTruth] = 0.0
    """Dropout on attention weights, where the family has it."""


class TrainTokenizer(_Section):
    """A tokenizer to be trained from the run's own text."""

    train: Literal["bpe"]
    """The algorithm: byte-level BPE."""
    vocab: Annotated[int, Field(ge=257, le=1_000_000), NotTruth]
    """Vocabulary size, special tokens included."""


class Source(_Section):
    """One source of rows."""

    path: NonEmpty
    """File, directory, glob, `hub:owner/name`, `modelscope:owner/name`, or `recipe:file` shipped with Stoker."""
    weight: Annotated[float, Field(gt=0, le=100), NotTruth] = 1.0
    """How often its rows appear: 2 is twice, 0.5 a seeded half."""
    config: str | None = None
    """The hub dataset's configuration, where it has several."""
    split: str = "train"
    """The hub dataset's split."""


class Data(_Section):
    """What is trained on."""

    train: Annotated[
        Annotated[NonEmpty, Tag("text")]
        | Annotated[Source, Tag("mapping")]
        | Annotated[list[Source], Field(min_length=1), Tag("list")],
        Discriminator(_kind_or_list),
    ]
    """File, directory, glob, `hub:owner/name`, `modelscope:owner/name`, a source, or a list of sources with weights."""
    eval: Annotated[NonEmpty, AfterValidator(_share_or_path)] | None = None
    """A share of the training rows (`2%`), or a file, directory, glob or hub dataset of its own."""
    length: Annotated[int, Field(ge=8, le=10_000_000), NotTruth] = 2048
    """Longest sequence in tokens. Longer rows are cut (text: split) and counted in the report."""
    pack: bool = True
    """Put several documents into one sequence. They never see each other. With false, batch counts rows."""
    format: FormatName = "auto"
    """How a row is laid out. `auto` looks at the keys and says what it found."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """What to do with a row that cannot be used: stop and name it, or leave it out and count it."""
    rows: Annotated[int, Field(ge=1), NotTruth] | None = None
    """Declared number of rows, to plan before the data is at hand."""
    tokens: Annotated[int, Field(ge=1), NotTruth] | None = None
    """Declared number of tokens, to plan before the data is at hand."""


class Full(_Section):
    """Train every weight."""

    method: Literal["full"] = "full"
    """Train every weight; from scratch when the model is a shape."""


class _LowRank(_Section):
    rank: Annotated[int, Field(ge=1, le=4096), NotTruth] = 16
    """Rank of the adapter."""
    alpha: Annotated[float, Field(gt=0), NotTruth] | None = None
    """Scale of the adapter: its output is multiplied by alpha / rank. Default: 2 x rank."""
    dropout: Annotated[float, Field(ge=0, lt=1), NotTruth] = 0.0
    """Dropout in front of the adapter."""
    targets: Annotated[
        Annotated[Literal["all-linear"], Tag("text")] | Annotated[list[NonEmpty], Field(min_length=1), Tag("list")],
        Discriminator(_text_or_list),
    ] = "all-linear"
    """Which layers get an adapter: all linear ones, or module names."""


class Lora(_LowRank):
    """Train a low-rank adapter beside frozen weights."""

    method: Literal["lora"]
    """A low-rank adapter beside frozen weights."""


class Qlora(_LowRank):
    """Train a low-rank adapter beside frozen weights held in 4 bits."""

    method: Literal["qlora"]
    """A low-rank adapter beside frozen weights held in 4 bits (NF4)."""


Tune = Annotated[Full | Lora | Qlora, Field(discriminator="method")]


class Train(_Section):
    """The maths of training. Nothing here depends on hardware."""

    objective: Literal["pretrain", "sft"] = "sft"
    """`pretrain` trains on every token, `sft` on the assistant's tokens."""
    epochs: Annotated[int, Field(ge=1), NotTruth] = 1
    """Passes over the data. An epoch has ceil(sequences / batch) steps; the last one may be short."""
    steps: Annotated[int, Field(ge=1), NotTruth] | None = None
    """Stop after this many optimizer steps instead of after `epochs`."""
    batch: Annotated[int, Field(ge=1), NotTruth] = 16
    """Sequences per optimizer step over all devices. Never changed by Stoker."""
    learning_rate: Annotated[float, Field(gt=0, lt=10), NotTruth] = 2e-4
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup", "inverse_sqrt"] = "cosine"
    """How the learning rate goes on after warm-up."""
    warmup: Annotated[
        Annotated[Annotated[int, Field(ge=0), NotTruth], Tag("number")] | Annotated[Percent, Tag("text")],
        Discriminator(_number_kind),
    ] = "3%"
    """Steps of rising learning rate: a number, or a share of all steps (`3%`)."""
    weight_decay: Annotated[float, Field(ge=0, lt=1), NotTruth] = 0.0
    """Decoupled weight decay."""
    clip: Annotated[float, Field(ge=0), NotTruth] = 1.0
    """Largest gradient norm; 0 switches clipping off."""
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor"] = "adamw"
    """The optimizer. The 8-bit ones are bitsandbytes'."""
    seed: Annotated[int, Field(ge=0, lt=2**32), NotTruth] = 42
    """Decides data order, initial weights and dropout."""
    exact: Annotated[Annotated[Auto, Tag("auto")] | Annotated[bool, Tag("value")], Discriminator(_auto_kind)] = "auto"
    """Combine gradients in one canonical order, so that device count does not change a bit.

    `auto`: on for lora and qlora, off for full (it costs log2 extra gradient copies)."""
    deterministic: bool = False
    """On CUDA: deterministic kernels only, so that a resume is EXACT. May cost up to 15 %."""
    eval_every: IntervalText = "epoch"
    """When to measure the eval loss: `epoch`, `200 steps` or `never`."""
    on_bad_step: Literal["stop", "skip"] = "stop"
    """What to do when a loss or gradient is not finite, or jumps: stop, or go back to the last checkpoint and pass over
    that step. It keeps its number and does no update."""
    spike: Annotated[float, Field(gt=1), NotTruth] | None = None
    """A loss so many times the median of the last 20 is a bad step too. Default: only what is not finite is."""


class Save(_Section):
    """When to commit checkpoints, and which to keep."""

    every: EveryText = "auto"
    """`10m`, `500 steps`, `epoch` or `auto`."""
    keep: Annotated[int, Field(ge=2), NotTruth] = 3
    """How many newest checkpoints to keep; at least two. The best is kept beside them."""
    best: Literal["eval_loss"] | None = None
    """Keep and export the checkpoint with the best value of this."""
    resume: Literal["exact", "sample", "any"] = "sample"
    """What a resume may differ in. `exact`: nothing, to the last bit. `sample`: rounding, as on another card or count.
    `any`: also other data or base weights; recorded as another training."""
    store: NonEmpty | None = None
    """Where committed copies go off the box: a directory, `s3://bucket/prefix`, `ssh://user@host/path` or
    `hf://owner/name`. Keys come from the environment."""
    bandwidth: Annotated[str, Field(pattern=values.RATE_PATTERN)] | None = None
    """Most bytes per second to and from the store, such as `20 MB/s`. Default: what the line gives."""


class Where(_Section):
    """Where it runs, and what to fix instead of leaving it to the plan. Never changes what is trained."""

    place: PlaceName = "local"
    """The kind of machine."""
    host: NonEmpty | None = None
    """Name of a host added with `stoker hosts add`."""
    hosts: Annotated[list[NonEmpty], Field(min_length=1)] | None = None
    """Names of several such hosts that train together. The first one has the run directory and decides."""
    nodes: Annotated[int, Field(ge=1), NotTruth] = 1
    """On a queue, how many machines one job takes."""
    elastic: bool = False
    """Whether a run of several machines goes on with those that remain when one is lost."""
    interface: NonEmpty | None = None
    """Network interface by which several machines talk, such as `eth1`. Default: the one in a network all share."""
    gpus: Annotated[
        Annotated[Annotated[int, Field(ge=0), NotTruth], Tag("number")]
        | Annotated[Annotated[str, Field(pattern=values.DEVICES_PATTERN)], Tag("text")],
        Discriminator(_number_kind),
    ] = "all"
    """`all`, a count, or device numbers in quotes: `'0,2'`, or `'0'` for the first. The number 0 means the CPU."""
    strategy: Literal["auto", "ddp", "fsdp2", "zero2", "zero3"] = "auto"
    """How several devices work together. `auto`: the whole model on each while it fits, else sharded by fsdp2."""
    processes: Annotated[
        Annotated[Auto, Tag("auto")] | Annotated[Annotated[int, Field(ge=1), NotTruth], Tag("value")],
        Discriminator(_auto_kind),
    ] = "auto"
    """On a CPU, how many processes train together on each machine. With GPUs there is one for each."""
    micro: Annotated[
        Annotated[Auto, Tag("auto")] | Annotated[Annotated[int, Field(ge=1), NotTruth], Tag("value")],
        Discriminator(_auto_kind),
    ] = "auto"
    """Sequences per device at once. Part of the numeric fingerprint."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of the forward and backward pass."""
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = "auto"
    """Attention kernel."""
    gradient_checkpointing: Annotated[
        Annotated[Auto, Tag("auto")] | Annotated[bool, Tag("value")], Discriminator(_auto_kind)
    ] = "auto"
    """Recompute activations in the backward pass instead of keeping them."""
    arrange: Literal["auto", "rows", "grouped"] = "auto"
    """How a step's sequences form micro batches: as prepared, or documents grouped by length."""
    workers: Annotated[
        Annotated[Auto, Tag("auto")] | Annotated[Annotated[int, Field(ge=0), NotTruth], Tag("value")],
        Discriminator(_auto_kind),
    ] = "auto"
    """Processes that read data."""
    after: Literal["auto", "stay", "stop", "release"] = "auto"
    """What becomes of a rented machine once the run has ended and its copy is verified. `stop` can be undone; `auto`:
    stop, where the platform has such a command. `release` gives it back for good, with all that is on it."""
    spot: bool = False
    """Whether machines that may be taken away at any time are allowed. The plan shows both costs."""
    session: Duration | None = None
    """Longest time of one job of a queue, or of one session of a notebook, such as `8h`. A longer run takes several."""
    price: Price | None = None
    """What one device costs by the hour, such as `2.5 CNY/h`. Default: the cheapest known offer."""


class Budget(_Section):
    """What a run may cost."""

    money: Money | None = None
    """Most money to spend, such as `50 CNY`."""
    time: Duration | None = None
    """Longest time to run, such as `12h`."""


NativeBlock = dict[str, Any]


class Native(_Section):
    """Options of the engines under their own names. A word Stoker owns is refused here."""

    # What is not a field below is the block of a place, checked by `_known_blocks`.
    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})
    __pydantic_extra__: dict[str, NativeBlock]

    trainer: NativeBlock = Field(default_factory=dict)
    """`transformers.TrainingArguments`."""
    model: NativeBlock = Field(default_factory=dict)
    """`AutoModelForCausalLM.from_pretrained`, or the configuration of a shape."""
    lora: NativeBlock = Field(default_factory=dict)
    """`peft.LoraConfig`."""
    quantization: NativeBlock = Field(default_factory=dict)
    """`transformers.BitsAndBytesConfig`."""
    fsdp: NativeBlock = Field(default_factory=dict)
    """`torch.distributed.fsdp.fully_shard` and its `MixedPrecisionPolicy`; types by name, `offload_policy: cpu`."""
    deepspeed: Annotated[
        Annotated[NonEmpty, Tag("text")] | Annotated[NativeBlock, Tag("mapping")], Discriminator(_kind)
    ] = Field(default_factory=dict)
    """DeepSpeed's configuration, or the path of a `ds_config.json`. Its `auto` values are ours to fill in."""
    vllm: NativeBlock = Field(default_factory=dict)
    """vLLM's OpenAI server: its flags, with `_` for `-`. Read by `stoker serve`; never changes what is trained."""
    slurm: NativeBlock = Field(default_factory=dict)
    """`sbatch`: its long options, with `_` for `-`, such as `partition`. Never changes what is trained."""
    kaggle: NativeBlock = Field(default_factory=dict)
    """Fields of Kaggle's `kernel-metadata.json`, such as `machine_shape`. Never changes what is trained."""
    sky: NativeBlock = Field(default_factory=dict)
    """`resources` of a SkyPilot task, such as `accelerators` or `infra`. Never changes what is trained."""

    def of_place(self, name: str) -> NativeBlock:
        """The options of a place; empty where there are none."""
        found: NativeBlock = self.model_dump().get(name, {})
        return found

    @property
    def place_blocks(self) -> set[str]:
        """Names of all blocks that belong to places."""
        return {*place_names.WITH_OPTIONS, *(self.model_extra or {})}

    @model_validator(mode="wrap")
    @classmethod
    def _known_blocks(cls, given: Any, read: ModelWrapValidatorHandler["Native"]) -> "Native":
        """Refuse a block that is neither a field nor a place's; one set to nothing by `--set` is left out."""
        if not isinstance(given, dict):
            return read(given)
        blocks = {name: value for name, value in given.items() if value is not None or name in cls.model_fields}
        others = {name: value for name, value in blocks.items() if name not in cls.model_fields}
        unknown = [name for name in others if not place_names.takes_options(name)]
        found = [InitErrorDetails(type="extra_forbidden", loc=(name,), input=others[name]) for name in unknown]
        try:
            made = read({name: value for name, value in blocks.items() if name not in unknown})
        except ValidationError as error:
            found += [
                InitErrorDetails(type=one["type"], loc=one["loc"], input=one["input"], ctx=one.get("ctx", {}))
                for one in error.errors()
            ]
        if found:
            raise ValidationError.from_exception_data(cls.__name__, found)
        return made


class Run(_Section):
    """One run file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None = None
    """Name of the run directory. Default: the run file's name without its ending."""
    model: Annotated[Annotated[NonEmpty, Tag("text")] | Annotated[Shape, Tag("mapping")], Discriminator(_kind)]
    """Hub id, local path, `run:NAME` for what an earlier run made, or a shape to train from scratch."""
    tokenizer: Annotated[
        Annotated[NonEmpty, Tag("text")] | Annotated[TrainTokenizer, Tag("mapping")], Discriminator(_kind)
    ] = "auto"
    """`auto` is the model's own; or a path, or `{train: bpe, vocab: 32000}`."""
    data: Data
    """What is trained on."""
    tune: Tune = Full()
    """How weights are changed: full, lora or qlora."""
    train: Train = Train()
    """The maths of training."""
    save: Save = Save()
    """Checkpoints."""
    where: Where = Where()
    """Hardware. Never changes what is trained."""
    budget: Budget = Budget()
    """Limits on money and time."""
    native: Native = Native()
    """Options of the engines under their own names."""
