"""C5: SIGTERM, SIGINT, SIGHUP at random instants: at the start, in steps, evals and saves, twice; one and two ranks.

The program must end with 75 (several ranks: 0 and the event `stopped`) within 30 seconds of its own clock, with the
step it had finished committed: none is done twice. One that was done before it could stop is held to the time as well.
Taken up again and again, the run must end as one that was never touched, to the last bit. A stop counts as inside an
eval or a save where that was on its way before the signal and after. Control: a stop that does not commit.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_run
import trainings
from campaign import Campaign
from trainings import Outcome

from stoker.errors import EXIT_STOPPED
from stoker.rundir import events
from stoker.rundir.layout import RunDir

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOMENTS = ("anywhere", "at the start", "in an eval", "in a save", "twice")
MARKS = {"in an eval": ("evaluating", "evaluated"), "in a save": ("saving", "saved")}
"""Files that grow by a byte where such a thing begins, and where it ends."""
GRACE_SECONDS = 30.0
STOPS_PER_RUN = 8
PAUSE_SECONDS = 0.03
"""Evals and saves of a tiny model are over too soon to be hit: each of their items, each save takes so much longer."""
EVAL_ROWS = 12
EACH_MOMENT_FROM = 50
"""Stops from which on every moment must have had its share."""


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    known: dict[str, tuple[RunDir, Outcome]] = {}

    def of(kind: str) -> tuple[RunDir, Outcome]:
        if kind not in known:
            known[kind] = _untouched(campaign, kind, base)
        return known[kind]

    number, slowest = 0, 0.0
    while campaign.done < campaign.n and not campaign.hopeless:
        kind = "two ranks" if number % 3 == 1 else "one rank"
        slowest = max(slowest, _one_run(campaign, kind, number, *of(kind)))
        campaign.measured["slowest_stop_seconds"] = round(slowest, 2)
        number += 1
    few = [one for one in MOMENTS if 10 * campaign.counts[f"moment: {one}"] < campaign.n]
    if few and campaign.n >= EACH_MOMENT_FROM:
        campaign.fail(["moments"], f"fewer than a tenth of the stops were {few}")
    _control(campaign, of("one rank")[0])


def _untouched(campaign: Campaign, kind: str, base: Path) -> tuple[RunDir, Outcome]:
    """A run, and what it ends with when nobody touches it."""
    words = trainings.text(base, ranks=1 + (kind == "two ranks"), save="{every: 3 steps, keep: 2, best: eval_loss}")
    run_dir = trainings.make(campaign.folder / kind, words, eval_rows=EVAL_ROWS)
    attempt = trainings.start(trainings.again(run_dir, campaign.folder / f"whole {kind}"))
    assert attempt.wait() == 0, trainings.log_of(attempt.run_dir)
    return run_dir, trainings.outcome(attempt.run_dir)


def _one_run(campaign: Campaign, kind: str, number: int, template: RunDir, wanted: Outcome) -> float:
    """Stop a run again and again until it is done."""
    random = campaign.random(number)
    run_dir = trainings.again(template, campaign.folder / "stopped")
    stops, slowest = 0, 0.0
    while True:
        attempt = trainings.start(run_dir, before=_slower)
        more = stops < STOPS_PER_RUN and campaign.done < campaign.n
        moment = random.choice(MOMENTS)
        if not more or not _reach(attempt, moment, random):
            break
        stop = _stop(attempt, kind, moment, random)
        stops, slowest = stops + 1, max(slowest, stop.seconds)
        if stop.wrong:
            campaign.fail([number, stops, moment, stop.signal.name], stop.wrong + trainings.log_of(run_dir))
            return slowest
        if stop.done:
            campaign.counts["was done before it could stop, in time"] += 1
            break
        campaign.case("stops", f"stops: {kind}", f"moment: {stop.moment}", f"signal: {stop.signal.name}", *stop.counted)
    if attempt.wait() != 0:
        campaign.fail([number, stops], f"{attempt.codes}: {trainings.log_of(run_dir)}")
    elif wrong := trainings.difference(trainings.outcome(run_dir), wanted):
        campaign.fail([number, stops], wrong)
    else:
        campaign.counts["runs that ended as if never touched"] += 1
    return slowest


@dataclass(frozen=True)
class Stop:
    """What became of one."""

    signal: signal.Signals
    moment: str
    """Where it really was."""
    seconds: float
    done: bool
    wrong: str
    counted: list[str]


def _stop(attempt: trainings.Attempt, kind: str, moment: str, random: Any) -> Stop:
    run_dir, name = attempt.run_dir, random.choice(SIGNALS)
    said, before = len(list(events.read(run_dir.events_file))), _last_step(run_dir)
    one_only = kind == "two ranks" and random.random() < 1 / 3
    items = _count(run_dir.path / "evaluating.mark")
    started, inside = time.monotonic(), _inside(run_dir, moment)
    if one_only:
        os.kill(random.choice(attempt.pids), name)
    else:
        attempt.signal(name)
    hit = inside and _inside(run_dir, moment)
    if moment == "twice":
        time.sleep(random.uniform(0.0, 0.1))
        attempt.signal(random.choice(SIGNALS))
    code = attempt.wait()
    took = time.monotonic() - started
    events_after = list(events.read(run_dir.events_file))[said:]
    end = [e for e in events_after if e["event"] == "end"]
    done = bool(end) and end[0]["status"] == "done"
    where = moment if hit or moment not in MARKS else "anywhere"
    counted = ["aimed, and missed"] if where != moment else []
    counted += ["to one of two ranks only"] if one_only else []
    items = _count(run_dir.path / "evaluating.mark") - items
    if done and not code:
        wrong = "" if took <= GRACE_SECONDS else f"{took:.1f} s until it was done"
    elif moment == "at the start" and not end and not any(e["event"] == "step" for e in events_after):
        wrong = "" if took <= GRACE_SECONDS else f"{took:.1f} s"
        counted += ["ended by the signal itself before it listened: no step was done, none is lost"]
    else:
        wrong = _judge(run_dir, kind, code, took, before, end)
    if hit and moment == "in an eval" and items > 1:
        wrong = wrong or f"the eval went on for {items} items"
    return Stop(name, where, took, done, wrong, counted)


def _inside(run_dir: RunDir, moment: str) -> bool:
    """Whether such a thing is on its way now."""
    if moment not in MARKS:
        return False
    began, ended = (_count(run_dir.path / f"{name}.mark") for name in MARKS[moment])
    return began > ended


def _judge(run_dir: RunDir, kind: str, code: int, took: float, before: int, end: list[dict[str, Any]]) -> str:
    if code != (EXIT_STOPPED if kind == "one rank" else 0) or not end or end[0]["status"] != "stopped":
        return f"exit code {code}, {end}"
    if took > GRACE_SECONDS:
        return f"{took:.1f} s"
    last = _last_step(run_dir)
    if end[0]["step"] != last:
        return f"step {last} was done, step {end[0]['step']} is committed"
    return "" if last >= before else f"steps went back from {before} to {last}"


def _last_step(run_dir: RunDir) -> int:
    """The last step of the newest attempt."""
    last = 0
    for event in events.read(run_dir.events_file):
        if event["event"] == "attempt":
            last = event["resumed_step"]
        elif event["event"] == "step":
            last = event["step"]
    return last


def _reach(attempt: trainings.Attempt, moment: str, random: Any) -> bool:
    """Wait for the moment; False where the training ended before."""
    path, folder = attempt.run_dir.events_file, attempt.run_dir.path
    offset = path.stat().st_size if path.exists() else 0
    want, skip = MARKS.get(moment), random.randint(0, 2)
    marks = folder / f"{want[0]}.mark" if want else folder
    if want:  # an attempt that was ended inside left them unequal
        for name in want:
            (folder / f"{name}.mark").write_bytes(b"")
    after = random.uniform(0.0, PAUSE_SECONDS if want else 0.8 if moment == "at the start" else 1.4)
    started = moment == "at the start"
    while attempt.running():
        started = started or any(e["event"] == "attempt" for e, _ in events.follow(path, offset))
        if started and (not want or _count(marks) > skip):
            until = time.monotonic() + after
            while time.monotonic() < until and attempt.running():
                time.sleep(0.001)
            return attempt.running()
        time.sleep(0.002)
    return False


def _count(marks: Path) -> int:
    return marks.stat().st_size if marks.exists() else 0


def _slower() -> None:
    """Leave a mark where an eval item and a save begin and end, and take a little longer, so that they can be hit."""
    from stoker.engine import trainer
    from stoker.rundir import checkpoints

    folder = Path(sys.argv[1])
    plain_loss, plain_writing = trainer.ExactSteps._until_stopped, checkpoints.writing

    def mark(name: str) -> None:
        with (folder / f"{name}.mark").open("a") as file:
            file.write(".")

    def until_stopped(self: Any, items: Any) -> Any:
        for item in plain_loss(self, items):
            if self._ranks.first:
                mark("evaluating")
            time.sleep(PAUSE_SECONDS)
            yield item
            if self._ranks.first:
                mark("evaluated")

    @contextlib.contextmanager
    def writing(*args: Any, **kwargs: Any) -> Iterator[Path]:
        with plain_writing(*args, **kwargs) as aside:
            mark("saving")
            yield aside
            time.sleep(PAUSE_SECONDS)
        mark("saved")

    trainer.ExactSteps._until_stopped = until_stopped  # type: ignore[method-assign]
    checkpoints.writing = writing  # type: ignore[assignment]


def _control(campaign: Campaign, template: RunDir) -> None:
    """A stop that ends at once: steps are done twice."""

    def before() -> None:
        from stoker.engine import saving

        plain: Callable[..., Any] = saving.Saver.begin
        saving.Saver.begin = lambda self, job: None if job.facts.get("due") or _stopping() else plain(self, job)

    def _stopping() -> bool:
        import gc

        from stoker.engine.callbacks import StopRequest

        return any(one.requested for one in gc.get_objects() if isinstance(one, StopRequest))

    name = "a stop that does not commit"
    for number in range(4):
        random = campaign.random("control", number)
        run_dir = trainings.again(template, campaign.folder / "control")
        attempt = trainings.start(run_dir, before=before)
        if not _reach(attempt, "anywhere", random):
            attempt.wait()
            continue
        attempt.signal(signal.SIGTERM)
        code = attempt.wait()
        end = [e for e in events.read(run_dir.events_file) if e["event"] == "end"][-1:]
        wrong = _judge(run_dir, "one rank", code, 0.0, 0, end)
        campaign.control(name, caught=bool(wrong), what=wrong)
        if wrong:
            return
