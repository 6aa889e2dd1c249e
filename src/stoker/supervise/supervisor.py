"""The on-box supervisor: `python -m stoker.supervise.supervisor RUN_DIR`. Standard library only.

Starts the trainer detached, watches its files, starts it again after what may pass, stops at limits, never for ever:
    supervisor.json    its heartbeat: pid, state, attempt, step, restarts, reason, next retry
    events.jsonl       restart, warning, limit, passed_over, lost, straggler, and why it gave up
What needs more than files and processes it starts: a new plan, a copy in the store, the meter's end as a `stoker`
subcommand, the question for a spot notice as `spot_notices.py`. One process is watched by this file alone; for several
there are `ranks.py`, and `wire.py` where they are on several nodes, which do as this one says (`node_daemon.py`).
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.supervise import processes
from stoker.supervise.processes import FOREIGN, Event, Trainer

if TYPE_CHECKING:
    from stoker.supervise.ranks import Ranks
    from stoker.supervise.wire import Head

EXIT_DONE, EXIT_USER, EXIT_SURPRISE, EXIT_STOPPED = 0, 1, 2, 75

_OUT_OF_MEMORY = "STK408"
_BAD_STEP = {"STK405", "STK416", "STK672"}
_MAY_PASS = {"STK407", "STK413", "STK421"}
"""Disk and model hub: a mistake before the first step, a failure of the surroundings after it."""
_TAKEN = "STK424"
"""The port at which ranks meet was free a moment ago; the next attempt takes another."""
_AT_WORK = {"attempt", "rehearsal", "step", "eval", "checkpoint", "save_failed"}
"""Events of a trainer that has its model; before, it may have to fetch one."""
_PEER = "STK402"
"""What a rank may say of another one's failure."""
_LOST = "STK423"
"""What a rank says when it reaches another one no more; the other's own words, code or signal come first."""
_FAULTS = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"}
"""Signals a program brings upon itself; others come from outside."""
_DEVICE = re.compile(r"CUDA error|NCCL error|ECC error|fallen off the bus|device lost|hipError")
_RANK_SIGNAL = re.compile(r"exitcode\s*: -(\d+)")
_RANK_SURPRISE = re.compile(r"exitcode\s*: 2\b")
_FIRST_FAILED = re.compile(r"Root Cause.*?local_rank: (\d+)\)", re.DOTALL)
"""In the words of torchrun."""
_WATCHED = {"silent", "node", "hang"}
"""Reasons seen from outside: what the lost rank's own processes say then is how we ended them."""
_ENDLESS = 1e9
"""Seconds: no step, save or run lasts longer."""
_LOOKER_SECONDS = 0.2
"""Who looks whether the lock is held takes it for less."""
_SURPRISES = 3
"""Of the supervisor itself."""
_HOOKS = ("STOKER_WEBHOOK", "STOKER_AUTODL_TOKEN", "STOKER_NOTIFY_COMMAND")
"""Where news is wanted."""
_BUDGETS = ("time", "money")


@dataclass(frozen=True)
class Settings:
    """How patient the supervisor is. Tests are less so."""

    look_seconds: float = 0.5
    beat_seconds: float = 5.0
    """Between two writings of supervisor.json."""
    start_seconds: float = 7200.0
    """From the start to the first sign of life: a model may have to be fetched."""
    hang_floor_seconds: float = 900.0
    hang_steps: float = 100.0
    """A trainer that gives no sign for the floor and so many median steps hangs."""
    first_wait_seconds: float = 5.0
    longest_wait_seconds: float = 300.0
    fruitless_most: int = 8
    """Restarts in a row without a newer checkpoint."""
    passed_over_most: int = 3
    """Steps passed over without a newer checkpoint: more of them is divergence, not a bad batch."""
    plan_seconds: float = 600.0
    """For a new plan."""
    stop_seconds: float = 1800.0
    """For a trainer that was asked to stop to commit and end."""
    deadline_reserve_seconds: float = 120.0
    """Kept free before a platform's hard end, beside what saving took so far."""
    copy_seconds: float = 3600.0
    """For the last copy in the store."""
    notice_seconds: float = 5.0
    """Between two questions for a spot notice."""
    warning_share: float = 0.8
    """Of a budget: from there on the user is warned."""
    overtime_seconds: float = 300.0
    """Beyond a limit, for a trainer that was asked to stop: what a save may take at worst."""
    silent_seconds: float = 30.0
    """Then one without a sign of life for so long is ended; one that gives signs or is writing has `stop_seconds`."""
    rank_silent_seconds: float = 30.0
    """Of several ranks one without a pulse, and without any work, for so long is lost."""
    blame_seconds: float = 3.0
    """Who merely lost the others ends at once; who brought it about may be heard of a moment later."""
    stacks_seconds: float = 1.0
    """For ranks to write down where they are, before they are ended."""
    part_seconds: float = 15.0
    """For the ranks of other nodes to end after the head's."""
    listen_seconds: float = 60.0
    """For the port at which nodes report to be free."""
    join_seconds: float = 600.0
    """For a node that is away to join."""
    elastic_seconds: float = 60.0
    """The same where the run may go on without it."""


class Adopted:
    """A trainer that an earlier supervisor left behind: not our child, so its code is not told."""

    def __init__(self, pid: int, run_dir: Path) -> None:
        self.pid = pid
        self.meeting = processes.environment(pid).get("STOKER_RENDEZVOUS")
        self._run_dir = run_dir

    def poll(self) -> int | None:
        """None while it lives, and not another process with its number; what it did is in the events."""
        return None if processes.trains(processes.words_of(self.pid), self._run_dir) else -int(signal.SIGTERM)


@dataclass
class Ended:
    """How an attempt ended, as far as it can be seen from outside."""

    code: int
    codes: list[str] = field(default_factory=list)
    """Of the errors it wrote down."""
    status: str = ""
    """Of its end event."""
    step: int = 0
    """The newest step it did, or went on from."""
    bad_step: int | None = None
    hung: bool = False
    lost: str = ""
    """Why a rank or a node was given up, where nobody could say so by himself."""
    starved: bool = False
    """Whether the kernel killed for want of memory meanwhile."""
    tail: str = ""
    """The end of its log."""

    @property
    def signal(self) -> str:
        """The signal that ended it or one of its ranks; torchrun itself then ends with 1."""
        number = -self.code
        if self.code == EXIT_USER and set(self.codes) <= {_LOST, _PEER} and (found := _RANK_SIGNAL.search(self.tail)):
            number = int(found.group(1))
        try:
            return signal.Signals(number).name if number > 0 else ""
        except ValueError:
            return f"signal {number}"


