"""C14: runs that move between 1, 2, 4 processes, DDP and FSDP2, with a SIGKILL before each move; `train.exact` is on.

A schedule is a list of attempts, each on another number of processes or by another strategy. All but the last are
killed, inside a save, at some step, or as they start. How many sequences form a micro batch is stated once; later
attempts leave it to the plan, which must keep it. Every rank notes what it really computed a gradient from. Of the
attempts, those steps count that a later one went on from: each step must have the sequences of an undisturbed run, each
epoch every sequence once. While the strategy stays, losses, weights and the optimizer's state must be those of an
undisturbed run to the last bit; across strategies weights within 1e-6. The tier that the plan says before a start must
be the trainer's own.
Controls: an order that follows the number of processes, an optimizer that starts anew, a plain sum of gradients, a plan
that forgets what it goes on from.
"""

import dataclasses
import hashlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import c1
import controls
import tiny_run
import trainings
from campaign import Campaign
from safetensors.torch import load_file
from trainings import Outcome

from stoker.launch import plan_inputs
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, events, files
from stoker.rundir.layout import RunDir

BATCH = 8
ROWS = tiny_run.random_rows(21, seed=9, longest=48)
"""Three steps an epoch, the last one of five sequences."""
STEPS_PER_EPOCH, EPOCHS = 3, 8
TUNE = {"lora": "{method: lora, rank: 4, dropout: 0.1}", "full": "{method: full}"}
KEPT = "kept"
"""Left to the plan, which must stay with shards, once there is a checkpoint of shards to stay with."""
WHOLE = (("auto", 1), ("ddp", 2), ("ddp", 4))
SHARDS = ((KEPT, 1), ("fsdp2", 2), ("fsdp2", 4))
ACROSS = (("auto", 1), ("ddp", 2), ("ddp", 4), ("fsdp2", 1), ("fsdp2", 2), ("fsdp2", 4))
KINDS = {"whole gradients": WHOLE, "shards": SHARDS, "across": ACROSS}
MOST_MOVES = 5
ACROSS_TOLERANCE = 1e-6
STATE = "state.safetensors"
WAYS = ("in a save", "in a save", "at a step", "at a step", "at the start")
WAIT_SECONDS = 900.0

Where = tuple[str, int]


@dataclass
class Start:
    """One attempt as it was planned, and what became of it."""

    number: int
    plan: Plan
    tier: str = ""
    """The trainer's own verdict; empty where it was killed before."""
    resumed_step: int = 0


@dataclass
class Moved:
    """A run on its way."""

    run_dir: RunDir
    starts: list[Start] = field(default_factory=list)

    def consumed(self) -> dict[int, dict[int, list[int]]]:
        """Rows that a gradient was computed from, by the number of the start and the step, over all ranks."""
        found: dict[int, dict[int, list[int]]] = {}
        for path in sorted(self.run_dir.path.glob("consumed-*.jsonl")):
            number = int(path.name.split("-")[1])
            for line in path.read_text().splitlines():
                one = json.loads(line)
                found.setdefault(number, {}).setdefault(one["step"], []).extend(one["rows"])
        return found

    def lasting(self) -> dict[int, list[int]]:
        """Of each step, what was computed by the attempt that a later one went on from, or by the last."""
        begun = [start for start in self.starts if start.tier]
        consumed, rows = self.consumed(), {}
        for start in begun:
            rows = {step: some for step, some in rows.items() if step <= start.resumed_step}
            later = consumed.get(start.number, {}).items()
            rows |= {step: sorted(some) for step, some in later if step > start.resumed_step}
        return rows


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    known: dict[tuple[str, str, int], tuple[Outcome, dict[int, list[int]], Path]] = {}

    def undisturbed(method: str, strategy: str, micro: int) -> tuple[Outcome, dict[int, list[int]], Path]:
        key = (method, strategy, micro)
        if key not in known:
            known[key] = _undisturbed(campaign, base, *key)
        return known[key]

    worst = 0.0
    for number in range(campaign.n):
        if campaign.hopeless:
            break
        kind, method, micro, wheres = _schedule(campaign.random(number), number)
        moved = _travel(campaign, base, number, method, micro, wheres)
        label = [number, kind, method, micro, [f"{strategy} {count}" for strategy, count in wheres]]
        wanted = undisturbed(method, "fsdp2" if kind == "shards" else "ddp", micro)
        for wrong in _wrong(moved, kind, *wanted):
            campaign.fail(label, wrong)
        if kind == "across" and moved.run_dir.final.exists():
            worst = max(worst, _apart(moved.run_dir.final, wanted[2]))
        _count(campaign, kind, method, moved)
    campaign.measured["largest difference across strategies, of the largest weight"] = worst
    for name, (where, change) in CONTROLS.items():
        moved = _travel(campaign, base, f"control {name}", "lora", 1, where, change, kill_at=(5, 10))
        found = _wrong(moved, "whole gradients", *undisturbed("lora", "ddp", 1))
        campaign.control(name, caught=bool(found), what="; ".join(found))


