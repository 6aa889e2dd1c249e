"""How much more the allocator holds where lengths vary: the tape of many steps, replayed through its model.

A cached block of one row's logits is too small for a longer row, and the cache is never returned to the driver:
reserved memory grows far beyond what a step needs. Prints the two factors of `estimate.memory`: on logits, and on
everything else that a step makes.
"""

import argparse
import dataclasses
import json
import math
import random
import statistics
from collections.abc import Iterator

from stoker.estimate import memory, passes, tape
from stoker.estimate.allocator import Allocator
from stoker.estimate.step import Adapter, Foreign, Step
from stoker.facts.shapes import shipped

MODELS = ("Qwen/Qwen1.5-1.8B-Chat", "Qwen/Qwen2.5-7B", "meta-llama/Llama-2-7b-hf", "mistralai/Mistral-7B-v0.1")
LAYERS = 10
"""Enough for blocks to dominate a tape; more change no ratio."""
CAPS = ((1024, 700), (2048, 1500))
"""Longest row and mean of the drawn lengths."""
SPREAD = 0.6
"""Standard deviation over mean, as data sets of conversations have it."""


def replayed(step: Step, lengths: list[int]) -> int:
    """Bytes reserved after steps of these lengths, weights and optimizer state apart."""
    allocator, numbers = Allocator(), iter(range(1, 1 << 60))

    class Logged(tape.Tensor):
        """A tensor whose life the allocator sees."""

        __slots__ = ("number",)

        def __init__(self, own: tape.Tape, num_bytes: int, size: int, edge: int | None = None) -> None:
            super().__init__(own, num_bytes, size, edge)
            self.number = next(numbers)
            allocator.malloc(self.number, max(1, num_bytes))

        def __del__(self) -> None:
            super().__del__()
            allocator.free(self.number)

    plain = tape.Tensor
    tape.Tensor = passes.Tensor = Logged  # type: ignore[misc]
    try:
        for length in lengths:
            walk(dataclasses.replace(step, length=length))
    finally:
        tape.Tensor = passes.Tensor = plain  # type: ignore[misc]
    return allocator.peak_reserved


def walk(step: Step) -> None:
    """One micro batch, all layers, forward and backward."""
    own = tape.Tape()
    own.keeps_gradients = False
    model = passes.Passes(step, own)
    hidden, _ = model.embed()
    for _ in range(step.shape.layers):
        hidden = own.checkpoint(model.block, hidden) if step.recompute == "full" else model.block(hidden)
    hidden = model.norm(hidden)
    loss = model.loss(hidden)
    del hidden
    own.cache.clear()
    own.start(loss)
    del loss
    own.backward(0)


def drawn(cap: int, mean: int, count: int, seed: int) -> list[int]:
    """Lognormal lengths; longer ones are left out, as preparation leaves them out."""
    chosen = random.Random(seed)
    sigma = math.sqrt(math.log1p(SPREAD**2))
    found: list[int] = []
    while len(found) < count:
        length = chosen.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
        if length <= cap:
            found.append(max(16, int(length)))
    return found


def steps() -> Iterator[Step]:
    adapter = Adapter(rank=8, targets=("q_proj", "k_proj", "v_proj"), dropout=True)
    for name in MODELS:
        shape = dataclasses.replace(shipped()[name], layers=LAYERS)
        for recompute in ("full", "none"):
            for loss, shifted in (("logits_fp32", True), ("logits_fp32", False), ("liger", False)):
                yield Step(
                    shape=shape, micro=1, length=1, accumulation=16, adapter=adapter, weights="bf16",
                    recompute=recompute, loss=loss, foreign=Foreign(shifted_logits=shifted),
                )  # fmt: skip


def measured(step: Step, cap: int, mean: int, count: int, seed: int) -> tuple[float, float, float]:
    """Bytes of a step's logits, of everything else it makes, and what is reserved after steps of many lengths."""
    lengths = drawn(cap, mean, count, seed)
    longest = memory.estimate(dataclasses.replace(step, length=max(lengths)))
    logits = longest.parts["logits"]
    others = longest.parts["activations"] + longest.parts["temporaries"]
    return float(logits), float(others), float(replayed(step, lengths))


def fitted(found: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Factors on logits and on others with the least sum of squared relative errors."""
    rows = [(logits / total, others / total) for logits, others, total in found]
    a, b, c = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in rows) for i in (0, 1))
    return (x * c - y * b) / (a * c - b * b), (a * y - b * x) / (a * c - b * b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2)
    asked = parser.parse_args()
    found = [measured(step, *cap, asked.steps, asked.seed) for step in steps() for cap in CAPS]
    on_logits, on_others = fitted(found)
    off = [abs((logits * on_logits + others * on_others) / total - 1) for logits, others, total in found]
    told = {
        "n": len(found),
        "logits": round(on_logits, 2),
        "others": round(on_others, 2),
        "median_error": round(statistics.median(off), 3),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
