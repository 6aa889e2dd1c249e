"""`Run`: what was asked. One frozen type per section of the run file; the field docstrings are the reference page.

These types do no work: no I/O, no environment, no defaults that depend on hardware (`auto` is decided in `plan`).
"""

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from stoker.config import objectives, place_names, values
from stoker.config.data_section import Data
from stoker.config.kinds import (
    Auto,
    Duration,
    EveryText,
    IntervalText,
    Money,
    NotTruth,
    ObjectiveName,
    Percent,
    PlaceName,
    Price,
    auto_kind,
    kind,
    number_kind,
    text_or_list,
    word_kind,
)
from stoker.config.optimizer_names import OptimizerName
from stoker.config.rewards import Rewards
from stoker.config.section import NonEmpty, Section


class Shape(Section):
    """A model to train from scratch."""

    shape: Literal["llama", "qwen2", "qwen3", "mistral", "gpt2"]
    """The architecture family, by its name in transformers."""
    layers: Annotated[int, Field(ge=1, le=1000), NotTruth]
    """Number of transformer blocks."""
    width: Annotated[int, Field(ge=8, le=1_000_000), NotTruth]
    """Hidden size."""
    heads: Annotated[int, Field(ge=1, le=100_000), NotTruth]
    """Attention heads. `width / heads` is the head size; all kernels support 64 and 128."""
    kv_heads: Annotated[int, Field(ge=1), NotTruth] | None = None
    """Key/value heads; fewer than `heads` is grouped-query attention. Default: `heads`."""
    ffn: Annotated[int, Field(ge=8, le=10_000_000), NotTruth] | None = None
    """Hidden size of the feed-forward block. Default: 8/3 of the width, rounded up to a multiple of 64."""
    vocab: Annotated[int, Field(ge=257, le=10_000_000), NotTruth] | None = None
    """Vocabulary size. Default: that of the tokenizer."""
    tied: bool = True
    """Tie the embedding and the output layer."""
    dropout: Annotated[float, Field(ge=0, lt=1), NotTruth] = 0.0
    """Dropout on attention weights, if the family supports it."""


class TrainTokenizer(Section):
    """A tokenizer to train on the run's own text."""

    train: Literal["bpe"]
    """The algorithm: byte-level BPE."""
    vocab: Annotated[int, Field(ge=257, le=1_000_000), NotTruth]
    """Vocabulary size, including special tokens."""


class Full(Section):
    """Train every weight."""

    method: Literal["full"] = "full"
    """Train every weight; from scratch when the model is a shape."""


class _LowRank(Section):
    rank: Annotated[int, Field(ge=1, le=4096), NotTruth] = 16
    """Rank of the adapter."""
    alpha: Annotated[float, Field(gt=0), NotTruth] | None = None
    """Scale of the adapter: its output is multiplied by alpha / rank. Default: 2 x rank."""
    dropout: Annotated[float, Field(ge=0, lt=1), NotTruth] = 0.0
    """Dropout before the adapter."""
    targets: Annotated[
        Annotated[Literal["all-linear"], Tag("text")] | Annotated[list[NonEmpty], Field(min_length=1), Tag("list")],
        Discriminator(text_or_list),
    ] = "all-linear"
    """Which layers get an adapter: all linear layers (experts too, no router, no vision tower), or module names."""


class Lora(_LowRank):
    """Train a low-rank adapter on frozen weights."""

    method: Literal["lora"]
    """A low-rank adapter on frozen weights."""


class Qlora(_LowRank):
    """Train a low-rank adapter on frozen 4-bit weights."""

    method: Literal["qlora"]
    """A low-rank adapter on frozen 4-bit weights (NF4)."""


Tune = Annotated[Full | Lora | Qlora, Field(discriminator="method")]


class Dpo(Section):
    """Options of `train.objective: dpo`."""

    beta: Annotated[float, Field(gt=0, le=100), NotTruth] = 0.1
    """How strongly the model is held to what it was before training: larger is closer."""


