"""The list of a prepared set that lives in a store: every file with its size and digest.

    <store>/objects/<SHA-256>      each file of the set once, by its content
    <store>/sets/<digest>.json     the list of a set, by the set's digest; written after its files
    <store>/set.json               which set is meant where nothing else says so: the one that was pushed last
In a run directory that uses such a set it is `data/set.json`, with where the set came from. Where the run streams it,
the tokens of the training split are not there: they are read from the store while training runs, and each row is
checked by its digest in `sums.bin`, which is made when a set is pushed.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker.rundir import files
from stoker.rundir.checkpoints import FileEntry

SUMS_NAME = "sums.bin"
SUM_BYTES = 16
"""Of a row's SHA-256: 0.2 % of a row of 2,048 tokens."""
TOKENS_NAME = "tokens.bin"
_FORMAT = 1


class SetList(BaseModel):
    """A set in a store."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = _FORMAT
    digest: str
    """Of the prepared set, as its report has it."""
    files: dict[str, FileEntry]
    """By their names in the data folder: those of the report, the report, the tokenizer's, the rows' digests."""
    where: str = ""
    """Where the run file says it is (`mixing.set_address`); empty in the store itself."""
    streamed: bool = False
    parts: dict[str, str] = {}
    """Of several sets that are mixed: the digest of each by its name."""
    checked: bool = False
    """Whether its tokenizer was found to be the run's."""
    seal: str = ""
    """SHA-256 of what the store's list says: one that was changed is none."""

    def sealed(self) -> "SetList":
        """The same with its seal."""
        return self.model_copy(update={"seal": _seal(self)})

    @property
    def is_whole(self) -> bool:
        """Whether it is as it was sealed."""
        return self.format == _FORMAT and self.seal == _seal(self)

    @property
    def local_files(self) -> dict[str, FileEntry]:
        """Those that a run directory holds."""
        return {name: entry for name, entry in self.files.items() if not (self.streamed and is_streamed(name))}


def is_streamed(name: str) -> bool:
    """Whether a file is read from the store while training runs."""
    return name.startswith("train/") and name.endswith(f"/{TOKENS_NAME}")


def object_name(entry: FileEntry) -> str:
    """Where the store keeps a file."""
    return f"objects/{entry.sha256}"


def list_file(data: Path) -> Path:
    """Path of the list in a run directory."""
    return data / "set.json"


def read(data: Path) -> SetList | None:
    """The list of the set that a run directory has from a store; None where it has none."""
    try:
        found = SetList.model_validate(files.read_json(list_file(data)))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise files.unreadable(list_file(data), error) from error
    if not found.is_whole:
        raise files.unreadable(list_file(data), ValueError("changed"))
    return found


def _seal(listed: SetList) -> str:
    said: dict[str, Any] = listed.model_dump(include={"format", "digest", "files"})
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