def _schedule(chance: random.Random, number: int) -> tuple[str, str, int, list[Where]]:
    """Kinds and methods in turn, the rest by chance; no attempt is where the one before was."""
    turn, place = divmod(number, len(KINDS))
    kind, method = list(KINDS)[place], ("lora", "full")[(turn + place) % 2]
    wheres: list[Where] = []
    for _ in range(chance.randint(3, MOST_MOVES + 1)):
        wheres.append(chance.choice([where for where in KINDS[kind] if where not in wheres[-1:]]))
    return kind, method, chance.choice((1, 2)), wheres


def _make(folder: Path, base: Path, method: str, where: Where, micro: int) -> RunDir:
    """The run planned for a place; the micro batch is the plan's to keep once there is a checkpoint."""
    begun = checkpoints.next_found(folder / "runs" / "run" / "checkpoints")
    stated = "" if begun else f", micro: {micro}"
    strategy = where[0] if where[0] != KEPT else "auto" if begun else "fsdp2"
    text = f"""
model: {base}
data: {{train: rows.jsonl, eval: rows.jsonl, length: 48, pack: false}}
tune: {TUNE[method]}
train: {{batch: {BATCH}, epochs: {EPOCHS}, exact: true, learning_rate: 1e-3, warmup: 3}}
save: {{every: 2 steps, keep: 2}}
where: {{gpus: 0, arrange: rows, strategy: {strategy}, processes: {where[1]}{stated}}}
native: {{trainer: {{report_to: []}}}}
"""
    return tiny_run.make_run(folder, text, ROWS, ROWS[:3])


def _travel(
    campaign: Campaign,
    base: Path,
    number: int | str,
    method: str,
    micro: int,
    wheres: list[Where],
    change: Callable[[], None] = lambda: None,
    kill_at: tuple[int, ...] = (),
) -> Moved:
    """Make all moves of a schedule; every attempt but the last is killed."""
    chance, folder = campaign.random("kills", number), campaign.folder / f"moved {number}"
    moved = Moved(_make(folder, base, method, wheres[0], micro))
    for attempt, where in enumerate(wheres):
        last = attempt == len(wheres) - 1
        made = _forgetful if change is _forgets and attempt else _make
        run_dir = made(folder, base, method, where, micro)
        begun = len(_attempts(run_dir))
        started = _start(moved, attempt, run_dir, change)
        if last:
            if started.wait(WAIT_SECONDS) != 0:
                campaign.fail([number, attempt], f"{started.codes}: {trainings.log_of(run_dir)}")
        else:
            way = "at a step" if kill_at else WAYS[chance.randrange(len(WAYS))]
            killed = _kill(started, chance, way, kill_at[attempt] if kill_at else 0)
            campaign.counts[f"killed {way}" if killed else "done before the kill"] += 1
        for event in _attempts(run_dir)[begun:]:
            moved.starts[-1].tier, moved.starts[-1].resumed_step = event["tier"], event["resumed_step"]
    return moved


def _start(moved: Moved, number: int, run_dir: RunDir, change: Callable[[], None]) -> trainings.Attempt:
    moved.starts.append(Start(number, files.read_record(run_dir.plan_file, Plan)))

    def before() -> None:
        _note_rows(run_dir.path / f"consumed-{number}-{os.environ.get('RANK', '0')}.jsonl")
        change()

    return trainings.start(run_dir, before)


