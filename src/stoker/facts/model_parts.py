"""What a model consists of, as its own class, the quantiser and PEFT make it: weights, adapters, blocks, experts.

Written by `engine.weigh` from a model on the meta device. Counts follow from it, none is assumed. Knows nothing of
where a record is found, of memory or of speed.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

FORMAT = 2
TEXT = "text"
KERNELS = ("flash_attention_2", "sdpa", "eager")
"""Ways to compute attention, fastest first; every class has the last one."""
_FUSED = 3
"""Dimensions of a tensor with one matrix for each expert."""
_RECURRENT = ("mamba", "linear", "conv")

Role = Literal["embedding", "head", "linear", "expert", "router", "norm", "other"]


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The low-rank adapter that PEFT's `all-linear` puts on one tensor."""

    inputs: int
    outputs: int
    ranks: int = 1
    """Its rank as a multiple of the configured one: an expert tensor has one low-rank pair for each expert."""
    by: Literal["module", "parameter"] = "module"
    """Whether PEFT adapts a linear layer, or a bare parameter (`target_parameters`)."""

    @property
    def per_rank(self) -> int:
        """Adapter weights for each unit of rank."""
        return self.ranks * (self.inputs + self.outputs)


@dataclass(frozen=True, kw_only=True)
class WeightGroup:
    """Tensors that differ by their layer's number only."""

    name: str
    """As in the model, with `*` for numbers: `model.layers.*.self_attn.q_proj.weight`."""
    shape: tuple[int, ...]
    count: int
    role: Role
    tower: str = TEXT
    """`text`, or the module that holds another modality: `vision_tower`, `multi_modal_projector`."""
    quantised: bool = False
    """Whether bitsandbytes holds it in 4 bits under `qlora`."""
    adapter: Reach | None = None

    @property
    def elements(self) -> int:
        """Of one tensor."""
        return math.prod(self.shape)

    @property
    def layer(self) -> str:
        """The name PEFT's targets match: `q_proj`; of a bare parameter, its own."""
        path = self.name.split(".")
        return path[-1] if path[-1] not in ("weight", "bias") else path[-2]


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """A model by its tensors."""

    family: str
    """`model_type` of the language model in transformers."""
    model_class: str
    """The class that training loads."""
    sizes: tuple[tuple[str, int | bool | None], ...]
    """The sizes of `ModelShape`, from the configuration with its defaults."""
    groups: tuple[WeightGroup, ...]
    mixers: tuple[tuple[str, int], ...]
    """Kinds of attention and its replacements, with the number of blocks that have each."""
    tied: tuple[tuple[str, str], ...] = ()
    """Tensors stored once under two names; `groups` has the second."""
    experts: int = 0
    """Routed experts of a block."""
    experts_per_token: int = 0
    attention: tuple[str, ...] = KERNELS
    """Attention kernels that the class takes."""
    no_adapter: str = ""
    """Why PEFT refuses an adapter on all linear layers; empty if it does not."""
    made_with: tuple[tuple[str, str], ...] = ()
    """Versions of the packages whose rules these are."""

    @property
    def parameters(self) -> int:
        """All weights."""
        return sum(group.elements * group.count for group in self.groups)

    @property
    def quantised_parameters(self) -> int:
        """Weights that `qlora` holds in 4 bits."""
        return sum(group.elements * group.count for group in self.groups if group.quantised)

    @property
    def active_parameters(self) -> int:
        """Weights one token is multiplied with: looking up an embedding is none, an expert not chosen is none."""
        return round(sum(self._share(group) * group.elements * group.count for group in self.groups))

    @property
    def recurrent(self) -> tuple[str, ...]:
        """Kinds of layers that carry a state along the row."""
        return tuple(kind for kind, _ in self.mixers if kind in _RECURRENT)

    @property
    def fused_experts(self) -> list[WeightGroup]:
        """Tensors that hold all experts of a layer."""
        return [group for group in self.groups if group.role == "expert" and len(group.shape) == _FUSED]

    def adapter_parameters(self, rank: int) -> int:
        """Weights of an adapter on all linear layers."""
        return sum(group.adapter.per_rank * rank * group.count for group in self.groups if group.adapter)

    def shallow(self, blocks: int, layers: int) -> "ModelParts":
        """As many blocks of its `layers`, rounded up by tensor."""
        kept = (replace(one, count=-(-one.count * blocks // layers)) if one.count > 1 else one for one in self.groups)
        return replace(self, groups=tuple(kept))

    def _share(self, group: WeightGroup) -> float:
        """How much of a tensor one token of text uses; a tied output layer is its embedding."""
        if group.tower != TEXT:
            return 0
        if group.role == "embedding":
            return float(any(kept == group.name for _, kept in self.tied))
        return self.experts_per_token / self.experts if group.role == "expert" else 1


def to_json(parts: ModelParts) -> dict[str, Any]:
    """A record as files hold it; defaults are left out."""
    stored = asdict(parts)
    return {
        "format": FORMAT,
        **stored,
        **{word: dict(stored[word]) for word in ("sizes", "mixers", "made_with")},
        "groups": [_group_to_json(group) for group in parts.groups],
    }


def from_json(stored: dict[str, Any]) -> ModelParts:
    """A record that was stored."""
    words = {word: value for word, value in stored.items() if word != "format"}
    return ModelParts(
        **{
            **words,
            **{word: tuple(stored[word].items()) for word in ("sizes", "mixers", "made_with")},
            "tied": tuple((left, right) for left, right in stored["tied"]),
            "attention": tuple(stored.get("attention", KERNELS)),
            "groups": tuple(_group_from_json(group) for group in stored["groups"]),
        }
    )


def _group_to_json(group: WeightGroup) -> dict[str, Any]:
    stored: dict[str, Any] = {"name": group.name, "shape": list(group.shape), "count": group.count}
    if group.role != "linear":
        stored["role"] = group.role
    if group.tower != TEXT:
        stored["tower"] = group.tower
    if group.quantised:
        stored["quantised"] = True
    if group.adapter:
        usual = {"ranks": 1, "by": "module"}
        stored["adapter"] = {word: value for word, value in asdict(group.adapter).items() if usual.get(word) != value}
    return stored


def _group_from_json(stored: dict[str, Any]) -> WeightGroup:
    adapter = stored.get("adapter")
    return WeightGroup(
        **{
            "role": "linear",
            **stored,
            "shape": tuple(stored["shape"]),
            "adapter": Reach(**adapter) if adapter else None,
        }
    )
