"""C11: a spot week. A real run dies at random at MTBF 1 h, 20 min and 5 min; it must end soon, and with the same bits.

Every kill is a SIGKILL of a real trainer that the real supervisor starts again; only time is scaled. A step stands for
some seconds of training; saves and restarts cost what they really cost on this machine, measured before: a save with
all its syncs; a restart of the installed programs, cold, from the kill to the first new step. The machine is shared, so
a restart counts as the processor time it took and the supervisor's look; the wall clock's figures stand beside it.
Goodput is the time of the useful steps over all time. Controls: a resume without the optimizer's state; no saves.
"""

import json
import os
import shutil
import signal
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import forked_trainer
import tiny_run
from campaign import Campaign

from stoker.launch import training
from stoker.plan import save_interval
from stoker.rundir import checkpoints, events, files
from stoker.supervise import limits
from stoker.supervise.judge import Ruling
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.supervisor import Supervisor

FULL = 50
"""From so many kills on, costs are measured and the bars must be met; below, only the bits are compared."""
COLD_STARTS = 3
CONTROL_KILLS = 3


@dataclass(frozen=True)
class Level:
    """One rate of failures."""

    name: str
    between_seconds: float
    step_seconds: float
    week_kills: int
    bar: float


LEVELS = (
    Level("1 h", 3600, 60, 168, 0.97),
    Level("20 min", 1200, 30, 504, 0.95),
    Level("5 min", 300, 10, 2016, 0.85),
)


@dataclass(frozen=True)
class Costs:
    """What happens between steps, in seconds of this machine."""

    save: float
    restart: float


def run(campaign: Campaign) -> None:
    """As many kills at each level as asked, at most a week's."""
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    full = campaign.n >= FULL
    costs = _measure(campaign, base) if full else Costs(save=0.3, restart=15.0)
    campaign.measured["costs"] = costs.__dict__
    levels = LEVELS if full else LEVELS[-1:]
    kills = {level.name: min(level.week_kills, campaign.n) for level in levels}
    steps = {level.name: _steps(level, kills[level.name] if full else 2 + 2 * campaign.n) for level in levels}
    expected = _uninterrupted(campaign, base, sorted(steps.values()))
    try:
        for level in sorted(levels, key=lambda level: steps[level.name]):
            _week(campaign, base, level, costs, steps[level.name], expected, full=full)
        _control_without_optimizer(campaign, base, costs, expected, min(steps.values()))
        _control_without_saves(campaign, base, costs)
    finally:
        shutil.rmtree(_quick(campaign))


def _steps(level: Level, kills: int) -> int:
    """Steps of a run that dies about so often before it is done."""
    return max(8, round(kills * level.between_seconds * level.bar / level.step_seconds))


# ---- runs


