"""`Plan`: what will happen. JSON in the run directory; the engine does what it says and decides nothing itself.

The keys are a public interface, listed in docs/reference/plan.md and frozen by a test.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stoker import messages
from stoker.generating.planned_answers import Generating

FORMAT = 1


class _PlanPart(BaseModel):
    # Read leniently: a plan written by another version stays readable.
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True, defer_build=True)


class BatchSplit(_PlanPart):
    """How the effective batch is split: effective = micro x accumulation x devices, exactly."""

    effective: int
    """Sequences per optimizer step, as asked."""
    micro: int
    """Sequences per device at once."""
    accumulation: int
    """Micro batches per device and step."""
    devices: int
    """Devices that train."""


class Memory(_PlanPart):
    """Memory of one device."""

    peak_allocated_bytes: int
    """Most bytes held by tensors at one time."""
    peak_reserved_bytes: int
    """Most bytes the allocator takes, with its rounding and gaps."""
    peak_device_bytes: int
    """Most bytes the driver shows: reserved, and the runtime's own."""
    device_bytes_range: tuple[int, int]
    """Nine in ten measured runs like this one lie between."""
    available_bytes: int
    """What the device has."""
    parts: dict[str, int]
    """Allocated bytes at the peak by part: weights, gradients, optimizer, activations, logits, temporaries, teacher."""
    moment: str
    """When the peak is: `forward`, `loss_backward`, `block_backward`, `optimizer` and the like."""
    optimizer_bytes: int
    """The optimizer's state, which a first step does not have yet."""
    gradient_sum_bytes: int
    """Sums of gradients that live beside those of a micro batch."""


class Speed(_PlanPart):
    """Expected pace."""

    tokens_per_second: float
    """Tokens per second over all devices."""
    tokens_per_second_range: tuple[float, float]
    """Nine in ten measured runs like this one lie between."""
    step_seconds: float
    """Seconds per optimizer step."""
    parts: dict[str, float]
    """Seconds of a step by part."""


class Cost(_PlanPart):
    """Expected money."""

    amount: float
    """How much."""
    amount_range: tuple[float, float]
    """As far as the pace may lie from what is expected."""
    currency: str
    """In which currency."""
    price_per_hour: float
    """Price of one device and hour it was computed with."""
    billed_devices: int
    """Devices that are paid for; more than train where an offer has only larger machines."""
    source: str
    """Whose price, and of which day; `where.price` is your own."""
    age_days: int
    """How old the price is."""


class StepCounts(_PlanPart):
    """Optimizer steps."""

    total: int
    """Of the whole run."""
    per_epoch: int
    """Of one epoch: ceil(sequences / batch)."""
    epochs: int
    """Epochs."""
    warmup: int
    """Steps of rising learning rate."""


class DataPlan(_PlanPart):
    """The data as far as it is known."""

    sequences: int
    """Sequences of one epoch."""
    tokens: int
    """Tokens of one epoch."""
    tokens_range: tuple[int, int] = (0, 0)
    """Where they are estimated from files that are not prepared: nine in ten texts like these lie between."""
    longest: int
    """Tokens of the longest sequence."""
    digest: str
    """Digest of the prepared set; empty before `prepare`."""


class SourcePlan(_PlanPart):
    """What the run sees of one source of a mixture."""

    name: str
    """The source."""
    sequences: int
    """Sequences that are read, counted as often as they are read."""
    tokens: int
    """Their tokens, by the source's mean."""
    epochs: float
    """How often the whole source is seen."""

    @property
    def words(self) -> dict[str, str]:
        """The figures as sentences have them."""
        counts = {"sequences": f"{self.sequences:,}", "tokens": f"{self.tokens:,}"}
        return {"name": self.name, **counts, "epochs": f"{self.epochs:.2f}"}


class ModelPlan(_PlanPart):
    """The model as far as it is known."""

    parameters: int
    """Number of weights."""
    trainable_parameters: int
    """Number of weights that are trained."""
    origin: Literal["local", "cache", "hub", "shipped", "run_file"]
    """Where its shape was read."""


