"""From a file name (or a recipe's name) and overrides to a frozen `Run`; all problems of a file at once."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stoker import messages
from stoker.config import native, reader
from stoker.config.reader import Document, KeyPath
from stoker.config.run import Run, Shape, TrainTokenizer
from stoker.errors import StokerError, StokerErrors

_TAGS = {"text", "mapping", "list", "number", "auto", "value", "full", "lora", "qlora"}
"""Names pydantic puts into a path for a union's member; they are not keys of the file."""

_SECRET = re.compile(r"(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|://[^/\s:@]+:[^/\s@]+@)")

_TYPE_WORDS = {
    "int": "number",
    "float": "number",
    "string": "text",
    "bool": "bool",
    "list": "list",
    "dict": "mapping",
    "model": "mapping",
}


@dataclass(frozen=True)
class RunFile:
    """A run file as read: its text, its place, and the `Run` it asks for."""

    name: str
    folder: Path
    """Relative data paths start here."""
    text: str
    run: Run


def recipe_names() -> list[str]:
    """Names of the recipes that ship with Stoker."""
    folder = resources.files("stoker.config").joinpath("recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def recipes_folder() -> Path:
    """The folder of shipped recipes, as a path on disk."""
    return Path(str(resources.files("stoker.config").joinpath("recipes")))


def load(name: str, overrides: Sequence[str] = ()) -> RunFile:
    """Read a run file or recipe.

    Args:
        name: Path of a YAML file, or a recipe's name.
        overrides: `key.path=value`, as `--set` takes them.
    """
    path = Path(name)
    is_recipe = name in recipe_names() and not path.exists()
    if is_recipe:
        path = recipes_folder() / f"{name}.yaml"
    elif not path.exists():
        near = difflib.get_close_matches(name, recipe_names(), n=3, cutoff=0.4) or recipe_names()[:3]
        raise StokerError("STK101", path=name, nearest=", ".join(near))
    text = reader.read_text(path)
    run = parse(text, path.name, overrides)
    if run.name is None:
        run = run.model_copy(update={"name": _run_name(path.stem)})
    folder = path.resolve().parent
    if is_recipe and not _ships_its_data(run):
        folder = Path.cwd()
    return RunFile(path.name, folder, text, run)


def _ships_its_data(run: Run) -> bool:
    """Whether a recipe's text lies beside it; else its data is the user's, named from where they stand."""
    return isinstance(run.data.train, str) and (recipes_folder() / run.data.train).exists()


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> Run:
    """A run file's text to a `Run`."""
    document = reader.parse(text, name)
    if not isinstance(document.values, dict):
        raise StokerError("STK118", name)
    raise_all([problem for problem in (_apply(document, override) for override in overrides) if problem])
    problems = _secrets(document)
    try:
        run = Run.model_validate(document.values)
    except ValidationError as error:
        found = [_translate(details, document) for details in error.errors()]
        raise StokerErrors(problems + _once(found)) from None
    problems += native.check(run.native.model_dump(), document) + _conflicts(run, document)
    raise_all(problems)
    return run


def raise_all(problems: Sequence[StokerError]) -> None:
    """Raise all problems at once, if there are any."""
    if problems:
        raise StokerErrors(problems)


def _run_name(stem: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip(".-_")[:100]
    return cleaned or "run"


def _apply(document: Document, override: str) -> StokerError | None:
    """Put one `--set key.path=value` into the document's values."""
    key, equals, raw = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return StokerError("STK113", f"--set {override}", override=override)
    value = reader.parse(raw, f"--set {key}").values if raw.strip() else None
    target = document.values
    for part in parts[:-1]:
        child = target.get(part)
        if not isinstance(child, dict):
            child = {}
            target[part] = child
        target = child
    target[parts[-1]] = value
    # An overridden key has no line in the file; name the option instead.
    document.lines[tuple(parts)] = 0
    return None


def _translate(details: ErrorDetails, document: Document) -> StokerError:
    """One pydantic finding as one of our errors, in words and with its line."""
    path = _file_path(details["loc"], document)
    where = document.where(path)
    kind = details["type"]
    given = details.get("input")
    context = details.get("ctx", {})
    if kind == "extra_forbidden":
        names = _field_names(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.5)
        return StokerError("STK104", where, key=path[-1], nearest=near[0] if near else ", ".join(names))
    if kind == "missing":
        return StokerError("STK105", where, key=path[-1])
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return StokerError("STK108", where, given=_short(context.get("tag", given)), choices="full, lora, qlora")
    if kind == "literal_error":
        return StokerError("STK108", where, given=_short(given), choices=context.get("expected", ""))
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        sign = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}[kind]
        limit = next(iter(context.values()))
        return StokerError("STK107", where, given=_short(given), limit=f"{sign} {limit}")
    if kind == "string_pattern_mismatch":
        return StokerError("STK109", where, given=_short(given), example=_example(path))
    if kind in ("too_short", "string_too_short"):
        return StokerError("STK120", where)
    return StokerError("STK106", where, given=_short(given), expected=_expected(kind))


def _expected(kind: str) -> str:
    word = _TYPE_WORDS.get(kind.split("_")[0])
    return messages.text(f"type.{word}") if word else kind


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f"`{value}`"
    return text if len(text) <= 60 else text[:57] + "..."


_EXAMPLES = {
    ("save", "every"): "`10m`, `500 steps`, `epoch`, `auto`",
    ("train", "warmup"): "`3%`, `100`",
    ("train", "eval_every"): "`epoch`, `200 steps`, `never`",
    ("budget", "money"): "`50 CNY`",
    ("budget", "time"): "`12h`",
    ("where", "gpus"): "`all`, `2`, `0,2`",
    ("name",): "`my-run_1`",
}


def _example(path: KeyPath) -> str:
    return _EXAMPLES.get(tuple(str(part) for part in path), "`...`")


def _file_path(location: tuple[str | int, ...], document: Document) -> KeyPath:
    """Pydantic's location without union tags: the path as the file has it."""
    path: KeyPath = ()
    last = len(location) - 1
    for index, part in enumerate(location):
        is_key = (*path, part) in document.lines
        if part in _TAGS and not is_key and (index != last or path in document.lines):
            continue
        path = (*path, part)
    return path


def _field_names(path: KeyPath) -> list[str]:
    """The keys allowed at a place of the run file."""
    models: list[type[BaseModel]] = [Run]
    for part in path:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        models = [inner for field in fields for inner in _models(field.annotation)] if fields else models
    return sorted({name for model in models for name in model.model_fields})


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _once(problems: list[StokerError]) -> list[StokerError]:
    """Without repeats: two members of a union may complain of the same key."""
    seen: dict[tuple[str, str], StokerError] = {}
    for problem in problems:
        seen.setdefault((problem.code, problem.where), problem)
    return list(seen.values())


def _secrets(document: Document) -> list[StokerError]:
    """A token or password in a run file would travel into every copy of it."""

    def walk(value: Any, path: KeyPath) -> list[StokerError]:
        if isinstance(value, dict):
            return [p for key, inner in value.items() for p in walk(inner, (*path, key))]
        if isinstance(value, list):
            return [p for i, inner in enumerate(value) for p in walk(inner, (*path, i))]
        if isinstance(value, str) and _SECRET.search(value):
            return [StokerError("STK115", document.where(path))]
        return []

    return walk(document.values, ())


def _conflicts(run: Run, document: Document) -> list[StokerError]:
    """Words that are right alone and wrong together."""
    problems = []

    def conflict(path: KeyPath, code: str, **fields: Any) -> None:
        problems.append(StokerError(code, document.where(path), **fields))

    if isinstance(run.model, Shape):
        problems += _shape_conflicts(run, run.model, document)
    elif isinstance(run.tokenizer, TrainTokenizer):
        conflict(("tokenizer",), "STK134")
    if run.save.best and not run.data.eval:
        conflict(("save", "best"), "STK135")
    if run.save.best and run.train.eval_every == "never":
        conflict(("train", "eval_every"), "STK135")
    if run.where.place == "ssh" and not run.where.host:
        conflict(("where", "host"), "STK136")
    return problems


def _shape_conflicts(run: Run, shape: Shape, document: Document) -> list[StokerError]:
    problems = []
    if run.tune.method != "full":
        problems.append(StokerError("STK130", document.where(("tune", "method")), method=run.tune.method))
    if run.tokenizer == "auto":
        problems.append(StokerError("STK131", document.where(("tokenizer",))))
    if shape.width % shape.heads:
        where = document.where(("model", "heads"))
        problems.append(StokerError("STK132", where, width=shape.width, heads=shape.heads))
    if shape.kv_heads and shape.heads % shape.kv_heads:
        where = document.where(("model", "kv_heads"))
        problems.append(StokerError("STK133", where, heads=shape.heads, kv_heads=shape.kv_heads))
    return problems
