"""The on-box supervisor: `python -m stoker.supervise.supervisor RUN_DIR`. Standard library only, as all of this room.

Starts the trainer detached, watches its files, restarts it after failures that may pass, and stops at limits:
    supervisor.json    its heartbeat: pid, state, attempt, step, restarts, reason, next retry
    events.jsonl       restart, warning, limit, passed_over, lost, straggler, and why it gave up
Whatever needs more than files and processes it starts as a `stoker` subcommand: replan, push, settle.
"""

import contextlib
import functools
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker import env
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_SURPRISE, EXIT_USER
from stoker.rundir import files, in_place, lock
from stoker.supervise import early_trainer, judge, limit_watch, limits, processes
from stoker.supervise.copying import StoreCopies
from stoker.supervise.early_trainer import EarlyTrainer
from stoker.supervise.judge import Ruling
from stoker.supervise.limit_watch import LimitWatch
from stoker.supervise.limits import Clock
from stoker.supervise.other_nodes import OtherNodes
from stoker.supervise.processes import AdoptedTrainer, Trainer
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.several_ranks import SeveralRanks
from stoker.supervise.signs_of_life import SignsOfLife
from stoker.supervise.status import SupervisedRun, SupervisorStatus
from stoker.supervise.trainer_events import TrainerEvents

_LOCK_TRIES = 5
_SURPRISES = 3
"""Of the supervisor itself."""


