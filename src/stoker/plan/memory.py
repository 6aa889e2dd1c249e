"""Memory of one device, first version: a coarse sum by part. Exact accounting has an issue of its own.

All figures follow from the model's shape, the method and the micro batch. Bytes, no torch.
"""

from dataclasses import dataclass

from stoker.config.run import Run
from stoker.facts.shapes import ModelShape
from stoker.plan.plan import Memory

_FP32 = 4
_NF4_BYTES_PER_WEIGHT = 0.5 + 0.127 / 8
"""4 bits, plus 0.127 bits of doubly quantised constants (QLoRA paper, section 3)."""
_OPTIMIZER_BYTES = {"adamw": 8.0, "adamw_8bit": 2.0, "paged_adamw_8bit": 2.0, "adafactor": 0.1}
_ALLOCATOR_SLACK = 1.06
_RUNTIME_BYTES = {"cuda": 600 << 20, "mps": 300 << 20, "cpu": 400 << 20}
USABLE_SHARE = 0.95
"""Share of a device's memory that a plan may fill."""


@dataclass(frozen=True)
class Load:
    """What is asked of the device."""

    shape: ModelShape
    run: Run
    precision: str
    device: str
    micro: int
    length: int
    gradient_checkpointing: bool
    gradient_sets: int
    """Gradient copies that live together: one, or the canonical tree's."""
    weight_parts: int = 1
    """Over how many devices weights are shared out."""
    state_parts: int = 1
    """Over how many devices gradients and optimizer state are shared out."""


@dataclass(frozen=True)
class Linear:
    """Linear layers of one name."""

    name: str
    inputs: int
    outputs: int
    count: int
    """How many the whole model has."""


_NAMES = {
    "phi": {"o": "dense", "up": "fc1", "down": "fc2"},
    "phi3": {"qkv": "qkv_proj", "gate_up": "gate_up_proj"},
    "glm": {"gate_up": "gate_up_proj"},
    "gpt2": {"qkv": "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj"},
    "gpt_neox": {"qkv": "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"},
}
"""What families call their layers where not `q_proj` and the like; some join several into one."""


def linear_layers(shape: ModelShape) -> list[Linear]:
    """Linear layers of the whole model, as an adapter finds them."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    names = _NAMES.get(shape.family, {})
    attention = {"q": query, "k": key, "v": key}
    inner = {"gate": shape.intermediate, "up": shape.intermediate} if shape.gated_mlp else {"up": shape.intermediate}
    if "qkv" in names:
        attention = {"qkv": sum(attention.values())}
    if "gate_up" in names:
        inner = {"gate_up": sum(inner.values())}
    experts = max(1, shape.experts) * shape.layers

    def layer(part: str, inputs: int, outputs: int, count: int) -> Linear:
        return Linear(names.get(part, f"{part}_proj"), inputs, outputs, count)

    return [
        *(layer(part, shape.hidden, outputs, shape.layers) for part, outputs in attention.items()),
        layer("o", query, shape.hidden, shape.layers),
        *(layer(part, shape.hidden, outputs, experts) for part, outputs in inner.items()),
        layer("down", shape.intermediate, shape.hidden, experts),
    ]


def trainable_parameters(shape: ModelShape, run: Run) -> int:
    """Weights that get a gradient."""
    if run.tune.method == "full":
        return shape.parameters()
    targets = run.tune.targets
    adapted = [one for one in linear_layers(shape) if targets == "all-linear" or one.name in targets]
    return sum(run.tune.rank * (one.inputs + one.outputs) * one.count for one in adapted)


def estimate(load: Load, available_bytes: int) -> Memory:
    """Peak memory by part."""
    trainable = trainable_parameters(load.shape, load.run)
    parts = {
        "weights": _held_weight_bytes(load, trainable),
        "gradients": trainable * _FP32 * load.gradient_sets // load.state_parts,
        "optimizer": int(trainable * _OPTIMIZER_BYTES[load.run.train.optimizer]) // load.state_parts,
        "activations": _activation_bytes(load),
        "logits": _logit_bytes(load),
        "runtime": _RUNTIME_BYTES[load.device],
    }
    allocated = sum(parts.values()) - parts["runtime"]
    return Memory(
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=int(allocated * _ALLOCATOR_SLACK) + parts["runtime"],
        available_bytes=available_bytes,
        parts=parts,
    )


def gradient_sets(micro_batches: int, *, exact: bool) -> int:
    """The tree holds a sum per level and the newest leaf."""
    return (micro_batches - 1).bit_length() + 1 if exact else 1


def fits(memory: Memory) -> bool:
    """Whether the plan may be run."""
    return memory.peak_reserved_bytes <= memory.available_bytes * USABLE_SHARE


def checkpoint_bytes(shape: ModelShape, run: Run) -> int:
    """Size of one checkpoint: trained weights and the optimizer's state."""
    trainable = trainable_parameters(shape, run)
    return int(trainable * (_FP32 + _OPTIMIZER_BYTES[run.train.optimizer])) + (16 << 20)


def _element_bytes(precision: str) -> int:
    return 4 if precision == "fp32" else 2


def whole_weight_bytes(shape: ModelShape, run: Run, precision: str) -> int:
    """The whole model's weights with the adapter, as one process builds them."""
    load = Load(shape, run, precision, "cuda", 1, 1, gradient_checkpointing=False, gradient_sets=1)
    return _weight_bytes(load, trainable_parameters(shape, run))


def _held_weight_bytes(load: Load, trainable: int) -> int:
    """A device's part and, where weights are shared out, what is put together at one time.

    That is two blocks, the one at work and the next, and the embedding and output layer, which stay from the forward
    pass to the backward pass.
    """
    total = _weight_bytes(load, trainable)
    if load.weight_parts == 1:
        return total
    shape = load.shape
    outer = shape.vocab * shape.hidden * (1 if shape.tie_embeddings else 2) * _outer_bytes(load)
    return total // load.weight_parts + 2 * (total - outer) // shape.layers + outer


def _outer_bytes(load: Load) -> int:
    """Bytes of an element of the embedding: half precision only where it is frozen and not quantised around."""
    return _element_bytes(load.precision) if load.run.tune.method == "lora" else _FP32


def _weight_bytes(load: Load, trainable: int) -> int:
    total = load.shape.parameters()
    if load.run.tune.method == "full":
        return total * _FP32
    adapter = trainable * _FP32
    if load.run.tune.method == "lora":
        return total * _element_bytes(load.precision) + adapter
    in_four_bits = sum(one.inputs * one.outputs * one.count for one in linear_layers(load.shape))
    return int(in_four_bits * _NF4_BYTES_PER_WEIGHT) + (total - in_four_bits) * _FP32 + adapter


def _activation_bytes(load: Load) -> int:
    shape = load.shape
    tokens = load.micro * load.length
    element = _element_bytes(load.precision)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    mlp = (4 if shape.gated_mlp else 3) * shape.intermediate
    # Saved per block: norm inputs and outputs (kept in fp32 once), q, k, v, attention output, the feed-forward's inner.
    block = tokens * (element * (4 * shape.hidden + 2 * query + 2 * key + mlp) + _FP32 * 2 * shape.hidden)
    if load.gradient_checkpointing:
        return shape.layers * tokens * shape.hidden * element + block
    return shape.layers * block


def _logit_bytes(load: Load) -> int:
    # The logits, their fp32 copy and its gradient live together in the loss.
    return load.micro * load.length * load.shape.vocab * (_element_bytes(load.precision) + 2 * _FP32)
