"""How FSDP2 shards a model (torch's `fully_shard`): what is gathered together, in which type, and until when.

Linear layers of a block are gathered in the type of the products, where autocast would cast each of them after it was
gathered in fp32: half is sent and held, and the bits are the same. What autocast does not cast (norms, embedding) keeps
its type: one device and DDP make the same casts. The oracle shards by this module too.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from stoker.engine import exact, models
from stoker.engine.exact import CanonicalReduceScatter
from stoker.errors import StokerError
from stoker.plan.plan import Plan

_PRODUCTS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
"""What autocast computes products in, by the plan's precision."""


@dataclass(frozen=True)
class ShardGroup:
    """Modules whose weights are gathered by one collective."""

    modules: Sequence[torch.nn.Module]
    products: torch.dtype | None = None
    """The type weights are gathered in; None for their own."""
    stays: bool = False
    """Whether they stay gathered until the backward pass is through with them."""


def shard(model: Any, plan: Plan) -> CanonicalReduceScatter | None:
    """Shard a model in place. Returns the reduction if it is canonical."""
    mesh = init_device_mesh(plan.device, (plan.batch.devices,))
    policy, options = _options(plan)
    products = None if policy != MixedPrecisionPolicy() else _PRODUCTS[plan.precision]
    apply(groups(model, products), mesh, policy, **options)
    _require_shards(model, plan.batch.devices)
    reduction = CanonicalReduceScatter() if plan.exact and plan.batch.devices > 1 else None
    sum_gradients(model, reduction)
    return reduction


def groups(model: Any, products: torch.dtype | None) -> Iterator[ShardGroup]:
    """The groups of a model, from the inside out.

    Args:
        model: In any of its wrappers.
        products: What autocast casts the weights of linear layers to.
    """
    for block in blocks(model):
        linear = [module for module in block.modules() if type(module) is torch.nn.Linear]
        if products is not None and _are_cast(linear) and _are_enough(linear, block):
            yield ShardGroup(linear, products)
        else:
            yield ShardGroup([block])
    base = models.without_adapter(model)
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    if embedding is not None and head is not None and not _matrices(embedding) & _matrices(head):
        yield ShardGroup([embedding])
        cast = type(head) is torch.nn.Linear and _are_cast([head])
        # The loss may use its weight after its forward pass: `fused_loss`.
        yield ShardGroup([head], products if cast else None, stays=True)
    yield ShardGroup([model])


def blocks(model: Any) -> list[torch.nn.Module]:
    """The modules that repeat through a model's depth, by the names of their classes."""
    names = set(models.without_adapter(model)._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def apply(found: Iterable[ShardGroup], mesh: DeviceMesh, policy: MixedPrecisionPolicy, **options: Any) -> None:
    """Shard the groups of a model; `policy` is for those with weights of their own type."""
    # Of the output layer under `fused_loss`, whose result nobody changes in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    for group in found:
        own = policy
        if group.products is not None:
            own = MixedPrecisionPolicy(group.products, torch.float32, cast_forward_inputs=False)
        kept = {"reshard_after_forward": False} if group.stays else {}
        modules = list(group.modules) if len(group.modules) > 1 else group.modules[0]
        fully_shard(modules, mesh=mesh, mp_policy=own, **{**options, **kept})


def sum_gradients(model: torch.nn.Module, reduction: CanonicalReduceScatter | None) -> None:
    """Gradients are summed, not averaged: the loss is normalised by the tokens of all ranks."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if reduction is not None:
                module.set_custom_reduce_scatter(reduction)  # type: ignore[arg-type]  # its base class is private


def _are_cast(linear: Iterable[torch.nn.Module]) -> bool:
    """Whether these are trained in fp32, so that autocast casts them. Frozen ones have the products' type."""
    parameters = [parameter for module in linear for parameter in module.parameters()]
    return bool(parameters) and all(one.requires_grad and one.dtype == torch.float32 for one in parameters)


def _are_enough(linear: Sequence[torch.nn.Linear], block: torch.nn.Module) -> bool:
    """Whether a block has no other matrices, and can be entered backward through the last layer.

    With a bias its result is a view: were something added to that in place, the backward pass would not call FSDP.
    """
    return _matrices(block) == _matrices(*linear) and linear[-1].bias is None


def _matrices(*modules: torch.nn.Module) -> set[torch.nn.Parameter]:
    return {parameter for module in modules for parameter in module.parameters() if parameter.dim() > 1}


def _options(plan: Plan) -> tuple[MixedPrecisionPolicy, dict[str, Any]]:
    """Types and other options of `fully_shard` from the plan, where dtypes and the offload policy are names."""
    options = dict(plan.native.fsdp)
    dtypes = {
        key: getattr(torch, options.pop(key))
        for key in ("param_dtype", "reduce_dtype", "output_dtype")
        if key in options
    }
    offload = CPUOffloadPolicy() if options.pop("offload_policy", None) == "cpu" else OffloadPolicy()
    return MixedPrecisionPolicy(**dtypes), {**options, "offload_policy": offload}


def _require_shards(model: torch.nn.Module, world: int) -> None:
    """Require every parameter to be sharded: replicated ones would exceed the plan's memory."""
    for name, parameter in model.named_parameters():
        held = exact.local(parameter)
        row = parameter.numel() // parameter.shape[0] * parameter.element_size()
        largest = -(-parameter.shape[0] // world) * row
        if held.nbytes > largest:
            raise StokerError("STK417", name=name, expected=f"{largest:,}", found=f"{held.nbytes:,}")
