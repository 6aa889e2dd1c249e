"""What the shipped recipes ask of the engine, on a tiny model: sizes and rates are replaced by small ones.

Recipes that differ in nothing else are one setting, named after the first of them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config import load, objectives
from stoker.config.objectives import ObjectiveFacts
from stoker.config.run import Run, Shape

RANK, LENGTH, BATCH, STEPS, SAVED_EVERY = 4, 48, 8, 4, 2
GROUP, ANSWER = 4, 8
REWARD = {"length": {"target": 20}}
"""Of another kind than the recipes have: their rows are random words, without an answer to compare with."""
_SIZES = {"layers": 1, "width": 64, "heads": 2, "kv_heads": None, "ffn": 128, "vocab": None}
"""Of a model from scratch."""


@dataclass(frozen=True)
class Setting:
    """One distinct set of engine settings."""

    recipes: tuple[str, ...]
    words: dict[str, Any]
    """Sections of a run file, without the model's path and without `where`."""

    @property
    def method(self) -> str:
        """`pretrain`, or how a model is tuned."""
        return "pretrain" if self.words["train"]["objective"] == "pretrain" else str(self.words["tune"]["method"])

    @property
    def objective(self) -> ObjectiveFacts:
        """What its objective asks for."""
        return objectives.facts(self.words["train"]["objective"])

    @property
    def adapts(self) -> bool:
        """Whether it leaves an adapter that can be merged."""
        return self.words["tune"]["method"] != "full" and not self.objective.scores

    def text(self, base: Path, where: dict[str, Any]) -> str:
        """A run file on a base model, or with its tokenizer only; JSON is YAML."""
        return json.dumps({"model": str(base), **self.words, "tokenizer": str(base), "where": where}, indent=1)


def distinct() -> dict[str, Setting]:
    """Every distinct setting by its first recipe's name."""
    found: dict[str, Setting] = {}
    for name in load.recipe_names():
        words = _small(load.load(name).run)
        same = next((one for one, setting in found.items() if setting.words == words), name)
        found[same] = Setting((*(found[same].recipes if same in found else ()), name), words)
    return found


def _small(run: Run) -> dict[str, Any]:
    """The words of a recipe that the engine sees, with the sizes of a tiny run."""
    stated = run.model_dump(mode="json", exclude_defaults=True)
    tune = dict(run.tune.model_dump(mode="json", exclude_defaults=True), method=run.tune.method)
    if run.tune.method != "full":
        tune["rank"] = RANK
        if run.tune.alpha == 2 * run.tune.rank:
            del tune["alpha"]  # as by default
    train = {key: value for key, value in stated["train"].items() if key != "epochs"}
    if objectives.facts(run.train.objective).prompts:
        train[run.train.objective] |= {"group": GROUP, "max_new_tokens": ANSWER, "rewards": [REWARD]}
    words = {
        "data": {
            "train": "rows.jsonl",
            "length": LENGTH,
            "pack": run.data.pack,
            "eval": "25%" if run.data.eval else None,
        },
        "tune": tune,
        "train": {**train, "objective": run.train.objective, "batch": BATCH, "steps": STEPS, "learning_rate": 1e-2},
        "save": {"every": f"{SAVED_EVERY} steps", "keep": 20, "best": run.save.best},
    }
    if isinstance(run.model, Shape):
        words["model"] = {**run.model.model_dump(mode="json", exclude_defaults=True), **_SIZES}
    if run.native != type(run.native)():
        words["native"] = stated["native"]
    return words
