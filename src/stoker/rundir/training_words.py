"""The words of a run file that make a training this one and no other. They are in every COMMIT.json."""

import json
from collections.abc import Mapping
from typing import Any

from stoker.config.run import Run

_BLOCKS = {"model", "tokenizer", "data", "tune", "train", "native"}
"""`where`, `save` and `budget` may change between attempts."""
_LEFT_OUT = {
    "data": {"rows", "tokens"},
    "train": {"on_bad_step", "spike"},
    "native": {"vllm"},
}
"""Sizes that only plans use, what to do about a bad step, how the model is served; options of places come on top."""

_ORIGIN = "forked_from."


def of(run: Run, origin: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Values by dotted key: `{"train.epochs": 3, ...}`.

    Args:
        run: The run file.
        origin: What a fork starts from (`forked_from` of its manifest): two forks of equal words are two trainings.
    """
    left_out = {**_LEFT_OUT, "native": _LEFT_OUT["native"] | run.native.place_blocks}
    words = dict(_flat(run.model_dump(mode="json", include=_BLOCKS, exclude=left_out), ""))
    return words | {f"{_ORIGIN}{key}": value for key, value in (origin or {}).items()}


def origin(words: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the fork with these words starts from; None for a run that is none."""
    said = (words or {}).items()
    return {key.removeprefix(_ORIGIN): value for key, value in said if key.startswith(_ORIGIN)} or None


def changed(before: Run, after: Run) -> list[str]:
    """`train.epochs 3 -> 4` for each word that changes the training."""
    return differing(of(before), of(after))


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The same for words by dotted key."""
    keys = sorted(before.keys() | after.keys())
    differing = (key for key in keys if before.get(key) != after.get(key))
    return [f"{key} {_shown(before.get(key))} -> {_shown(after.get(key))}" for key in differing]


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(path, value)]
    return [found for key in value for found in _flat(value[key], f"{path}.{key}" if path else key)]


def _shown(value: Any) -> str:
    """A value as the run file has it; `-` where it has none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