def _note_rows(path: Path) -> None:
    """In a child: write down which rows each step computes gradients from, when the step's own sums are done."""
    from stoker.engine import trainer

    rows = {tuple(int(t) if t >= 0 else int(~t) for s in row for t in s): i for i, row in enumerate(ROWS)}
    plain_step, plain_pass = trainer.ExactSteps.training_step, trainer.ExactSteps.forward_backward
    seen: list[int] = []

    def forward_backward(self: Any, model: Any, micro: Any, *args: Any, **words: Any) -> Any:
        if words.get("weight", 1.0):
            lines = ([int(token) for token in line if token] for line in micro["input_ids"])  # 0 fills up
            seen.extend(rows.get(tuple(line), -1) for line in lines)
        return plain_pass(self, model, micro, *args, **words)

    def training_step(self: Any, model: Any, inputs: Any, *args: Any) -> Any:
        seen.clear()  # the rehearsal's
        loss = plain_step(self, model, inputs, *args)
        with path.open("a") as file:
            file.write(json.dumps({"step": inputs.step + 1, "rows": seen}) + "\n")
        return loss

    trainer.ExactSteps.forward_backward = forward_backward  # type: ignore[method-assign]
    trainer.ExactSteps.training_step = training_step  # type: ignore[method-assign]


def _kill(started: trainings.Attempt, chance: random.Random, way: str, after: int) -> bool:
    """Kill inside a save, at a step, or at the start; False where the training ended before."""
    if way == "in a save":
        before = c1._being_written(started.run_dir)
        return c1._kill(started, chance, before, in_save=True)
    if way == "at the start":
        return c1._kill_at(started, time.monotonic() + chance.uniform(0.0, 2 * c1.ANY_SECONDS))
    begun = _last_step(started.run_dir)
    wanted, late = after or begun + chance.randint(1, 4), time.monotonic() + WAIT_SECONDS
    while started.running() and time.monotonic() < late:
        if _last_step(started.run_dir) >= wanted:
            return c1._kill_at(started, time.monotonic() + chance.uniform(0.0, 0.1))
        time.sleep(0.002)
    return False


def _last_step(run_dir: RunDir) -> int:
    return max(events.steps(run_dir.events_file), default=0) if run_dir.events_file.exists() else 0


def _attempts(run_dir: RunDir) -> list[dict[str, Any]]:
    found = events.read(run_dir.events_file) if run_dir.events_file.exists() else []
    return [event for event in found if event["event"] == "attempt"]


# ---- what must hold


def _undisturbed(
    campaign: Campaign, base: Path, method: str, strategy: str, micro: int
) -> tuple[Outcome, dict[int, list[int]], Path]:
    """A run on two processes that nobody touches: its outcome, its rows by step, its result."""
    run_dir = _make(campaign.folder / f"whole {method} {strategy} {micro}", base, method, (strategy, 2), micro)
    moved = Moved(run_dir)
    attempt = _start(moved, 0, run_dir, lambda: None)
    assert attempt.wait(WAIT_SECONDS) == 0, trainings.log_of(run_dir)
    moved.starts[0].tier = "EXACT"
    return _outcome(run_dir), moved.lasting(), run_dir.final


def _outcome(run_dir: RunDir) -> Outcome:
    """What it left, but for the first rank's generators: every micro batch seeds them anew, and its last one shows."""
    found, state = trainings.outcome(run_dir), hashlib.sha256()
    newest = checkpoints.committed(run_dir.checkpoints)[-1].path / STATE
    for name, tensor in sorted(load_file(newest).items()):
        if not name.startswith("rng/"):
            state.update(f"{name} {tensor.shape}".encode() + tensor.numpy().tobytes())
    return dataclasses.replace(found, last={**found.last, STATE: state.hexdigest()})


def _wrong(moved: Moved, kind: str, wanted: Outcome, wanted_rows: dict[int, list[int]], final: Path) -> list[str]:
    if not moved.run_dir.final.exists():
        return ["never done"]
    wrong = _wrong_rows(moved.lasting(), wanted_rows) + _wrong_tiers(moved)
    wrong += [f"rejected {e}" for e in events.read(moved.run_dir.events_file) if e["event"] == "rejected"]
    if kind == "across":
        apart = _apart(moved.run_dir.final, final)
        return wrong + ([f"weights differ by {apart:.2e}"] if apart > ACROSS_TOLERANCE else [])
    return wrong + list(filter(None, [trainings.difference(_outcome(moved.run_dir), wanted)]))


