"""Ends well: result committed -> a copy verified off the box -> the meter stopped by the platform's own command.

    settled.json    how far that is: state, copy, reason, what is spent
Before a verified copy no command runs, but for one case: in a budget's last minute the one that can be undone, if the
run directory lies on a disk that survives it. What cannot be undone runs only where the run file says `release`.
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
from stoker.facts.platforms import Platform, Verb
from stoker.launch import notify, training
from stoker.launch.copied import Copied
from stoker.launch.notify import News
from stoker.launch.reasons import reason
from stoker.rundir import events, files, lock
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

Outcome = Literal["verified", "last_minute", "again"]
Act = Callable[[list[str], dict[str, str]], str]
"""Runs a command with variables; returns what went wrong, or an empty string."""
_ENDED = ("done", "stopped", "failed")
_LIMITS = ("time", "money", "deadline", "notice")
"""What stops a run by itself; whoever else does wants the machine left on."""
_ENDLESS = float("inf")
_COMMAND_SECONDS = 120.0
_HEAD_BYTES = 4
_SAID_LETTERS = 300


@dataclass(frozen=True)
class Settings:
    """How patient settling is. Tests are less so."""

    look_seconds: float = 5.0
    start_seconds: float = 60.0
    """For the supervisor to end."""
    first_wait_seconds: float = 30.0
    longest_wait_seconds: float = 600.0
    """Between two looks into the store, and two tries of a command."""
    failed_seconds: float = 600.0
    """A run that failed leaves the machine on so long: it may be mended and started again."""
    last_seconds: float = 60.0
    """The last minute of a budget, and what a first look into the store may take beyond it."""
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
        self._supervision = training.supervision(run_dir)
        self._plan = files.read_object(run_dir.plan_file)
        self._copy = Copied(run_dir, platform, self._clock.now, self.settings.pause_seconds)
        self._record: dict[str, Any] = {}
        self._told_at, self._told_pause = 0.0, 0.0
        self._said_lost = False

    # ---- the whole

    def run(self) -> str:
        """Settle; how that ended: stayed, again, or nothing where somebody else does it or the run goes on."""
        with lock.held(settle_lock(self.run_dir)) as alone:
            if not alone or not self._has_ended():
                return ""
            if reason := self._stays():
                self._tell_end(reason)
                return self._end("stayed", reason)
            outcome = self._until_decided()
            return self._end("again", "started") if outcome == "again" else self._stop(outcome)

    def _has_ended(self) -> bool:
        """Whether the supervisor is gone and has left a verdict."""
        until = self._clock.now() + self.settings.start_seconds
        while lock.is_held(self.run_dir.supervisor_lock) and self._clock.now() < until:
            self._clock.wait(min(self.settings.look_seconds, 1.0))
        self._supervision = training.supervision(self.run_dir)
        if self._is_training():
            return False
        if self._state not in _ENDED and self._was_done():
            self._supervision["state"] = "done"  # its supervisor went with a reboot before it could say so
        return self._state in _ENDED

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
        return "plan" if self.platform is None or self._plan.get("after", "stay") == "stay" else ""

    def _until_decided(self) -> Outcome:
        """Look until a copy is verified, a budget's last minute has come, or the run was started again."""
        began = self._clock.now()
        grace = self.settings.failed_seconds if self._state == "failed" else 0.0
        while not self._is_training():
            verified, is_last = self._copy.look(), self.left() <= self.settings.last_seconds
            passed = self._clock.now() - began
            if verified and (is_last or passed >= grace) and not self._others():
                return "verified"
            is_looked_for = self._copy.was_looked_for or passed >= self.settings.last_seconds
            if is_last and not verified and is_looked_for and self._may_stop_unverified():
                return "last_minute"
            if not verified and is_looked_for:
                self._tell_waiting()
            self._beat("verified" if verified else "waiting", self._copy.reason)
            self._clock.wait(self.settings.look_seconds)
        return "again"

    def _may_stop_unverified(self) -> bool:
        """Whether the stop that can be undone loses nothing; where it does, the user is told, once."""
        assert self.platform is not None
        there = self.platform.storage_of(self.run_dir.path.resolve().as_posix())
        if there is not None and there.survives_stop and self.platform.meter.reversible:
            return not self._others()
        if not self._said_lost:
            self._said_lost = True
            self._say("trouble", "settle.lost", platform=self.platform.title, reason=self._copy.reason)
        return False

    def left(self) -> float:
        """Seconds until the nearest limit; without one, no end."""
        limits = self._plan.get("limits") or {}
        spent = self._spent_seconds()
        ends = [limits[f"{word}_seconds"] - spent for word in ("time", "money") if limits.get(f"{word}_seconds")]
        if limits.get("deadline"):
            ends.append(_seconds(limits["deadline"]) - self._clock.now())
        return min(ends, default=_ENDLESS)

    def _spent_seconds(self) -> float:
        """The machine is billed while it waits."""
        since = self._clock.now() - _seconds(str(self._supervision.get("beat")))
        return float(self._supervision.get("spent_seconds") or 0.0) + max(0.0, since)

    # ---- the end of the meter

    def _stop(self, outcome: Outcome) -> str:
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
        """The command that may run now; a run that failed is only stopped, where that is possible."""
        assert self.platform is not None
        meter = self.platform.meter
        is_asked = self.run_dir.run().where.after == self._plan.get("after") == "release"
        is_safe = outcome == "verified" and not self._copy.wanted().is_nothing
        if is_asked and is_safe and not (self._state == "failed" and meter.reversible):
            return "release", meter.irreversible
        return "stop", meter.reversible

    def _until_gone(self, word: str, words: list[str], variables: dict[str, str]) -> str:
        """Run the command; as long as we are still here it has not worked, and is tried again, ever later."""
        for times in range(self.settings.tries_most):
            if self._is_training():
                return self._end("again", "started")
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

    def _tell_waiting(self) -> None:
        """At once, then after an hour, two, four."""
        now = self._clock.now()
        if now < self._told_at + self._told_pause:
            return
        self._told_at, self._told_pause = now, 2 * self._told_pause or self.settings.again_seconds
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
        self._record = {**said, "spent_seconds": spent, "beat": beat}
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

    def _is_training(self) -> bool:
        return any(lock.is_held(path) for path in (self.run_dir.supervisor_lock, self.run_dir.lock_file))

    def _others(self) -> list[str]:
        """Other runs that still need this machine: they train, or have ended and are not verified yet."""
        here = self.run_dir.path.resolve()
        return [one.name for one in here.parent.iterdir() if one != here and one.is_dir() and _needs_it(RunDir(one))]


def settled_file(run_dir: RunDir) -> Path:
    """How far settling is."""
    return run_dir.path / "settled.json"


def settle_lock(run_dir: RunDir) -> Path:
    """Held while the end of a run is being settled."""
    return run_dir.path / "settle.lock"


def settled(run_dir: RunDir) -> dict[str, Any]:
    """`settled.json`; empty where there is none."""
    try:
        return dict(files.read_json(settled_file(run_dir)))
    except (OSError, ValueError, TypeError):
        return {}


def _needs_it(run_dir: RunDir) -> bool:
    if any(lock.is_held(path) for path in (run_dir.supervisor_lock, run_dir.lock_file)):
        return True
    return lock.is_held(settle_lock(run_dir)) and settled(run_dir).get("state") in (None, "waiting")


def warn(run_dir: RunDir, word: str, tell: Callable[[News], Any] = notify.tell) -> None:
    """Tell that most of a budget is spent."""
    minutes = round(Settling(run_dir, None).left() / 60)
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


def _seconds(stamp: str) -> float:
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return time.time()


def _stamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
