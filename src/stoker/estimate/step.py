"""`Step`: what one device does in one optimizer step, in the words that decide its memory and its time.

Made from a run and a plan's choices (`plan/search.py`), or from a row of published measurements. `Foreign` is what only
other tools do: no run of ours sets it, but a figure is only worth what it can be checked against.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from stoker.facts.shapes import ModelShape

Dtype = Literal["fp32", "bf16", "fp16"]
Attention = Literal["flash_2", "efficient", "eager"] | Literal["flash"]
# Of these, runs of ours use the first ones; those after the bar are of published measurements only.
Storage = Literal["fp32", "bf16", "fp16", "nf4_double", "nf4"] | Literal["int8", "int4"]
Recompute = Literal["none", "full"] | Literal["selective"]
Loss = Literal["logits_fp32", "fused", "liger"] | Literal["logits", "chunked"]
Optimizer = (
    Literal["adamw_fused", "adamw", "sgd", "adagrad", "rmsprop", "adafactor", "muon"]
    | Literal["adamw_8bit", "adamw_rounded", "paged_adamw_8bit", "paged_adamw_32bit", "ademamix", "ademamix_8bit"]
    | Literal["lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "rmsprop_bnb", "rmsprop_bnb_8bit"]
)
Strategy = Literal["single", "ddp", "fsdp2", "zero2", "zero3"] | Literal["zero1"]
Offload = Literal["none", "optimizer", "all"]

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A low-rank adapter."""

    rank: int
    targets: tuple[str, ...] = ()
    """Names of the layers that have one; empty for all linear layers."""
    dropout: bool = False
    dtype: Dtype = "fp32"
    whole: tuple[str, ...] = ()
    """Layers trained in full beside it: `embed_tokens`, `lm_head`."""
    whole_dtype: Dtype = "fp32"
    """What those layers are held in."""


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """What only other tools do, for published measurements of them; the defaults are what Stoker does."""

    varied: bool = False
    """Whether lengths differ from step to step, so that the allocator's cache holds blocks of many sizes."""
    master: bool = False
    """Whether the optimizer keeps an fp32 copy of 16-bit weights (Megatron, DeepSpeed's own half precision)."""
    shifted_logits: bool = False
    """Whether the loss first copies the logits without their last position (transformers before 2025)."""
    held_outputs: bool = False
    """Whether the loop keeps the model's outputs, so the logits, through the backward pass (loops without Trainer)."""
    autocast_cache: bool = False
    """Whether autocast keeps its copies of trained weights until the forward pass ends, which is its default."""
    frozen_inputs: bool = False
    """Whether a quantised frozen layer keeps its input for the backward pass (bitsandbytes before 0.43)."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    pipeline_chunks: int = 1
    """Pieces of the model each pipeline stage holds (interleaved schedules), which shorten the bubble."""
    context_parallel: int = 1
    """Devices that share one sequence; `length` stays the whole one."""
    expert_parallel: int = 1
    product_bits: Literal[4, 8, 16] = 16
    """Width of the arithmetic in linear layers: 8 for fp8, 4 for fp4; `compute` holds elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One device's part of an optimizer step."""

    shape: ModelShape
    micro: int
    """Sequences at once."""
    length: int
    """Tokens of the longest sequence, which decides memory."""
    mean_length: float | None = None
    """Tokens of a mean row with its padding, which decides time; None where every row has `length`."""
    accumulation: int = 1
    """Micro batches of one optimizer step."""
    adapter: Adapter | None = None
    """None where every weight is trained."""
    weights: Storage = "fp32"
    """How the model's weights are held: the trained ones, or the frozen ones under an adapter."""
    outer: Dtype = "fp32"
    """How embedding, norms and output layer are held where `weights` is a quantised form."""
    compute: Dtype = "bf16"
    """Arithmetic of the products. Differs from `weights` under autocast or FSDP's mixed precision."""
    autocast: bool = True
    """Whether products cast their inputs to `compute` at each use; else tensors have it from the start."""
    attention: Attention = "flash_2"
    """`flash_2` is flash attention 2, also torch's own; `flash` is a kernel written for the card, which is faster from
    Hopper on and keeps the same tensors."""
    masked: bool = False
    """Whether attention gets a mask tensor (padding, packed documents under sdpa)."""
    recompute: Recompute = "none"
    """Activations computed again in the backward pass: none, whole blocks, or cheap operations of them."""
    kept_away: bool = False
    """Whether the inputs of recomputed blocks are in main memory until then."""
    loss: Loss = "logits_fp32"
    """Whole logits with or without an fp32 copy, in chunks, or fused with the output layer: by us, or by Liger."""
    optimizer: Optimizer = "adamw"
    """`adamw` is torch's foreach form, which makes temporaries; `adamw_fused` makes none."""
    extra_moments: int = 0
    """Moments that options add to the optimizer's own: momentum of SGD and RMSprop, a mean of RMSprop."""
    gradient_sets: int = 1
    """Gradient copies that live together: one, the canonical tree's, or none (optimizer in the backward pass)."""
    strategy: Strategy = "single"
    devices: int = 1
    """Devices that share the step."""
    shard_devices: int = 1
    """Devices the model is sharded over: all, or those of one node where the nodes are replicas."""
    devices_per_node: int = 8
    canonical: bool = False
    """Whether gradients are added in one order (`engine.exact`): each device gets its slice of every sum, and adds."""
    expandable: bool = False
    """Whether the allocator's segments grow (`expandable_segments`), as in every run of ours."""
    offload: Offload = "none"
    """What is in main memory: the optimizer's state, or weights too."""
    bucket: int | None = None
    """Numbers that DeepSpeed's buffers hold, whatever the model; None for transformers' `auto`, the width squared."""
    compiled: bool = False
    """Whether torch.compile or hand-fused kernels run instead of one kernel per operation."""
    fused_blocks: bool = False
    """Whether norms, rotary positions and gated activations are one kernel each (Liger's), as with `compiled`."""
    foreign: Foreign = Foreign()
    """What only other tools do."""

    @property
    def fuses(self) -> bool:
        """Whether these operations of a block are one kernel each."""
        return self.compiled or self.fused_blocks

    @property
    def tokens(self) -> int:
        """Tokens of one micro batch, at most."""
        return self.micro * self.length

    @property
    def weight_parts(self) -> int:
        """Over how many devices weights are sharded."""
        return self.shard_devices if self.strategy in ("fsdp2", "zero3") else 1

    @property
    def gradient_parts(self) -> int:
        """Over how many devices gradients are sharded."""
        return self.shard_devices if self.strategy in ("fsdp2", "zero2", "zero3") else 1

    @property
    def state_parts(self) -> int:
        """Over how many devices the optimizer's state is sharded."""
        return self.shard_devices if self.strategy in ("fsdp2", "zero1", "zero2", "zero3") else 1


def to_json(step: Step) -> dict[str, Any]:
    """A step as a trace's folder holds it."""
    return dataclasses.asdict(step)


def from_json(stored: dict[str, Any]) -> Step:
    """A step that was stored; JSON has lists for its tuples."""
    inner: dict[str, dict[str, Any]] = {
        name: {key: tuple(one) if isinstance(one, list) else one for key, one in (stored[name] or {}).items()}
        for name in ("shape", "adapter", "foreign")
    }
    adapter = Adapter(**inner["adapter"]) if inner["adapter"] else None
    shape, foreign = ModelShape(**{**inner["shape"], "parts": None}), Foreign(**inner["foreign"])
    return Step(**{**stored, "shape": shape, "adapter": adapter, "foreign": foreign})


def replace_foreign(step: Step, **changes: Any) -> Step:
    """The step with other values of `Foreign`."""
    return dataclasses.replace(step, foreign=dataclasses.replace(step.foreign, **changes))
