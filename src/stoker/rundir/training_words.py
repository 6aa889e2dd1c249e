"""The words of a run file that make a training this one and no other. They are in every COMMIT.json."""

import functools
import json
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel

from stoker.config import mixing
from stoker.config.run import LIMITS, Run

_BLOCKS = {"model", "tokenizer", "data", "tune", "train", "native"}
"""`where`, `save` and `budget` may change between attempts."""
_LEFT_OUT: dict[str, Any] = {
    "data": {"rows", "tokens", "set", "stream", "cache"},
    "train": {"on_bad_step": True, "spike": True, "grpo": {"sampler": True, "rewards": LIMITS}, "distill": {"sampler"}},
    "native": {"vllm", "datatrove"},
}
"""Sizes that only plans use, where a set is (its digest counts), what to do about a bad step, what generates answers
and limits rewards, how the model is served, what runs a pipeline; options of places come on top."""

_ORIGIN = "forked_from."
_FREE = ("native.", _ORIGIN)
"""Keys that no field of the run file lists: one that is absent was not set."""


def of(run: Run, origin: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Values by dotted key: `{"train.epochs": 3, ...}`.

    Args:
        run: The run file.
        origin: What a fork starts from (`forked_from` of its manifest): two forks of equal words are two trainings.
    """
    left_out = {**_LEFT_OUT, "native": _LEFT_OUT["native"] | run.native.place_blocks}
    words = dict(_flat(run.model_dump(mode="json", include=_BLOCKS, exclude=left_out), ""))
    if mixed := mixing.set_words(run.data):
        words["data.set"] = mixed
    return words | {f"{_ORIGIN}{key}": value for key, value in (origin or {}).items()}


def origin(words: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the fork with these words starts from; None for a run that is none."""
    said = (words or {}).items()
    return {key.removeprefix(_ORIGIN): value for key, value in said if key.startswith(_ORIGIN)} or None


def changed(before: Run, after: Run) -> list[str]:
    """`train.epochs 3 -> 4` for each word that changes the training."""
    return differing(of(before), of(after))


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The same for words by dotted key, which another version of Stoker may have written.

    A key that one of them lacks is new: there it is the default of today, which must be what was done before the key
    existed. A key that the run file no longer has is ignored: a run that sets it is refused when its run file is read.
    """
    defaults = _defaults(Run)
    known = (key for key in before.keys() | after.keys() if key in defaults or key.startswith(_FREE))
    differing = sorted(key for key in known if _meant(before, key, defaults) != _meant(after, key, defaults))
    return [f"{key} {_shown(before.get(key))} -> {_shown(after.get(key))}" for key in differing]


def _meant(words: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> Any:
    """The value of a key, also where it was not written; a list of sections likewise, item by item."""
    if key.startswith(_FREE):
        return words.get(key)
    value = words.get(key, defaults[key])
    if not isinstance(value, list):
        return value
    inner = {name.removeprefix(f"{key}."): default for name, default in defaults.items() if name.startswith(f"{key}.")}
    return [{**inner, **item} if isinstance(item, dict) else item for item in value]


@functools.cache
def _defaults(section: type[BaseModel], path: str = "") -> dict[str, Any]:
    """The default of every key by its dotted path; None for one without."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        default = field.get_default(call_default_factory=True)
        found[f"{path}{name}"] = None if field.is_required() or isinstance(default, BaseModel) else default
        for inner in _sections(field.annotation):
            found |= _defaults(inner, f"{path}{name}.")
    return found


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _sections(part)]


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(path, value)]
    return [found for key in value for found in _flat(value[key], f"{path}.{key}" if path else key)]


def _shown(value: Any) -> str:
    """A value as the run file has it; `-` where it has none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
