"""The linear layers of a model: names, sizes, what is quantised and what an adapter trains.

Of a dense family by formula, of any other by the tensors of its record (`shape.parts`).
"""

import functools
from dataclasses import dataclass

from stoker.estimate.step import Adapter, Step
from stoker.facts.model_parts import TEXT, ModelParts, WeightGroup
from stoker.facts.shapes import ModelShape

_NAMES = {
    "phi": {"o": "dense", "up": "fc1", "down": "fc2"},
    "phi3": {"qkv": "qkv_proj", "gate_up": "gate_up_proj"},
    "glm": {"gate_up": "gate_up_proj"},
    "glm4": {"gate_up": "gate_up_proj"},
    "gpt2": {"qkv": "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj"},
    "gpt_neox": {"qkv": "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"},
    "qwen": {"qkv": "c_attn", "o": "c_proj", "gate": "w2", "up": "w1", "down": "c_proj"},
    "baichuan": {"qkv": "W_pack"},
    "chatglm": {"qkv": "query_key_value", "o": "dense", "gate_up": "dense_h_to_4h", "down": "dense_4h_to_h"},
    "internlm2": {"qkv": "wqkv", "o": "wo", "gate": "w1", "up": "w3", "down": "w2"},
}
"""Layer names of families that differ from `q_proj` and the like; some join several into one."""


@dataclass(frozen=True)
class Linear:
    """Linear layers of one name."""

    name: str
    inputs: int
    outputs: int
    count: int
    """Their number in the whole model."""
    bias: bool = False
    sparse: bool = False
    """Whether they are experts, of which a token uses some."""
    ranks: int = 1
    """Of an adapter on them, its rank as a multiple of the configured one."""

    @property
    def weights(self) -> int:
        """Elements of one, without its bias."""
        return self.inputs * self.outputs


def by_role(shape: ModelShape) -> dict[str, Linear]:
    """Linear layers of a block by what they do: q k v or qkv, o, gate and up or gate_up, down."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    names = _NAMES.get(shape.family, {})
    attention = {"q": query, "k": key, "v": key}
    inner = {"gate": shape.intermediate, "up": shape.intermediate} if shape.gated_mlp else {"up": shape.intermediate}
    if "qkv" in names:
        attention = {"qkv": sum(attention.values())}
    if "gate_up" in names:
        inner = {"gate_up": sum(inner.values())}
    experts = max(1, shape.experts) * shape.layers

    def layer(role: str, inputs: int, outputs: int, count: int, *, bias: bool) -> Linear:
        return Linear(names.get(role, f"{role}_proj"), inputs, outputs, count, bias, count != shape.layers)

    found = {
        role: layer(role, shape.hidden, size, shape.layers, bias=shape.qkv_bias) for role, size in attention.items()
    }
    found["o"] = layer("o", query, shape.hidden, shape.layers, bias=shape.output_bias)
    found |= {role: layer(role, shape.hidden, size, experts, bias=shape.mlp_bias) for role, size in inner.items()}
    found["down"] = layer("down", shape.intermediate, shape.hidden, experts, bias=shape.mlp_bias)
    return found


def linear_layers(shape: ModelShape) -> list[Linear]:
    """Linear layers of the language model's blocks, experts one by one."""
    if shape.parts:
        return [_linear(shape.parts, one) for one in shape.parts.groups if _multiplies(one)]
    return list(_of_a_block(shape))


@functools.cache
def _of_a_block(shape: ModelShape) -> tuple[Linear, ...]:
    return tuple(by_role(shape).values())


def quantised(shape: ModelShape) -> list[Linear]:
    """Layers that `qlora` holds in 4 bits."""
    if shape.parts:
        return [_matrix(one) for one in shape.parts.groups if one.quantised]
    return linear_layers(shape)


def unquantised(shape: ModelShape) -> list["Parameter"]:
    """Weights that `qlora` does not quantise."""
    if shape.parts:
        return [_parameter(one) for one in shape.parts.groups if not one.quantised]
    packed = {(one.outputs, one.inputs) for one in linear_layers(shape)}
    return [one for one in trained(shape, None) if (one.rows, one.columns) not in packed]


