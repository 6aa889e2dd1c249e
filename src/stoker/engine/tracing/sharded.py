"""Sharding without other devices: FSDP2's own code on a fake process group, as the first rank.

FSDP2 gathers and reduces on its own streams; torch's CPU streams do nothing but are distinct, which is enough for the
ledger. Wrapped like `engine.parallel.shard`: every block, then the rest.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from stoker.engine.exact import CanonicalReduceScatter
from stoker.engine.tracing import private_names
from stoker.engine.tracing.dtypes import DTYPES
from stoker.estimate.step import Step


@contextmanager
def joined(step: Step) -> Iterator[DeviceMesh | None]:
    """The devices of a step as a mesh; None without sharding."""
    if step.strategy != "fsdp2":
        yield None
        return
    replicas = step.devices // step.shard_devices
    hook = sys.excepthook  # torch replaces it
    dist.init_process_group("fake", rank=0, world_size=step.devices, store=private_names.FakeStore())
    try:
        if replicas > 1:
            yield init_device_mesh("cpu", (replicas, step.shard_devices), mesh_dim_names=("replicate", "shard"))
        else:
            yield init_device_mesh("cpu", (step.shard_devices,))
    finally:
        dist.destroy_process_group()
        # DTensor's cache holds this mesh; the process may be another rank of the next one.
        private_names.forget_shardings()
        sys.excepthook = hook


def shard(model: Any, step: Step, mesh: DeviceMesh) -> None:
    """Shard a model in place."""
    policy = MixedPrecisionPolicy()
    if not step.autocast and step.weights != step.compute:
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[step.compute], reduce_dtype=torch.float32)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for module in list(model.modules()):
        if type(module).__name__ in private_names.block_names(base):
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    reduction = CanonicalReduceScatter() if step.gradient_sets > 1 else None
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if reduction is not None:
                module.set_custom_reduce_scatter(reduction)  # type: ignore[arg-type]  # its base class is private