class Simpo(Section):
    """Options of `train.objective: simpo`."""

    beta: Annotated[float, Field(gt=0, le=100), NotTruth] = 2.0
    """Scale of an answer's reward, which is beta times the mean log-probability of its tokens."""
    gamma: Annotated[float, Field(ge=0, le=100), NotTruth] = 1.0
    """By how much the better answer's reward is to exceed the other's."""


class Orpo(Section):
    """Options of `train.objective: orpo`."""

    beta: Annotated[float, Field(gt=0, le=100), NotTruth] = 0.1
    """Weight of the odds ratio beside the loss of the better answer; the paper calls it lambda."""


class Kto(Section):
    """Options of `train.objective: kto`."""

    beta: Annotated[float, Field(gt=0, le=100), NotTruth] = 0.1
    """How strongly the model is held to what it was before training: larger is closer."""
    desirable_weight: Annotated[float, Field(gt=0, le=100), NotTruth] = 1.0
    """Weight of a good answer. Where good ones are rarer: so much larger that both kinds weigh alike."""
    undesirable_weight: Annotated[float, Field(gt=0, le=100), NotTruth] = 1.0
    """Weight of a bad answer."""


SamplerName = Literal["transformers", "vllm"]


LIMITS = {"__all__": {"timeout", "memory", "isolation"}}
"""Of each of a list of rewards: how it is computed, and not what it is."""


class Grpo(Section):
    """Options of `train.objective: grpo`: how answers are generated and scored, and what is learned from the scores."""

    group: Annotated[int, Field(ge=2, le=1024), NotTruth] = 8
    """Answers to each prompt. They are compared with each other; `train.batch` counts answers, a multiple of this."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000), NotTruth] = 256
    """Longest answer in tokens. `data.length` is for prompt and answer together."""
    temperature: Annotated[float, Field(gt=0, le=100), NotTruth] = 1.0
    """Temperature of sampling; log-probabilities in training are at the same one."""
    loss: Literal["grpo", "dr_grpo", "dapo"] = "dapo"
    """How tokens are weighed: `grpo` by the mean of each answer, `dapo` all tokens of the step alike, `dr_grpo` like
    `dapo` but divided by the longest answer allowed."""
    beta: Annotated[float, Field(ge=0, le=100), NotTruth] = 0.0
    """How strongly the model is held to the base model (weight of the KL divergence); above 0 only with an adapter."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Whether rewards are divided by their standard deviation: of the answers to a prompt, of the step, or not."""
    truncate: Annotated[float, Field(ge=1, le=1000), NotTruth] = 3.0
    """Largest weight of a token that the trained model finds likelier than the sampler did."""
    rewards: Rewards | None = None
    """What scores an answer. Several are added, each times its weight."""
    sampler: SamplerName = "transformers"
    """What generates answers: transformers' own `generate` in the training process, or vLLM in a process of its own."""


class Distill(Section):
    """Options of `train.objective: distill`: who teaches, and how the student's own answers are compared with that."""

    teacher: NonEmpty | None = None
    """The model that teaches, named as `model` is: a hub id, a folder or `run:NAME`; with the student's vocabulary."""
    beta: Annotated[float, Field(ge=0, le=1), NotTruth] = 1.0
    """Which divergence is made smaller: 1 is the reverse KL (the student avoids what the teacher finds unlikely), 0 the
    forward KL (it covers all that the teacher finds likely); between them the generalised Jensen-Shannon divergence."""
    temperature: Annotated[float, Field(gt=0, le=100), NotTruth] = 1.0
    """Temperature of sampling; both models' probabilities are compared at the same one."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000), NotTruth] = 256
    """Longest answer in tokens. `data.length` is for prompt and answer together."""
    sampler: SamplerName = "transformers"
    """What generates answers: transformers' own `generate` in the training process, or vLLM in a process of its own."""

    @property
    def group(self) -> int:
        """Answers to each prompt."""
        return 1


