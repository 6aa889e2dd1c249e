"""Where their rows are: paths as the run file writes them, and LLaMA-Factory's `dataset_info.json`."""

import os
from pathlib import Path
from typing import Any

from stoker.config import dataset_info
from stoker.config.data_section import Source
from stoker.migrate import column_names
from stoker.migrate.draft import Draft
from stoker.rundir import inputs

_MEDIA = ("images", "videos", "audios")
_OF_A_HUB = {"folder", "revision"}
"""What an entry may say of a hub's dataset, and a run file does not."""


def placed(draft: Draft, path: str) -> str:
    """A path of theirs from the run file's folder; unchanged where there is nothing of that name."""
    for folder in draft.folders:
        if (folder / path).exists():
            return _from_target(draft, folder / path)
    return Path(path).as_posix()


def looks_local(draft: Draft, path: str) -> bool:
    """Whether a dataset's name is a path, not a hub's."""
    is_path = path.startswith((".", "/", "~")) or inputs.kind(Path(path)) in inputs.SUFFIXES
    return is_path or any((folder / path).exists() for folder in draft.folders)


def _from_target(draft: Draft, path: Path) -> str:
    resolved = path.resolve()
    if resolved.anchor != draft.target.anchor:
        return resolved.as_posix()
    return Path(os.path.relpath(resolved, draft.target)).as_posix()


def is_running_text(path: str) -> bool:
    """Whether it is a file without columns."""
    return inputs.kind(Path(path)) == ".txt"


def write(draft: Draft, key: str, found: list[dict[str, Any]]) -> None:
    """The training data: one path, or a list of sources."""
    alone = found[0] if len(found) == 1 else None
    draft.carry(key, "data.train", found if alone is None else alone["path"] if set(alone) == {"path"} else alone)


def write_with_eval(
    draft: Draft, key: str, train: list[dict[str, Any]], eval_key: str, held_out: list[dict[str, Any]]
) -> None:
    """The training data and, by its path, the first of the eval sources; it has no columns but those of all rows."""
    first = dict(held_out[0])
    columns = first.pop("columns", {})
    is_shared = bool(columns) and all(one.get("columns") == columns for one in train)
    write(draft, key, [_without_columns(one) for one in train] if is_shared else train)
    if len(held_out) > 1 or set(first) != {"path"}:
        draft.remark(eval_key, "migrate.left.eval_sets")
    draft.carry(eval_key, "data.eval", first["path"])
    if is_shared:
        draft.write("data.columns", columns)
    elif columns:
        draft.remark(eval_key, "migrate.left.columns", columns=column_names.names(columns))


def _without_columns(source: dict[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in source.items() if word != "columns"}


# ---- dataset_info.json


def by_names(draft: Draft, key: str, names: list[str]) -> list[dict[str, Any]]:
    """The sources behind LLaMA-Factory's names of datasets."""
    folder = draft.text("dataset_dir", "data")
    draft.carried("dataset_dir", "data.train")
    if folder == "ONLINE":
        return [{"path": f"hub:{name}"} for name in names]
    found = (start / folder / dataset_info.NAME for start in draft.folders)
    listed = next((path for path in found if path.is_file()), None)
    if listed is None:
        return [_missing(draft, key, name, Path(folder) / dataset_info.NAME) for name in names]
    label = _from_target(draft, listed)
    entries = dataset_info.read(listed, label)
    return [
        _source(draft, key, f"{label}#{name}", entries[name], listed.parent)
        if name in entries
        else _missing(draft, key, name, listed)
        for name in names
    ]


def _missing(draft: Draft, key: str, name: str, listed: Path) -> dict[str, Any]:
    draft.remark(key, "migrate.left.dataset", name=name, info=listed.as_posix())
    return {"path": (listed.parent / f"{name}.json").as_posix()}


def _source(draft: Draft, key: str, named: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A file by its name in the list, which is read as it is; a hub's dataset, or a file of which more is said."""
    entry = _readable(draft, key, named.rpartition("#")[2], given)
    hub = next((f"{prefix}{entry[url]}" for url, prefix in dataset_info.PLACES.items() if entry.get(url)), "")
    if entry == given and not hub:
        dataset_info.resolve(Source(path=named), draft.target)
        return {"path": named}
    dataset_info.check_preferences(named, entry)
    columns = dataset_info.columns_of(named, entry)
    said = {"columns": columns.model_dump(exclude_none=True)} if columns else {}
    if hub:
        words = (("subset", "config"), ("split", "split"))
        return {"path": hub, **{ours: str(entry[theirs]) for theirs, ours in words if entry.get(theirs)}, **said}
    path = folder / str(entry.get("file_name", f"{named.rpartition('#')[2]}.json"))
    return {"path": _from_target(draft, path) if path.exists() else path.as_posix(), **said}


def _readable(draft: Draft, key: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """An entry without what only they know, which is named; of preferences the names are checked where it is read."""
    if given.get("num_samples"):
        draft.remark(key, "migrate.left.samples", count=given["num_samples"])
    places = {one for one in dataset_info.PLACES if given.get(one)}
    known = (dataset_info.KEYS - _OF_A_HUB if places else dataset_info.KEYS) | places
    others = [f"`{one}`" for one in sorted(given) if given[one] and one not in {*known, "num_samples"}]
    if others:
        draft.remark(key, "migrate.left.info", name=name, keys=others)
    entry = {one: value for one, value in given.items() if one in known}
    columns = entry.get("columns")
    if isinstance(columns, dict) and any(columns.get(one) for one in _MEDIA):
        draft.remark(key, "migrate.left.media")
        entry["columns"] = {role: column for role, column in columns.items() if role not in _MEDIA}
    return entry
