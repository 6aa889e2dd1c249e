"""Sharding without other devices: FSDP2's own code on a fake process group, as the first rank.

FSDP2 gathers and reduces on its own streams; torch's CPU streams do nothing but are distinct, which is enough for the
ledger.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from stoker.engine import fsdp
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
    """Shard a model in place: as we do, or as tools do that compute in another type than they hold."""
    if step.autocast or step.compute == "fp32":
        products = DTYPES[step.compute] if step.compute != "fp32" else None
        fsdp.apply(fsdp.groups(model, products), mesh, MixedPrecisionPolicy())
    else:
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[step.compute], reduce_dtype=torch.float32)
        fsdp.apply([fsdp.ShardGroup([one]) for one in (*fsdp.blocks(model), model)], mesh, policy)
    fsdp.sum_gradients(model, CanonicalReduceScatter() if step.gradient_sets > 1 else None)