class Supervisor:
    """Watches over one run until it is done, stopped or beyond help."""

    def __init__(
        self,
        run_dir: Path,
        settings: SupervisorSettings | None = None,
        start: Callable[["Supervisor"], Trainer] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take charge of a run directory that holds a plan.

        Args:
            run_dir: The run directory.
            settings: How patient to be.
            start: Starts a trainer; a campaign may fork one instead.
            clock: How time passes.
        """
        self._run = SupervisedRun(run_dir, settings or SupervisorSettings(), clock or Clock())
        self._life = SignsOfLife(self._run.run_dir, self._run.settings, self._run.clock)
        self._events = TrainerEvents(self._run, self._life)
        self._copies = StoreCopies(self._run)
        self._limits = LimitWatch(self._run, self._events, self._life, self._copies)
        self._nodes = OtherNodes(self._run)
        self._ranks = SeveralRanks(self._run, self._events, self._nodes)
        self._start = start or Supervisor.start_trainer
        self._asked = ""

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self._run.run_dir

    @property
    def plan(self) -> dict[str, Any]:
        """What is trained, as of the newest attempt."""
        return self._run.plan

    @property
    def status(self) -> SupervisorStatus:
        """What supervisor.json says."""
        return self._run.status

    # ---- the whole

    def run(self) -> int:
        """Supervise until the end; the exit code of `stoker train`."""
        self._recall()
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda *_: self._ask("signal"))
        with self._limits.asking_for_notices(), self._nodes.listening() as trouble:
            if trouble:
                return self._finish("failed", trouble, EXIT_USER)
            if not processes.known_trainer(self.run_dir):
                if reason := self._limits.reached():
                    return self._refuse(reason)
                if self._wanted():  # since the launch began, which forgot older requests
                    return self._stopped()
            while (code := self._decide(self._train_once())) is None:
                pass
            return code

    def _recall(self) -> None:
        """Take what earlier supervisors of this run left."""
        records = [files.read_if_any(self.run_dir / name) for name in ("supervisor.json", "settled.json")]
        self.status.attempt = int(files.number(records[0].get("attempt")))
        self._run.read_plan()
        trained = limits.trained_seconds(self._events.recall())
        launch = limits.launch_seconds(env.read(env.LAUNCHED), records, self._run.clock.now())
        self._run.spent.before_seconds = max(limits.counted_seconds(*records), trained) + launch

    def _train_once(self) -> Ruling:
        if unmet := self._ranks.gather(self._wanted, self._replan):
            return unmet
        self._events.begin()
        ended, oom_kills = self._events.attempt, processes.oom_kills()
        try:
            trainer = self._begin()
        except OSError:  # no room for a log, or no new process
            return Ruling("retry", "machine")
        while (code := trainer.poll()) is None:
            self._look(trainer)
            self._run.wait_a_look()
        ended.code = code
        self._run.follow_renaming()
        self._events.follow()
        ended.tail = processes.log_tail(self._run.log)
        ended.oom_killed = ended.signal == "SIGKILL" and processes.oom_kills() > oom_kills
        self._ranks.conclude()
        with self._run.tolerating():
            processes.end_group(trainer.pid, self.run_dir, self._nodes.scope, gone=True)
        if self._ranks.meeting:
            shutil.rmtree(self._ranks.meeting, ignore_errors=True)
        self.status.trainer_pid = None
        skip = self.plan.get("guard", {}).get("on_bad_step", "stop") == "skip"
        return judge.judge(ended, skip=skip, trained=self.status.step > 0)

    def _begin(self) -> Trainer:
        """Start a trainer, or adopt the one that an earlier supervisor left behind."""
        left = processes.known_trainer(self.run_dir)
        if left and self._nodes.is_head:  # the other nodes' ranks ended with their connection
            scope, part_seconds = self._nodes.scope, self._run.settings.part_seconds
            processes.end_group(left, self.run_dir, scope)
            self._ranks.listen_until(lambda: not processes.members(None, self.run_dir, scope), part_seconds)
            left = 0
        self.status.attempt = max(self.status.attempt, processes.newest_attempt(self.run_dir))
        self._ranks.begin()
        trainer: Trainer
        if left:
            adopted = AdoptedTrainer(left, self.run_dir)
            self._ranks.meeting, trainer = adopted.meeting, adopted
        else:
            self.status.attempt += 1
            trainer = self._start(self)
            self._run.write("process.json", {"pid": trainer.pid})
        self.status.trainer_pid = trainer.pid
        self._life.begin()
        self._run.say("running", self.status.reason)
        return trainer

    def start_trainer(self) -> Trainer:
        """Start what the plan says, here and on the other nodes."""
        here = self._nodes.place()
        text = (self.run_dir / "plan.json").read_text(encoding="utf-8")
        meeting = self._ranks.meeting = processes.meeting_place(self.plan)
        trainer = processes.start_trainer(self.run_dir, self.plan, self.status.attempt, meeting, here)
        self._ranks.start_elsewhere(text, here.get(env.STORE.name))
        return trainer

    # ---- while it trains

    def _look(self, trainer: Trainer) -> None:
        """One look at a living trainer."""
        for act in (
            self._events.follow,
            self._limits.warn,
            self._heed,
            lambda: self._ranks.look(trainer),
            lambda: self._end_hung(trainer),
            self._run.beat,
            self._copies.start_newest,
        ):
            with self._run.tolerating():
                act()

    def _heed(self) -> None:
        """Pass on to the trainer that it is to stop."""
        if self._wanted():
            if self.status.state != "stopping":
                self._run.say("stopping", self._asked)
            in_place.touch(self._run.stop_file)  # also where a signal asked, or the request is older than the trainer

    def _wanted(self) -> str:
        """Who wants it to stop: a person, a signal or a limit; empty while nobody does."""
        with contextlib.suppress(OSError):
            if self._run.stop_file.exists():
                self._ask("user")
        if not self._asked and (reason := self._limits.reached()):
            self._run.note("limit", reason=reason, stops_at=self.status.stops_at)
            self._ask(reason)
        return self._asked

    def _ask(self, reason: str) -> None:
        self._asked = self._asked or reason

    def _end_hung(self, trainer: Trainer) -> None:
        if self._ranks.is_ended:
            return
        if self._life.hangs(trainer.pid, is_asked=bool(self._asked)) or self._limits.is_overdue(self._asked):
            self._events.attempt.hung = True
            self._ranks.end_hung(trainer)

    # ---- after an attempt

    def _decide(self, ruling: Ruling) -> int | None:
        """Act on a ruling: an exit code, or None to go on."""
        if ruling.act == "done":
            return self._finish("done", "", EXIT_DONE)
        if ruling.act == "stopped":
            return self._stopped()
        if ruling.act == "away":
            return self._give_up_on(ruling.reason)
        if not self._asked:
            ruling = self._prepared(ruling)
        if self._asked and ruling.act != "fail":
            return self._stopped(ruling.reason)
        if ruling.act == "fail":
            return self._finish("failed", ruling.reason, EXIT_USER)
        if self._repeats(ruling):
            cause = env.without_secrets(judge.cause(self._events.attempt.tail))
            return self._give_up("STK673", ruling, step=self._events.attempt.step, cause=cause)
        if ruling.act == "retry" and self.status.fruitless >= self._run.settings.fruitless_most:
            return self._give_up("STK674", ruling, restarts=self.status.fruitless)
        return self._back_off(ruling)

    def _prepared(self, ruling: Ruling) -> Ruling:
        """Prepare the next attempt; another ruling where that is impossible."""
        if ruling.act == "pass_over" and not self._pass_over():
            return Ruling("fail", "bad_step")
        try:
            if ruling.act == "replan" and not self._replan("memory"):
                return Ruling("retry" if self._asked else "fail", "memory")
        except OSError:
            return Ruling("retry", "machine")
        return ruling

    def _pass_over(self) -> bool:
        """Note a step that the next attempt passes over; False where there were too many."""
        self._events.passed_over += 1
        if self._events.passed_over > self._run.settings.passed_over_most:
            return False
        attempt = self._events.attempt
        self._run.note("passed_over", step=attempt.bad_step, reason=attempt.codes[-1])
        return True

    def _replan(self, reason: str, *words: str) -> bool:
        """The next rung of the ladder, by `stoker replan`; False where there is none, or it takes too long."""
        self._run.say("planning", reason)
        planning = self._run.start_stoker("replan", "replan.log", str(self._events.attempt.step), *words)
        until = self._run.clock.own() + self._run.settings.plan_seconds
        while planning.poll() is None and self._run.clock.own() < until and not self._wanted():
            self._run.wait_a_look()
            self._run.beat()
        planning.kill()
        code = planning.wait()
        self._run.read_plan()
        return code == EXIT_DONE

    def _repeats(self, ruling: Ruling) -> bool:
        """Whether the program failed the same way at the same step before."""
        if not ruling.is_fault:
            return False
        step, before = self._events.attempt.step, self._events.faults.get(ruling.reason)
        self._events.faults[ruling.reason] = step
        return before == step

    def _back_off(self, ruling: Ruling) -> int | None:
        """Wait before the next attempt: not at all after progress, ever longer without."""
        self.status.restarts += 1
        self.status.fruitless += 1
        times = self.status.fruitless - 1
        seconds = self._run.settings.pause_seconds(times) if times and ruling.act == "retry" else 0.0
        self._run.note("restart", reason=ruling.reason, step=self._events.attempt.step, wait_seconds=seconds)
        self.status.next_retry = limits.stamp(self._run.clock.now() + seconds)
        self._run.say("waiting", ruling.reason)
        while not self._wanted() and seconds > 0:
            self._run.wait_a_look(seconds)
            seconds -= self._run.settings.look_seconds
        self.status.next_retry = None
        return self._stopped(ruling.reason) if self._asked else None

    def _stopped(self, ended: str = "") -> int:
        """Stopped; `ended` is why the trainer died before its last checkpoint, if it did."""
        with contextlib.suppress(OSError):
            self._run.stop_file.unlink()
        self.status.ended = ended
        return self._finish("stopped", self._asked or "asked", EXIT_STOPPED)

    def _give_up(self, code: str, ruling: Ruling, **fields: Any) -> int:
        self._run.note_error(code, **fields, reason=ruling.reason, log=str(self._run.log))
        return self._finish("failed", ruling.reason, EXIT_SURPRISE)

    def _give_up_on(self, names: str) -> int:
        """Nodes did not join."""
        self._run.note_error("STK795", node=names, seconds=round(self._run.settings.join_seconds))
        return self._finish("failed", "away", EXIT_USER)

    def _refuse(self, reason: str) -> int:
        """A limit was reached before the first attempt could begin."""
        self._run.note_error("STK670", reason=reason, spent=round(self._run.spent.seconds))
        return self._finish("failed", reason, EXIT_USER)

    def _finish(self, state: str, reason: str, code: int) -> int:
        self.status.asked = self._asked
        self._nodes.dismiss(state)
        is_failed = state == "failed"
        if not self._copies.finish(self._limits.last_copy_seconds(), failed=is_failed) and not is_failed:
            reason = "store"
        self._run.say(state, reason)
        return code

    def fail(self) -> int:
        """The supervisor itself failed: end what trains, and leave a verdict."""
        self._run.read_plan()
        if left := processes.known_trainer(self.run_dir):
            processes.end_group(left, self.run_dir, self._nodes.scope)
        self._run.note_error("STK900", reason="supervisor")
        self._run.say("failed", "surprise")
        return EXIT_SURPRISE

    def settle(self) -> None:
        """Have the meter stopped and the user notified, by a program that outlives this one; the last thing to do."""
        if self.plan.get("after", "stay") != "stay" or limit_watch.wants_news():
            with contextlib.suppress(OSError):
                self._run.start_stoker("settle", "settle.log", detached=True)
        self._run.close()


def main() -> int:
    """Supervise the run directory named on the command line, alone."""
    run_dir = Path(sys.argv[1])
    early = early_trainer.await_plan()
    make = functools.partial(_begun_with, early) if early else Supervisor
    waiting = contextlib.closing(early) if early else contextlib.nullcontext()
    with lock.held(run_dir / "supervisor.lock", _LOCK_TRIES) as is_alone, waiting:
        return supervised(run_dir, make) if is_alone else EXIT_USER


def _begun_with(early: EarlyTrainer, run_dir: Path) -> Supervisor:
    """A supervisor whose first attempt takes the trainer that was started early, if the plan starts the same."""

    def start(supervisor: Supervisor) -> Trainer:
        taken = early.take(supervisor.run_dir, supervisor.plan, supervisor.status.attempt)
        return taken or supervisor.start_trainer()

    return Supervisor(run_dir, start=start)


def supervised(run_dir: Path, make: Callable[[Path], Supervisor] = Supervisor) -> int:
    """Supervise to the end and have it settled; after an exception of its own another takes over, a few times."""
    for _ in range(_SURPRISES):
        supervisor = make(run_dir)
        try:
            code = supervisor.run()
            break
        except Exception:  # noqa: BLE001  # a run must not be left without a supervisor
            traceback.print_exc()
    else:
        code = supervisor.fail()
    supervisor.settle()
    return code


if __name__ == "__main__":
    sys.exit(main())
