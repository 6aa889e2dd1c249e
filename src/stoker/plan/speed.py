"""Pace and money, first version: one utilisation figure per kind of device. The roofline has an issue of its own."""

from stoker.config.run import Run
from stoker.facts.machine import Machine
from stoker.facts.prices import Offer
from stoker.facts.shapes import ModelShape
from stoker.plan.plan import Batch, Cost, Speed, Steps

_UTILISATION = {"cuda": 0.40, "mps": 0.30, "cpu": 0.45}
"""Share of the peak a training step reaches. Coarse: published single-GPU runs lie between 0.25 and 0.55."""
_CPU_FLOPS_PER_CORE = 5e10
"""fp32 multiply-adds of one server core with AVX2, as seen in matrix products here; laptops differ by 2x."""


def estimate(
    run: Run, shape: ModelShape, machine: Machine, batch: Batch, tokens_per_step: float, *, recompute: bool
) -> Speed:
    """Tokens per second and seconds per step."""
    flops_per_token = _passes(run, recompute=recompute) * 2 * shape.active_parameters()
    peak = machine.flops_per_device(half=True) if machine.kind != "cpu" else machine.cpu_count * _CPU_FLOPS_PER_CORE
    tokens_per_second = _UTILISATION[machine.kind] * peak * batch.devices / flops_per_token
    return Speed(tokens_per_second=tokens_per_second, step_seconds=tokens_per_step / tokens_per_second)


def cost(time_seconds: float, batch: Batch, offer: Offer | None) -> Cost | None:
    """Money for the training time at an offer's price."""
    if offer is None:
        return None
    return Cost(
        amount=round(time_seconds / 3600 * offer.price_per_hour * batch.devices, 2),
        currency=offer.currency,
        price_per_hour=offer.price_per_hour,
        source=f"{offer.cloud}, {offer.date.isoformat()}",
    )


def total_seconds(speed: Speed, steps: Steps) -> float:
    """Training time without start-up and saves."""
    return speed.step_seconds * steps.total


def _passes(run: Run, *, recompute: bool) -> float:
    """Forward-pass equivalents of one training step: 3 in full, 2 without weight gradients, 1 more to recompute."""
    return (3 if run.tune.method == "full" else 2) + (1 if recompute else 0)
