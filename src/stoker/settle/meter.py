"""Shutdown sequence: result committed -> copy verified off the box -> meter stopped by the platform's own command.

    settled.json    how far that is: state, copy, reason, what is spent, which end of the run and boot of the machine
It is idempotent: the records say whether there is anything to do. No command runs before a copy is verified, with one
exception: in the last minute of a budget a reversible one may, if the run directory is on a disk that survives it. An
irreversible one runs only where the run file says `release`. A machine that another run needs stays on.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stoker import env, messages
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.platforms import Platform, Verb
from stoker.launch import training
from stoker.rundir import events, files, lock
from stoker.rundir.layout import RunDir
from stoker.settle import notify, other_runs, settled_record
from stoker.settle.notify import News
from stoker.settle.platform_command import own_interpreter, run_command
from stoker.settle.reasons import reason
from stoker.settle.settled_record import ENDED, end_of
from stoker.settle.verified_copy import VerifiedCopy
from stoker.supervise import limits, processes
from stoker.supervise.limits import Clock, SpentTime

Outcome = Literal["verified", "last_minute", "again"]
Act = Callable[[list[str], dict[str, str]], str]
"""Runs a command with variables; returns what went wrong, or an empty string."""
_LIMITS = ("time", "money", "deadline", "notice")
"""What stops a run by itself; after a stop by the user the machine stays on."""
_STAYING = ("user", "notice", "plan")
"""Final reasons for a machine to stay on; others may be fixed."""
_ENDLESS = float("inf")
_LOCK_TRIES = 5


@dataclass(frozen=True)
class SettleSettings:
    """How patient settling is; tests are less patient."""

    look_seconds: float = 5.0
    start_seconds: float = 60.0
    """For the supervisor to exit, and for settling to begin after it: after longer, the machine was off meanwhile."""
    first_wait_seconds: float = 30.0
    longest_wait_seconds: float = 600.0
    """Between two looks into the store, and between two runs of a command."""
    failed_seconds: float = 600.0
    """For how long a failed run leaves the machine on: somebody may fix it and start it again."""
    last_seconds: float = 60.0
    """The last minute of a budget; also how long to wait for the first look into the store, whatever is left."""
    unsettled_seconds: float = 600.0
    """For another run that has ended to begin with settling, before a stop that loses nothing."""
    again_seconds: float = 3600.0
    """Until the user is reminded that a copy is missing; then twice as long."""
    gone_seconds: float = 180.0
    """For a machine to go off after its command."""
    tries_most: int = 50

    def pause_seconds(self, times: int) -> float:
        """Before the try that follows so many failures."""
        return limits.backoff_seconds(times, self.first_wait_seconds, self.longest_wait_seconds)


class Settling:
    """The end of one run on one machine."""

    def __init__(
        self,
        run_dir: RunDir,
        platform: Platform | None,
        tell: Callable[[News], Any] = notify.tell,
        settings: SettleSettings | None = None,
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
        self.settings = settings or SettleSettings()
        self._tell, self._clock, self._act = tell, clock or Clock(), act or run_command
        self._plan = files.read_if_any(run_dir.plan_file)
        self._count()
        self._copy = VerifiedCopy(run_dir, platform, self._clock.now, self.settings.pause_seconds)
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
        """Whether nobody else settles this run; where the disk takes no lock, the meter is stopped all the same."""
        try:
            return stack.enter_context(lock.held(settled_record.lock_path(self.run_dir), _LOCK_TRIES, self._clock.wait))
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
        if self._state not in ENDED and self._was_done():
            self._supervision["state"] = "done"  # a reboot killed its supervisor before it wrote that
        return self._state in ENDED

    def _count(self) -> None:
        """Read the supervisor's record, and count spent time from here on; a machine that was off cost nothing."""
        self._supervision, before = training.supervision(self.run_dir), settled_record.read(self.run_dir)
        passed = limits.seconds_since(self._supervision, self._clock.now())
        since = passed if passed <= self.settings.start_seconds else 0.0
        self._spent = SpentTime(self._clock, limits.counted_seconds(self._supervision, before) + since)

    def _is_settled(self) -> bool:
        """Whether this end of the run was settled: decided, or the machine was off and is on again."""
        record = settled_record.read(self.run_dir)
        if record.get("end") != end_of(self._supervision):
            return False
        if record.get("state") == "stopping":
            return record.get("boot") != processes.boot()
        return record.get("state") == "stayed" and record.get("reason") in _STAYING

    def _was_done(self) -> bool:
        """Whether the newest attempt finished."""
        marks = [event for event in events.skim(self.run_dir.events_file) if event["event"] in ("attempt", "end")]
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
        """Wait until a copy is verified, the last minute of a budget begins, or the run was started again."""
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
        """Whether the reversible command loses nothing; where it does, the user is notified, once."""
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
        left = limits.left_seconds(self._plan.get("limits") or {}, self._spent.seconds, self._clock.now())
        return min(left.values(), default=_ENDLESS)

    # ---- the end of the meter

    def _stop(self, outcome: Outcome) -> str:
        """Run the command; how that ended, or nothing where another run needs the machine by now."""
        word, verb = self._verb(outcome)
        expanded = verb.expanded(platforms.environment()) if verb else None
        if verb is None or expanded is None:
            names = list(verb.variables) if verb else ""
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
        """Run the command; while we are still running it had no effect, and is tried again, ever later."""
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
            self._say("waiting", "settle.needed", state=self._state_words(), names=others)

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
        counted = {"spent_seconds": self._spent.seconds, "beat": limits.stamp(self._clock.now())}
        which = {"end": end_of(self._supervision), "boot": processes.boot()}
        self._record = {**said, **counted, **which}
        with contextlib.suppress(OSError):  # a full disk must not keep the meter running
            files.write_json(settled_record.path(self.run_dir), self._record)
            if said != before:
                events.append(self.run_dir.events_file, "settled", **said)

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

    def _is_training(self) -> bool:
        """Whether it goes on, or is about to; a lock that cannot be probed counts as free."""
        for path in other_runs.working_locks(self.run_dir):
            with contextlib.suppress(OSError):
                if lock.is_held(path):
                    return True
        return False

    def _others(self, word: str) -> list[str]:
        """Other runs that need this machine on, or would lose their only copy by a command."""
        now, seconds = self._clock.now(), self.settings.unsettled_seconds
        return other_runs.needing(self.run_dir, now, seconds, is_lossy=not self._survives(word))


def warn(run_dir: RunDir, word: str, tell: Callable[[News], Any] = notify.tell) -> None:
    """Notify the user that most of a budget is spent."""
    left = Settling(run_dir, None).left()
    if left == _ENDLESS:
        return  # the plan has no limit any more
    minutes = round(left / 60)
    title = messages.text("settle.title", name=run_dir.name)
    text = messages.text("settle.warning", budget=messages.text(f"settle.budget.{word}"), minutes=minutes)
    tell(News(run_dir.name, "warning", title, text))
