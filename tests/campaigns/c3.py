"""C3: resumes over a grid of what people train.

Method, dropout, packing, accumulation, ragged steps, epoch edges, eval, best, 8-bit optimizer, bf16, loader processes,
one and two ranks, DDP and FSDP2.

Each run is trained once, keeping every checkpoint; then it is taken up from some of them, one at an epoch's edge, alone
in a new folder, and must end with the same losses, eval losses, weights and last checkpoint, to the last bit. `--n`
counts resumes; a value of the grid that none had fails the campaign. Controls: the optimizer's state, the scheduler's,
the random streams are not put back.
"""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import controls
import tiny_run
import trainings
from campaign import Campaign
from safetensors import safe_open
from trainings import Outcome

from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, files
from stoker.rundir.layout import RunDir

STEPS = 14
BATCH = 8
ROWS = {True: 21, False: 24}
"""Sequences: three steps an epoch, the last of them ragged or not."""
RESUMES_PER_RUN = 5
GRID: dict[str, tuple[Any, ...]] = {
    "method": ("full", "lora", "qlora"),
    "dropout": (0.0, 0.1),
    "pack": (True, False),
    "accumulation": (1, 4, 2),
    "ragged": (True, False),
    "evaluate": ("3 steps", "epoch", "never"),
    "best": (True, False),
    "optimizer": ("adamw", "adamw_8bit"),
    "precision": ("fp32", "bf16"),
    "workers": (0, 2),
    "ranks": (1, 1, 2),
    "strategy": ("ddp", "fsdp2"),
    "schedule": ("cosine", "linear", "constant"),
}
FIRST: tuple[dict[str, Any], ...] = (
    {"ranks": 2, "strategy": "ddp", "method": "full", "evaluate": "3 steps", "best": True},
    {"ranks": 2, "strategy": "fsdp2", "method": "full", "optimizer": "adamw"},
    {"ranks": 1, "accumulation": 4, "ragged": True},
    {"ranks": 2, "strategy": "fsdp2", "method": "lora", "optimizer": "adamw", "evaluate": "epoch", "best": True},
    {"ranks": 2, "strategy": "ddp", "method": "qlora"},
    {"ranks": 2, "strategy": "fsdp2", "method": "qlora", "optimizer": "adamw"},
    {"ranks": 2, "strategy": "ddp", "method": "lora", "optimizer": "adamw_8bit"},
    {"ranks": 1, "accumulation": 1, "method": "full", "optimizer": "adamw_8bit"},
    {"ranks": 2, "strategy": "fsdp2", "method": "full", "optimizer": "adamw", "accumulation": 4, "ragged": True},
)
"""Dealt out before chance decides."""
REFUSALS = {"STK216"}
"""What a plan may say no to, before anything is trained."""
ALL_COVERED_FROM = 100


def run(campaign: Campaign) -> None:
    bases = {p: tiny_run.make_base_model(campaign.folder / f"base-{p}", dropout=p) for p in GRID["dropout"]}
    number = 0
    while campaign.done < campaign.n and not campaign.hopeless:
        _one_run(campaign, number, bases)
        number += 1
    if campaign.n >= ALL_COVERED_FROM:
        missing = [word for word in _row() if not campaign.counts[word]]
        if missing:
            campaign.fail(["coverage"], f"no resume with {missing}")
    _controls(campaign, bases[0.1])


def _row() -> list[str]:
    """Every value that must have been resumed."""
    words = [f"{word}={value}" for word, values in GRID.items() for value in values]
    both = [f"{method} {strategy}" for method in GRID["method"] for strategy in GRID["strategy"]]
    return [*words, *both, "accumulation=4 ragged", "from an epoch edge", "8-bit states"]


