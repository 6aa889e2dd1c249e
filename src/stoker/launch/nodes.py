"""`nodes.json`: the machines of a run that uses several, where they meet, and the key that lets them in.

Readable by its owner only: whoever has the key can take part in the run.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stoker.rundir import files

_KEY_BYTES = 32


class Node(BaseModel):
    """One machine."""

    model_config = ConfigDict(frozen=True)

    name: str
    address: str
    """By which the others reach it."""
    interface: str
    """Through which it reaches the others."""


class Nodes(BaseModel):
    """The machines of a run; the first one is the head, whose run directory counts."""

    model_config = ConfigDict(frozen=True)

    meeting: str = ""
    """Which meeting this is, where nodes share a folder: a queue's job, and how often it was requeued."""
    port: int
    """Where the head listens."""
    key: str
    nodes: tuple[Node, ...]
    present: tuple[str, ...]
    """Those that take part now, in the order of their ranks."""

    @property
    def head(self) -> Node:
        """The one that decides."""
        return self.nodes[0]

    def only(self, names: set[str]) -> "Nodes":
        """The same with those only that are named."""
        return self.model_copy(update={"present": tuple(node.name for node in self.nodes if node.name in names)})


def of(nodes: list[Node], port: int, meeting: str = "") -> Nodes:
    """A new meeting of all of them, with a key of its own."""
    return Nodes(
        meeting=meeting,
        port=port,
        key=secrets.token_hex(_KEY_BYTES),
        nodes=tuple(nodes),
        present=tuple(node.name for node in nodes),
    )


def read(path: Path) -> Nodes | None:
    """The record, or None where there is none."""
    with suppress(FileNotFoundError):
        return files.read_record(path, Nodes)
    return None


def write(path: Path, record: Nodes) -> None:
    """Replace the record; it is never readable by other users."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(files.json_text(record.model_dump()))
    aside.replace(path)
