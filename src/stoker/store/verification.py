"""Reads back what a store holds of a run, all of it, and compares it with the records."""

from typing import Any

from stoker import messages
from stoker.errors import StokerError
from stoker.rundir import artifacts
from stoker.rundir.checkpoints import COMMIT_NAME, Commit, FileEntry
from stoker.store import copies
from stoker.store.copies import FILES_NAME, Copy
from stoker.store.store_protocol import Patient, sha256_of


def examine(store: Patient, run_name: str) -> dict[str, Any]:
    """Every copy with whether it is whole, oldest first; `final` likewise, or None where no finished model is there."""
    names = store.names(run_name)
    sound = copies.committed(store, run_name, names)
    damaged = {folder for folder in copies.folders(names, run_name) if f"{folder}/{COMMIT_NAME}" in names}
    damaged -= {copy.folder for copy in sound}
    found = [_checked(store, copy, names) for copy in sound]
    found += [_entry(folder, None, None, f"{COMMIT_NAME} was changed") for folder in sorted(damaged)]
    return {"checkpoints": found, "final": _final(store, run_name, names)}


def _checked(store: Patient, copy: Copy, names: dict[str, int]) -> dict[str, Any]:
    reason = wrong_file(store, copy.folder, copy.commit.files, names)
    return _entry(copy.folder, copy.commit.step, copy.commit.total_bytes, reason)


def _entry(folder: str, step: int | None, size_bytes: int | None, reason: str) -> dict[str, Any]:
    name = folder.partition("/")[2].removeprefix("checkpoints/")
    return {"folder": name, "step": step, "bytes": size_bytes, "verified": not reason, "reason": reason}


def _final(store: Patient, run_name: str, names: dict[str, int]) -> dict[str, Any] | None:
    folder = f"{run_name}/artifacts/final"
    if f"{folder}/{FILES_NAME}" not in names:
        return None
    record = store.read(f"{folder}/{FILES_NAME}")
    digest = {"digest": sha256_of(record)}
    try:
        entries = copies.parse_files(record, folder)
    except StokerError:
        return _entry(folder, None, None, f"{FILES_NAME} was changed") | digest
    size_bytes = sum(entry.bytes for entry in entries.values())
    return _entry(folder, None, size_bytes, wrong_file(store, folder, entries, names)) | digest


def wrong_copy(store: Patient, run_name: str, commit: Commit | None, final: dict[str, FileEntry] | None) -> str:
    """Missing or damaged files of a checkpoint and the finished model, all files read; empty if none."""
    names = store.names(run_name)
    if commit is not None:
        folder = copies.folder_of(run_name, commit)
        there = [copy for copy in copies.committed(store, run_name, names) if copy.commit.digest == commit.digest]
        wrong = wrong_file(store, folder, commit.files, names) if there else f"step {commit.step} is missing"
        if wrong:
            return wrong
    if final is not None:
        folder = f"{run_name}/artifacts/final"
        record = f"{folder}/{FILES_NAME}"
        if record not in names or store.read(record) != artifacts.files_record(final):
            return messages.text("damage.missing", name="artifacts/final")
        return wrong_file(store, folder, final, names)
    return ""


def has_anothers_final(store: Patient, run_name: str, final: dict[str, FileEntry] | None) -> bool:
    """Whether the store has another finished model: another machine continued the run."""
    record = f"{run_name}/artifacts/final/{FILES_NAME}"
    if record not in store.names(run_name):
        return False
    return final is None or store.read(record) != artifacts.files_record(final)


def wrong_file(store: Patient, folder: str, entries: dict[str, FileEntry], names: dict[str, int]) -> str:
    """The first file that is not as recorded, and how; empty where all are."""
    for name, entry in entries.items():
        size = names.get(f"{folder}/{name}")
        if size is None:
            return f"{name} is missing"
        if size != entry.bytes:
            return f"{name} has {size} bytes instead of {entry.bytes}"
        if store.sha256(f"{folder}/{name}", entry.bytes) != entry.sha256:
            return f"{name} has another digest"
    return ""