def adapted(shape: ModelShape, adapter: Adapter) -> list[Linear]:
    """Layers with a low-rank adapter."""
    if shape.parts:
        reached = [one for one in shape.parts.groups if one.adapter]
        return [_reached(one) for one in reached if not adapter.targets or one.layer in adapter.targets]
    return [one for one in linear_layers(shape) if not adapter.targets or one.name in adapter.targets]


def adaptable(shape: ModelShape) -> set[str]:
    """Names that targets of an adapter can state."""
    if shape.parts:
        return {one.layer for one in shape.parts.groups if one.adapter}
    return {one.name for one in linear_layers(shape)}


def expert_copies(shape: ModelShape, adapter: Adapter, *, packed: bool) -> tuple[int, int]:
    """Elements of experts that are computed at each use: unpacked, or added to their adapter. Of one block, of all.

    The largest tensor is there twice: while it is unpacked and added, and with its gradient.
    """
    used = [
        one
        for one in (shape.parts.fused_experts if shape.parts else [])
        if (packed and one.quantised) or (one.adapter and (not adapter.targets or one.layer in adapter.targets))
    ]
    largest = max((one.elements for one in used), default=0)
    return sum(one.elements for one in used) + largest, sum(one.elements * one.count for one in used) + largest


def trainable_parameters(shape: ModelShape, adapter: Adapter | None) -> int:
    """Weights that get a gradient; towers beside the language model get none of rows of text."""
    if adapter is None:
        return sum(one.elements * one.count for one in trained(shape, None)) if shape.parts else shape.parameters()
    low_rank = sum(adapter.rank * one.ranks * (one.inputs + one.outputs) * one.count for one in adapted(shape, adapter))
    return low_rank + len({"embed_tokens", "lm_head"} & set(adapter.whole)) * shape.vocab * shape.hidden


@dataclass(frozen=True)
class Parameter:
    """Trained weights of one form."""

    rows: int
    columns: int
    """1 for a vector."""
    count: int
    table: bool = False
    """Whether it is the embedding or the output layer."""
    embedding: bool = False
    """Whether rows of it are looked up."""
    matrix: bool = True
    """Whether it has two dimensions, where it has several columns; fused experts have three."""

    @property
    def elements(self) -> int:
        """Of one."""
        return self.rows * self.columns


@functools.cache
def trained(shape: ModelShape, adapter: Adapter | None) -> tuple[Parameter, ...]:
    """Every weight that gets a gradient, by form."""
    tables = {"embed_tokens", "lm_head"} if adapter is None else {"embed_tokens", "lm_head"} & set(adapter.whole)
    found = [Parameter(shape.vocab, shape.hidden, 1, table=True, embedding=True)] if "embed_tokens" in tables else []
    # PEFT trains a copy of each, also of tied ones.
    if "lm_head" in tables and (adapter is not None or not shape.tie_embeddings):
        found.append(Parameter(shape.vocab, shape.hidden, 1, table=True))
    if adapter is not None:
        for one in adapted(shape, adapter):
            rank = adapter.rank * one.ranks
            found += [Parameter(rank, one.inputs, one.count), Parameter(one.outputs, rank, one.count)]
        return tuple(found)
    if shape.parts:
        return tuple(_parameter(one) for one in shape.parts.groups if one.tower == TEXT)
    if shape.learned_positions:
        found.append(Parameter(shape.learned_positions, shape.hidden, 1, table=True, embedding=True))
    for one in linear_layers(shape):
        found.append(Parameter(one.outputs, one.inputs, one.count))
        if one.bias:
            found.append(Parameter(one.outputs, 1, one.count))
    matrices = sum(one.elements * one.count for one in found)
    vectors = (shape.parameters() - matrices) // shape.hidden
    return (*found, Parameter(shape.hidden, 1, vectors))


@dataclass(frozen=True)
class Sizes:
    """Bytes of an element of a model's weights."""

    outer: float
    """Of embedding, norms and biases."""
    head: float
    linear: float
    adapter: float


@dataclass(frozen=True)
class Gathered:
    """Bytes of weights as a device gathers them from all."""

    block: int
    embedding: int
    head: int
    """0 where it is the embedding."""
    rest: int
    """What else is outside the blocks."""


