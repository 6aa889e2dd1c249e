"""Whether a verified copy of a run is elsewhere, pulled by a laptop or in its store; missing files are copied."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker import env, messages
from stoker.errors import StokerError
from stoker.facts.platforms import Platform
from stoker.rundir import artifacts, checkpoints, pulled
from stoker.rundir.checkpoints import Commit
from stoker.rundir.layout import RunDir
from stoker.rundir.pulled import Pulled
from stoker.store import address, opening, push, verification
from stoker.store.store_protocol import Fault

Where = Literal["nowhere", "store", "pulled", "nothing"]
"""`nothing`: the run has nothing to copy."""


@dataclass(frozen=True)
class Wanted:
    """What must be elsewhere before the machine may be stopped."""

    record: Pulled
    commit: Commit | None
    """Of the newest checkpoint, even where its files no longer verify here: the copy in the store may be intact."""
    damage: str
    """What is wrong with checkpoints committed here; empty where nothing is."""

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was ever committed."""
        return not self.record.commit and not self.record.final and not self.damage


class VerifiedCopy:
    """Looks for a verified copy of a run that has ended; after each failure it waits longer."""

    def __init__(
        self, run_dir: RunDir, platform: Platform | None, now: Callable[[], float], pause: Callable[[int], float]
    ) -> None:
        """Look for a copy of a run that has ended.

        Args:
            run_dir: The run directory.
            platform: Where we are.
            now: The time.
            pause: Seconds before the look that follows so many failures.
        """
        self._run_dir, self._platform, self._now, self._pause = run_dir, platform, now, pause
        self._wanted: Wanted | None = None
        self._looking: threading.Thread | None = None
        self._found = ""
        self._failures = 0
        self._again_at = 0.0
        self.reason = ""
        """Why there is none, as of the last look."""
        self.where: Where = "nowhere"

    @property
    def was_looked_for(self) -> bool:
        """Whether the store was examined at least once."""
        return self._failures > 0

    def wanted(self) -> Wanted:
        """What this machine has, every file read; once, as nothing is written any more."""
        if self._wanted is None:
            record, damaged = pulled.examined(self._run_dir)
            there = checkpoints.committed(self._run_dir.checkpoints)
            damage = messages.text("list.comma").join(f"{one.path.name}: {one.reason}" for one in damaged)
            newest = [one.commit for one in there if (one.path == damaged[0].path if damaged else True)][-1:]
            self._wanted = Wanted(record, newest[0] if newest else None, damage)
        return self._wanted

    def look(self) -> bool:
        """Whether a copy is verified by now."""
        if self.where == "nowhere":
            try:
                self.where = self._look()
            except OSError as error:
                self._failed(messages.text("settle.unreadable", reason=env.without_secrets(str(error))))
            self.reason = self.reason if self.where == "nowhere" else ""
        return self.where != "nowhere"

    def _look(self) -> Where:
        if self._wanted is None and self._now() < self._again_at:
            return "nowhere"
        wanted = self.wanted()
        if wanted.is_nothing:
            return "nothing"
        if pulled.read(self._run_dir) == wanted.record and (wanted.record.commit or wanted.record.final):
            return "pulled"
        return "store" if self._is_stored() else "nowhere"

    def _is_stored(self) -> bool:
        """Look in a thread: a store that hangs must not overrun a budget."""
        if self._looking is None:
            if self._now() >= self._again_at:
                self._found = messages.text("settle.surprise")
                self._looking = threading.Thread(target=self._look_there, daemon=True)
                self._looking.start()
            return False
        if self._looking.is_alive():
            return False
        self._looking = None
        if not self._found:
            return True
        self._failed(self._found)
        return False

    def _failed(self, reason: str) -> None:
        self.reason = reason
        self._failures += 1
        self._again_at = self._now() + self._pause(self._failures)

    def _look_there(self) -> None:
        try:
            self._found = self._problem()
        except StokerError as error:
            self._found = env.without_secrets(str(error.what))
        except (Fault, OSError) as error:
            self._found = env.without_secrets(str(error)) or type(error).__name__

    def _problem(self) -> str:
        """What is wrong with the copy in the store; a missing one is made. Nothing there is ever deleted."""
        run, wanted = self._run_dir.run(), self.wanted()
        if run.save.store is None:
            return messages.text("settle.no_store")
        where = address.parse(run.save.store, self._run_dir.folder())
        if where.kind == "directory" and not outlives(Path(where.root), self._platform):
            return messages.text("settle.on_box", store=run.save.store)
        final = artifacts.entries_of(self._run_dir.final) if wanted.record.final else None
        store, name = opening.of_run(run, self._run_dir.folder()), self._run_dir.name
        is_known = wanted.commit is not None or not wanted.damage
        if is_known and not verification.wrong_copy(store, name, wanted.commit, final):
            return ""
        if wanted.damage:
            return wanted.damage
        if verification.has_anothers_final(store, name, final):
            return messages.text("settle.anothers")
        outcome = push.push(self._run_dir)
        if not outcome["copied"]:
            return str(outcome["reason"])
        return verification.wrong_copy(store, name, wanted.commit, final)


def outlives(folder: Path, platform: Platform | None) -> bool:
    """Whether a folder of the machine survives its release."""
    store = platform.storage_of(folder.resolve().as_posix()) if platform else None
    return store is not None and store.survives_release
