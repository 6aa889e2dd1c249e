"""Whose file it is, by its keys; and the whole way from their file to ours."""

from dataclasses import dataclass
from pathlib import Path

from stoker import messages
from stoker.config import load, reader
from stoker.config.reader import Document
from stoker.errors import StokerError, StokerErrors
from stoker.migrate import axolotl, llamafactory, run_file
from stoker.migrate.draft import Draft, KeyOutcome, beside


@dataclass(frozen=True)
class Migration:
    """A run file made of another trainer's, and what became of each key."""

    dialect: str
    text: str
    findings: list[KeyOutcome]
    batch: int
    keys: int
    """How many keys their file has, inner ones of datasets too."""

    @property
    def not_carried(self) -> list[KeyOutcome]:
        """Keys of the file that were not carried over or are not known."""
        besides = self.beside
        return [one for one in self.of("left", "unknown") if one not in besides]

    @property
    def beside(self) -> list[KeyOutcome]:
        """What else may differ: of keys that were carried over, or that are not in the file."""
        return sorted(beside(self.findings), key=lambda one: one.line)

    def of(self, *outcomes: str) -> list[KeyOutcome]:
        """The keys with one of these outcomes, in the order of their file."""
        return sorted((one for one in self.findings if one.outcome in outcomes), key=lambda one: one.line)


def read(path: Path, target: Path, devices: int) -> Migration:
    """Translate a file.

    Args:
        path: Their YAML (or JSON).
        target: The run file to be written.
        devices: How many GPUs they trained on: their batch counts each.
    """
    if not path.is_file():
        raise StokerError("STK180", path=path)
    document = reader.parse(reader.read_text(path), path.name)
    if not isinstance(document.values, dict):
        raise StokerError("STK181", path.name, seen="")
    folders = tuple(dict.fromkeys((path.resolve().parent, Path.cwd(), *path.resolve().parent.parents)))
    dialect = _dialect(document)
    draft = Draft(document, dialect, folders, target.resolve().parent, devices)
    (llamafactory if dialect == llamafactory.NAME else axolotl).translate(draft)
    text = run_file.compose(draft, path.name)
    try:
        load.parse(text, target.name)
    except StokerError as error:
        raise StokerErrors([_at_their_key(one, draft) for one in error.errors]) from error
    keys = len({one.key for one in draft.findings if one.line})
    return Migration(dialect, text, draft.findings, draft.written["train.batch"].value, keys)


def _at_their_key(problem: StokerError, draft: Draft) -> StokerError:
    """An error about the run file, which was not written, at the key of theirs that it comes from."""
    ours = problem.where.rpartition(": ")[2]
    source = next((one for key, one in draft.written.items() if ours == key or ours.startswith(f"{key}.")), None)
    key = source.fields.get("key", "") if source else ""
    where = draft.theirs.where((key,)) if key in draft.theirs.values else f"{draft.theirs.name}: {ours}"
    return StokerError(problem.code, where, **problem.fields)


def _dialect(document: Document) -> str:
    keys = set(document.values)
    if keys >= set(axolotl.SIGNS):
        return axolotl.NAME
    first, *others = llamafactory.SIGNS
    if first in keys and keys & set(others):
        return llamafactory.NAME
    if {"model", "data"} <= keys:
        raise StokerError("STK187", document.name)
    first_keys = [f"`{key}`" for key in list(document.values)[:5]]
    raise StokerError("STK181", document.name, seen=messages.text("migrate.seen", keys=first_keys) if keys else "")