@dataclass(frozen=True)
class Verdict:
    """What to do after an attempt, and why."""

    act: str
    """done, stopped, retry, replan, pass_over, away or fail."""
    reason: str


def judge(ended: Ended, *, skip: bool, trained: bool) -> Verdict:
    """Tell what will repeat from what may pass.

    Args:
        ended: How it ended.
        skip: Whether the run file wants bad steps passed over.
        trained: Whether any step was done before.
    """
    if ended.status == "done":
        return Verdict("done", "")
    if ended.status == "stopped" or ended.code == EXIT_STOPPED:
        return Verdict("stopped", "asked")
    if ended.hung:
        return Verdict("retry", "hang")
    if _OUT_OF_MEMORY in ended.codes or ended.starved:
        return Verdict("replan", "memory")
    if _BAD_STEP & set(ended.codes):
        return Verdict("pass_over" if skip and ended.bad_step is not None else "fail", "bad_step")
    return _judge_rest(ended, trained=trained)


def _judge_rest(ended: Ended, *, trained: bool) -> Verdict:
    if ended.lost:
        return Verdict("retry", ended.lost)
    if ended.signal:
        return Verdict("retry", ended.signal)
    named = [code for code in ended.codes if code != _LOST]
    own = [code for code in named if code != _PEER] or named
    if own and ended.code == EXIT_USER:
        may_pass = set(own) <= {_TAKEN} or (trained and set(own) <= _MAY_PASS)
        return Verdict("retry" if may_pass else "fail", own[0])
    if ended.codes and not _RANK_SURPRISE.search(ended.tail):
        return Verdict("retry", "lost")
    return Verdict("retry", "device" if _DEVICE.search(ended.tail) else "surprise")


@dataclass(frozen=True)
class Lost:
    """A rank that brought an attempt to its end."""

    rank: int | None
    node: str
    step: int
    reason: str
    """A signal, an error's code, surprise, dead, silent, node, hang, or lost: that it did not find the others."""


@dataclass
class Status:
    """`supervisor.json`."""

    pid: int
    host: str = field(default_factory=socket.gethostname)
    """The machine it is on: others may share the folder."""
    state: str = "starting"
    """starting, running, waiting, planning, stopping, copying, done, stopped or failed; waiting for nodes, too."""
    attempt: int = 0
    trainer_pid: int | None = None
    step: int = 0
    committed_step: int = 0
    restarts: int = 0
    fruitless: int = 0
    """Restarts in a row without a newer checkpoint."""
    reason: str = ""
    """Of the newest restart, stop or failure."""
    asked: str = ""
    """Who asked it to stop: user, signal, or a limit."""
    ended: str = ""
    """Why the trainer ended where it was asked to stop and did not get to its last checkpoint."""
    trouble: str = ""
    """What this machine refused the supervisor last."""
    next_retry: str | None = None
    started: str = ""
    beat: str = ""
    spent_seconds: float = 0.0
    """Over all supervisors of this run: what budgets are counted by."""
    stops_at: str | None = None
    """When a budget or the platform ends it."""
    stored_step: int | None = None
    """Newest checkpoint whose copy in the store was verified."""
    nodes: dict[str, str] = field(default_factory=dict)
    """The machines of a run of several: joined, lost or away."""
    lost: dict[str, Any] | None = None
    """The newest rank that brought an attempt to its end: rank, node, step, reason."""


