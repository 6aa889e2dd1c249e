"""Ends well: result committed -> a copy verified off the box -> the meter stopped by the platform's own command.

    settled.json    how far that is: state, copy, reason, what is spent, which end of the run and start of the machine
It may be started at any time and as often as one likes: the records say whether there is anything to do.
Before a verified copy no command runs, but for one case: in a budget's last minute the one that can be undone, if the
run directory lies on a disk that survives it. What cannot be undone runs only where the run file says `release`. A
machine that another run needs stays on.
"""

import contextlib
import datetime
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker import env, messages
from stoker.errors import StokerError
from stoker.facts.platforms import Platform, Verb
from stoker.launch import training
from stoker.rundir import checkpoints, events, files, lock, pulled
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.settle import notify
from stoker.settle.notify import News
from stoker.settle.reasons import reason
from stoker.settle.verified_copy import Copied

Outcome = Literal["verified", "last_minute", "again"]
Act = Callable[[list[str], dict[str, str]], str]
"""Runs a command with variables; returns what went wrong, or an empty string."""
_ENDED = ("done", "stopped", "failed")
_SETTLED = ("verified", "last_minute", "stopping", "stayed")
"""Whoever has come so far needs the machine no more."""
_LIMITS = ("time", "money", "deadline", "notice")
"""What stops a run by itself; whoever else does wants the machine left on."""
_STAYING = ("user", "notice", "plan")
"""Why a machine stays on; whatever else keeps it on may be mended."""
_ENDLESS = float("inf")
_COMMAND_SECONDS = 120.0
_LOOKERS = 5
"""Who looks whether a lock is held takes it for less."""
_HEAD_BYTES = 4
_SAID_LETTERS = 300


@dataclass(frozen=True)
class Settings:
    """How patient settling is. Tests are less so."""

    look_seconds: float = 5.0
    start_seconds: float = 60.0
    """For the supervisor to end, and for a program to begin after it: longer, and the machine was off meanwhile."""
    first_wait_seconds: float = 30.0
    longest_wait_seconds: float = 600.0
    """Between two looks into the store, and two tries of a command."""
    failed_seconds: float = 600.0
    """A run that failed leaves the machine on so long: it may be mended and started again."""
    last_seconds: float = 60.0
    """The last minute of a budget; and how long the first look into the store is waited for, whatever is left."""
    unsettled_seconds: float = 600.0
    """Another run that has ended has so long to begin with settling before a stop that loses nothing."""
    again_seconds: float = 3600.0
    """Until the user is told again that a copy is missing; then twice as long."""
    gone_seconds: float = 180.0
    """For a machine to go off after its command."""
    tries_most: int = 50

    def pause_seconds(self, times: int) -> float:
        """Before the try that follows so many failures."""
        return min(self.longest_wait_seconds, self.first_wait_seconds * 2.0 ** min(times - 1, 20))


@dataclass(frozen=True)
class Clock:
    """How time passes; a campaign has one of its own."""

    now: Callable[[], float] = time.time
    wait: Callable[[float], None] = time.sleep
    own: Callable[[], float] = time.monotonic
    """Seconds that nobody sets back or forth."""


