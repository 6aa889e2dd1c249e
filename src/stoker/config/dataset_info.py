"""Sets of LLaMA-Factory by their list: `data/dataset_info.json#name` is the file, and the columns, of one entry.

An entry that names neither columns nor tags is read like any other file: by the keys of its rows. What an entry asks
for and we would not do is named, never left out. The list's own spelling: LLaMA-Factory's `data/README.md`.
"""

import json
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

from stoker import messages
from stoker.config import columns as column_names
from stoker.config import reader
from stoker.config.columns import Columns, Roles
from stoker.config.data_section import Source
from stoker.errors import StokerError, closest

NAME = "dataset_info.json"
KINDS = (".json",)
"""Of the list itself, which is read beside the data it names."""
MARK = f"{NAME}#"
"""Between the path of a list and the name of a set."""

_ALPACA = {"prompt": "prompt", "query": "input", "response": "answer", "history": "history", "system": "system"}
_SHAREGPT = {"messages": "messages", "system": "system", "tools": "tools"}
_TAGS = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "function_tag": "function_call",
    "observation_tag": "tool",
}
_COMPARED = {
    "prompt": ("prompt", "question", "instruction"),
    "query": ("input",),
    "messages": ("conversations", "messages"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "response": ("completion",),
    "kto_tag": ("label",),
    "system": ("system",),
    "tools": ("tools",),
}
"""Columns of rows that compare or judge answers, as they are called where such rows are recognised."""
_USUAL_TAGS = ("role", "from", "content", "value", "user", "human", "assistant", "gpt", "system")
KEYS = {"file_name", "formatting", "ranking", "columns", "tags", "subset", "split", "folder", "revision"}
"""What an entry may say; `subset` to `revision` say something of a hub's dataset only."""
PLACES = {"hf_hub_url": "hub:", "ms_hub_url": "modelscope:"}
_SHOWN = 12
"""Names of sets in an error."""


def is_named(path: str) -> bool:
    """Whether a path is that of a set in a list."""
    return path.startswith(MARK) or f"/{MARK}" in path.replace("\\", "/")


def lists(paths: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The lists of those paths that name a set, each with its kind of file."""
    return [(path.rpartition("#")[0], KINDS) for path in paths if is_named(path)]


def resolve(source: Source, folder: Path) -> Source:
    """The source that an entry describes; any other one as it is.

    Args:
        source: As the run file has it. Columns that are set there win.
        folder: The run file's.
    """
    if not is_named(source.path):
        return source
    listed, _, name = source.path.rpartition("#")
    entry = _entry(listed, name, folder)
    file = entry.get("file_name")
    if not isinstance(file, str) or not file:
        raise _unusable(source.path, "dataset_info.no_file")
    if source.columns and compares(entry):  # they would make good answers of all
        raise _unusable(source.path, "dataset_info.ranking", keys=["`data.columns`"])
    path = (PurePath(listed).parent / file).as_posix()
    return source.model_copy(update={"path": path, "columns": source.columns or columns_of(source.path, entry)})


def sets(path: Path) -> list[str]:
    """The names in a list."""
    return list(read(path, path.name))


def read(path: Path, label: str) -> dict[str, Any]:
    """The entries of a list, by their names."""
    try:
        found = json.loads(reader.read_text(path))
    except ValueError as error:
        raise StokerError("STK363", listed=label, reason=error) from error
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise StokerError("STK363", listed=label, reason=messages.text("dataset_info.layout"))
    return found


def _entry(listed: str, name: str, folder: Path) -> dict[str, Any]:
    """An entry that we can do justice to."""
    path = folder / listed
    if not path.is_file():
        raise StokerError("STK301", path=listed, folder=folder, nearest="")
    found = read(path, listed)
    if name not in found:
        raise not_named(listed, list(found), name)
    entry, where = found[name], f"{listed}#{name}"
    for key, prefix in PLACES.items():
        if key in entry:
            raise _unusable(where, "dataset_info.hub", key=key, written=f"{prefix}{entry[key]}")
    unknown = [f"`{key}`" for key in entry if key not in KEYS]
    if unknown:
        raise _unusable(where, "dataset_info.unknown", keys=unknown)
    check_preferences(where, entry)
    return dict(entry)


def compares(entry: dict[str, Any]) -> bool:
    """Whether the rows of an entry compare answers, or judge them."""
    columns = entry.get("columns")
    return bool(entry.get("ranking")) or (isinstance(columns, dict) and bool(columns.get("kto_tag")))


def check_preferences(where: str, entry: dict[str, Any]) -> None:
    """Rows that compare or judge answers are recognised by their keys: an entry that names others is refused."""
    if not compares(entry):
        return
    columns, tags = _texts(where, "columns", entry), _texts(where, "tags", entry)
    others = [f"`columns.{key}: {name}`" for key, name in columns.items() if name not in _COMPARED.get(key, ())]
    others += [f"`tags.{key}: {name}`" for key, name in tags.items() if name not in _USUAL_TAGS]
    if others:
        raise _unusable(where, "dataset_info.ranking", keys=others)


def not_named(listed: str, names: list[str], asked: str = "") -> StokerError:
    """No set of the list was named, or one that it does not have."""
    example = f"{listed}#{names[0] if names else 'name'}"
    choices = [f"`{one}`" for one in names[:_SHOWN]] or "-"
    if not asked:
        return StokerError("STK173", listed=listed, choices=choices, example=example)
    return StokerError("STK361", listed=listed, name=asked, choices=choices, nearest=closest(asked, names))


def columns_of(where: str, entry: dict[str, Any]) -> Columns | None:
    """The columns of an entry; None where it leaves all of them as they are called by default."""
    if compares(entry):
        return None
    formatting = entry.get("formatting", "alpaca")
    if formatting not in ("alpaca", "sharegpt", "openai"):
        raise _unusable(where, "dataset_info.formatting", formatting=formatting)
    known = _ALPACA if formatting == "alpaca" else _SHAREGPT
    columns, tags = _texts(where, "columns", entry), _texts(where, "tags", entry)
    others = [f"`columns.{key}`" for key in columns if key not in known]
    others += [f"`tags.{key}`" for key in tags if key not in (*_TAGS, "role_tag", "content_tag")]
    if others:
        raise _unusable(where, "dataset_info.unknown", keys=others)
    if formatting == "alpaca":
        return _alpaca(where, columns)
    if not columns and not tags:
        return None
    roles = {_TAGS[key]: value for key, value in tags.items() if key in _TAGS}
    return Columns(
        **{"messages": "conversations", **columns},
        role=tags.get("role_tag"),
        content=tags.get("content_tag"),
        roles=Roles(**roles) if roles else None,
    )


def _alpaca(where: str, columns: dict[str, str]) -> Columns | None:
    """Prompts and answers; a prompt alone is how LLaMA-Factory writes running text."""
    if columns.keys() == {"prompt"}:
        return Columns(text=columns["prompt"])
    found = Columns(**{_ALPACA[key]: value for key, value in columns.items()})
    if columns and column_names.layout_of(found) is None:
        raise _unusable(where, "dataset_info.pair")
    return found if columns else None


def _texts(where: str, key: str, entry: dict[str, Any]) -> dict[str, str]:
    """A mapping of texts; what is null was not set."""
    given = entry.get(key) or {}
    if not isinstance(given, dict) or not all(isinstance(value, str | None) for value in given.values()):
        raise _unusable(where, "dataset_info.texts", key=key)
    return {name: value for name, value in given.items() if value}


def _unusable(where: str, reason: str, **fields: Any) -> StokerError:
    return StokerError("STK362", where, reason=messages.text(reason, **fields))
