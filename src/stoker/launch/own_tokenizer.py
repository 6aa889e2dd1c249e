"""Tokens by a model's own tokenizer, for the light world: the engine's program counts, which alone has tokenizers."""

import importlib.util
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stoker import env
from stoker.facts import model_configs
from stoker.supervise import starting


def file(model: str, folder: Path) -> Path | None:
    """The `tokenizer.json` of a model whose files are on this machine."""
    found = model_configs.here(model, folder)
    path = found.folder / "tokenizer.json" if found and found.folder else None
    return path if path and path.is_file() else None


def counts(path: Path, texts: Sequence[str]) -> list[int] | None:
    """Tokens of each text; None where they cannot be counted here."""
    if importlib.util.find_spec("tokenizers") is None:
        return None
    done = subprocess.run(  # noqa: S603  # our own program, no shell
        starting.command("stoker.engine.token_counts", path),
        input=json.dumps(texts),
        capture_output=True,
        encoding="utf-8",
        env=env.child_environment({}),
        check=False,
    )
    if done.returncode:
        return None
    found: list[int] = json.loads(done.stdout)
    return found
