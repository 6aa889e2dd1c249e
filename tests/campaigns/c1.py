"""C1: SIGKILL of the whole process group at random instants, half of them inside saves, one and two ranks.

After each kill the same program is started again. Every run is taken to its end; all its losses, eval losses and its
final weights must be equal to those of a run that was never touched, to the last bit. No start may fail and no folder
may be rejected. Controls: a save under its final name, the optimizer's state not put back, random streams not keyed,
ranks that do not agree.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tiny_run
import trainings
from campaign import Campaign
from trainings import Outcome

from stoker.rundir import checkpoints, events
from stoker.rundir.layout import RunDir

KINDS = {"lora": ("lora", 1), "full": ("full", 1), "two ranks": ("lora", 2)}
TWO_RANKS_EVERY = 4
KILLS_PER_RUN = 25
IN_SAVE_SECONDS = 0.12
ANY_SECONDS = 2.0
HANG_SECONDS = 1800.0
MAY_HANG = "ranks do not agree"


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    known: dict[str, tuple[RunDir, Outcome]] = {}

    def of(kind: str) -> tuple[RunDir, Outcome]:
        if kind not in known:
            known[kind] = _untouched(campaign, kind, base)
        return known[kind]

    number = 0
    while campaign.done < campaign.n:
        kind = "two ranks" if number % TWO_RANKS_EVERY == TWO_RANKS_EVERY - 1 else ("lora", "full")[number % 2]
        _one_run(campaign, kind, number, *of(kind))
        number += 1
        campaign.counts[f"runs: {kind}"] += 1
    for name, (kind, change) in CONTROLS.items() if campaign.n >= 50 else list(CONTROLS.items())[:1]:
        _control(campaign, name, *of(kind), change)


def _untouched(campaign: Campaign, kind: str, base: Path) -> tuple[RunDir, Outcome]:
    """A run, and what it ends with when nobody touches it."""
    method, ranks = KINDS[kind]
    run_dir = trainings.make(campaign.folder / kind, trainings.text(base, method=method, ranks=ranks))
    attempt = trainings.start(trainings.again(run_dir, campaign.folder / f"whole {kind}"))
    assert attempt.wait() == 0, trainings.log_of(attempt.run_dir)
    return run_dir, trainings.outcome(attempt.run_dir)


def _one_run(campaign: Campaign, kind: str, number: int, template: RunDir, wanted: Outcome) -> None:
    """Kill a run again and again until it is done."""
    random = campaign.random(number)
    run_dir = trainings.again(template, campaign.folder / "killed")
    kills = 0
    while True:
        attempt = trainings.start(run_dir)
        wanted_kill = kills < KILLS_PER_RUN and campaign.done < campaign.n
        if not wanted_kill or not _kill(attempt, random):
            break
        kills += 1
        inside = any(path.suffix in (".tmp", ".gone") for path in run_dir.checkpoints.glob(".step-*"))
        campaign.case("kills", f"kills: {kind}", *(["kills inside a save"] if inside else []))
    if attempt.wait() != 0:
        campaign.fail([number, kills], f"{attempt.codes}: {trainings.log_of(run_dir)}")
        return
    if wrong := _judge(run_dir, wanted):
        campaign.fail([number], wrong)
    campaign.counts["resumes"] += sum(e["event"] == "attempt" and e["resumed_step"] > 0 for e in _events(run_dir))


def _kill(attempt: trainings.Attempt, random: Any, hang_seconds: float = HANG_SECONDS) -> bool:
    """Wait for an instant and kill; False where the training ended before."""
    if random.random() < 0.5:
        return _kill_at(attempt, time.monotonic() + random.uniform(0.0, ANY_SECONDS))
    # Inside a save: the first sign of its folder, and a little later.
    saves, seen, late = random.randint(1, 3), set(), time.monotonic() + hang_seconds
    while attempt.running() and time.monotonic() < late:
        seen |= {p.name for p in attempt.run_dir.checkpoints.glob(".step-*.tmp") if "step-00000000" not in p.name}
        if len(seen) >= saves:
            return _kill_at(attempt, time.monotonic() + random.uniform(0.0, IN_SAVE_SECONDS))
        time.sleep(0.001)
    return False


def _kill_at(attempt: trainings.Attempt, moment: float) -> bool:
    while time.monotonic() < moment:
        if not attempt.running():
            return False
        time.sleep(0.0005)
    if not attempt.running():
        return False
    attempt.kill()
    return True


def _judge(run_dir: RunDir, wanted: Outcome) -> str:
    rejected = [e for e in _events(run_dir) if e["event"] == "rejected"]
    if rejected:
        return f"rejected {rejected}"
    tiers = {e["tier"] for e in _events(run_dir) if e["event"] == "attempt"}
    if tiers != {"EXACT"}:
        return f"tiers {tiers}"
    return trainings.difference(trainings.outcome(run_dir), wanted)


def _events(run_dir: RunDir) -> list[dict[str, Any]]:
    return list(events.read(run_dir.events_file))


# ---- controls: one safeguard away, in the children of this campaign only


def _control(campaign: Campaign, name: str, template: RunDir, wanted: Outcome, change: Callable[[], None]) -> None:
    random = campaign.random("control", name)
    for _ in range(3):
        run_dir = trainings.again(template, campaign.folder / "control")
        wrong = ""
        for kill in range(8):
            attempt = trainings.start(run_dir, before=change)
            if kill < 7 and _kill(attempt, random, 120 if name == MAY_HANG else HANG_SECONDS):
                continue
            if attempt.wait(seconds=120 if name == MAY_HANG else 1800) != 0:
                wrong = f"exit codes {list(attempt.codes.values())}"
            break
        wrong = wrong or _judge(run_dir, wanted)
        campaign.control(name, caught=bool(wrong), what=wrong)
        if wrong:
            break


def _final_name_from_the_first_byte() -> None:
    """As the plain Trainer saves and looks for its checkpoints."""

    @contextlib.contextmanager
    def writing(folder: Path, step: int, *, renames: bool = True, **facts: Any) -> Iterator[Path]:
        final = folder / checkpoints.folder_name(step)
        shutil.rmtree(final, ignore_errors=True)
        final.mkdir(parents=True)
        commit = checkpoints.sealed(checkpoints.Commit(step=step, created="", files={}, **facts).model_dump())
        (final / checkpoints.COMMIT_NAME).write_text(checkpoints._rendered(commit))
        yield final

    checkpoints.writing = writing  # type: ignore[assignment]


def _no_optimizer_state() -> None:
    from stoker.engine import checkpoint

    checkpoint._load_optimizer = lambda *_: None  # type: ignore[assignment]


def _random_streams_not_keyed() -> None:
    from stoker.engine import checkpoint, exact

    exact.seed_stream = lambda *_: None  # type: ignore[assignment]
    checkpoint._load_rng = lambda *_: None  # type: ignore[assignment]


def _ranks_do_not_agree() -> None:
    """Each looks at its own clock, as two processes that are not told will."""
    from stoker.config import values
    from stoker.engine import parallel

    parallel.Ranks.follow = lambda self, numbers: list(numbers)  # type: ignore[assignment]
    plain = values.every
    values.every = lambda text: values.Every("seconds", 0.05) if text == "2 steps" else plain(text)


CONTROLS: dict[str, tuple[str, Callable[[], None]]] = {
    "a save under its final name": ("lora", _final_name_from_the_first_byte),
    "the optimizer's state is not put back": ("full", _no_optimizer_state),
    "random streams are not keyed": ("lora", _random_streams_not_keyed),
    MAY_HANG: ("two ranks", _ranks_do_not_agree),
}
