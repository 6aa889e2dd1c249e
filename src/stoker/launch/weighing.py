"""Weighs models on this machine, where torch is there: `engine.weigh` by its program, and the record kept."""

import importlib.util
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.config.run import Shape, TrainTokenizer
from stoker.errors import StokerError
from stoker.facts import model_parts, model_records, shapes
from stoker.facts.model_parts import ModelParts
from stoker.facts.shapes import ResolvedShape
from stoker.launch import programs
from stoker.rundir import files

_NEEDED = ("torch", "transformers", "peft", "bitsandbytes")


def resolve(
    model: str | Shape, folder: Path, tokenizer: str | TrainTokenizer = "auto", length: int = 1024
) -> ResolvedShape:
    """A model's shape; of a family without a formula, weighed here if it was not before."""
    able = all(importlib.util.find_spec(name) for name in _NEEDED)
    return shapes.resolve(model, folder, tokenizer, length, weigh if able else None)


def weigh(config: dict[str, Any]) -> ModelParts:
    """The record of a configuration, made by the engine and kept for later plans."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as name:
        folder = Path(name)
        files.write_json(folder / "config.json", config)
        programs.run_on_folder("weigh", folder)
        record = files.read_object(folder / "parts.json")
    if "encoder" in record:
        family = config.get("model_type")
        raise StokerError("STK245", model=family, reason=messages.text("ahead.encoder"))
    if "problem" in record:
        version = metadata.version("transformers")
        raise StokerError("STK232", family=config.get("model_type"), version=version, reason=record["problem"])
    parts = model_parts.from_json(record)
    model_records.save(config, parts)
    return parts
