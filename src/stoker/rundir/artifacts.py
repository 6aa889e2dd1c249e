"""Finished things of a run: `artifacts/<name>/`. Each is compared with the trained model before it is accepted.

artifacts/final          what training made: a model, or an adapter
artifacts/merged         the adapter inside its base
artifacts/<quantised>    int8, gguf-q8_0, ...
artifacts/parity.json    by name, how each compares with the trained model
artifacts/reference.json what the trained model answers; the other side of every comparison
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from stoker.rundir import files
from stoker.rundir.checkpoints import FileEntry
from stoker.rundir.layout import RunDir


def folder(run_dir: RunDir, name: str) -> Path:
    """Folder of an accepted artifact."""
    return run_dir.artifacts / name


def aside(run_dir: RunDir, name: str) -> Path:
    """Folder of an artifact until it is accepted."""
    return run_dir.artifacts / f".{name}.tmp"


def begin(run_dir: RunDir, name: str) -> Path:
    """An empty folder to make the artifact in; what is said of an earlier one is not of this."""
    if name in parity(run_dir):
        record_parity(run_dir, name, {})
    path = aside(run_dir, name)
    shutil.rmtree(path, ignore_errors=True)
    run_dir.artifacts.mkdir(exist_ok=True)  # no parents: a run directory that was renamed is not made again
    path.mkdir()
    return path


def accept(run_dir: RunDir, name: str) -> Path:
    """Sync what was made and put it in its place, instead of an earlier one."""
    made, place = aside(run_dir, name), folder(run_dir, name)
    made.stat()  # where nothing was made, the earlier one stays in its place
    for path in files.below(made):
        files.sync_file(path)
    earlier = run_dir.artifacts / f".{name}.old"
    shutil.rmtree(earlier, ignore_errors=True)
    if place.exists():
        place.rename(earlier)
    made.rename(place)
    files.sync_folder(run_dir.artifacts)
    shutil.rmtree(earlier, ignore_errors=True)
    return place


def is_accepted(run_dir: RunDir, name: str) -> bool:
    """Whether the artifact in its place was compared; a newer one that was begun and not accepted is still aside."""
    accepted = parity(run_dir).get(name, {}).get("accepted", False)
    return accepted and folder(run_dir, name).is_dir() and not aside(run_dir, name).exists()


def entries_of(folder: Path) -> dict[str, FileEntry]:
    """An artifact's files with sizes and digests."""
    return {
        path.relative_to(folder).as_posix(): FileEntry(bytes=path.stat().st_size, sha256=files.sha256(path))
        for path in files.below(folder)
    }


def files_record(entries: dict[str, FileEntry]) -> bytes:
    """The list of an artifact's files, as stored beside its copy."""
    return files.json_text({name: entry.model_dump() for name, entry in entries.items()}).encode()


def digest(folder: Path) -> str:
    """One digest of all files of an artifact: of the list of them."""
    return hashlib.sha256(files_record(entries_of(folder))).hexdigest()


def reference_file(run_dir: RunDir) -> Path:
    """What the trained model answers; the parity gate's."""
    return run_dir.artifacts / "reference.json"


def parity(run_dir: RunDir) -> dict[str, Any]:
    """How the artifacts compare with the trained model, by name."""
    path = run_dir.artifacts / "parity.json"
    return files.read_object(path) if path.is_file() else {}


def record_parity(run_dir: RunDir, name: str, result: dict[str, Any]) -> None:
    """Write down how one artifact compares."""
    files.write_json(run_dir.artifacts / "parity.json", {**parity(run_dir), name: result})