class Train(Section):
    """Training hyperparameters. Nothing here depends on hardware."""

    objective: ObjectiveName = "sft"
    """`pretrain` trains on every token, `sft` on the assistant's tokens, `dpo`, `simpo` and `orpo` on pairs of answers
    of which one is better, `kto` on answers that are labelled good or bad, `grpo` on answers of its own that a reward
    scores, `distill` on answers of its own that another model judges token by token. `reward` trains a model that
    scores answers, on pairs."""
    dpo: Dpo = Dpo()
    """Options of `dpo`."""
    simpo: Simpo = Simpo()
    """Options of `simpo`."""
    orpo: Orpo = Orpo()
    """Options of `orpo`."""
    kto: Kto = Kto()
    """Options of `kto`."""
    grpo: Grpo = Grpo()
    """Options of `grpo`."""
    distill: Distill = Distill()
    """Options of `distill`."""
    epochs: Annotated[int, Field(ge=1, le=1_000_000), NotTruth] = 1
    """Passes over the data. An epoch has ceil(sequences / batch) steps; the last step may be smaller."""
    steps: Annotated[int, Field(ge=1, le=10**9), NotTruth] | None = None
    """Stop after this many optimizer steps instead of after `epochs`."""
    batch: Annotated[int, Field(ge=1, le=10_000_000), NotTruth] = 16
    """Sequences per optimizer step over all devices. Never changed by Stoker."""
    learning_rate: Annotated[float, Field(gt=0, le=1), NotTruth] = 2e-4
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup", "inverse_sqrt"] = "cosine"
    """Learning rate schedule after warm-up."""
    warmup: Annotated[
        Annotated[Annotated[int, Field(ge=0, le=10**9), NotTruth], Tag("number")] | Annotated[Percent, Tag("text")],
        Discriminator(number_kind),
    ] = "3%"
    """Warm-up steps: a number, or a share of all steps (`3%`)."""
    weight_decay: Annotated[float, Field(ge=0, lt=1), NotTruth] = 0.0
    """Decoupled weight decay."""
    clip: Annotated[float, Field(ge=0), NotTruth] = 1.0
    """Maximum gradient norm; 0 disables clipping."""
    optimizer: OptimizerName = "adamw"
    """The optimizer: `adamw`, `muon` (torch's, for hidden matrices; AdamW for the rest), or any name of transformers'
    `optim`. The 8-bit, paged, `lion`, `ademamix` and `rmsprop_bnb` ones come from bitsandbytes. One that is not known
    to resume exactly is refused when planning, with the reason."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """How trained weights are held. `bf16` is for `tune.method: full` with `adamw`: half the memory for weights and
    gradients, AdamW's averages in 8 bits (torchao), updates rounded at random. An adapter is always in fp32."""
    seed: Annotated[int, Field(ge=0, lt=2**32), NotTruth] = 42
    """Determines data order, initial weights and dropout."""
    exact: Annotated[Annotated[Auto, Tag("auto")] | Annotated[bool, Tag("value")], Discriminator(auto_kind)] = "auto"
    """Combine gradients in one canonical order, so that the device count does not change a bit. `auto`: on for lora
    and qlora, off for full (it needs log2 extra gradient copies)."""
    deterministic: bool = False
    """On CUDA: use only deterministic kernels, so that a resume is EXACT. May cost up to 15 %."""
    eval_every: IntervalText = "epoch"
    """When to measure the eval loss: `epoch`, `200 steps` or `never`."""
    on_bad_step: Literal["stop", "skip"] = "stop"
    """What to do when a loss or gradient is not finite, or spikes: stop, or roll back to the last checkpoint and skip
    that step. The step keeps its number and makes no update."""
    spike: Annotated[float, Field(gt=1), NotTruth] | None = None
    """A loss this many times the median of the last 20 is also a bad step. Default: only non-finite values are."""

    @property
    def rows(self) -> int:
        """Rows of the data in a step: `batch`, or the prompts that have so many answers."""
        return self.batch // self.grpo.group if self.objective == "grpo" else self.batch

    @property
    def answers(self) -> Grpo | Distill:
        """How an objective that generates its answers does so."""
        return self.distill if self.objective == "distill" else self.grpo

    @property
    def scores(self) -> bool:
        """Whether the model that is trained has one output, which scores answers."""
        return objectives.facts(self.objective).scores

    @property
    def teacher(self) -> str | None:
        """The second model of the run, where it has one."""
        return self.distill.teacher if self.objective == "distill" else None