def gathers_lowered(step: Step) -> bool:
    """Whether linear layers and output layer are gathered in the type of the products, as `engine.fsdp` decides."""
    mixes = step.autocast and step.adapter is None and step.weights == "fp32" != step.compute
    return step.strategy == "fsdp2" and mixes and _plain_blocks(step.shape)


def _plain_blocks(shape: ModelShape) -> bool:
    """Whether the matrices of blocks are those of linear layers, the last one without a bias."""
    if shape.parts:
        repeated = [one for one in shape.parts.groups if one.count > 1]
        matrices = [one for one in repeated if len(one.shape) > 1]
        linear = all(one.role in ("linear", "router") and len(one.shape) == 2 for one in matrices)
        last = matrices[-1].name.removesuffix("weight") + "bias"
        return linear and all(one.name != last for one in repeated)
    return not shape.experts and not linear_layers(shape)[-1].bias


def gathered(shape: ModelShape, adapter: Adapter | None, sizes: Sizes) -> Gathered:
    """The weights of one block, and of what is outside the blocks."""
    if shape.parts:
        return _gathered_parts(shape, shape.parts, adapter, sizes)
    linear = sum(one.weights * one.count for one in linear_layers(shape)) // shape.layers
    table, head = shape.vocab * shape.hidden, 0 if shape.tie_embeddings else shape.vocab * shape.hidden
    head += shape.vocab if shape.head_bias else 0
    outer = (shape.learned_positions + shape.norm_weights) * shape.hidden
    rest = (shape.parameters() - outer - table - head) // shape.layers - linear
    low_rank = sum(one.elements * one.count for one in trained(shape, adapter)) // shape.layers if adapter else 0
    return Gathered(
        block=int(linear * sizes.linear + rest * sizes.outer + low_rank * sizes.adapter),
        embedding=int(table * sizes.outer),
        head=int(head * sizes.head),
        rest=int(outer * sizes.outer),
    )


def _gathered_parts(shape: ModelShape, parts: ModelParts, adapter: Adapter | None, sizes: Sizes) -> Gathered:
    inside, outside, tables = 0.0, 0.0, {"embedding": 0.0, "head": 0.0}
    for one in parts.groups:
        if one.count > 1:
            inside += one.elements * one.count * (sizes.linear if one.quantised else sizes.outer)
        elif one.role in tables and one.tower == TEXT:
            tables[one.role] += one.elements * (sizes.head if one.role == "head" else sizes.outer)
        else:
            outside += one.elements * sizes.outer
    low_rank = trainable_parameters(shape, adapter) * sizes.adapter if adapter else 0
    return Gathered(
        block=int((inside + low_rank) / shape.layers),
        embedding=int(tables["embedding"]),
        head=int(tables["head"]),
        rest=int(outside),
    )


def _multiplies(group: WeightGroup) -> bool:
    """Whether a matrix that a token of text is multiplied with, other than the output layer."""
    return group.tower == TEXT and group.role in ("linear", "router", "expert") and len(group.shape) > 1


def _linear(parts: ModelParts, group: WeightGroup) -> Linear:
    """A group as layers; a tensor of several experts as one layer each."""
    if group.role == "expert":
        each = group.elements * group.count // (parts.experts * _blocks(parts, group))
        inputs = group.shape[-1]
        return Linear(group.layer, inputs, each // inputs, parts.experts * _blocks(parts, group), sparse=True)
    return _matrix(group)


def _blocks(parts: ModelParts, group: WeightGroup) -> int:
    """Blocks that have these experts, in one tensor or in one tensor each."""
    return group.count if len(group.shape) == 3 else max(1, group.count // parts.experts)


def _matrix(group: WeightGroup) -> Linear:
    outputs = group.shape[0]
    return Linear(group.layer, group.elements // outputs, outputs, group.count)


def _reached(group: WeightGroup) -> Linear:
    assert group.adapter is not None
    reach = group.adapter
    return Linear(group.layer, reach.inputs, reach.outputs, group.count, ranks=reach.ranks)


def _parameter(group: WeightGroup) -> Parameter:
    rows = group.shape[0] if group.shape else 1
    return Parameter(
        rows,
        group.elements // rows,
        group.count,
        table=group.role in ("embedding", "head"),
        embedding=group.role == "embedding",
        matrix=len(group.shape) == 2,
    )
