"""C3: resumes over a grid of what people train.

Method, dropout, packing, accumulation, ragged steps, epoch edges, eval, best, 8-bit optimizer, bf16, loader processes,
one and two ranks, DDP and FSDP2.

Each run is trained once, keeping every checkpoint; then it is taken up from random ones of them, alone in a new folder,
and must end with the same losses, eval losses and weights, to the last bit. `--n` counts resumes. Controls: the
optimizer's state, the scheduler's, the random streams are not put back.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run
import trainings
from campaign import Campaign
from trainings import Outcome

from stoker.errors import StokerError
from stoker.rundir import checkpoints, events
from stoker.rundir.layout import RunDir

STEPS = 14
RESUMES_PER_RUN = 8
GRID: dict[str, tuple[Any, ...]] = {
    "method": ("full", "lora", "qlora"),
    "dropout": (0.0, 0.1),
    "pack": (True, False),
    "micro": (1, 2, 4),
    "ragged": (True, False),
    "evaluate": ("3 steps", "epoch", "never"),
    "best": (True, False),
    "optimizer": ("adamw", "adamw_8bit"),
    "precision": ("auto", "bf16"),
    "workers": (0, 2),
    "ranks": (1, 1, 1, 2),
    "strategy": ("ddp", "fsdp2"),
    "schedule": ("cosine", "linear", "constant"),
}


def run(campaign: Campaign) -> None:
    bases = {p: tiny_run.make_base_model(campaign.folder / f"base-{p}", dropout=p) for p in GRID["dropout"]}
    number = 0
    while campaign.done < campaign.n:
        _one_run(campaign, number, bases)
        number += 1
    _controls(campaign, bases[0.1])


def _one_run(campaign: Campaign, number: int, bases: dict[float, Path]) -> None:
    random = campaign.random(number)
    chosen = {word: random.choice(values) for word, values in GRID.items()}
    label = " ".join(f"{k}={v}" for k, v in chosen.items())
    try:
        template = trainings.make(campaign.folder / "run", _text(chosen, bases), rows=21 if chosen["ragged"] else 20)
    except StokerError as error:
        shutil.rmtree(campaign.folder / "run", ignore_errors=True)
        campaign.counts[f"refused at start: {error.code}"] += 1
        return
    attempt = trainings.start(template)
    if attempt.wait() != 0:
        refused = [e["error"]["code"] for e in events.read(template.events_file) if e["event"] == "error"]
        if refused:
            campaign.counts[f"refused at start: {refused[-1]}"] += 1
        else:
            campaign.fail([number, label], f"did not train: {attempt.codes} {trainings.log_of(template)}")
    else:
        wanted = trainings.outcome(template)
        steps = [one.step for one in checkpoints.committed(template.checkpoints) if one.step < STEPS]
        for step in random.sample(steps, min(RESUMES_PER_RUN, len(steps), campaign.n - campaign.done)):
            wrong = _resume(campaign, template, step, wanted)
            if wrong:
                campaign.fail([number, step, label], wrong)
            words = [f"{k}={chosen[k]}" for k in ("method", "optimizer", "precision", "workers", "ranks")]
            words += [f"strategy={chosen['strategy']}"] if chosen["ranks"] > 1 else []
            campaign.case("resumes", *words)
        campaign.counts["runs"] += 1
    shutil.rmtree(campaign.folder / "run", ignore_errors=True)


def _text(chosen: dict[str, Any], bases: dict[float, Path]) -> str:
    rank = 64 if chosen["optimizer"] == "adamw_8bit" else 4  # smaller states stay in 32 bits
    adapter = "" if chosen["method"] == "full" else f", rank: {rank}, dropout: {chosen['dropout']}"
    never = chosen["evaluate"] == "never"
    best = ", best: eval_loss" if chosen["best"] and not never else ""
    data = "" if never else ", eval: rows.jsonl"
    where = [f"micro: {chosen['micro']}", f"precision: {chosen['precision']}", f"workers: {chosen['workers']}"]
    if chosen["ranks"] > 1:
        where += [f"processes: {chosen['ranks']}", f"strategy: {chosen['strategy']}"]
    train = f"batch: 8, steps: {STEPS}, learning_rate: 1e-3, warmup: 3, schedule: {chosen['schedule']}"
    train += f", optimizer: {chosen['optimizer']}, eval_every: {chosen['evaluate']}"
    return trainings.text(
        bases[chosen["dropout"]],
        data=f"{{train: rows.jsonl{data}, length: 64, pack: {str(chosen['pack']).lower()}}}",
        tune=f"{{method: {chosen['method']}{adapter}}}",
        train=f"{{{train}}}",
        save=f"{{every: 1 steps, keep: 99{best}}}",
        where=f"{{{', '.join(where)}}}",
    )


def _resume(
    campaign: Campaign, template: RunDir, step: int, wanted: Outcome, change: Callable[[], None] | None = None
) -> str:
    """Take the run up from one checkpoint; what differs from the run that was never touched."""
    copy = trainings.again(template, campaign.folder / "resumed")
    best = [one for one in _best_steps(template, step) if one != step]
    for one in (step, *best):
        name = checkpoints.folder_name(one)
        shutil.copytree(template.checkpoints / name, copy.checkpoints / name)
    attempt = trainings.start(copy, before=change)
    if attempt.wait() != 0:
        return f"{attempt.codes} {trainings.log_of(copy)}"
    resumed = [e for e in events.read(copy.events_file) if e["event"] == "attempt"]
    if [e["tier"] for e in resumed] != ["EXACT"] or resumed[0]["resumed_step"] != step:
        return f"{resumed}"
    found = trainings.outcome(copy)
    later = Outcome(_after(wanted.losses, step), _after(wanted.evals, step), wanted.sha)
    return trainings.difference(found, later)


def _after(values: dict[int, str], step: int) -> dict[int, str]:
    return {number: value for number, value in values.items() if number > step}


def _best_steps(template: RunDir, step: int) -> list[int]:
    """The best checkpoint so far, which stays beside the newest ones."""
    from stoker.rundir import files

    state = files.read_json(template.checkpoints / checkpoints.folder_name(step) / "trainer_state.json")
    return [state["best_global_step"]] if state["best_global_step"] else []


def _controls(campaign: Campaign, base: Path) -> None:
    chosen = {word: values[0] for word, values in GRID.items()} | {"dropout": 0.1, "method": "lora"}
    template = trainings.make(campaign.folder / "control", _text(chosen, {0.1: base}), rows=21)
    assert trainings.start(template).wait() == 0, trainings.log_of(template)
    wanted = trainings.outcome(template)
    for name, change in CONTROLS.items():
        wrong = _resume(campaign, template, 6, wanted, change)
        campaign.control(name, caught=bool(wrong), what=wrong)


def _no_optimizer() -> None:
    from stoker.engine import checkpoint

    checkpoint._load_optimizer = lambda *_: None  # type: ignore[assignment]


def _no_scheduler() -> None:
    import torch

    torch.optim.lr_scheduler.LambdaLR.load_state_dict = lambda *_: None  # type: ignore[method-assign]


def _no_streams() -> None:
    from stoker.engine import checkpoint, exact

    exact.seed_stream = lambda *_: None  # type: ignore[assignment]
    checkpoint._load_rng = lambda *_: None  # type: ignore[assignment]


CONTROLS: dict[str, Callable[[], None]] = {
    "the optimizer's state is not put back": _no_optimizer,
    "the scheduler's state is not put back": _no_scheduler,
    "random streams are not put back": _no_streams,
}