def _wrong_rows(rows: dict[int, list[int]], wanted: dict[int, list[int]]) -> list[str]:
    wrong = [
        f"step {step} computed {rows.get(step)}, not {wanted[step]}"
        for step in wanted
        if rows.get(step) != wanted[step]
    ]
    for epoch in range(EPOCHS):
        first = epoch * STEPS_PER_EPOCH
        seen = Counter(row for step in range(first + 1, first + STEPS_PER_EPOCH + 1) for row in rows.get(step, []))
        if seen != Counter(range(len(ROWS))):
            often = {row: seen[row] for row in range(len(ROWS)) if seen[row] != 1}
            wrong.append(f"epoch {epoch + 1}: sequences not seen once {often}")
    return wrong


def _wrong_tiers(moved: Moved) -> list[str]:
    """The plan's word is the trainer's; EXACT wherever the strategy is that of the checkpoint, and nowhere else."""
    wrong, by = [], {0: ""}
    for start in (start for start in moved.starts if start.tier):
        held = "fsdp2" if start.plan.strategy == "fsdp2" else "ddp"
        before = by.get(start.resumed_step, held) or held
        expected = "EXACT" if before == held else "SAMPLE-EXACT"
        said = start.plan.resume.tier if start.plan.resume else "EXACT"
        if not said == start.tier == expected:
            wrong.append(f"start {start.number}: planned {said}, found {start.tier}, to be {expected}")
        by = {step: one for step, one in by.items() if step <= start.resumed_step}
        by |= dict.fromkeys(range(start.resumed_step + 1, STEPS_PER_EPOCH * EPOCHS + 1), held)
    return wrong


def _apart(one: Path, other: Path) -> float:
    """Largest difference between two models' weights, relative to the largest weight."""
    left, right = (
        {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}
        for folder in (one, other)
    )
    scale = max(tensor.abs().max().item() for tensor in right.values())
    return max((left[name] - right[name]).abs().max().item() for name in right) / scale


def _count(campaign: Campaign, kind: str, method: str, moved: Moved) -> None:
    begun = [start for start in moved.starts if start.tier]
    campaign.case("schedules", f"schedules: {kind}", f"schedules: {method}")
    campaign.counts["starts"] += len(moved.starts)
    campaign.counts["resumes"] += sum(start.resumed_step > 0 for start in begun)
    for start in begun:
        campaign.counts[f"on {start.plan.strategy} {start.plan.batch.devices}"] += 1
        campaign.counts[f"tier {start.tier}"] += start.resumed_step > 0


# ---- controls


def _order_by_world() -> None:
    """The order of sequences follows the number of processes."""
    from stoker.rows.order import Order

    plain = Order.sequences

    def sequences(self: Any, step: int) -> list[int]:
        other = dataclasses.replace(self, seed=self.seed + int(os.environ.get("WORLD_SIZE", "1")) - 1)
        return plain(other, step)

    Order.sequences = sequences  # type: ignore[method-assign]


def _plain_sum() -> None:
    """Each rank adds up its own leaves, then all ranks by torch's own reduction."""
    import torch
    import torch.distributed as dist

    from stoker.engine import exact

    def reduce_nodes(tree: Any, ranges: Any, like: Any) -> Any:
        sums = tree.total() if tree.nodes else [torch.zeros_like(one) for one in like]
        for one in sums:
            dist.all_reduce(one)
        return sums

    exact.reduce_nodes = reduce_nodes  # type: ignore[assignment]


def _forgets() -> None:
    """Nothing in the trainer: see `_forgetful`."""


def _forgetful(*words: Any) -> RunDir:
    """A plan made as if there were no checkpoint."""
    plain, plan_inputs._earlier = plan_inputs._earlier, lambda *_: None  # type: ignore[assignment]
    try:
        return _make(*words)
    finally:
        plan_inputs._earlier = plain


CONTROLS: dict[str, tuple[list[Where], Callable[[], None]]] = {
    "the order follows the number of processes": ([("auto", 1), ("ddp", 2), ("auto", 1)], _order_by_world),
    "the optimizer's state is not put back": ([("auto", 1), ("ddp", 2)], controls.no_optimizer),
    "ranks add up by a plain sum": ([("auto", 1), ("ddp", 4)], _plain_sum),
    "the plan forgets what it goes on from": ([("ddp", 2), ("auto", 1)], _forgets),
}