class Save(Section):
    """When to commit checkpoints, and which to keep."""

    every: EveryText = "auto"
    """`10m`, `500 steps`, `epoch` or `auto`."""
    keep: Annotated[int, Field(ge=2), NotTruth] = 3
    """How many of the newest checkpoints to keep; at least two. The best is kept in addition."""
    best: Literal["eval_loss"] | None = None
    """Keep and export the checkpoint with the best value of this metric."""
    resume: Literal["exact", "sample", "any"] = "sample"
    """What may differ after a resume. `exact`: nothing, down to the last bit. `sample`: rounding, as on another card
    or device count. `any`: also data or base weights; recorded as a different training."""
    store: NonEmpty | None = None
    """Where committed copies go, off the machine: a directory, `s3://bucket/prefix`, `ssh://user@host/path` or
    `hf://owner/name`. Keys come from the environment."""
    bandwidth: Annotated[str, Field(pattern=values.RATE_PATTERN)] | None = None
    """Bandwidth limit to and from the store, such as `20 MB/s`. Default: unlimited."""


class Where(Section):
    """Where it runs, and settings to fix instead of letting the plan decide. Never changes what is trained."""

    place: PlaceName = "local"
    """The kind of machine."""
    host: NonEmpty | None = None
    """Name of a host added with `stoker hosts add`."""
    hosts: Annotated[list[NonEmpty], Field(min_length=1)] | None = None
    """Names of several hosts that train together. The first one holds the run directory and leads."""
    nodes: Annotated[int, Field(ge=1, le=100_000), NotTruth] = 1
    """On a queue, how many machines one job uses."""
    elastic: bool = False
    """Whether a run on several machines continues with the remaining ones when one is lost."""
    interface: NonEmpty | None = None
    """Network interface between several machines, such as `eth1`. Default: the one in a network they all share."""
    gpus: Annotated[
        Annotated[Annotated[int, Field(ge=0), NotTruth], Tag("number")]
        | Annotated[Annotated[str, Field(pattern=values.DEVICES_PATTERN)], Tag("text")],
        Discriminator(number_kind),
    ] = "all"
    """`all`, a count, or device numbers in quotes: `'0,2'`, or `'0'` for the first. The number 0 means the CPU."""
    strategy: Literal["auto", "ddp", "fsdp2", "zero2", "zero3"] = "auto"
    """How several devices work together. `auto`: the whole model on each if it fits, else sharded with fsdp2."""
    processes: Annotated[
        Annotated[Auto, Tag("auto")] | Annotated[Annotated[int, Field(ge=1), NotTruth], Tag("value")],
        Discriminator(auto_kind),
    ] = "auto"
    """On a CPU, how many processes train together on each machine. With GPUs there is one per GPU."""
    micro: Annotated[
        Annotated[Auto, Tag("auto")] | Annotated[Annotated[int, Field(ge=1), NotTruth], Tag("value")],
        Discriminator(auto_kind),
    ] = "auto"
    """Sequences per device and forward pass. Part of the numeric fingerprint."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the forward and backward pass."""
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = "auto"
    """Attention kernel."""
    gradient_checkpointing: Annotated[
        Annotated[Literal["auto", "offload"], Tag("text")] | Annotated[bool, Tag("value")], Discriminator(word_kind)
    ] = "auto"
    """Recompute activations in the backward pass instead of keeping them. `offload`: what that still keeps, each
    block's input, is in main memory meanwhile; `auto` does so only where nothing else fits."""
    arrange: Literal["auto", "rows", "grouped"] = "auto"
    """How a step's sequences form micro batches: as prepared, or documents grouped by length."""
    loss: Literal["auto", "fused", "plain"] = "auto"
    """How the loss is computed: a few rows of logits at a time, or from all of them at once, which takes memory."""
    kernels: Literal["auto", "liger", "plain"] = "auto"
    """What computes norms, rotary positions and gated activations: Liger's kernels (0.8.5 or newer, on CUDA) or
    PyTorch's operations. `auto`: PyTorch's, until somebody has proven Liger's on a card."""
    compile: Literal["off", "on"] = "off"
    """Compile the model by `torch.compile`: faster steps, after minutes at the start of every attempt. A resume is at
    most SAMPLE-EXACT. With it the loss is the plain one."""
    workers: Annotated[
        Annotated[Auto, Tag("auto")] | Annotated[Annotated[int, Field(ge=0), NotTruth], Tag("value")],
        Discriminator(auto_kind),
    ] = "auto"
    """Data loader processes."""
    after: Literal["auto", "stay", "stop", "release"] = "auto"
    """What happens to a rented machine once the run has ended and its copy is verified. `stop` is reversible; `auto`:
    stop, if the platform has such a command. `release` deletes it with everything on it."""
    spot: bool = False
    """Whether preemptible (spot) machines are allowed. The plan shows both costs."""
    session: Duration | None = None
    """Time limit of one queue job or one notebook session, such as `8h`. A longer run takes several."""
    price: Price | None = None
    """Price per device and hour, such as `2.5 CNY/h`. Default: the cheapest known offer."""