class Settling:
    """The end of one run on one machine."""

    def __init__(
        self,
        run_dir: RunDir,
        platform: Platform | None,
        tell: Callable[[News], Any] = notify.tell,
        settings: Settings | None = None,
        clock: Clock | None = None,
        act: Act | None = None,
    ) -> None:
        """Take charge of the machine of a run that has ended.

        Args:
            run_dir: The run directory.
            platform: Where we are; None for a machine of one's own.
            tell: Sends news.
            settings: How patient to be.
            clock: How time passes.
            act: Runs the platform's command.
        """
        self.run_dir = run_dir
        self.platform = platform
        self.settings = settings or Settings()
        self._tell, self._clock, self._act = tell, clock or Clock(), act or run_command
        self._plan = _object(run_dir.plan_file)
        self._count()
        self._copy = Copied(run_dir, platform, self._clock.now, self.settings.pause_seconds)
        self._record: dict[str, Any] = {}
        self._told_at, self._told_pause = 0.0, 0.0
        self._said_lost = False

    # ---- the whole

    def run(self) -> str:
        """Settle; how that ended: stayed, again, or nothing where there is nothing to do."""
        with contextlib.ExitStack() as stack:
            if not self._is_alone(stack) or not self._has_ended() or self._is_settled():
                return ""
            if reason := self._stays():
                self._tell_end(reason)
                return self._end("stayed", reason)
            while (outcome := self._until_decided()) != "again":
                if ended := self._stop(outcome):
                    return ended
            return self._end("again", "started")

    def _is_alone(self, stack: contextlib.ExitStack) -> bool:
        """Whether nobody else settles this run; a disk that takes no lock does not keep the meter running."""
        try:
            return stack.enter_context(lock.held(settle_lock(self.run_dir), _LOOKERS, self._clock.wait))
        except OSError:
            return True

    def _has_ended(self) -> bool:
        """Whether the supervisor is gone and has left a verdict."""
        until = self._clock.now() + self.settings.start_seconds
        while self._is_training() and self._clock.now() < until:
            self._clock.wait(min(self.settings.look_seconds, 1.0))
        self._count()
        if self._is_training():
            return False
        if self._state not in _ENDED and self._was_done():
            self._supervision["state"] = "done"  # its supervisor went with a reboot before it could say so
        return self._state in _ENDED

    def _count(self) -> None:
        """Read the supervisor's record, and count what is spent from here on; a machine that was off cost nothing."""
        self._supervision, before = training.supervision(self.run_dir), settled(self.run_dir)
        passed = self._clock.now() - self._seconds(self._supervision.get("beat"))
        spent = [_figure(record.get("spent_seconds")) for record in (self._supervision, before)]
        self._spent_before = max(spent) + (passed if 0 < passed <= self.settings.start_seconds else 0.0)
        self._began = self._clock.own()

    def _is_settled(self) -> bool:
        """Whether this very end is: decided, or the machine went off and whoever switched it on wants it on."""
        record = settled(self.run_dir)
        if record.get("end") != _end_of(self._supervision):
            return False
        if record.get("state") == "stopping":
            return record.get("boot") != boot()
        return record.get("state") == "stayed" and record.get("reason") in _STAYING

    def _was_done(self) -> bool:
        """Whether the newest attempt came to its end."""
        marks = [event for event in events.read(self.run_dir.events_file) if event["event"] in ("attempt", "end")]
        return bool(marks) and marks[-1].get("status") == "done"

    def _stays(self) -> str:
        """Why the machine stays on in any case; nothing where it is to be stopped."""
        asked = self._supervision.get("asked")
        if self._state == "stopped" and asked not in _LIMITS:
            return "user"
        if asked == "notice":
            return "notice"
        return "plan" if self.platform is None or self._after == "stay" else ""

    def _until_decided(self) -> Outcome:
        """Look until a copy is verified, a budget's last minute has come, or the run was started again."""
        began = self._clock.now()
        grace = self.settings.failed_seconds if self._state == "failed" else 0.0
        while not self._is_training():
            verified, is_last = self._copy.look(), self.left() <= self.settings.last_seconds
            passed = self._clock.now() - began
            is_looked_for = self._copy.was_looked_for or passed >= self.settings.last_seconds
            outcome: Outcome | None = None
            if verified and (is_last or passed >= grace):
                outcome = "verified"
            elif is_last and not verified and is_looked_for and self._may_stop_unverified():
                outcome = "last_minute"
            others = self._others(self._verb(outcome)[0]) if outcome else []
            if outcome and not others:
                return outcome
            if others:
                self._tell_needed(others)
            elif not verified and is_looked_for:
                self._tell_waiting()
            self._beat(outcome or ("verified" if verified else "waiting"), self._copy.reason)
            self._clock.wait(self.settings.look_seconds)
        return "again"

    def _may_stop_unverified(self) -> bool:
        """Whether the stop that can be undone loses nothing; where it does, the user is told, once."""
        assert self.platform is not None
        if self._survives("stop") and self.platform.meter.reversible:
            return True
        if not self._said_lost:
            self._said_lost = True
            self._say("trouble", "settle.lost", platform=self.platform.title, reason=self._copy.reason)
        return False

    def _survives(self, word: str) -> bool:
        """Whether the disk with the runs is still there after a command."""
        there = self.platform and self.platform.storage_of(self.run_dir.path.resolve().as_posix())
        return bool(there and (there.survives_release if word == "release" else there.survives_stop))

    def left(self) -> float:
        """Seconds until the nearest limit; without one, no end."""
        limits = self._plan.get("limits") or {}
        spent = self._spent_seconds()
        given = [limits.get(f"{word}_seconds") for word in ("time", "money")]
        ends = [limit - spent for limit in given if limit is not None]
        if limits.get("deadline"):
            ends.append(self._seconds(limits["deadline"]) - self._clock.now())
        return min(ends, default=_ENDLESS)

    def _spent_seconds(self) -> float:
        """The machine is billed while it waits."""
        return self._spent_before + self._clock.own() - self._began

    # ---- the end of the meter

    def _stop(self, outcome: Outcome) -> str:
        """Have the command run; how that ended, or nothing where another run needs the machine by now."""
        word, verb = self._verb(outcome)
        expanded = verb.expanded(env.of_machine()) if verb else None
        if verb is None or expanded is None:
            names = ", ".join(verb.variables) if verb else ""
            self._say("trouble", "settle.variable" if verb else "settle.no_verb", names=names)
            return self._end("stayed", "variable" if verb else "no_verb")
        self._tell_stopping(outcome, word)
        self._end("stopping", outcome, word)
        return self._until_gone(word, *expanded)

    def _verb(self, outcome: Outcome) -> tuple[str, Verb | None]:
        """The command that may run now.

        A run that failed is only stopped, where that is possible; so is a machine with another run's only copy.
        """
        assert self.platform is not None
        meter = self.platform.meter
        is_asked = self._after == "release" and self._file_says_release()
        is_safe = outcome == "verified" and not self._copy.wanted().is_nothing
        if is_asked and is_safe and not (meter.reversible and (self._state == "failed" or self._others("release"))):
            return "release", meter.irreversible
        return "stop", meter.reversible

    def _file_says_release(self) -> bool:
        try:
            return self.run_dir.run().where.after == "release"
        except (OSError, StokerError):
            return False

    def _until_gone(self, word: str, words: list[str], variables: dict[str, str]) -> str:
        """Run the command; as long as we are still here it has not worked, and is tried again, ever later."""
        for times in range(self.settings.tries_most):
            if self._is_training():
                return self._end("again", "started")
            if self._others(word):
                return ""
            problem = self._act(own_interpreter(words), variables)
            if not problem:
                self._clock.wait(self.settings.gone_seconds)
                problem = messages.text("settle.no_effect")
            if times in (0, 3):
                self._say("trouble", "settle.still_on", reason=problem)
            self._end("stopping", problem, word)
            self._clock.wait(self.settings.pause_seconds(times + 1))
        return self._end("stayed", "command")

    # ---- words

    def _tell_end(self, reason: str) -> None:
        own = reason == "plan" and self.platform is None
        then = "" if own else messages.text(f"settle.stays.{reason}")
        self._say(self._state, "settle.ended", state=self._state_words(), then=then)

    def _is_time_to_tell(self) -> bool:
        """At once, then after an hour, two, four."""
        now = self._clock.now()
        if now < self._told_at + self._told_pause:
            return False
        self._told_at, self._told_pause = now, 2 * self._told_pause or self.settings.again_seconds
        return True

    def _tell_needed(self, others: list[str]) -> None:
        if self._is_time_to_tell():
            self._say("waiting", "settle.needed", state=self._state_words(), names=", ".join(others))

    def _tell_waiting(self) -> None:
        if not self._is_time_to_tell():
            return
        until = messages.text("settle.until_copied" if self.left() == _ENDLESS else "settle.until_budget")
        self._say("waiting", "settle.waiting", state=self._state_words(), reason=self._copy.reason, until=until)

    def _tell_stopping(self, outcome: Outcome, word: str) -> None:
        assert self.platform is not None
        keys = {"release": "settle.releasing", "stop": "settle.stopping"}
        fields = {
            "state": self._state_words(),
            "platform": self.platform.title,
            "copy": messages.text(f"settle.copy.{self._copy.where}"),
            "reason": self._copy.reason,
        }
        self._say("stopping", "settle.last_minute" if outcome == "last_minute" else keys[word], **fields)

    def _state_words(self) -> str:
        word = str(self._supervision.get("asked") or self._supervision.get("reason") or "")
        return messages.text(f"settle.state.{self._state}", step=self._supervision.get("step", 0), reason=reason(word))

    def _say(self, kind: str, key: str, **fields: Any) -> None:
        title = messages.text("settle.title", name=self.run_dir.name)
        self._tell(News(self.run_dir.name, kind, title, env.masked(messages.text(key, **fields))))

    # ---- records

    def _beat(self, state: str, reason: str, verb: str = "") -> None:
        before = {key: self._record.get(key) for key in ("state", "reason", "copy", "verb")}
        said = {"state": state, "reason": reason, "copy": self._copy.where, "verb": verb}
        spent, beat = self._spent_seconds(), _stamp(self._clock.now())
        self._record = {**said, "spent_seconds": spent, "beat": beat, "end": _end_of(self._supervision), "boot": boot()}
        with contextlib.suppress(OSError):  # a full disk must not keep the meter running
            files.write_json(settled_file(self.run_dir), self._record)
            if said != before:
                with contextlib.closing(EventLog(self.run_dir.events_file)) as log:
                    log.write("settled", **said)

    def _end(self, state: str, reason: str, verb: str = "") -> str:
        self._beat(state, reason, verb)
        if state == "stopping" and hasattr(os, "sync"):
            os.sync()
        return state

    # ---- small things

    @property
    def _state(self) -> str:
        return str(self._supervision.get("state"))

    @property
    def _after(self) -> str:
        """What becomes of the machine; a launch that failed has no plan, or an older one."""
        return str(self._supervision.get("after") or self._plan.get("after") or "stay")

    def _seconds(self, stamp: object) -> float:
        """A time of a record; now where it has none."""
        try:
            return datetime.datetime.fromisoformat(str(stamp)).timestamp()
        except ValueError:
            return self._clock.now()

    def _is_training(self) -> bool:
        """Whether it goes on, or is about to; a lock that cannot be looked at is nobody's."""
        for path in _working(self.run_dir):
            with contextlib.suppress(OSError):
                if lock.is_held(path):
                    return True
        return False

    def _others(self, word: str) -> list[str]:
        """Other runs that need this machine on, or would lose their only copy by a command; unreadable ones do, too."""
        here = self.run_dir.path.resolve()
        try:
            inner = sorted(one for one in here.parent.iterdir() if one.is_dir() and one.resolve() != here)
        except OSError:
            return [here.parent.name]
        is_lossy = not self._survives(word)
        return [one.name for one in inner if self._hinders(RunDir(one), is_lossy=is_lossy)]

    def _hinders(self, other: RunDir, *, is_lossy: bool) -> bool:
        try:
            return self._needs_it(other) or (is_lossy and not _stands_elsewhere(other))
        except OSError:
            return True

    def _needs_it(self, other: RunDir) -> bool:
        """It works here, or has ended and is not settled yet: its settling may just be starting, or was killed."""
        if any(lock.is_held(path) for path in _working(other)):
            return True
        seen, record = training.supervision(other), settled(other)
        if record.get("end") == _end_of(seen) and record.get("state") in _SETTLED:
            return False
        if lock.is_held(settle_lock(other)):
            return True
        after = seen.get("after") or _object(other.plan_file).get("after") or "stay"
        passed = self._clock.now() - self._seconds(seen.get("beat"))
        return seen.get("state") in _ENDED and after != "stay" and passed < self.settings.unsettled_seconds


