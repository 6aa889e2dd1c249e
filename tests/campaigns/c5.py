"""C5: SIGTERM, SIGINT and SIGHUP at random instants: in steps, in an eval, in a save, twice, one and two ranks.

The program must end with 75 (several ranks: 0 and the event `stopped`) within 30 seconds of its own clock, with the
step it had finished committed: none is done twice. Taken up again and again, the run must end as one that was never
touched, to the last bit. Control: a stop that does not commit.
"""

import signal
import sys
import time
from collections.abc import Callable
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
MOMENTS = ("anywhere", "in an eval", "in a save", "twice")
GRACE_SECONDS = 30.0
STOPS_PER_RUN = 8
EVAL_PAUSE_SECONDS = 0.03
"""Evals of a tiny model are over too soon to be hit: each of their items takes so much longer here."""


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    known: dict[str, tuple[RunDir, Outcome]] = {}

    def of(kind: str) -> tuple[RunDir, Outcome]:
        if kind not in known:
            known[kind] = _untouched(campaign, kind, base)
        return known[kind]

    number, slowest = 0, 0.0
    while campaign.done < campaign.n:
        kind = "two ranks" if number % 5 == 4 else "one rank"
        slowest = max(slowest, _one_run(campaign, kind, number, *of(kind)))
        campaign.measured["slowest_stop_seconds"] = round(slowest, 2)
        number += 1
    _control(campaign, of("one rank")[0])


def _untouched(campaign: Campaign, kind: str, base: Path) -> tuple[RunDir, Outcome]:
    """A run, and what it ends with when nobody touches it."""
    words = trainings.text(base, ranks=1 + (kind == "two ranks"), save="{every: 3 steps, keep: 2, best: eval_loss}")
    run_dir = trainings.make(campaign.folder / kind, words)
    attempt = trainings.start(trainings.again(run_dir, campaign.folder / f"whole {kind}"))
    assert attempt.wait() == 0, trainings.log_of(attempt.run_dir)
    return run_dir, trainings.outcome(attempt.run_dir)


def _one_run(campaign: Campaign, kind: str, number: int, template: RunDir, wanted: Outcome) -> float:
    """Stop a run again and again until it is done."""
    random = campaign.random(number)
    run_dir = trainings.again(template, campaign.folder / "stopped")
    stops, slowest = 0, 0.0
    while True:
        attempt = trainings.start(run_dir, before=_slow_evals)
        moment, name = random.choice(MOMENTS), random.choice(SIGNALS)
        more = stops < STOPS_PER_RUN and campaign.done < campaign.n
        if not more or not _reach(attempt, moment, random):
            break
        started, before = time.monotonic(), _last_step(run_dir)
        attempt.signal(name)
        if moment == "twice":
            time.sleep(random.uniform(0.0, 0.1))
            attempt.signal(random.choice(SIGNALS))
        code = attempt.wait()
        took = time.monotonic() - started
        stops += 1
        end = [e for e in events.read(run_dir.events_file) if e["event"] == "end"][-1:]
        if end and end[0]["status"] == "done":
            campaign.counts["was done before it could stop"] += 1
            break
        slowest = max(slowest, took)
        if wrong := _judge(run_dir, kind, code, took, before, end):
            campaign.fail([number, stops, moment, name.name], wrong + trainings.log_of(run_dir))
            return slowest
        campaign.case("stops", f"stops: {kind}", f"moment: {moment}", f"signal: {name.name}")
    if attempt.wait() != 0:
        campaign.fail([number, stops], f"{attempt.codes}: {trainings.log_of(run_dir)}")
    elif wrong := trainings.difference(trainings.outcome(run_dir), wanted):
        campaign.fail([number, stops], wrong)
    else:
        campaign.counts["runs that ended as if never touched"] += 1
    return slowest


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
    path = attempt.run_dir.events_file
    offset = path.stat().st_size if path.exists() else 0
    want = {"in an eval": "evaluating", "in a save": "saving"}.get(moment)
    marks, skip = attempt.run_dir.path / f"{want}.mark", random.randint(0, 2)
    began = _count(marks) if want else 0
    after = random.uniform(0.0, 0.05 if want else 2.0)
    started = False
    while attempt.running():
        started = started or any(e["event"] == "attempt" for e, _ in events.follow(path, offset))
        if started and (not want or _count(marks) > began + skip):
            until = time.monotonic() + after
            while time.monotonic() < until and attempt.running():
                time.sleep(0.001)
            return attempt.running()
        time.sleep(0.002)
    return False


def _count(marks: Any) -> int:
    return marks.stat().st_size if marks.exists() else 0


def _slow_evals() -> None:
    """Leave a mark where an eval item and a save begin, so that a signal can be aimed at them."""
    from stoker.engine import trainer
    from stoker.rundir import checkpoints

    folder = Path(sys.argv[1])
    plain_loss, plain_writing = trainer.ExactSteps._until_stopped, checkpoints.writing

    def mark(name: str) -> None:
        with (folder / f"{name}.mark").open("a") as file:
            file.write(".")

    def until_stopped(self: Any, items: Any) -> Any:
        for item in plain_loss(self, items):
            mark("evaluating")
            time.sleep(EVAL_PAUSE_SECONDS)
            yield item

    def writing(*args: Any, **kwargs: Any) -> Any:
        mark("saving")
        return plain_writing(*args, **kwargs)

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
