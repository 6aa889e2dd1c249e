"""The oracle: runs a real training step with fake tensors on a CPU and replays its allocations as on CUDA.

`trace(step)` in process, or `python -m stoker.engine.trace FOLDER`: reads FOLDER/step.json, writes FOLDER/trace.json.
Two optimizer steps: the optimizer's state is created in the first, the peak is in the second.
"""

import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from stoker.engine.tracing import building, cuda_kernels, patches, private_names, rules, sharded
from stoker.engine.tracing.ledger import PARTS, Ledger
from stoker.engine.tracing.loop import Kernels, Loop
from stoker.engine.tracing.private_names import FakeTensorMode
from stoker.errors import EXIT_DONE
from stoker.estimate import step as steps_of
from stoker.estimate.allocator import Allocator, Entry
from stoker.estimate.step import Step
from stoker.rundir import files


@dataclass(frozen=True)
class Traced:
    """Memory of one device."""

    allocated: int
    """Peak of `torch.cuda.memory_allocated`."""
    reserved: int
    """Peak of `torch.cuda.memory_reserved`: what the allocator took from the driver."""
    static: int
    """Bytes of the model, before the first step."""
    requested: int
    """Peak of requested bytes, before the allocator rounds."""
    parts: dict[str, int]
    """Allocated bytes at the peak by part."""
    moment: str
    """When the peak was."""
    moments: dict[str, int]
    """Peaks of allocated bytes by moment."""
    notes: list[str]
    """How the traced model differs from the step's."""
    log: list[Entry]
    """Every allocation and free, in order."""


def trace(step: Step, steps: int = 2, on: Kernels = "cuda") -> Traced:
    """Run the step with fake tensors.

    Args:
        step: What one device does.
        steps: Optimizer steps.
        on: The kernels: those of a GPU, or of this CPU for comparison with a real run on it.
    """
    with sharded.joined(step) as mesh, FakeTensorMode(), ExitStack() as around:
        ledger = Ledger(workspaces=cuda_kernels.WORKSPACES if on == "cuda" else {}, vocab=step.shape.vocab)
        around.enter_context(private_names.convertible_modules())
        around.enter_context(private_names.copies_of_fakes())
        around.enter_context(patches.no_packing())
        around.enter_context(patches.resizing(ledger.resized))
        around.enter_context(patches.main_memory())
        if on == "cuda":
            around.enter_context(patches.cuda_kernels(cuda_kernels.attention(step.attention), cuda_kernels.dropout))
            if step.autocast:
                around.enter_context(patches.cuda_autocast())
        loop = Loop(step, ledger, on, mesh)
        with ledger:
            for _ in range(steps):
                loop.run()
        ledger.closed = True
    if rules.applies(step):
        rules.Rewriting(step, ledger).run()
    return _replayed(ledger, building.notes(step), expandable=step.expandable)


def _replayed(ledger: Ledger, notes: list[str], *, expandable: bool) -> Traced:
    """The log replayed through CUDA's allocator, with the peak by part."""
    allocator, marks = Allocator(expandable=expandable), dict(ledger.moments)
    moments: dict[str, int] = {}
    moment, at, last = "start", "start", 0
    for place, entry in enumerate(ledger.log):
        moment = marks.get(place, moment)
        _serve(allocator, entry)
        if allocator.allocated > moments.get(moment, 0):
            moments[moment] = allocator.allocated
            if allocator.allocated == allocator.peak_allocated:
                at, last = moment, place
    sizes = {entry[0]: entry[1] for entry in ledger.log if len(entry) > 1}
    born = ledger.births
    loaded = [number for number in sizes if born[number].moment == "start" and born[number].part == "weights"]
    return Traced(
        allocated=allocator.peak_allocated,
        reserved=allocator.peak_reserved,
        static=sum(sizes[number] for number in loaded),
        requested=_requested(ledger.log, sizes),
        parts=_parts(ledger, last),
        moment=at,
        moments=moments,
        notes=notes,
        log=ledger.log,
    )


def _serve(allocator: Allocator, entry: Entry) -> None:
    if len(entry) == 1:
        allocator.free(-entry[0])
    else:
        allocator.malloc(*entry)


def _requested(log: list[Entry], sizes: dict[int, int]) -> int:
    live = peak = 0
    for entry in log:
        live += entry[1] if len(entry) > 1 else -sizes[-entry[0]]
        peak = max(peak, live)
    return peak


def _parts(ledger: Ledger, place: int) -> dict[str, int]:
    """Bytes of blocks in use after an entry of the log, by part."""
    allocator = Allocator()
    for entry in ledger.log[: place + 1]:
        _serve(allocator, entry)
    parts: dict[str, int] = dict.fromkeys(PARTS, 0)
    for number, size in allocator.sizes().items():
        parts[ledger.part(number)] += size
    return parts


def main(folder: Path) -> int:
    """Trace the step a folder describes."""
    traced = trace(steps_of.from_json(files.read_json(folder / "step.json")))
    files.write_json(folder / "trace.json", {**asdict(traced), "log": len(traced.log)})
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