def _working(run_dir: RunDir) -> tuple[Path, ...]:
    """Locks of whoever prepares, watches or trains a run."""
    return run_dir.launch_lock, run_dir.supervisor_lock, run_dir.lock_file


def _stands_elsewhere(run_dir: RunDir) -> bool:
    """Whether a run has nothing that only this machine has, by the records of who has looked."""
    names = [path.name for path in run_dir.checkpoints.iterdir()] if run_dir.checkpoints.is_dir() else []
    has_final = run_dir.final.is_dir()
    if not has_final and not any(name.startswith("step-") for name in names):
        return True
    record = settled(run_dir)
    if record.get("end") == _end_of(training.supervision(run_dir)) and record.get("copy") in ("store", "pulled"):
        return True
    there, home = checkpoints.committed(run_dir.checkpoints), pulled.read(run_dir)
    if home is None or has_final != bool(home.final):
        return False
    return home.commit == (there[-1].commit.digest if there else "")


def _end_of(supervision: dict[str, Any]) -> str:
    """Which end of a run: another attempt, or another verdict, is another end."""
    return f"{supervision.get('attempt', 0)} {supervision.get('beat', '')}"


def boot() -> str:
    """Which start of this machine or container it is; empty where the system does not say."""
    try:
        started = Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='utf-8').strip()} {started}"
    except (OSError, LookupError):
        return ""


