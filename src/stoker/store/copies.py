"""Layout of a run's copies in a store, and which of them exist.

    <run>/run.yaml  manifest.json  plan.json  events.jsonl  data.json     as in the run directory; data.json is the
                                                                          report of the prepared set, with its digest
    <run>/checkpoints/step-00000500-<digest>/{files..., COMMIT.json}      COMMIT.json last: without it there is none
    <run>/artifacts/final/{files..., FILES.json}                          FILES.json last
    <run>/lease.json                                                      who writes now
The digest in the name keeps two states of one step apart, so that a copy is never written over another.
"""

import re
from dataclasses import dataclass

from stoker.errors import StokerError
from stoker.rundir import checkpoints, files
from stoker.rundir.checkpoints import COMMIT_NAME, Commit, FileEntry
from stoker.store.store_protocol import LARGEST_SMALL_BYTES, Patient

FILES_NAME = "FILES.json"
_DIGEST_LETTERS = 12
_FOLDER = re.compile(r"([^/]+)/checkpoints/(step-\d{8,}-[0-9a-f]{12})/")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Copy:
    """A committed checkpoint in a store."""

    folder: str
    commit: Commit
    record: bytes
    """COMMIT.json as stored."""

    @property
    def age(self) -> tuple[int, str]:
        """Sorts copies from old to new; of two states of one step the later written is newer."""
        return self.commit.step, self.commit.created


def folder_of(run_name: str, commit: Commit) -> str:
    """Folder of a checkpoint's copy."""
    return f"{run_name}/checkpoints/{checkpoints.folder_name(commit.step)}-{commit.digest[:_DIGEST_LETTERS]}"


def folders(names: dict[str, int], run_name: str) -> list[str]:
    """Folders of checkpoints among a run's files, committed or not, oldest first."""
    found = (match for name in names if (match := _FOLDER.match(name)))
    return sorted({f"{run_name}/checkpoints/{match[2]}" for match in found if match[1] == run_name})


def committed(store: Patient, run_name: str, names: dict[str, int]) -> list[Copy]:
    """A run's copies with a sound record, oldest first."""
    sizes = {folder: names.get(f"{folder}/{COMMIT_NAME}") for folder in folders(names, run_name)}
    found = (_read(store, folder) for folder, size in sizes.items() if size is not None and size <= LARGEST_SMALL_BYTES)
    return sorted((copy for copy in found if copy is not None), key=lambda copy: copy.age)


def _read(store: Patient, folder: str) -> Copy | None:
    try:
        record = store.read(f"{folder}/{COMMIT_NAME}")
        commit = checkpoints.parse_commit(record.decode("utf-8"))
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    if isinstance(commit, str) or not folder.endswith(folder_of("", commit).rpartition("/")[2]):
        return None
    return Copy(folder, commit, record)


def parse_files(record: bytes, folder: str) -> dict[str, FileEntry]:
    """FILES.json of an artifact; STK658 where it cannot be read."""
    try:
        return {str(name): FileEntry.model_validate(entry) for name, entry in files.parse_json(record).items()}
    except (ValueError, AttributeError) as error:
        raise StokerError("STK658", file=f"{folder}/{FILES_NAME}", reason=files.reason(error)) from error


def run_names(names: dict[str, int]) -> list[str]:
    """Runs that a store holds: each has a manifest."""
    found = (name.split("/")[0] for name in names if name.count("/") == 1 and name.endswith("/manifest.json"))
    return sorted(name for name in found if is_run_name(name))


def is_run_name(text: str) -> bool:
    """Whether a run can be named so; nothing else may become part of a path."""
    return _RUN.fullmatch(text) is not None


def require_run(store: Patient, run_name: str, text: str) -> dict[str, int]:
    """A run's files in the store with their sizes; an error where there are none."""
    names = store.names(run_name)
    if f"{run_name}/manifest.json" not in names:
        raise StokerError("STK657", name=run_name, store=text)
    return names
