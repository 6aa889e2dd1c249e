"""From a run file's name and overrides to a `RunFile`: the one door to override, as a Python mapping."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.config import load as reading
from stoker.config.load import RunFile
from stoker.errors import StokerError

RunSource = str | Path | RunFile
"""A run file's path, a recipe's name, or a run file that was loaded before."""
_GIVEN_BY = "overrides"
"""What errors call the mapping."""


def load(run: RunSource, overrides: Mapping[str, Any] | None = None) -> RunFile:
    """Read a run file or recipe; every problem in it is raised at once, as `StokerErrors`.

    Args:
        run: Path of a YAML file, a recipe's name, or what `load` returned.
        overrides: Values by key, such as `{"train.epochs": 1}`: what `--set` takes on the command line.
    """
    if not isinstance(run, RunFile | str | Path):
        raise _wrong(run, "type.run", '`stoker.load("run.yaml")`')
    if overrides is not None and not isinstance(overrides, Mapping):
        raise _wrong(overrides, "type.overrides", '`stoker.load("run.yaml", {"train.epochs": 1})`')
    words = [f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in (overrides or {}).items()]
    if not isinstance(run, RunFile):
        return reading.load(str(run), words, _GIVEN_BY)
    if not words:
        return run
    name = (overrides or {}).get("name", run.run.name)
    return reading.again(run.text, run.name, run.folder, [*run.overrides, *words], str(name), _GIVEN_BY)


def _wrong(given: object, key: str, example: str) -> StokerError:
    expected = messages.text(key)
    return StokerError("STK153", function="stoker.load", given=type(given).__name__, expected=expected, example=example)
