"""What of a run is published, and nothing else: files by an allow-list, staged and searched before anything is sent.

Rows, events, logs and checkpoints have no names on the list. What has one is searched for secrets of the environment,
for what looks like a token, and for folders of this machine; paths in the places where libraries put them are replaced.
"""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import env, messages
from stoker.artifacts import spelt_folders
from stoker.errors import StokerError
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir

CARD = "README.md"
_WORK = "publish"
_VOCABULARY = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")
_WORDS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", *_VOCABULARY)
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_WEIGHTS = re.compile(r"(model|adapter_model)(-\d{5}-of-\d{5})?\.safetensors")
_WHOLE = ("config.json", "generation_config.json", "model.safetensors.index.json", *_WORDS, *_PROCESSORS)
_ADAPTER = ("adapter_config.json", *_WORDS)
_SOURCES = ("_name_or_path", "name_or_path", "base_model_name_or_path")
"""Keys under which transformers and PEFT write where a model was loaded from."""
_LEAST_SECRET = 16
"""Shorter secrets are not looked for in a vocabulary: they may be words."""


@dataclass(frozen=True)
class Staged:
    """A folder that holds exactly what is sent."""

    folder: Path
    names: list[str]
    total_bytes: int
    left_out: list[str]
    """Files beside the model that are not on the list."""


def is_of_a_model(name: str) -> bool:
    """Whether a whole model has a file of that name."""
    return name in _WHOLE or (name.startswith("model") and _WEIGHTS.fullmatch(name) is not None)


def stage(run_dir: RunDir, source: Path, base: str | None) -> Staged:
    """Link or copy what may be published of a model's folder; the caller writes the card.

    Args:
        run_dir: The run.
        source: Its adapter, or its export.
        base: The hub's id of the base model, written instead of a path; None where it has none.
    """
    listed = _ADAPTER if (source / "adapter_config.json").is_file() else _WHOLE
    target = artifacts.begin(run_dir, _WORK)
    left_out = []
    for path in sorted(source.iterdir()):
        plain = path.is_file() and not path.is_symlink()  # a link may lead to any file of this machine
        if plain and _WEIGHTS.fullmatch(path.name):
            files.link(path, target / path.name)
        elif plain and path.name in listed:
            _take(path, target / path.name, base)
        elif path.name != CARD:
            left_out.append(path.name)
    names = sorted(path.name for path in target.iterdir())
    return Staged(target, names, files.folder_bytes(target), left_out)


def search(run_dir: RunDir, staged: Staged) -> None:
    """Raise where a staged file holds a secret or a folder of this machine; the value itself is never shown."""
    folder = _folders(run_dir)
    secrets = env.secret_values()
    for path in sorted(staged.folder.iterdir()):
        if path.name in _VOCABULARY:
            content = path.read_bytes()
            if any(one.encode() in content for one in secrets if len(one) >= _LEAST_SECRET):
                raise _held(path, "publish.holds.secret")
            continue
        text = _text(path)
        if env.masked(text) != text:
            raise _held(path, "publish.holds.secret")
        if folder.search(text):
            raise _held(path, "publish.holds.path")


def _folders(run_dir: RunDir) -> re.Pattern[str]:
    """Beginnings of paths on this machine."""
    folders = (Path.home(), Path.cwd(), run_dir.path.absolute())
    found = {spelt_folders.pattern(one) for folder in folders for one in spelt_folders.spellings(folder)}
    return re.compile(rf"({'|'.join(sorted(found))})[\\/]")


def _held(path: Path, key: str) -> StokerError:
    return StokerError("STK535", file=path.name, what=messages.text(key))


def discard(run_dir: RunDir) -> None:
    """Remove the staging folder."""
    shutil.rmtree(artifacts.aside(run_dir, _WORK), ignore_errors=True)


def _text(path: Path) -> str:
    """A file's text, of JSON also as it is read: escapes hide a path; of weights, what their header says."""
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return "\n".join(_strings(header.get("__metadata__", {})))
    text = path.read_text(encoding="utf-8", errors="replace")
    return "\n".join([text, *_strings(json.loads(text))]) if path.suffix == ".json" else text


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _strings(one)


def _take(source: Path, target: Path, base: str | None) -> None:
    """Copy a small file; a JSON file without the places where the model was loaded from."""
    shutil.copyfile(source, target)
    if source.suffix == ".json" and source.name not in _VOCABULARY:
        content = json.loads(source.read_text(encoding="utf-8"))
        public = _without_places(content, base)
        if public != content:
            files.write_text(target, json.dumps(public, indent=2, ensure_ascii=False) + "\n")


def _without_places(value: Any, base: str | None) -> Any:
    if isinstance(value, list):
        return [_without_places(one, base) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base if key in _SOURCES and isinstance(one, str) and _is_place(one) else _without_places(one, base)
        for key, one in value.items()
    }


def _is_place(name: str) -> bool:
    """Whether a model's name is a folder, not one of the hub."""
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or Path(name).exists()