class Intervals(_PlanPart):
    """When things happen."""

    save: str
    """`500 steps`, `600 s`, `epoch`, or `auto`: by Young's rule from the cost of a save as it is measured."""
    between_failures_seconds: float = 0.0
    """Mean time between failures at this place, for `auto`."""
    background: bool = True
    """Whether a save is written while training goes on."""
    evaluate: str
    """`epoch`, `200 steps` or `never`."""


class Limits(_PlanPart):
    """What ends the run early, with a committed checkpoint."""

    time_seconds: float | None = None
    """`budget.time`, over all attempts."""
    money_seconds: float | None = None
    """How long `budget.money` lasts at the price in `cost`, over all devices and attempts."""
    deadline: str | None = None
    """When the platform ends the session, as far as it is known."""


After = Literal["stay", "stop", "release"]


class Spot(_PlanPart):
    """What the run is expected to cost on machines that may be taken away."""

    amount: float
    """Expected money, restarts included."""
    currency: str
    """Its currency."""
    price_per_hour: float
    """Of one card."""
    time_seconds: float
    """Expected time, with saves, restarts and what is done again."""
    restarts: float
    """Expected number of restarts."""
    source: str
    """Whose price, and of which day."""
    cheaper: bool
    """Whether that is less than on demand."""


class GuardPlan(_PlanPart):
    """What a bad step is, and what is done about it."""

    on_bad_step: Literal["stop", "skip"] = "stop"
    """Stop, or go back to the last checkpoint and pass over the step."""
    spike: float | None = None
    """How many times the median of recent losses is a jump; none: only what is not finite is bad."""


class Rung(_PlanPart):
    """A rung of the ladder that ran out of memory when it was tried."""

    strategy: str
    """How several devices worked together."""
    gradient_checkpointing: bool
    """Whether activations were computed again in the backward pass."""
    offload_activations: bool = False
    """Whether what that keeps was in main memory."""
    micro: int
    """Sequences per device at once."""
    card: str
    """The card, or the processor, it was tried on."""
    step: int
    """The step it got to."""


class SafeWay(_PlanPart):
    """The fastest way that surely fits, where the plan's is only likely to: the ladder goes there, or below."""

    strategy: str
    """How several devices work together."""
    gradient_checkpointing: bool
    """Whether activations are computed again in the backward pass."""
    micro: int
    """Sequences per device at once."""
    device_bytes_range: tuple[int, int]
    """Nine in ten measured runs like this one lie between."""
    time_seconds: float
    """Expected time of training this way."""
    cost: float | None
    """Expected money this way, in the currency of `cost`."""


class Resume(_PlanPart):
    """How the run goes on from its newest checkpoint, as far as a plan can know. The trainer has the last word."""

    step: int
    """The checkpoint's step."""
    tier: Literal["EXACT", "SAMPLE-EXACT", "OTHER", "FORK"]
    """How exactly: to the last bit, but for rounding, as another training, or as a fork's first attempt."""
    changed: list[str]
    """`micro: 4 -> 2` for each part of the numeric fingerprint that differs."""
    unseen: list[str]
    """Parts of the fingerprint that are compared only when it starts."""


class Reason(_PlanPart):
    """Why something was decided."""

    about: str
    """The plan's key it explains."""
    key: str
    """The sentence's key in the catalogue."""
    fields: dict[str, Any]
    """What the sentence needs."""

    @property
    def text(self) -> str:
        """The sentence in the user's language."""
        return messages.text(self.key, **self.fields)


class EngineOptions(_PlanPart):
    """Options handed to the engines, under their own names."""

    trainer: dict[str, Any]
    """`transformers.TrainingArguments`."""
    model: dict[str, Any]
    """`from_pretrained`, or the configuration of a shape."""
    lora: dict[str, Any]
    """`peft.LoraConfig`; empty for full tuning."""
    quantization: dict[str, Any]
    """`transformers.BitsAndBytesConfig`; empty unless qlora."""
    fsdp: dict[str, Any] = {}
    """`torch.distributed.fsdp.fully_shard`; empty unless fsdp2."""
    deepspeed: dict[str, Any] = {}
    """DeepSpeed's configuration; empty unless zero2 or zero3."""


