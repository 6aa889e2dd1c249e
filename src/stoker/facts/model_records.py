"""Records of weighed models: those shipped for the catalogue, and those made on this machine, by configuration."""

import functools
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from stoker import env
from stoker.facts import model_parts
from stoker.facts.model_parts import FORMAT, ModelParts

_NO_SIZES = (
    *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
"""Keys of a configuration that change no tensor."""


@functools.cache
def shipped() -> dict[str, ModelParts]:
    """The records that ship with Stoker, by hub id."""
    data = json.loads(resources.files("stoker.facts").joinpath("data/model_parts.json").read_text(encoding="utf-8"))
    records = {name: model_parts.from_json(record) for name, record in data["records"].items()}
    return {model: records[name] for model, name in data["models"].items()}


def stored(config: dict[str, Any]) -> ModelParts | None:
    """The record of this configuration made here earlier."""
    try:
        record = json.loads(_file(config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return model_parts.from_json(record) if record.get("format") == FORMAT else None


def save(config: dict[str, Any], parts: ModelParts) -> None:
    """Keep a record for later plans."""
    file = _file(config)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(model_parts.to_json(parts)), encoding="utf-8")


def _file(config: dict[str, Any]) -> Path:
    sized = {key: value for key, value in config.items() if key not in _NO_SIZES}
    digest = hashlib.sha256(json.dumps(sized, sort_keys=True).encode()).hexdigest()
    return env.home() / "models" / f"{digest[:16]}.json"
