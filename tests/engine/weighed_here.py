"""The record of a saved model, made in this process and kept as planning would: no program of its own is started."""

from pathlib import Path

from transformers import AutoConfig

from stoker.engine import weigh
from stoker.facts import model_records
from stoker.rundir import files


def keep(base: Path) -> Path:
    """Weigh the model in a folder, for the plans that follow."""
    model_records.save(files.read_object(base / "config.json"), weigh.weigh(AutoConfig.from_pretrained(base)))
    return base
