"""Copies a run from a box here: records, newest and best checkpoint, finished model, each file verified by digest."""

import re
import shutil
from pathlib import Path
from shlex import quote
from typing import Any

from stoker import messages
from stoker.errors import StokerError
from stoker.hosts.shell import Shell
from stoker.launch import training
from stoker.rundir import artifacts, checkpoints, files, in_place, layout, pulled, segments, training_words
from stoker.rundir.checkpoints import Checkpoint
from stoker.rundir.layout import Manifest, RunDir
from stoker.store import brought

_NEWEST = 3
"""Checkpoints that are tried: a running training may rotate one away while it is copied."""
_SECONDS = 600.0
_RECORDS = ("plan.json", "supervisor.json", "manifest.json", "run.yaml")
_COMMITTED = re.compile(r"checkpoints/step-(\d{8,18})/COMMIT\.json")
_CUTS = 5
_OTHER_TRAINING = "STK663"
_EVENTS = """
before=$(ls events 2>/dev/null || true)
for one in events/*.jsonl; do
  if [ -e "${one%.jsonl}.summary" ]; then tail -n +2 "${one%.jsonl}.summary"
  elif [ -e "$one" ]; then grep -v '"event": "step"' "$one" || true; fi
done
if [ -e events.jsonl ]; then
  from=$(($(wc -c < events.jsonl) - TAIL))
  if [ "$from" -le 0 ]; then cat events.jsonl
  else LC_ALL=C awk -v from="$from" '{ at += length($0) + 1 } at > from || !/"event": "step"/' events.jsonl; fi
fi
echo
if [ "$before" = "$(ls events 2>/dev/null || true)" ]; then echo whole; else echo cut; fi
""".replace("TAIL", str(2 * segments.SEGMENT_BYTES))
"""As `events.recent`, in the words of a shell; a Stoker that did not cut left long files."""


def pull(shell: Shell, folder: str, run_dir: RunDir) -> None:
    """Copy the run directory `folder` of the box, and write there what arrived here."""
    training.require_idle(run_dir)
    _require_same_run(shell, folder, run_dir)
    run_dir.path.mkdir(parents=True, exist_ok=True)
    listed = shell.run(
        f"cd {quote(folder)}\n"
        "for one in checkpoints artifacts; do [ ! -e $one ] || ls $one > /dev/null || exit 2; done\n"
        f"ls -d checkpoints/step-*/COMMIT.json artifacts/final {' '.join(_RECORDS)} 2>/dev/null || true"
    ).split()
    for name in (one for one in _RECORDS if one in listed):
        _pull_record(shell, folder, name, run_dir)
    _pull_events(shell, folder, run_dir)
    _pull_checkpoints(shell, folder, run_dir, sorted(_steps(listed)))
    if "artifacts/final" in listed:
        _pull_final(shell, folder, run_dir)
    record, target = pulled.text(pulled.standing(run_dir)), f"{folder}/{pulled.NAME}"
    shell.run(f"cat > {quote(target)}.part <<'END'\n{record}\nEND\nmv {quote(target)}.part {quote(target)}")


def words_of(shell: Shell, folder: str) -> dict[str, Any] | None:
    """The words of the training in a run directory of the box; None where it has none that can be read."""
    said = shell.run(f"cd {quote(folder)} 2>/dev/null || exit 0; cat manifest.json 2>/dev/null || true")
    try:
        manifest = Manifest.model_validate(files.parse_json(said))
        text = "" if manifest.text else shell.run(f"cat {quote(folder)}/run.yaml")
        return layout.words_of(manifest, text)
    except (ValueError, StokerError):
        return None


def _require_same_run(shell: Shell, folder: str, run_dir: RunDir) -> None:
    """A run of this name that is here stays as it is, unless it is the same training."""
    there = words_of(shell, folder) if run_dir.manifest_file.exists() else None
    if there is not None and (changes := training_words.differing(run_dir.words(), there)):
        source = messages.text("other.run_on", name=run_dir.name, host=shell.name)
        raise StokerError("STK663", source=source, name=run_dir.name, folder=run_dir.path, changes=changes)


def _steps(listed: list[str]) -> list[int]:
    return [int(found[1]) for name in listed if (found := _COMMITTED.fullmatch(name))]