class Supervisor:
    """Watches over one run until it is done, stopped or beyond help."""

    def __init__(
        self,
        run_dir: Path,
        settings: Settings | None = None,
        start: Callable[["Supervisor"], Trainer] | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take charge of a run directory that holds a plan.

        Args:
            run_dir: The run directory.
            settings: How patient to be.
            start: Starts a trainer; a campaign may fork one instead.
            wait: How time passes; a campaign has a clock of its own.
        """
        self.run_dir = run_dir.resolve()
        self.settings = settings or Settings()
        self.plan: dict[str, Any] = {}
        self.status = Status(os.getpid(), started=_now())
        self._start = start or Supervisor._start_trainer
        self._wait = wait
        self._asked = ""
        self._began = time.monotonic()
        self._spent_before = 0.0
        self._seen = 0
        self._beat_at = 0.0
        self._attempt = Ended(0)
        self._step_seconds: deque[float] = deque(maxlen=50)
        self._save_seconds = 0.0
        self._furthest = 0
        self._alive = self._heard = False
        self._looked_at = self._silent = self._idle = 0.0
        self._signs: tuple[float, ...] = ()
        self._used = 0
        self._faults: dict[str, int] = {}
        self._passed_over = 0
        self._copy: subprocess.Popen[bytes] | None = None
        self._copying: int | None = None
        self._copy_began = 0.0
        self._copy_seconds = 0.0
        self._copy_after = 0.0
        self._copy_failures = 0
        self._refused: int | None = None
        self._meeting: str | None = None
        self._passed = 0.0
        self._head: Head | None = None
        self._ranks: Ranks | None = None
        self._pulses: dict[str, list[Event]] = {}
        self._step = 0
        self._reports: dict[str, Event] = {}
        self._errors: list[Event] = []
        self._blamed: list[Lost] = []
        self._blamed_at = 0.0
        self._is_ended = False
        self._ended_at = self._examined_at = 0.0
        self._warned: set[tuple[str, float]] = set()
        self._telling: subprocess.Popen[bytes] | None = None
        self._notices: subprocess.Popen[bytes] | None = None
        self._taken_at: float | None = None

    # ---- the whole

    def run(self) -> int:
        """Supervise until the end; the exit code of `stoker train`."""
        self._recall()
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda *_: self._ask("signal"))
        with self._asking_for_notices(), self._lines_to_nodes() as trouble:
            if trouble:
                return self._finish("failed", trouble, EXIT_USER)
            if not self._known_trainer() and (reason := self._limit()):
                return self._refuse(reason)
            while (code := self._decide(self._train_once())) is None:
                pass
            return code

    def _recall(self) -> None:
        """What earlier supervisors of this run left."""
        before = processes.read_json(self.run_dir / "supervisor.json")
        self.status.attempt = int(processes.figure(before.get("attempt")))
        self._read_plan()
        past = self._events()
        for event in past:
            self._understand(event)
        self._furthest = 0
        settled = processes.read_json(self.run_dir / "settled.json")
        spent = [processes.figure(record.get("spent_seconds")) for record in (before, settled)]
        self._spent_before = max(*spent, _trained_seconds(past)) + _launch_seconds(before, settled)
        if not self._known_trainer():
            with contextlib.suppress(OSError):
                self._stop_file.unlink()

    def _train_once(self) -> Verdict:
        if unmet := self._gather():
            return unmet
        self._attempt = Ended(0, step=self.status.committed_step)
        starved = processes.oom_kills()
        try:
            trainer = self._begin()
        except OSError:  # no room for a log, no process to be had
            return Verdict("retry", "machine")
        while (code := trainer.poll()) is None:
            self._look(trainer)
            self._wait(self.settings.look_seconds)
        ended = self._attempt
        ended.code = code
        self._follow_events()
        ended.tail = processes.log_tail(self._log)
        ended.starved = ended.signal == "SIGKILL" and processes.oom_kills() > starved
        self._conclude()
        with self._bearing():
            self._end_group(trainer.pid, gone=True)
        if self._meeting:
            shutil.rmtree(self._meeting, ignore_errors=True)
        self.status.trainer_pid = None
        return judge(ended, skip=self._guard == "skip", trained=self.status.step > 0)

    def _begin(self) -> Trainer:
        trainer: Trainer
        left = self._known_trainer()
        if left and self._head:  # the other nodes' ranks ended with their line
            self._end_group(left)
            self._until(lambda: not processes.members(None, self.run_dir, self._scope), self.settings.part_seconds)
            left = 0
        self.status.attempt = max(self.status.attempt, _attempts(self.run_dir))
        self._watch_anew()
        if left:
            adopted = Adopted(left, self.run_dir)
            self._meeting, trainer = adopted.meeting, adopted
        else:
            self.status.attempt += 1
            trainer = self._start(self)
            _write_json(self.run_dir / "process.json", {"pid": trainer.pid})
        self.status.trainer_pid = trainer.pid
        self._alive = self._heard = False
        self._looked_at, self._silent, self._idle = time.monotonic(), 0.0, 0.0
        self._signs = self._signs_of_life()
        self._say("running", self.status.reason)
        return trainer

    def _start_trainer(self) -> Trainer:
        here = self._place() if self._head else {}
        text = (self.run_dir / "plan.json").read_text(encoding="utf-8")
        self._meeting = processes.meeting_place(self.plan)
        trainer = processes.start_trainer(self.run_dir, self.plan, self.status.attempt, self._meeting, here)
        order = {"start": self.status.attempt, "plan": text, "store": here.get("STOKER_STORE")}
        for name in self._names:
            first_rank = self._first_rank(name)
            if self._order({**order, "first_rank": first_rank, "world": self.plan["batch"]["devices"]}, name):
                self._blame(first_rank, name, "node")  # that its line was lost may have been heard before
        return trainer

    def _look(self, trainer: Trainer) -> None:
        """One look at a living trainer."""
        now = time.monotonic()
        self._passed, self._looked_at = min(now - self._looked_at, 10 * self.settings.look_seconds), now
        for act in (
            self._follow_events,
            self._warn,
            self._heed,
            lambda: self._watch_ranks(trainer),
            lambda: self._end_hung(trainer),
            self._beat,
            self._store_newest,
        ):
            with self._bearing():
                act()

    @contextlib.contextmanager
    def _bearing(self) -> Iterator[None]:
        """What the machine refuses now (a full disk, no process) is tried again at the next look."""
        try:
            yield
        except OSError as error:
            self.status.trouble = str(error)

    def _heed(self) -> None:
        """Pass on that somebody wants it to stop."""
        if self._wanted():
            if self.status.state != "stopping":
                self._say("stopping", self._asked)
            self._stop_file.touch()  # also where a signal asked, or one came before the trainer

    def _wanted(self) -> str:
        """Who wants it to stop: a person, a signal or a limit; nothing while nobody does."""
        with contextlib.suppress(OSError):
            if self._stop_file.exists():
                self._ask("user")
        if not self._asked and (reason := self._limit()):
            self._note("limit", reason=reason, stops_at=self.status.stops_at)
            self._ask(reason)
        return self._asked

    def _warn(self) -> None:
        """Once for each budget, when most of it is spent."""
        for word in _BUDGETS:
            limit = self.plan.get("limits", {}).get(f"{word}_seconds")
            spent = round(self._spent_seconds, 1)
            if limit and (word, limit) not in self._warned and spent >= self.settings.warning_share * limit:
                self._warned.add((word, limit))
                self._note("warning", reason=word, spent_seconds=spent, limit_seconds=limit)
                if _wants_news():
                    self._telling = self._stoker("settle", "settle.log", "--warning", word)

    def _end_hung(self, trainer: Trainer) -> None:
        if not self._is_ended and (self._hangs(trainer.pid) or self._is_overdue()):
            self._attempt.hung = True
            if self._ranks and (behind := self._ranks.behind()):
                self._blame(behind["rank"], behind["node"], "hang")
            self._end_attempt(trainer)

    def _is_overdue(self) -> bool:
        """A budget or a deadline is passed, and the trainer that was asked to stop is not about to commit.

        A commit syncs and digests its files for long without a sign; half of it on the disk is one.
        """
        late = -self._ends().get(self._asked, _ENDLESS)
        if late < self.settings.overtime_seconds:
            return False
        is_busy = self._silent <= self.settings.silent_seconds or _is_writing(self.run_dir)
        return not is_busy or late > self.settings.stop_seconds

    def _beat(self) -> None:
        if time.monotonic() - self._beat_at >= self.settings.beat_seconds:
            self._say(self.status.state, self.status.reason)

    def _ask(self, reason: str) -> None:
        self._asked = self._asked or reason

    # ---- after an attempt

    def _decide(self, verdict: Verdict) -> int | None:
        """Act on a verdict: an exit code, or None to go on."""
        if verdict.act == "done":
            return self._finish("done", "", EXIT_DONE)
        if verdict.act == "stopped":
            return self._stopped()
        if verdict.act == "away":
            return self._give_up_on(verdict.reason)
        if not self._asked:
            verdict = self._prepared(verdict)
        if self._asked and verdict.act != "fail":
            return self._stopped(verdict.reason)
        if verdict.act == "fail":
            return self._finish("failed", verdict.reason, EXIT_USER)
        if self._repeats(verdict):
            return self._give_up("STK673", verdict, step=self._attempt.step)
        if verdict.act == "retry" and self.status.fruitless >= self.settings.fruitless_most:
            return self._give_up("STK674", verdict, restarts=self.status.fruitless)
        return self._back_off(verdict)

    def _prepared(self, verdict: Verdict) -> Verdict:
        """Do what the next attempt needs; another verdict where that cannot be."""
        if verdict.act == "pass_over" and not self._pass_over():
            return Verdict("fail", "bad_step")
        try:
            if verdict.act == "replan" and not self._replan():
                return Verdict("retry" if self._asked else "fail", "memory")
        except OSError:
            return Verdict("retry", "machine")
        return verdict

    def _repeats(self, verdict: Verdict) -> bool:
        """The same fault of the program at the same step twice will come a third time."""
        if verdict.act != "retry" or verdict.reason not in {"surprise", "device", *_FAULTS}:
            return False
        before = self._faults.get(verdict.reason)
        self._faults[verdict.reason] = self._attempt.step
        return before == self._attempt.step

    def _back_off(self, verdict: Verdict) -> int | None:
        """Wait before the next attempt: not at all after progress, ever longer without."""
        self.status.restarts += 1
        self.status.fruitless += 1
        times = self.status.fruitless - 1
        seconds = self._pause_seconds(times) if times and verdict.act == "retry" else 0.0
        self._note("restart", reason=verdict.reason, step=self._attempt.step, wait_seconds=seconds)
        until = time.time() + seconds
        self.status.next_retry = _stamp(until)
        self._say("waiting", verdict.reason)
        while not self._wanted() and seconds > 0:
            pause = min(seconds, self.settings.look_seconds)
            self._wait(pause)
            seconds -= pause
        self.status.next_retry = None
        return self._stopped(verdict.reason) if self._asked else None

    def _pause_seconds(self, times: int) -> float:
        """Ever longer: before the try that follows so many failures."""
        return min(self.settings.longest_wait_seconds, self.settings.first_wait_seconds * 2.0 ** min(times - 1, 20))

    def _replan(self, *words: str, reason: str = "memory") -> bool:
        """The next rung of the ladder, by `stoker replan`; False where there is none, or it takes too long."""
        self._say("planning", reason)
        planning = self._stoker("replan", "replan.log", str(self._attempt.step), *words)
        until = time.monotonic() + self.settings.plan_seconds
        while planning.poll() is None and time.monotonic() < until and not self._wanted():
            self._wait(self.settings.look_seconds)
            self._beat()
        planning.kill()
        code = planning.wait()
        self._read_plan()
        return code == EXIT_DONE

    def _pass_over(self) -> bool:
        """Note a step that the next attempt passes over; False where there were too many."""
        self._passed_over += 1
        if self._passed_over > self.settings.passed_over_most:
            return False
        self._note("passed_over", step=self._attempt.bad_step, reason=self._attempt.codes[-1])
        return True

    def _stopped(self, ended: str = "") -> int:
        """Stopped; `ended` says of what the trainer died first, where it did not come to its last checkpoint."""
        with contextlib.suppress(OSError):
            self._stop_file.unlink()
        self.status.ended = ended
        return self._finish("stopped", self._asked or "asked", EXIT_STOPPED)

    def _give_up(self, code: str, verdict: Verdict, **fields: Any) -> int:
        self._note_error(code, **fields, reason=verdict.reason, log=str(self._log))
        return self._finish("failed", verdict.reason, EXIT_SURPRISE)

    def _give_up_on(self, names: str) -> int:
        """Nodes that do not come."""
        self._note_error("STK795", node=names, seconds=round(self.settings.join_seconds))
        return self._finish("failed", "away", EXIT_USER)

    def _refuse(self, reason: str) -> int:
        """A limit was reached before the first attempt could begin."""
        self._note_error("STK670", reason=reason, spent=round(self._spent_seconds))
        return self._finish("failed", reason, EXIT_USER)

    def _finish(self, state: str, reason: str, code: int) -> int:
        self.status.asked = self._asked
        self._part(state)
        if not self._store_last(failed=state == "failed") and state != "failed":
            reason = "store"
        self._say(state, reason)
        return code

    # ---- what the trainer does

    def _follow_events(self) -> None:
        for event in self._events():
            self._understand(event)

    def _events(self) -> list[Event]:
        """Whole lines since the last look."""
        found = []
        with contextlib.suppress(OSError), (self.run_dir / "events.jsonl").open("rb") as file:
            file.seek(self._seen)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                self._seen += len(raw)
                with contextlib.suppress(ValueError, RecursionError):
                    found.append(json.loads(raw))
        return [event for event in found if isinstance(event, dict) and isinstance(event.get("event"), str)]

    def _understand(self, event: Event) -> None:
        """Take what an event says; one that is not as ours are says nothing."""
        if event["event"] in _AT_WORK:
            self._alive = self._heard = True
        with contextlib.suppress(*FOREIGN):
            self._take(event)

    def _take(self, event: Event) -> None:
        kind, ended = event["event"], self._attempt
        if kind == "attempt":
            step = self.status.step = ended.step = int(event["resumed_step"])
            self._progress(step)  # committed, and killed before it could be said
            if step < (self.status.stored_step or 0):
                self.status.stored_step = None
        elif kind == "step":
            self.status.step = ended.step = int(event["step"])
            self._step_seconds.append(processes.figure(event["seconds"]))
        elif kind == "rehearsal" and event["part"] == "save":
            self._save_seconds = max(self._save_seconds, processes.figure(event["seconds"]))
        elif kind == "checkpoint":
            self._save_seconds = processes.figure(event["seconds"])
            self._progress(int(event["step"]))
        elif kind == "error" and event["program"] == "train":
            error = event["error"]
            self._errors.append(error)
            ended.codes.append(str(error["code"]))
            if error["code"] in _BAD_STEP:
                ended.bad_step = int(error["fields"]["step"])
        elif kind == "end":
            ended.status = event["status"]
        elif kind == "warning":
            self._warned.add((event["reason"], event["limit_seconds"]))

    def _progress(self, step: int) -> None:
        """The newest checkpoint there is; after a damaged one it may be an older one, which is no progress."""
        self.status.committed_step = step
        if step > self._furthest:
            self._furthest = step
            self.status.fruitless = self._passed_over = 0
            self._faults.clear()

    def _hangs(self, pid: int) -> bool:
        """No sign of life for too long, counted by our own looks: a machine that slept or a clock that was set is none.

        Signs are events, the heartbeat file, a checkpoint that grows; before the model is there, any work.
        """
        if self._heard:
            self._heard, self._silent, self._idle = False, 0.0, 0.0
            return False
        signs, before, used = self._signs_of_life(), self._signs, 0 if self._alive else processes.used(pid)
        self._alive = self._alive or signs[0] != before[0]
        self._silent = self._silent + self._passed if signs == before else 0.0
        self._idle = self._idle + self._passed if used and used == self._used else 0.0
        self._signs, self._used = signs, used
        return self._idle > self.settings.hang_floor_seconds or self._silent > self._patience_seconds()

    def _signs_of_life(self) -> tuple[float, ...]:
        folders = (_newest_change(self.run_dir / parent) for parent in ("checkpoints", "artifacts"))
        return (_modified(self.run_dir / "heartbeat"), *folders)

    def _patience_seconds(self) -> float:
        patience = self.settings.start_seconds
        if self._alive:
            patience = self.settings.hang_floor_seconds + self.settings.hang_steps * self._median_step_seconds()
        return min(patience, self.settings.stop_seconds) if self._asked else patience

    def _median_step_seconds(self) -> float:
        return statistics.median(self._step_seconds) if self._step_seconds else 0.0

    # ---- several ranks

    def _watch_anew(self) -> None:
        """Nothing is known yet of the ranks of the next attempt."""
        self._pulses, self._reports, self._errors, self._blamed = {}, {}, [], []
        self._step, self._is_ended, self._ranks = 0, False, None
        self._examined_at = time.monotonic()
        if self.plan.get("strategy", "single") != "single":
            from stoker.supervise.ranks import Ranks  # not needed for one process, which this file watches alone

            self._ranks = Ranks(self.settings.rank_silent_seconds, self.settings.hang_floor_seconds)

    def _watch_ranks(self, trainer: Trainer) -> None:
        """Find a rank that is gone or silent, here or on another node, and end them all."""
        self._listen()
        if self._ranks is None:
            return
        self._pulses[self._node] = processes.read_pulses(self._meeting, self.run_dir)
        if self._is_ended:
            self._see(self._ranks)
            self._end_ranks(trainer, self._ranks)
            return
        self._examine(self._ranks)
        if slow := self._ranks.straggler():
            told = {key: slow[key] for key in ("rank", "step", "times", "cause", "seconds", "others_seconds")}
            self._note("straggler", node=slow["node"] or self._node, **told)
        if self._culprit():
            self._end_attempt(trainer)

    def _examine(self, ranks: "Ranks") -> None:
        """Find who is lost by the newest pulses of all nodes."""
        self._see(ranks)
        if found := ranks.lost():
            self._blame(found[0]["rank"], found[0]["node"], found[1])

    def _see(self, ranks: "Ranks") -> None:
        newest = [pulse for pulses in self._pulses.values() for pulse in pulses]
        self._step = max([self._step, *(pulse["step"] for pulse in newest)])
        now = time.monotonic()
        ranks.see(newest, min(now - self._examined_at, 10 * self.settings.look_seconds))
        self._examined_at = now

    def _blame(self, rank: int | None, node: str, reason: str) -> None:
        """Somebody is lost, at the step that the furthest rank is in: its own pulse may be older by some."""
        if not self._blamed:
            self._blamed_at = time.monotonic()
        self._blamed.append(Lost(rank, node or self._node, max(self._attempt.step, self._step), reason))

    def _culprit(self, *, final: bool = False) -> Lost | None:
        """Who brought it about: the first who did not merely lose the others; such a one may still be heard of."""
        own = [one for one in self._blamed if one.reason != "lost"]
        if not own and not final and time.monotonic() - self._blamed_at < self.settings.blame_seconds:
            return None
        return next(iter(own or self._blamed), None)

    def _end_attempt(self, trainer: Trainer) -> None:
        """Have every rank write down where it is, then end them all."""
        if self._ranks is None:
            self._end_group(trainer.pid)
            return
        self._is_ended, self._ended_at = True, time.monotonic()
        if (culprit := self._culprit(final=True)) and culprit.reason != "lost":
            self._tell_lost(culprit)
        self._order({"end": self.status.attempt})
        processes.dump_stacks(self._pulses.get(self._node, []), self.run_dir)
        self._wait(self.settings.stacks_seconds)
        self._end_ranks(trainer, self._ranks)

    def _end_ranks(self, trainer: Trainer, ranks: "Ranks") -> None:
        """End all here; the first one, which has a step's whole state in its memory, may commit it before."""
        has_time = time.monotonic() - self._ended_at < self.settings.overtime_seconds
        may_commit = has_time and not self._attempt.hung and _is_writing(self.run_dir)
        spared = ranks.living(0) if may_commit else None
        processes.end_ranks(trainer, self.run_dir, self._scope, self._wait, spared)

    def _conclude(self) -> None:
        """After an attempt of several ranks: end what is left of it, and judge by what the culprit itself says."""
        ended, here = self._attempt, self._node
        if self._ranks is None:
            return
        own = report(ended.code, ended.tail, 0, ended.codes)
        self._reports[here] = {**own, "starved": ended.starved, "asked": self._is_ended}
        self._pulses.pop(here, None)
        self._blame_by(here, self._reports[here])
        self._hear_out(self._ranks)
        culprit = None if ended.status else self._culprit(final=True)
        if culprit is None or ended.hung:
            return
        self._tell_lost(culprit)
        if culprit.reason in _WATCHED or culprit.node not in self._reports:
            ended.lost = culprit.reason
        else:
            said = self._reports[culprit.node]
            ended.code, ended.tail, ended.starved = said["code"], said["tail"], said["starved"]

    def _tell_lost(self, lost: Lost) -> None:
        """Once an attempt, say who was lost; an error that has a code speaks for itself."""
        is_said = (self.status.lost or {}).get("attempt") == self.status.attempt
        if not is_said and lost.rank is not None and not lost.reason.startswith("STK"):
            self.status.lost = {**asdict(lost), "attempt": self.status.attempt}
            self._note("lost", **asdict(lost))

    # ---- several nodes

    @property
    def _names(self) -> list[str]:
        """Those that take part, in the order of their ranks; this one first."""
        return list(self.plan.get("nodes") or ())

    @property
    def _scope(self) -> str:
        """This node's name, for what is told apart from other nodes' processes on the same machine."""
        return self._names[0] if self._head else ""

    @property
    def _node(self) -> str:
        return self._scope or self.status.host

    @contextlib.contextmanager
    def _lines_to_nodes(self) -> Iterator[str]:
        """To those that take part, and those that may come back; yields why there can be none."""
        if not self._names:
            yield ""
            return
        from stoker.supervise.wire import Head  # needed by runs of several nodes only

        record = processes.read_json(self.run_dir / "nodes.json")
        self.status.nodes = {node["name"]: "away" for node in record["nodes"]} | {self._names[0]: "joined"}
        head, until = Head(record), time.monotonic() + self.settings.listen_seconds
        while True:
            try:
                head.open()
                break
            except OSError as error:  # the port was chosen earlier, and somebody may have it for a moment
                if time.monotonic() > until:
                    fields = {"head": self._names[0], "address": head.address, "port": head.port}
                    self._note_error("STK776", **fields, reason=error.strerror)
                    yield "machine"
                    return
            self._beat()
            self._wait(self.settings.look_seconds)
        with contextlib.closing(head) as self._head:
            yield ""

    def _gather(self) -> Verdict | None:
        """Wait for the nodes of the plan; an elastic one is made anew for those that are there, or back again."""
        if self._head is None:
            return None
        began, tried = time.monotonic(), self._names
        while True:
            self._listen()
            joined = {self._names[0], *self._head.joined()}
            here = [name for name in self.status.nodes if name in joined]
            missing = [name for name in self._names if name not in joined]
            waited = time.monotonic() - began
            is_time = not missing or waited >= self.settings.elastic_seconds
            if self.plan.get("elastic") and here != tried and is_time:
                tried = here
                with self._bearing():
                    self._replan("--nodes", ",".join(here), reason="node")
            elif not missing:
                return None
            elif self._wanted():
                return Verdict("stopped", "asked")
            elif waited >= self.settings.join_seconds:
                return Verdict("away", ", ".join(missing))
            else:
                if self.status.reason != "away":
                    self._say("waiting", "away")
                self._beat()
                self._wait(self.settings.look_seconds)

    def _place(self) -> dict[str, str]:
        """What this node's ranks are told; a fresh port for each attempt, at which all ranks meet."""
        node = processes.read_json(self.run_dir / "nodes.json")["nodes"][0]
        store = f"{node['address']}:{processes.free_port(node['address'])}" if len(self._names) > 1 else ""
        return processes.place(node, 0, self.plan["batch"]["devices"], store)

    def _first_rank(self, name: str) -> int:
        return self._names.index(name) * int(self.plan["batch"]["devices"]) // len(self._names)

    def _order(self, order: Event, *names: str) -> list[str]:
        """To one of the others, or all; tells whom it did not reach."""
        missed = []
        for name in names or self._names:
            if self._head and name != self._names[0]:
                try:
                    self._head.tell(name, order)
                except OSError:
                    missed.append(name)
        return missed

    def _listen(self) -> None:
        """Take what other nodes said."""
        for said in self._head.look() if self._head else []:
            with contextlib.suppress(*FOREIGN):
                self._hear(said["node"], said)

    def _hear(self, node: str, said: Event) -> None:
        is_ours = node in self._names and node not in self._reports
        if "joined" in said:
            self.status.nodes[node] = "joined"
        elif "lost" in said:
            self.status.nodes[node] = "lost"
            if is_ours:
                self._blame(self._first_rank(node), node, "node")
        elif said.get("attempt") != self.status.attempt or not is_ours:
            return
        elif "ended" in said:
            self._take_errors(node, said["errors"])
            self._keep_logs(said["logs"])
            self._reports[node] = said
            self._pulses.pop(node, None)  # it has none any more
            self._blame_by(node, said)
        else:
            self._pulses[node] = [processes.as_pulse(one) for one in said["ranks"]]

    def _blame_by(self, node: str, said: Event) -> None:
        """What a node's own processes say of their end; that they were killed says nothing where we did so."""
        codes = [str(code) for code in said["codes"]]
        if said["code"] in (EXIT_DONE, EXIT_STOPPED) or (said["asked"] and said["signal"] == "SIGKILL"):
            return
        if said["signal"]:
            reason = said["signal"]
        elif codes and not _RANK_SURPRISE.search(said["tail"]):
            reason = next((code for code in codes if code not in (_LOST, _PEER)), "lost")
        else:
            reason = "surprise"
        rank = said["rank"]
        if rank is None and self._names:  # whoever starts the ranks there ended by himself
            rank = self._first_rank(node)
        self._blame(rank, node, reason)

    def _take_errors(self, node: str, errors: list[Event]) -> None:
        """An error that a rank wrote down on its own node; in a folder that nodes share it was seen already."""
        self._follow_events()
        for error in errors:
            if error not in self._errors:
                self._note("error", program="train", node=node, error=error)
        self._follow_events()

    def _keep_logs(self, logs: dict[str, str]) -> None:
        """The end of the logs of another node's ranks, with their stacks, beside those of this one's."""
        for rank, text in logs.items():
            path = processes.log_file(self.run_dir, self.status.attempt, int(rank))
            with contextlib.suppress(OSError):
                if not path.exists():  # nodes may share the folder
                    path.write_text(text, encoding="utf-8")

    def _hear_out(self, ranks: "Ranks") -> None:
        """Until the other nodes have ended, or too long; after a failure here the culprit may still be heard of."""

        def is_found() -> bool:
            self._examine(ranks)
            return self._culprit() is not None

        def are_gone() -> bool:
            lost = {one.node for one in self._blamed if one.reason == "node"}
            return lost | set(self._reports) >= set(self._names)

        if self._attempt.code not in (EXIT_DONE, EXIT_STOPPED) and not self._is_ended:
            self._until(is_found, self.settings.blame_seconds)
            self._order({"end": self.status.attempt})
        self._until(are_gone, self.settings.part_seconds)
        if not are_gone():
            self._order({"end": self.status.attempt})

    def _part(self, state: str) -> None:
        """The others need not wait for what becomes of the store; each ends its line."""
        if self._head:
            self._order({"over": state}, *self._head.joined())
            until = time.monotonic() + self.settings.part_seconds
            while self._head.joined() and time.monotonic() < until:
                self._wait(min(self.settings.look_seconds, 0.1))

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._head and time.monotonic() < until:
            self._listen()
            if done():
                return
            self._wait(min(self.settings.look_seconds, 0.1))

    # ---- limits

    def _limit(self) -> str:
        """The limit that is reached, or nothing; each leaves room for a last checkpoint and its copy."""
        if (taken_at := self._notice()) is not None:
            self.status.stops_at = _stamp(taken_at)
            return "notice"
        reserve = 2 * (self._save_seconds + self._median_step_seconds() + self._copy_seconds)
        left = {word: seconds - reserve for word, seconds in self._ends().items()}
        if "deadline" in left:
            left["deadline"] -= self.settings.deadline_reserve_seconds
        first = min(left, key=left.__getitem__, default="")
        self.status.stops_at = _stamp(time.time() + left[first]) if first else None
        return first if first and left[first] <= 0 else ""

    def _ends(self) -> dict[str, float]:
        """Seconds until each limit."""
        limits = self.plan.get("limits", {})
        left = {
            word: limits[f"{word}_seconds"] - self._spent_seconds
            for word in ("time", "money")
            if limits.get(f"{word}_seconds") is not None
        }
        if limits.get("deadline"):
            with contextlib.suppress(*FOREIGN):
                left["deadline"] = datetime.fromisoformat(limits["deadline"]).timestamp() - time.time()
        return left

    @contextlib.contextmanager
    def _asking_for_notices(self) -> Iterator[None]:
        """A program beside this one asks the cloud: what hangs there does not hang here. It ends with us."""
        address = os.environ.get("STOKER_METADATA") or "169.254.169.254"
        program = Path(__file__).with_name("spot_notices.py")
        if address != "off":
            with contextlib.suppress(OSError):  # no process to be had: a bonus is missed, nothing else
                self._notices = subprocess.Popen(  # noqa: S603  # our own program, no shell
                    [sys.executable, "-I", str(program), address, str(self.settings.notice_seconds)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=os.name != "nt",
                )
        try:
            yield
        finally:
            if self._notices is not None:
                self._notices.kill()
                self._notices.communicate()

    def _notice(self) -> float | None:
        """When the cloud takes this machine back, where it has said so."""
        if self._notices is not None and self._notices.poll() is not None:
            said = self._notices.communicate()[0]
            self._notices = None
            self._taken_at = float(said) if said else None
        return self._taken_at

    # ---- the store

    def _store_newest(self) -> None:
        """After a commit, one at a time: a copy in the background; one that failed is tried again, ever later."""
        if not self.plan.get("store") or not self._copied():
            return
        newest = self.status.committed_step
        is_wanted = newest and newest not in (self.status.stored_step, self._refused)
        if is_wanted and time.monotonic() >= self._copy_after:
            self._copying = newest
            self._copy_began = time.monotonic()
            try:
                self._copy = self._stoker("push", "store.log")
            except OSError:
                self._copy_failed()
                raise

    def _copied(self) -> bool:
        """Whether no copy is under way; takes up what became of one that ended."""
        if self._copy is None:
            return True
        code = self._copy.poll()
        if code is None:
            return False
        self._copy = None
        if code == EXIT_DONE:
            self.status.stored_step, self._copy_failures = self._copying, 0
            self._copy_seconds = time.monotonic() - self._copy_began
        elif code == EXIT_USER:
            self._refused = self._copying  # waiting mends nothing: the next checkpoint asks again
        else:
            self._copy_failed()
        return True

    def _copy_failed(self) -> None:
        self._copy_failures += 1
        self._copy_after = time.monotonic() + self._pause_seconds(self._copy_failures)

    def _store_last(self, *, failed: bool) -> bool:
        """A copy begun after the trainer's end stands verified in the store; False where it does not.

        A run that failed is copied once, where its newest checkpoint is not there yet; others wait for the line.
        """
        if not self.plan.get("store") or not self.status.committed_step:
            return True
        self._say("copying", self.status.reason)
        self._copy_after, self._copy_failures, self._refused = 0.0, 0, None
        if not failed:
            self._copying = self.status.stored_step = None  # an earlier copy may have missed the finished model
        ended, newest = time.monotonic(), self.status.committed_step
        until = ended + self._room_seconds()
        while time.monotonic() < until and newest not in (self.status.stored_step, self._refused):
            if failed and self._copied() and self._copy_began > ended:
                break
            with self._bearing():
                self._store_newest()
            self._wait(self.settings.look_seconds)
            self._beat()
        if self._copy is not None:
            self._copy.kill()
            self._copy.wait()
        return self.status.stored_step == newest

    def _room_seconds(self) -> float:
        """For the last copy: until the nearest limit, but always for one copy as they were, unless the machine goes."""
        once = self.settings.deadline_reserve_seconds + 2 * self._copy_seconds
        room = min([self.settings.copy_seconds, *(max(once, left) for left in self._ends().values())])
        return room if self._taken_at is None else min(room, self._taken_at - time.time())

    def fail(self) -> int:
        """Nothing works: end what trains, and leave a verdict."""
        self._read_plan()
        if left := self._known_trainer():
            self._end_group(left)
        self._note_error("STK900", reason="supervisor")
        self._say("failed", "surprise")
        return EXIT_SURPRISE

    def settle(self) -> None:
        """What becomes of the machine, and who is told: a program that outlives this one."""
        if self.plan.get("after", "stay") != "stay" or _wants_news():
            with contextlib.suppress(OSError):
                self._stoker("settle", "settle.log", detached=True)

    # ---- small things

    @property
    def _spent_seconds(self) -> float:
        return self._spent_before + time.monotonic() - self._began

    @property
    def _guard(self) -> str:
        return str(self.plan.get("guard", {}).get("on_bad_step", "stop"))

    @property
    def _stop_file(self) -> Path:
        return self.run_dir / "stop"

    @property
    def _log(self) -> Path:
        return processes.log_file(self.run_dir, self.status.attempt)

    def _read_plan(self) -> None:
        self.plan = processes.read_json(self.run_dir / "plan.json")

    def _known_trainer(self) -> int:
        """The process that trains here, whoever started it; 0 for none."""
        pid = int(processes.figure(processes.read_json(self.run_dir / "process.json").get("pid")))
        return pid if pid and processes.trains(processes.words_of(pid), self.run_dir) else 0

    def _stoker(self, command: str, log: str, *words: str, detached: bool = False) -> "subprocess.Popen[bytes]":
        """A subcommand of ours on this run; its words go to a log, where the disk has room for one."""
        with contextlib.ExitStack() as stack:
            output: Any = subprocess.DEVNULL
            with contextlib.suppress(OSError):
                output = stack.enter_context((self.run_dir / "logs" / log).open("ab"))
            return subprocess.Popen(  # noqa: S603  # our own program, no shell
                [sys.executable, "-X", "utf8", "-m", "stoker", command, str(self.run_dir), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=detached and os.name != "nt",
            )

    def _end_group(self, pid: int, *, gone: bool = False) -> None:
        processes.end_group(pid, self.run_dir, self._scope, gone=gone)

    def _note_error(self, code: str, **fields: Any) -> None:
        """For the light world to say in words."""
        self._note("error", program="supervisor", error={"code": code, "where": "", "fields": fields})

    def _note(self, kind: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the one who waits for room
            append_event(self.run_dir / "events.jsonl", kind, attempt=self.status.attempt, **fields)

    def _say(self, state: str, reason: str) -> None:
        self.status.state, self.status.reason, self.status.beat = state, reason, _now()
        self.status.spent_seconds = self._spent_seconds
        self._beat_at = time.monotonic()
        _write_json(self.run_dir / "supervisor.json", asdict(self.status))


def report(code: int, tail: str, first_rank: int, codes: list[str]) -> Event:
    """How the processes of a node ended, by the code and the words of who started them."""
    found = _FIRST_FAILED.search(tail)
    rank = first_rank + int(found.group(1)) if found else None
    said = {"code": code, "tail": tail, "rank": rank, "codes": codes}
    return {**said, "signal": Ended(code, codes=codes, tail=tail).signal}


# ---- files


def _attempts(run_dir: Path) -> int:
    """The newest attempt by the logs, which are numbered from 1."""
    names = [path.name.split("-")[1] for path in (run_dir / "logs").glob("train-*-rank0.log")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _trained_seconds(past: list[Event]) -> float:
    """How long was trained by the events: all that a fresh machine knows of a budget, and what an orphan did."""
    total, last = 0.0, 0.0
    for event in past:
        with contextlib.suppress(*FOREIGN):
            if event["event"] in _AT_WORK:
                at = datetime.fromisoformat(event["at"]).timestamp()
                total += max(0.0, at - last) if event["event"] != "attempt" and last else 0.0
                last = at
    return total


def _launch_seconds(*records: dict[str, Any]) -> float:
    """From the start of a launch on a rented machine until now: installing, preparing and copying are billed, too.

    What supervisors of this run have counted before is not counted again.
    """
    said = [os.environ.get("STOKER_LAUNCHED", ""), *(str(record.get("beat", "")) for record in records)]
    try:
        times = [datetime.fromisoformat(text).timestamp() for text in said if text]
    except ValueError:
        return 0.0
    return max(0.0, time.time() - max(times)) if said[0] else 0.0


def _wants_news() -> bool:
    return any(os.environ.get(name) for name in _HOOKS)


def append_event(path: Path, kind: str, **fields: Any) -> None:
    """One line, in one write; a line that a kill cut short is kept apart from it."""
    at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    line = json.dumps({"at": at, "event": kind, **fields}, ensure_ascii=False) + "\n"
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode())


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _newest_change(folder: Path) -> float:
    """When anything in the folders of a folder was written last; they come and go meanwhile."""
    try:
        inner = [path for child in folder.iterdir() for path in (child, *(child.iterdir() if child.is_dir() else ()))]
    except OSError:
        return 0.0
    return max(map(_modified, inner), default=0.0)


def _is_writing(run_dir: Path) -> bool:
    """Whether a checkpoint or a finished model is half written; a folder that is renamed this moment is being so."""
    try:
        marks = [*(run_dir / "checkpoints").glob(".step-*.tmp"), *(run_dir / "checkpoints").glob("step-*/.writing")]
        return bool(marks) or (run_dir / "artifacts" / ".final.tmp").exists()
    except OSError:
        return True


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Whole or not at all; on a full disk the old one stays, and training goes on."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()


def _now() -> str:
    return _stamp(time.time())


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def main() -> int:
    """Supervise the run directory named on the command line, alone."""
    run_dir = Path(sys.argv[1])
    if os.name != "nt":
        import fcntl

        handle = os.open(run_dir / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o644)
        for last in (False, False, False, False, True):
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if last:
                    return EXIT_USER
                time.sleep(_LOOKER_SECONDS)
    return supervised(run_dir)


def supervised(run_dir: Path, make: Callable[[Path], Supervisor] = Supervisor) -> int:
    """Supervise to the end and have it settled; after a surprise of our own another takes over, a few times."""
    for _ in range(_SURPRISES):
        supervisor = make(run_dir)
        try:
            code = supervisor.run()
            break
        except Exception:  # noqa: BLE001  # a run must not be left without a guard
            traceback.print_exc()
    else:
        code = supervisor.fail()
    supervisor.settle()
    return code


if __name__ == "__main__":
    sys.exit(main())
