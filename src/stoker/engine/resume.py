"""From which checkpoint a training resumes, how exactly, and when it would be another training and is refused."""

import dataclasses
import json
from contextlib import suppress
from pathlib import Path

from stoker import messages
from stoker.config import objectives
from stoker.engine import guard, models, spread
from stoker.engine.opened import Opened
from stoker.errors import StokerError
from stoker.plan import moves
from stoker.rows import order
from stoker.rundir import checkpoints, events, training_words
from stoker.rundir.checkpoints import Checkpoint

_NAMED_FILES = {"teacher": "other.teacher", "rewards": "other.rewards"}


def newest(opened: Opened) -> Checkpoint | None:
    """The checkpoint to resume from; None only if there never was one. The first rank searches, the others follow."""
    folder = opened.run_dir.checkpoints
    found = _look(opened, folder) if opened.ranks.first else None
    found = spread.from_first(folder, found, opened.ranks)
    reason = messages.text("rejected.newer", step=found.step if found else 0)
    for path in spread.newer(folder, found, opened.ranks):
        opened.events.write("rejected", path=path, reason=reason)
    return found


def past(opened: Opened, found: Checkpoint | None) -> guard.Past:
    """The run's past by its events, read by the first rank: other machines have none."""
    path, step = opened.run_dir.events_file, found.step if found else 0
    own = guard.read_past(opened.plan.guard, path, step) if opened.ranks.first else guard.Past((), ())
    return guard.Past(**json.loads(opened.ranks.hear(json.dumps(dataclasses.asdict(own)))))


def _look(opened: Opened, folder: Path) -> Checkpoint | None:
    checkpoints.sweep(folder)
    found, rejected = checkpoints.newest_verified(folder)
    for one in rejected:
        opened.events.write("rejected", path=one.path.name, reason=one.reason)
    if found is None and (not all(checkpoints.is_foreign(one.path) for one in rejected) or _had_one(opened)):
        raise StokerError("STK403", folder=folder)
    for one in rejected:
        with suppress(OSError):  # a read-only disk is reported by the first write that matters
            checkpoints.quarantine(one.path, one.reason)
    if found is not None:
        require_tier(opened, found)
    return found


def _had_one(opened: Opened) -> bool:
    """Whether a checkpoint was ever committed, by its events; a fork starts from one."""
    committed = any(event["event"] == "checkpoint" for event in events.skim(opened.run_dir.events_file))
    return committed or opened.run_dir.manifest().forked_from is not None


def require_tier(opened: Opened, found: Checkpoint) -> None:
    """Refuse a resume that differs by more than the run file allows.

    Asked before anything is computed for it, and again when the values of the reference are known.
    """
    allowed = opened.run.save.resume
    other = _other_training(opened, found)
    if other and allowed != "any":
        raise StokerError("STK410", reason=other)
    if allowed == "exact" and (seen := tier(opened, found)) not in ("EXACT", "FORK"):
        raise StokerError("STK420", tier=seen, changed=changed(opened, found) or moves.unprovable(opened.plan))


def _other_training(opened: Opened, found: Checkpoint) -> str:
    """Why resuming would be another training than the one begun; empty if it is the same."""
    commit = found.commit
    changes = training_words.differing(commit.words, opened.words) if commit.words is not None else []
    other_words = messages.text("other.words", step=commit.step, changes=changes) if changes else ""
    if commit.forked_from and commit.forked_from["weights_only"]:
        return other_words or _other_files(opened, found)
    if commit.data_digest != opened.report.digest:
        return messages.text("other.data")
    if commit.order_version != order.VERSION:
        return messages.text("other.order")
    return other_words or _other_files(opened, found)


def _other_files(opened: Opened, found: Checkpoint) -> str:
    """The same for files that the run file only names: a teacher, rewards, a base that training still depends on."""
    before, now = found.commit.fingerprint, opened.fingerprint
    for part, key in _NAMED_FILES.items() if not found.commit.forked_from else ():  # a fork may be judged by others
        if before.get(part) != now.get(part):
            return messages.text(key)
    needed = opened.run.tune.method != "full" or objectives.facts(opened.run.train.objective).reference
    differs = needed and before.get("base") != now["base"]
    if differs and models.is_other_base(before, opened.run, opened.run_dir.folder()):
        return messages.text("other.base")
    return ""


def tier(opened: Opened, found: Checkpoint | None) -> str:
    """How exactly the run resumes."""
    if found is not None and _other_training(opened, found):
        return "OTHER"
    if found is not None and found.commit.forked_from:
        return "FORK"
    return moves.tier(opened.plan, changed(opened, found))


def changed(opened: Opened, found: Checkpoint | None) -> list[str]:
    """`micro: 4 -> 2` for each part of the fingerprint that differs; a fork has no past to compare with."""
    now = opened.fingerprint
    before = found.commit.fingerprint if found and not found.commit.forked_from else now
    unknown = {"reference"} - now.keys()  # until it is computed, or read
    return moves.changed({part: value for part, value in before.items() if part not in unknown}, now)