class Budget(Section):
    """Limits of a run."""

    money: Money | None = None
    """Maximum cost, such as `50 CNY`."""
    time: Duration | None = None
    """Maximum time, such as `12h`."""


NativeBlock = dict[str, Any]


class Native(Section):
    """Engine options under their own names. An option that Stoker sets is refused here."""

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
        Annotated[NonEmpty, Tag("text")] | Annotated[NativeBlock, Tag("mapping")], Discriminator(kind)
    ] = Field(default_factory=dict)
    """DeepSpeed configuration, or the path of a `ds_config.json`. Stoker fills in its `auto` values."""
    vllm: NativeBlock = Field(default_factory=dict)
    """vLLM's OpenAI server: its flags, with `_` for `-`. Read by `stoker serve`, its memory also by `sampler: vllm`."""
    slurm: NativeBlock = Field(default_factory=dict)
    """`sbatch`: its long options, with `_` for `-`, such as `partition`. Never changes what is trained."""
    kaggle: NativeBlock = Field(default_factory=dict)
    """Fields of Kaggle's `kernel-metadata.json`, such as `machine_shape`. Never changes what is trained."""
    datatrove: NativeBlock = Field(default_factory=dict)
    """The executor of `data.pipeline`: `LocalPipelineExecutor`, or with `partition` and `time`
    `SlurmPipelineExecutor`. Never changes what is trained."""
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


class Run(Section):
    """One run file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None = None
    """Name of the run directory. Default: the run file's name without its extension; characters other than letters a
    to z, digits, `.`, `_` and `-` are replaced, and a name that has Chinese ones ends with six characters of its
    digest."""
    model: Annotated[Annotated[NonEmpty, Tag("text")] | Annotated[Shape, Tag("mapping")], Discriminator(kind)]
    """Hub id, local path, `run:NAME` for the model of an earlier run, or a shape to train from scratch."""
    tokenizer: Annotated[
        Annotated[NonEmpty, Tag("text")] | Annotated[TrainTokenizer, Tag("mapping")], Discriminator(kind)
    ] = "auto"
    """`auto` is the model's own; or a path, or `{train: bpe, vocab: 32000}`."""
    data: Data
    """The training data."""
    tune: Tune = Full()
    """Training method: full, lora or qlora."""
    train: Train = Train()
    """Training hyperparameters."""
    save: Save = Save()
    """Checkpoints."""
    where: Where = Where()
    """Hardware. Never changes what is trained."""
    budget: Budget = Budget()
    """Limits on cost and time."""
    native: Native = Native()
    """Engine options under their own names."""