def _chosen(campaign: Campaign, number: int) -> dict[str, Any]:
    """Each value's turn comes in a shuffled deck of its own; the first runs are given."""
    chosen = {}
    for word, values in GRID.items():
        deck = list(values)
        campaign.random(word, number // len(deck)).shuffle(deck)
        chosen[word] = deck[number % len(deck)]
    chosen |= FIRST[number] if number < len(FIRST) else {}
    return chosen | {"best": chosen["best"] and chosen["evaluate"] != "never"}


def _one_run(campaign: Campaign, number: int, bases: dict[float, Path]) -> None:
    chosen = _chosen(campaign, number)
    label = " ".join(f"{k}={v}" for k, v in chosen.items())
    try:
        template = trainings.make(campaign.folder / "run", _text(chosen, bases), rows=ROWS[chosen["ragged"]])
        attempt = trainings.start(template)
        if attempt.wait() == 0:
            _resumes(campaign, number, label, chosen, template)
        else:
            _refused(campaign, number, label, template, attempt)
    except StokerError as error:
        _count_refusal(campaign, [number, label], error.code)
    shutil.rmtree(campaign.folder / "run", ignore_errors=True)


def _refused(campaign: Campaign, number: int, label: str, template: RunDir, attempt: trainings.Attempt) -> None:
    """The program said no: before its first step, for a reason of the list."""
    said = list(events.read(template.events_file))
    codes = [event["error"]["code"] for event in said if event["event"] == "error"]
    if not codes or any(event["event"] == "step" for event in said):
        campaign.fail([number, label], f"did not train: {attempt.codes} {codes} {trainings.log_of(template)}")
    else:
        _count_refusal(campaign, [number, label], codes[-1])


def _count_refusal(campaign: Campaign, case: list[Any], code: str) -> None:
    campaign.counts[f"refused at start: {code}"] += 1
    if code not in REFUSALS:
        campaign.fail(case, f"refused with {code}")


def _resumes(campaign: Campaign, number: int, label: str, chosen: dict[str, Any], template: RunDir) -> None:
    wanted = trainings.outcome(template)
    steps = [one.step for one in checkpoints.committed(template.checkpoints) if one.step < STEPS]
    per_epoch = ROWS[chosen["ragged"]] // BATCH + chosen["ragged"]
    edges = [step for step in steps if step % per_epoch == 0]
    random = campaign.random(number)
    drawn = [random.choice(edges), *random.sample(steps, min(RESUMES_PER_RUN, len(steps)))]
    words = [f"{word}={value}" for word, value in chosen.items() if word != "strategy" or chosen["ranks"] > 1]
    words += [f"{chosen['method']} {chosen['strategy']}"] if chosen["ranks"] > 1 else []
    words += ["accumulation=4 ragged"] if chosen["accumulation"] == 4 and chosen["ragged"] else []
    words += ["8-bit states"] if _has_8_bit_states(template) else []
    for step in list(dict.fromkeys(drawn))[: min(RESUMES_PER_RUN, campaign.n - campaign.done)]:
        if wrong := _resume(campaign, template, step, wanted):
            campaign.fail([number, step, label], wrong)
        campaign.case("resumes", *words, *(["from an epoch edge"] if step in edges else []))
    campaign.counts["runs"] += 1


def _has_8_bit_states(template: RunDir) -> bool:
    """Whether the optimizer really keeps bytes: states that are too small stay in 32 bits."""
    with safe_open(checkpoints.committed(template.checkpoints)[-1].path / "state.safetensors", "np") as tensors:
        return any(tensors.get_slice(name).get_dtype() == "U8" for name in tensors.keys() if "state1" in name)  # noqa: SIM118


def _text(chosen: dict[str, Any], bases: dict[float, Path]) -> str:
    rank = 64 if chosen["optimizer"] == "adamw_8bit" else 4  # smaller states stay in 32 bits
    adapter = "" if chosen["method"] == "full" else f", rank: {rank}, dropout: {chosen['dropout']}"
    best = ", best: eval_loss" if chosen["best"] else ""
    data = "" if chosen["evaluate"] == "never" else ", eval: rows.jsonl"
    micro = BATCH // (chosen["accumulation"] * chosen["ranks"])
    where = [f"micro: {micro}", f"precision: {chosen['precision']}", f"workers: {chosen['workers']}"]
    if chosen["ranks"] > 1:
        where += [f"processes: {chosen['ranks']}", f"strategy: {chosen['strategy']}"]
    train = f"batch: {BATCH}, steps: {STEPS}, learning_rate: 1e-3, warmup: 3, schedule: {chosen['schedule']}"
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
    later = dataclasses.replace(wanted, losses=_after(wanted.losses, step), evals=_after(wanted.evals, step))
    return trainings.difference(found, later)


def _after(values: dict[int, str], step: int) -> dict[int, str]:
    return {number: value for number, value in values.items() if number > step}


def _best_steps(template: RunDir, step: int) -> list[int]:
    """The best checkpoint so far, which stays beside the newest ones."""
    state = files.read_json(template.checkpoints / checkpoints.folder_name(step) / "trainer_state.json")
    return [state["best_global_step"]] if state["best_global_step"] else []


def _controls(campaign: Campaign, base: Path) -> None:
    chosen = {word: values[0] for word, values in GRID.items()} | {"dropout": 0.1, "method": "lora"}
    template = trainings.make(campaign.folder / "control", _text(chosen, {0.1: base}), rows=ROWS[True])
    assert trainings.start(template).wait() == 0, trainings.log_of(template)
    wanted = trainings.outcome(template)
    for name, change in CONTROLS.items():
        wrong = _resume(campaign, template, 6, wanted, change)
        campaign.control(name, caught=bool(wrong), what=wrong)


CONTROLS: dict[str, Callable[[], None]] = {
    "the optimizer's state is not put back": controls.no_optimizer,
    "the scheduler's state is not put back": controls.no_scheduler,
    "random streams are not put back": controls.no_random_streams,
}