def _pull_record(shell: Shell, folder: str, name: str, run_dir: RunDir) -> None:
    target = run_dir.path / name
    if name in ("manifest.json", "run.yaml") and target.exists():
        return  # their relative paths start from a folder of this machine
    files.write_text(target, shell.run(f"cat {quote(folder)}/{name}", seconds=_SECONDS))


def _pull_events(shell: Shell, folder: str, run_dir: RunDir) -> None:
    """The newest events, and of older ones all but most steps; once more where a segment was cut meanwhile."""
    for _ in range(_CUTS):
        said = shell.run(f"cd {quote(folder)}\n{_EVENTS}", seconds=_SECONDS)
        text, _, cut = said.rstrip().rpartition("\n")
        if cut == "whole":
            break
    else:
        return  # the next pull has them
    if text:
        files.write_text(run_dir.events_file, text.rstrip("\n") + "\n")
        shutil.rmtree(run_dir.events_file.with_suffix(""), ignore_errors=True)  # what was pulled has its summary


def _pull_checkpoints(shell: Shell, folder: str, run_dir: RunDir, steps: list[int]) -> None:
    """The newest, and the best that it names."""
    newest = _pull_newest(shell, folder, run_dir, steps)
    best = checkpoints.best_step(newest) if newest else None
    if best is not None and best in steps:
        _pull_checkpoint(shell, folder, run_dir, best)


def _pull_newest(shell: Shell, folder: str, run_dir: RunDir, steps: list[int]) -> Checkpoint | None:
    """The newest; if a running training has rotated it away by then, the one before."""
    for step in reversed(steps[-_NEWEST:]):
        if (found := _pull_checkpoint(shell, folder, run_dir, step)) is not None:
            return found
    if steps:
        raise StokerError("STK707", host=shell.name, reason=checkpoints.folder_name(steps[-1]))
    return None


def _pull_checkpoint(shell: Shell, folder: str, run_dir: RunDir, step: int) -> Checkpoint | None:
    """One of them, as it is here afterwards; None where a running training has rotated it away by then."""
    here = [one for one in checkpoints.committed(run_dir.checkpoints) if one.step == step]
    if here and not checkpoints.verify(here[0]):
        return here[0]
    name = checkpoints.folder_name(step)
    run_dir.checkpoints.mkdir(exist_ok=True)
    aside = run_dir.checkpoints / f".{name}.pull.tmp"
    source = f"{folder}/checkpoints/{name}"
    try:
        _fetch(shell, source, aside)
        return layout.adopt(run_dir, aside)
    except (StokerError, OSError) as error:
        if isinstance(error, StokerError) and error.code == _OTHER_TRAINING:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        if "there" in shell.run(f"if [ -e {quote(source)}/COMMIT.json ]; then echo there; fi"):
            raise StokerError("STK707", host=shell.name, reason=error) from error
        shutil.rmtree(aside, ignore_errors=True)
        return None


def _pull_final(shell: Shell, folder: str, run_dir: RunDir) -> None:
    source = f"{folder}/artifacts/final"
    said = shell.run(f"cd {quote(source)}; find . -type f -exec sha256sum {{}} +", seconds=_SECONDS)
    wanted = {line[66:].removeprefix("./"): line[:64] for line in said.splitlines() if line}
    same = run_dir.final.is_dir() and _digests(run_dir.final) == wanted
    if run_dir.final.is_dir() and not same and not brought.is_unchanged(run_dir, "final"):
        raise StokerError("STK664", name=run_dir.name, host=shell.name, folder=run_dir.final)
    if not same:
        _take_final(shell, source, run_dir, wanted)
    brought.note(run_dir, "final")


def _take_final(shell: Shell, source: str, run_dir: RunDir, wanted: dict[str, str]) -> None:
    aside = artifacts.aside(run_dir, "final")
    _fetch(shell, source, aside)
    if _digests(aside) != wanted:
        shutil.rmtree(aside, ignore_errors=True)
        raise StokerError("STK707", host=shell.name, reason="artifacts/final")
    artifacts.accept(run_dir, "final")


def _fetch(shell: Shell, source: str, aside: Path) -> None:
    """Copy a folder; one with links in it is refused whole."""
    shell.fetch(source, aside)
    if found := in_place.unusual(aside):
        shutil.rmtree(aside, ignore_errors=True)
        raise StokerError("STK707", host=shell.name, reason=f"{Path(found.filename).name}: {found.strerror}")


def _digests(folder: Path) -> dict[str, str]:
    return {name: entry.sha256 for name, entry in artifacts.entries_of(folder).items()}
