"""`stoker export`: a folder that transformers and vLLM load as it is, with a card that says how it came about."""

import filecmp
import shutil
from pathlib import Path
from typing import Any

from stoker.cli import merge_command
from stoker.errors import StokerError
from stoker.launch import programs, training
from stoker.rundir import artifacts, files, layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console, model_card, parity_lines
from stoker.terminal.figures import size

NAME = "export"


def export(name: str, folder: str | None, *, as_json: bool) -> None:
    """Export a finished run; an adapter is merged first."""
    run_dir = layout.find(name)
    merged = merge_command.has_adapter(run_dir)
    target = Path(folder) if folder else None
    if target:
        check_target(target)
    training.require_idle(run_dir)
    if merged and merge_command.current(run_dir) is None:
        merge_command.make(run_dir)
    path = _make(run_dir, merged=merged)
    if target:
        _copy(path, target)
        path = target
    console.talk("export.done", name=run_dir.name, path=path, size=size(files.folder_bytes(path)))
    if as_json:
        console.data_json({"path": str(path), "parity": artifacts.parity(run_dir)[NAME]})
    else:
        console.data(str(path))


def check_target(target: Path) -> None:
    """A folder that is new, empty or an earlier export; nothing of anybody else's is overwritten."""
    if target.exists() and not (target.is_dir() and (not any(target.iterdir()) or model_card.is_ours(target))):
        raise StokerError("STK616", folder=target)


def _make(run_dir: RunDir, *, merged: bool) -> Path:
    """Gather, compare, describe, accept."""
    made: dict[str, Any] = {}

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "exported":
            made.update(event)

    programs.run_engine("export", run_dir, take)
    aside = artifacts.aside(run_dir, NAME)
    if merged and _same_files(artifacts.folder(run_dir, merge_command.NAME), aside):
        # Byte for byte what was compared already.
        artifacts.record_parity(
            run_dir, NAME, artifacts.parity(run_dir)[merge_command.NAME] | {"same_files_as": merge_command.NAME}
        )
    else:
        parity_lines.compare(run_dir, NAME)
    files.write_text(aside / model_card.FILE_NAME, model_card.text(run_dir, made, artifacts.parity(run_dir)[NAME]))
    return artifacts.accept(run_dir, NAME)


def _same_files(one: Path, other: Path) -> bool:
    names = [path.relative_to(one) for path in _files(one)]
    return names == [path.relative_to(other) for path in _files(other)] and all(
        (one / name).samefile(other / name) or filecmp.cmp(one / name, other / name, shallow=False) for name in names
    )


def _copy(source: Path, target: Path) -> None:
    """Copy beside the target first, then put it in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    files.require_room(target.parent, files.folder_bytes(source))
    aside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside)
    for path in _files(aside):
        files.sync_file(path)
    target.mkdir(exist_ok=True)
    # Of an earlier export only the weights go, whose files may have other names now; what the user put beside stays.
    for stale in target.glob("model*.safetensors*"):
        stale.unlink()
    for path in _files(aside):
        place = target / path.relative_to(aside)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)
    shutil.rmtree(aside)
    files.sync_folder(target)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