def _make(folder: Path, base: Path, steps: int, every: str) -> tiny_run.RunDir:
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 32}}
tune: {{method: full}}
train: {{batch: 4, steps: {steps}, epochs: 100000, learning_rate: 1e-3, schedule: constant, warmup: 0}}
save: {{every: {every}, keep: 2}}
where: {{micro: 4, arrange: rows}}
native: {{trainer: {{report_to: none}}}}
"""
    run_dir = tiny_run.make_run(folder, text, tiny_run.random_rows(61, seed=5, longest=32))
    run_dir.logs.mkdir(exist_ok=True)
    plan = files.read_json(run_dir.plan_file)
    plan["intervals"]["background"] = False  # a save is over when its time is: the clock here is not the machine's
    files.write_json(run_dir.plan_file, plan)
    return run_dir


def _quick(campaign: Campaign) -> Path:
    """Memory instead of a disk, where there is one: kills lose nothing there, and a week is over sooner."""
    memory = Path("/dev/shm")
    folder = (memory if memory.is_dir() else campaign.folder) / f"c11-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder


def _uninterrupted(campaign: Campaign, base: Path, steps: list[int]) -> dict[int, tuple[str, str]]:
    """Weights and loss after each of some numbers of steps of a run nobody disturbed."""
    run_dir = _make(_quick(campaign) / "whole", base, steps[-1], "1000000 steps")

    def save_at_each(_: int) -> None:
        from stoker.engine import callbacks

        plain = callbacks.Schedule.on_step_end

        def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            done = plain(self, args, state, control, **kwargs)
            control.should_save = control.should_save or state.global_step in steps
            return done

        callbacks.Schedule.on_step_end = on_step_end

    plan = files.read_json(run_dir.plan_file)
    files.write_json(run_dir.plan_file, plan)
    tiny_run.rewrite(run_dir, "keep: 2", "keep: 9")
    code = Supervisor(
        run_dir.path, SupervisorSettings(look_seconds=0.2), start=forked_trainer.starter(save_at_each)
    ).run()
    assert code == 0, forked_trainer.logs(run_dir.path)
    losses = tiny_run.losses(run_dir)
    found = {one.step: tiny_run.weights_sha(one.path) for one in checkpoints.committed(run_dir.checkpoints)}
    return {step: (found[step], losses[step]) for step in steps}


# ---- what it costs


def _measure(campaign: Campaign, base: Path) -> Costs:
    """Saves on the disk that `--folder` names, and restarts of the installed programs."""
    run_dir = _make(campaign.folder / "measured", base, 100_000, "5 steps")
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = training.start(run_dir)
    clock: list[float] = []
    worked: list[float] = []
    _until(run_dir, {"checkpoint"})
    while len(clock) < COLD_STARTS:
        os.kill(files.read_json(run_dir.process_file)["pid"], signal.SIGKILL)
        killed = time.time()
        _until(run_dir, {"attempt", "step"})
        clock.append(time.time() - killed)
        worked.append(_processor_seconds(files.read_json(run_dir.process_file)["pid"]))
        _until(run_dir, {"checkpoint"})
    training.ask_to_stop(run_dir)
    assert process.wait(600) == 75
    saves = [event["seconds"] for event in events.read(run_dir.events_file) if event["event"] == "checkpoint"]
    campaign.measured |= {
        "cold_restart_clock_seconds": [round(one, 2) for one in clock],
        "cold_restart_processor_seconds": [round(one, 2) for one in worked],
        "save_seconds": {"median": round(statistics.median(saves), 3), "count": len(saves)},
        "load_average": os.getloadavg(),
    }
    return Costs(
        save=statistics.median(saves), restart=statistics.median(worked) + 2 * SupervisorSettings().look_seconds
    )


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until(run_dir: tiny_run.RunDir, wanted: set[str]) -> None:
    """Until events of these kinds were written."""
    seen, kinds = run_dir.events_file.stat().st_size if run_dir.events_file.exists() else 0, set[str]()
    while not wanted <= kinds:
        for event, behind in events.follow(run_dir.events_file, seen):
            kinds.add(event["event"])
            seen = behind
        time.sleep(0.02)


# ---- a week


@dataclass
class Clock:
    """Scaled time, in the trainer: it dies when its hour has come."""

    costs: Costs
    step_seconds: float
    dies_at: float
    chance: Random
    now: float = 0.0
    started: float = 0.0

    def install(self) -> None:
        """Put the clock into this process' trainer."""
        from stoker.engine import saving as engine_saving
        from stoker.engine import train, trainer

        self.started = time.monotonic()
        if self.dies_at < self.costs.restart:
            self._die_soon(2.0 * self.dies_at / self.costs.restart)  # a forked start takes about a second
        self.now = self.costs.restart
        step, save, end = trainer.ExactSteps.training_step, engine_saving.Saver._save, train._train

        def training_step(this: Any, *arguments: Any, **options: Any) -> Any:
            last = self._passes(self.step_seconds)
            if last and self.chance.random() < 0.5:
                self._die()
            done = step(this, *arguments, **options)
            return self._die() if last else done

        def saving_(this: Any, job: Any) -> None:
            if self._passes(self.costs.save):
                self._die_soon(self.chance.uniform(0, 0.03))
                save(this, job)
                self._die()
            save(this, job)

        def train_(opened: Any, stop: Any) -> int:
            code = end(opened, stop)
            (opened.run_dir.path / "clock.json").write_text(json.dumps(self.now))
            return int(code)

        trainer.ExactSteps.training_step = training_step
        engine_saving.Saver._save = saving_
        train._train = train_

    def _passes(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self.dies_at

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _die_soon(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._die)
        timer.daemon = True
        timer.start()


@dataclass
class Ledger:
    """Scaled time, outside: what attempts and waits took."""

    campaign: Campaign
    level: Level
    costs: Costs
    lived: float = 0.0
    waited: float = 0.0
    kills: int = 0
    dies_at: float = 0.0

    def before(self, attempt: int) -> None:
        """In the child: the hour of this attempt's death, by its number alone."""
        chance = self.campaign.random(self.level.name, attempt)
        dies_at = chance.expovariate(1 / self.level.between_seconds)
        Clock(self.costs, self.level.step_seconds, dies_at, chance).install()

    def after(self, attempt: int) -> None:
        """In the parent, for an attempt that died."""
        self.lived += self.campaign.random(self.level.name, attempt).expovariate(1 / self.level.between_seconds)
        self.kills += 1


class Watching(Supervisor):
    """The real supervisor; its pauses are of scaled time, and it tells a ledger what it sees."""

    def __init__(self, run_dir: Path, ledger: Ledger) -> None:
        super().__init__(
            run_dir,
            SupervisorSettings(look_seconds=0.01),
            forked_trainer.starter(ledger.before),
            limits.Clock(wait=self._pause),
        )
        self._ledger = ledger

    def _pause(self, seconds: float) -> None:
        if self.status.state == "waiting":
            self._ledger.waited += seconds
        else:
            time.sleep(seconds)

    def _decide(self, ruling: Ruling) -> int | None:
        if ruling.act == "retry":
            assert ruling.reason == "SIGKILL", forked_trainer.logs(self.run_dir)
            self._ledger.after(self.status.attempt)
            self._ledger.campaign.case(f"kills at {self._ledger.level.name}")
        return super()._decide(ruling)


def _week(
    campaign: Campaign,
    base: Path,
    level: Level,
    costs: Costs,
    steps: int,
    expected: dict[int, tuple[str, str]],
    *,
    full: bool,
) -> None:
    seconds = save_interval.interval_seconds(costs.save, level.between_seconds)
    every = max(1, round(seconds / level.step_seconds))
    run_dir = _make(_quick(campaign) / level.name.replace(" ", ""), base, steps, f"{every} steps")
    ledger = Ledger(campaign, level, costs)
    started = time.time()
    code = Watching(run_dir.path, ledger).run()
    if code:
        campaign.fail(level.name, f"exit {code}\n{forked_trainer.logs(run_dir.path)}")
        return
    lived = ledger.lived + json.loads((run_dir.path / "clock.json").read_text()) + ledger.waited
    goodput = steps * level.step_seconds / lived
    done = set(tiny_run.losses(run_dir))
    again = sum(1 for event in events.read(run_dir.events_file) if event["event"] == "step") - len(done)
    campaign.measured[level.name] = {
        "goodput": round(goodput, 4),
        "bar": level.bar,
        "kills": ledger.kills,
        "simulated_hours": round(lived / 3600, 1),
        "steps": steps,
        "steps_done_again": again,
        "seconds_per_step": level.step_seconds,
        "steps_per_save": every,
        "waited_seconds": round(ledger.waited, 1),
        "real_seconds": round(time.time() - started),
    }
    sha, loss = tiny_run.weights_sha(run_dir.final), tiny_run.losses(run_dir)[steps]
    if (sha, loss) != expected[steps]:
        campaign.fail(level.name, f"other bits after {ledger.kills} kills: {sha} {loss}")
    if full and goodput < level.bar:
        campaign.fail(level.name, f"goodput {goodput:.3f} < {level.bar}")


# ---- controls


def _control_without_optimizer(
    campaign: Campaign, base: Path, costs: Costs, expected: dict[int, tuple[str, str]], steps: int
) -> None:
    """A resume that forgets the optimizer's state must show in the bits."""
    from stoker.engine import checkpoint

    level = LEVELS[-1]
    run_dir = _make(_quick(campaign) / "forgets", base, steps, "2 steps")
    kept = checkpoint.TrainingState.load_optimizer
    checkpoint.TrainingState.load_optimizer = lambda *_: None  # forked children inherit it

    def before(attempt: int) -> None:
        if attempt <= CONTROL_KILLS:
            Clock(costs, level.step_seconds, costs.restart + 45.0, campaign.random("control", attempt)).install()

    try:
        code = Supervisor(run_dir.path, SupervisorSettings(look_seconds=0.01), forked_trainer.starter(before)).run()
    finally:
        checkpoint.TrainingState.load_optimizer = kept
    other = code == 0 and tiny_run.weights_sha(run_dir.final) != expected[steps][0]
    campaign.control("resume without the optimizer's state", caught=other, what=f"exit {code}")


def _control_without_saves(campaign: Campaign, base: Path, costs: Costs) -> None:
    """Without saves a run that dies more often than it lasts makes no progress: the supervisor must notice and end."""
    run_dir = _make(_quick(campaign) / "unsaved", base, 200, "1000000 steps")
    level = Level("never saved", 60.0, 10.0, 0, 0.0)
    watching = Watching(run_dir.path, Ledger(campaign, level, Costs(costs.save, 5.0)))
    done, counted = campaign.done, campaign.counts.copy()
    code = watching.run()
    campaign.done, campaign.counts = done, counted
    gave_up = [e["error"]["code"] for e in events.read(run_dir.events_file) if e["event"] == "error"]
    campaign.control("no saves", caught=code == 2 and gave_up == ["STK674"], what=f"exit {code} {gave_up}")