def settled_file(run_dir: RunDir) -> Path:
    """How far settling is."""
    return run_dir.path / "settled.json"


def settle_lock(run_dir: RunDir) -> Path:
    """Held while the end of a run is being settled."""
    return run_dir.path / "settle.lock"


def settled(run_dir: RunDir) -> dict[str, Any]:
    """`settled.json`; empty where there is none."""
    return _object(settled_file(run_dir))


def warn(run_dir: RunDir, word: str, tell: Callable[[News], Any] = notify.tell) -> None:
    """Tell that most of a budget is spent."""
    left = Settling(run_dir, None).left()
    if left == _ENDLESS:
        return  # the plan has lost its limit meanwhile
    minutes = round(left / 60)
    title = messages.text("settle.title", name=run_dir.name)
    text = messages.text("settle.warning", budget=messages.text(f"settle.budget.{word}"), minutes=minutes)
    tell(News(run_dir.name, "warning", title, text))


# ---- commands


def own_interpreter(words: list[str]) -> list[str]:
    """`/bin/sh FILE` is for a script that names no interpreter; a program, or a script that does, runs as it is."""
    if words[0] != "/bin/sh":
        return words
    try:
        with Path(words[1]).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return words
    return words[1:] if head.startswith((b"\x7fELF", b"#!")) else words


def run_command(words: list[str], variables: dict[str, str]) -> str:
    """Run a platform's command; what went wrong, without the values of its variables."""
    try:
        done = subprocess.run(  # noqa: S603  # a command of the platform's profile, no shell string
            words,
            input=b"y\n",  # vastai asks whether we are sure
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env.child_environment(variables),
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {words[0]}"
    if not done.returncode:
        return ""
    said = done.stdout.decode("utf-8", "replace").strip()
    for value in variables.values():
        said = said.replace(value, "***")
    return env.without_secrets(f"exit {done.returncode}: {said[-_SAID_LETTERS:]}")


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        return dict(files.read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


def _figure(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _stamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
