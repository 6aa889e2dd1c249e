"""The planner for a page: what can be asked, and the answer with the words around `planning`'s figures.

Runs in a browser (`tools/calculator.py`): no network, no process, nothing kept. A question is plain data.
"""

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import yaml

from stoker import messages
from stoker.api import arithmetic, comparison, loading, plan_page, planning
from stoker.api.planning import MarketQuestion
from stoker.config import load
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts import cards, prices, shapes
from stoker.plan import make
from stoker.plan.plan import Memory
from stoker.rent.compare import COUNTS, Goal

KEYS = ("tune.method", "data.length", "train.batch", "train.epochs", "data.rows", "data.tokens")
"""Keys of the run file that the page has a field for."""
TERMS = ("budget", "by", "provider", "region")
"""Questions to the table that are no words of the run."""
_DATA = "data/train.jsonl"
_FILE, _RUN = "run.yaml", "run"
_MODEL = "model"
"""The folder of a pasted `config.json`, beside the run file."""


def choices() -> dict[str, Any]:
    """What the page offers, before anything is asked: the catalogue's models and cards, recipes with their values."""
    return {
        "models": [
            {"name": name, "parameters": shape.parameters(), "context": shape.context}
            for name, shape in sorted(shapes.shipped().items(), key=lambda one: one[0].lower())
        ],
        "recipes": [_recipe(name) for name in load.recipe_names()],
        "cards": [{"name": card.name, "memory_bytes": card.memory_bytes, "kind": card.kind} for card in cards.cards()],
        "counts": list(COUNTS),
        "goals": list(get_args(Goal)),
        "regions": prices.CURRENCIES,
        "providers": prices.providers(),
    }


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a question, or what is wrong with it (`errors`).

    Args:
        question: `recipe`, `model` or `config` (the text of a `config.json`); `keys` of the run file with their values;
            `goal`, `budget`, `by`, `provider` and `region` as the flags of `stoker plan`; `card` and `gpus` for the
            page of one card instead of the table of all.
    """
    try:
        with _asked(question) as (run_file, files), run_file.located():
            found = _card(run_file, question) if question.get("card") else _table(run_file, question)
    except StokerError as error:
        return {"errors": [one.as_dict() for one in error.errors]}
    return {**found, "files": files, "command": _command(question)}


@contextmanager
def _asked(question: Mapping[str, Any]) -> Iterator[tuple[RunFile, dict[str, str]]]:
    """The run file of a question, and the files to copy for it."""
    keys = {key: value for key, value in question["keys"].items() if value not in (None, "")}
    if recipe := question.get("recipe"):
        run_file = loading.load(recipe, {**keys, **_count(question)})
        yield run_file, {_FILE: _written(run_file.document.values) if keys else run_file.text}
        return
    config = question.get("config")
    text = _written(_nested({"model": _MODEL if config else question["model"], "data.train": _DATA, **keys}))
    overrides = [f"{key}={value}" for key, value in _count(question).items()]
    with tempfile.TemporaryDirectory() as folder:
        files = {_FILE: text}
        if config:
            files[f"{_MODEL}/config.json"] = config
            place = Path(folder) / _MODEL
            place.mkdir()
            (place / "config.json").write_text(config, encoding="utf-8")
        yield load.again(text, _FILE, Path(folder), overrides, _RUN), files


def _count(question: Mapping[str, Any]) -> dict[str, int]:
    """How many of the card, as `--gpus` says it."""
    count = question.get("gpus") or 1
    return {"where.gpus": count} if question.get("card") and count > 1 else {}


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys by their dotted paths as sections."""
    out: dict[str, Any] = {}
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        (out.setdefault(section, {}) if section else out)[name] = value
    return out


def _written(values: dict[str, Any]) -> str:
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def _command(question: Mapping[str, Any]) -> str:
    """The command line that gives the same answer."""
    words = ["stoker", "plan", question.get("recipe") or _FILE]
    if question.get("recipe"):
        given = {key: value for key, value in question["keys"].items() if value not in (None, "")}
        words += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    if card := question.get("card"):
        words += ["--card", card]
        words += ["--gpus", str(question["gpus"])] if _count(question) else []
        return shlex.join(words)
    if question.get("goal", "money") != "money":
        words += ["--for", question["goal"]]
    words += [word for flag in TERMS if question.get(flag) for word in (f"--{flag}", question[flag])]
    return shlex.join(words)


# ---- the table of all cards


def _table(run_file: RunFile, question: Mapping[str, Any]) -> dict[str, Any]:
    asked = MarketQuestion(goal=question.get("goal", "money"), **{term: question.get(term) or None for term in TERMS})
    found = planning.compared(run_file, planning.terms(run_file.run, asked, flags="--"))
    places = {id(row): place for place, row in enumerate(found.rows)}
    shown = [places[id(row)] for row in found.shortlist]
    said = [found.answer_sentence(), *found.sentences()]
    return {"json": _text(found.to_json()), "title": found.title, "sentences": said, "shortlist": shown}


# ---- one card


def _card(run_file: RunFile, question: Mapping[str, Any]) -> dict[str, Any]:
    made, changes = planning.planned(run_file, question["card"])
    sections = arithmetic.sections(make.find(planning.inputs_for(run_file, question["card"])))
    return {
        "json": _text(comparison.plan_json(made, changes)),
        "title": plan_page.title(made),
        "figures": plan_page.rows_of(made),
        "memory": _memory(made.memory),
        "reasons": plan_page.reasons(made),
        "remarks": plan_page.estimated_remark(made),
        "changes": comparison.change_lines(changes) if made.fits == "no" else [],
        "arithmetic": [[messages.text(f"explain.section.{name}"), lines] for name, lines in sections.items()],
    }


def _memory(memory: Memory) -> list[tuple[str, int]]:
    """What the peak is made of, by name; the sum is all that the device holds then."""
    parts = [(messages.named("part", part), size) for part, size in memory.parts.items()]
    parts.append((messages.text("explain.gaps"), memory.peak_reserved_bytes - memory.peak_allocated_bytes))
    parts.append((messages.text("explain.runtime"), memory.peak_device_bytes - memory.peak_reserved_bytes))
    return [(name, size) for name, size in parts if size > 0]


def _text(value: dict[str, Any]) -> str:
    """As `--json` prints it."""
    return json.dumps(value, ensure_ascii=False, indent=1)


def _recipe(name: str) -> dict[str, Any]:
    run_file = load.load(name)
    stated = {key: _value(run_file, key) for key in KEYS}
    return {"name": name, "card": load.recipe_card(run_file.text), "keys": stated}


def _value(run_file: RunFile, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(run_file.run, section), name)