class Plan(_PlanPart):
    """What will happen, and why."""

    format: int = FORMAT
    """Format of this file."""
    name: str
    """The run's name."""
    card: str
    """The card, or the processor."""
    device: Literal["cuda", "mps", "cpu"]
    """The kind of device."""
    nodes: list[str] = []
    """The machines that train together, the deciding one first; empty for a run of one machine."""
    elastic: bool = False
    """Whether the run goes on with those that remain when a machine is lost."""
    batch: BatchSplit
    """How the batch is split."""
    precision: Literal["bf16", "fp16", "fp32"]
    """Arithmetic of the forward and backward pass."""
    strategy: Literal["single", "ddp", "fsdp2", "zero2", "zero3"]
    """How several devices work together."""
    gradient_checkpointing: bool
    """Whether activations are computed again in the backward pass."""
    offload_activations: bool = False
    """Whether what that still keeps, each block's input, is in main memory meanwhile."""
    attention: Literal["flash_attention_2", "sdpa", "eager"]
    """Attention kernel."""
    repeat_keys: bool = False
    """Whether keys and values are repeated for each head before `sdpa`."""
    loss: Literal["plain", "fused", "liger"] = "plain"
    """From all logits at once, from a few rows of them at a time, or by Liger's kernel (`use_liger_kernel`)."""
    kernels: Literal["plain", "liger"] = "plain"
    """What computes norms, rotary positions and gated activations: PyTorch's operations or Liger's kernels."""
    arrange: Literal["rows", "grouped"]
    """How a step's sequences form micro batches."""
    exact: bool
    """Whether gradients are combined in the canonical order."""
    deterministic: bool
    """Whether only deterministic kernels run."""
    threads: int
    """CPU threads per process."""
    steps: StepCounts
    """Optimizer steps."""
    data: DataPlan
    """The data."""
    sources: list[SourcePlan] = []
    """What is seen of each source of a mixture, once the data is prepared."""
    model: ModelPlan
    """The model."""
    resume: Resume | None = None
    """How it goes on from an earlier attempt; nothing where there is none, or nothing left to train."""
    intervals: Intervals
    """When to save and to evaluate."""
    limits: Limits = Limits()
    """What ends the run early."""
    after: After = "stay"
    """What becomes of the machine once the run has ended and its copy is verified: stay on, stopped so that it can be
    started again, or given back."""
    platform: str = ""
    """The platform this was planned on; empty for a machine of one's own."""
    spot: Spot | None = None
    """Where `where.spot` allows it: the expected cost on machines that may be taken away."""
    guard: GuardPlan = GuardPlan()
    """What is done about a bad step."""
    store: str | None = None
    """Where committed copies go off the box."""
    out_of_memory: list[Rung] = []
    """Rungs of the ladder that ran out of memory when they were tried, oldest first."""
    memory: Memory
    """Memory of one device."""
    speed: Speed
    """Expected pace."""
    generating: Generating | None = None
    """Where the run generates its answers: what that takes."""
    time_seconds: float
    """Expected time of training."""
    time_seconds_range: tuple[float, float]
    """As far as the pace may lie from what is expected."""
    cost: Cost | None
    """Expected money, where a price is known."""
    disk_bytes: int
    """Disk for data, checkpoints, the finished model, and the base model it is made from and merged into."""
    disk_parts: dict[str, int] = {}
    """Disk by part: data, checkpoints, finished, base, merged."""
    fits: Literal["yes", "tight", "no"]
    """Whether it fits the device the way it is planned: surely, as expected but not surely, or not."""
    safe: SafeWay | None = None
    """The way that surely fits, where the planned one is only likely to."""
    estimated: list[str]
    """Keys whose figures are estimates, not measured or exact."""
    reasons: list[Reason]
    """A reason for every choice."""
    argv: list[str]
    """The training program, without the run directory."""
    env: dict[str, str]
    """Environment variables it is started with."""
    native: EngineOptions
    """Options handed to the engines."""

    @property
    def sure(self) -> bool:
        """Whether it surely fits, as planned or in the safe way."""
        return self.fits == "yes" or self.safe is not None
