"""From a file name (or a recipe's name) and overrides to a frozen `Run`; all problems of a file at once."""

import difflib
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stoker import messages, plugins
from stoker.config import (
    columns,
    dataset_info,
    mixing,
    native,
    objective_conflicts,
    objectives,
    pipeline_steps,
    problems,
    reader,
    syntax,
)
from stoker.config.data_section import Source
from stoker.config.reader import Document, KeyPath
from stoker.config.run import Run, Shape, TrainTokenizer
from stoker.errors import ClosestNames, StokerError, StokerErrors, checked_name
from stoker.plugins import Plugin

_OTHER_TRAINERS = {"model_name_or_path": "LLaMA-Factory", "base_model": "axolotl"}
"""Keys for the model in files that `stoker init --from` reads."""
_ABOUT = {
    "STK173": "data.train",
    "STK188": "model",
    "STK201": "train.batch",
    "STK205": "model",
    "STK206": "data",
    "STK207": "where.micro",
    "STK208": "where.gpus",
    "STK210": "where.precision",
    "STK212": "where.attention",
    "STK214": "data.length",
    "STK215": "{word}",
    "STK216": "{word}",
    "STK217": "native.deepspeed",
    "STK218": "where.processes",
    "STK219": "native.deepspeed",
    "STK220": "where.strategy",
    "STK225": "tune.method",
    "STK231": "model",
    "STK232": "model",
    "STK233": "tune.targets",
    "STK234": "tune.dropout",
    "STK238": "model",
    "STK247": "where.gradient_checkpointing",
    "STK248": "where.kernels",
    "STK301": "data.train",
    "STK304": "data.train",
    "STK305": "data.length",
    "STK244": "tokenizer",
    "STK307": "data.eval",
    "STK309": "data.train",
    "STK310": "data.train",
    "STK312": "tokenizer",
    "STK315": "data.train",
    "STK331": "data.pipeline",
    "STK316": "tokenizer.vocab",
    "STK330": "data.train",
    "STK361": "data.train",
    "STK362": "data.train",
    "STK363": "data.train",
    "STK364": "data.train",
    "STK378": "data.eval",
    "STK413": "model",
    "STK465": "{word}",
    "STK526": "native.trainer.report_to",
    "STK527": "native.trainer.report_to",
    "STK671": "budget.money",
    "STK704": "data.train",
    "STK710": "where.place",
}
"""The word of the run file that an error of a later room is about; `{word}` where the error names it."""
_DATA_PREFIXES = ("modelscope:", "hub:")
"""How data of a hub is named; a model of the hub has no prefix."""


@dataclass(frozen=True)
class RunFile:
    """A run file as read: its text, its place, and the `Run` it asks for."""

    name: str
    folder: Path
    """Relative data paths start here."""
    text: str
    run: Run
    document: Document
    """The values and lines behind `run`."""
    overrides: tuple[str, ...] = ()
    """`key.path=value`, as they were given."""
    renamed: str = ""
    """What a recipe is called now, where it was asked for by an old name."""
    plugin_file: Path | None = None
    """The file of a recipe that another package provides."""

    @contextmanager
    def located(self) -> Iterator[None]:
        """Gives errors of the rooms above the line of the word they are about."""
        try:
            yield
        except StokerError as error:
            for one in error.errors:
                self._locate(one)
            error.where = error.errors[0].where
            raise

    def _locate(self, error: StokerError) -> None:
        if not error.where and error.code in _ABOUT:
            named = [path for path, value in _leaves(self.document.values) if value == error.fields.get("path", "")]
            about = _ABOUT[error.code].format(**error.fields)
            error.where = self.document.where(named[0] if named else tuple(about.split(".")))


RENAMED = {
    "lora_20k": "lora_medical_20k",
    "lora_50k": "lora_medical_50k",
    "lora_100k": "lora_medical_100k",
    "paper_r64": "lora_qwen2.5_7b_rank64",
    "pretrained_r320": "lora_qwen2.5_7b_rank320",
    "scratch_32k": "scratch_own_text",
}
"""Old names of recipes, which still work; a run asked for by one keeps it, so that the same command resumes it."""


def recipe_card(text: str) -> str:
    """The card that a recipe's text is written for; empty if it names none."""
    return next((line.removeprefix("# card: ") for line in text.splitlines() if line.startswith("# card: ")), "")


def recipe_names() -> list[str]:
    """Names of the recipes that ship with Stoker."""
    return sorted(path.stem for path in recipes_folder().glob("*.yaml"))


def recipes_folder() -> Path:
    """The folder of shipped recipes, as a path on disk."""
    return Path(str(resources.files("stoker.config").joinpath("recipes")))


def load(name: str, overrides: Sequence[str] = (), given_by: str = "--set") -> RunFile:
    """Read a run file or recipe.

    Args:
        name: Path of a YAML file, or a recipe's name.
        overrides: `key.path=value`, as `--set` takes them.
        given_by: What errors name them by.
    """
    path = Path(name)
    read = functools.partial(_load, overrides=overrides, given_by=given_by)
    if _exists(path):
        whole = checked_name(path.resolve().parent / path.name)
        return read(path, path.stem, path.name, whole.parent)
    # A recipe's paths are the user's, named from the working directory; files shipped with it are `recipe:...`.
    if name in recipe_names():
        return read(recipes_folder() / f"{name}.yaml", name, f"{name}.yaml", Path.cwd())
    if now := RENAMED.get(name):
        run_file = read(recipes_folder() / f"{now}.yaml", name, f"{now}.yaml", Path.cwd())
        return replace(run_file, renamed=now)
    if plugin := plugins.offered(plugins.RECIPES).get(name):
        file = _plugin_file(plugin)
        run_file = read(file, name, f"{name}.yaml ({plugin.source})", Path.cwd())
        return replace(run_file, plugin_file=file)
    raise StokerError("STK101", path=problems.shown(name), nearest=_nearest(path))


def _load(path: Path, name: str, label: str, folder: Path, *, overrides: Sequence[str], given_by: str) -> RunFile:
    text = reader.read_text(path)
    run, document = _read(text, label, overrides, given_by)
    if run.name is None:
        run = run.model_copy(update={"name": run_name(name)})
    return RunFile(label, folder, text, run, document, tuple(overrides))


def _plugin_file(plugin: Plugin) -> Path:
    """The run file of another package's recipe: its entry point names a path."""
    path = plugin.load()
    if not isinstance(path, Path) or not path.is_file():
        raise plugin.broken(messages.text("plugin.no_file", found=problems.shown(str(path))))
    return path


def _exists(path: Path) -> bool:
    """Whether there is such a file; what cannot be a file's name (too long, or with a null in it) is none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _nearest(path: Path) -> list[str]:
    """Recipes and run files beside `path` that may have been meant, else the first recipes."""
    beside = path.parent.glob("*.y*ml") if _exists(path.parent) else ()
    offered = plugins.offered(plugins.RECIPES)
    names = [*(str(file) for file in sorted(beside)), *recipe_names(), *offered]
    same = [one for one in names if Path(one).stem == path.stem]
    near = same or difflib.get_close_matches(str(path)[:200], names, n=3, cutoff=0.5)
    near = near or [*recipe_names()[:3], *offered]
    return [offered[one].choice if one in offered else f"`{one}`" for one in near]


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> Run:
    """A run file's text to a `Run`."""
    return _read(text, name, overrides)[0]


def again(
    text: str, name: str, folder: Path, overrides: Sequence[str], run_name: str, given_by: str = "--set"
) -> RunFile:
    """A run file from the copy that a run directory keeps."""
    run, document = _read(text, name, overrides, given_by)
    return RunFile(name, folder, text, run.model_copy(update={"name": run_name}), document, tuple(overrides))


def _read(text: str, name: str, overrides: Sequence[str], given_by: str = "--set") -> tuple[Run, Document]:
    document = replace(reader.parse(text, name), given_by=given_by)
    if not isinstance(document.values, dict):
        raise _no_mapping(document)
    for sign, dialect in _OTHER_TRAINERS.items():
        if sign in document.values and "model" not in document.values:
            raise StokerError("STK189", document.where((sign,)), dialect=dialect, path=name)
    raise_all([problem for problem in (_apply(document, override) for override in overrides) if problem])
    found = _secrets(document, text) + _wide_quotes(document) + native.check(document) + pipeline_steps.check(document)
    try:
        run = Run.model_validate(document.values)
    except ValidationError as error:
        raise StokerErrors(_in_order(found + problems.translate(error, document), name)) from None
    raise_all(_in_order(found + _conflicts(run, document), name))
    return run, document


def raise_all(found: Sequence[StokerError]) -> None:
    """Raise all problems at once, if there are any."""
    if found:
        raise StokerErrors(found)


def _in_order(found: list[StokerError], name: str) -> list[StokerError]:
    """By line; what `--set` gave goes first."""
    lines = (re.match(re.escape(name) + r":(\d+)", problem.where) for problem in found)
    keyed = sorted(enumerate(int(line.group(1)) if line else 0 for line in lines), key=lambda one: (one[1], one[0]))
    return [found[index] for index, _ in keyed]


def _no_mapping(document: Document) -> StokerError:
    if isinstance(document.values, str) and (sentence := syntax.mistyped(document.values)):
        return syntax.invalid(document.where(()), sentence)
    return StokerError("STK118", document.where(()))


def run_name(stem: str) -> str:
    """A run's name from its file's name; a digest distinguishes names with characters that are replaced."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip(".-_")[:80]
    if stem.isascii():
        return cleaned or "run"
    return f"{cleaned or 'run'}-{hashlib.sha256(stem.encode()).hexdigest()[:6]}"


def _apply(document: Document, override: str) -> StokerError | None:
    """Put one `--set key.path=value` into the document's values."""
    key, equals, raw = override.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or not all(parts):
        return StokerError("STK113", f"{document.given_by} {override}", override=override)
    value = reader.parse(raw, f"{document.given_by} {key}").values if raw.strip() else None
    target = document.values
    for depth, part in enumerate(parts[:-1], 1):
        if not isinstance(target.get(part), dict):
            target[part] = {}
            _forget(document, parts[:depth])
        target = target[part]
    target[parts[-1]] = value
    _forget(document, parts)
    return None


def _forget(document: Document, path: KeyPath) -> None:
    """A key that an override gave has no line in the file, nor has anything below it."""
    for known in [known for known in document.lines if known[: len(path)] == path]:
        del document.lines[known]
    document.lines[path] = 0


def _secrets(document: Document, text: str) -> list[StokerError]:
    """A token or password in a run file would travel into every copy of it; in a comment, too."""
    found = [
        document.where(path)
        for path, value in _leaves(document.values)
        if isinstance(value, str) and problems.SECRET.search(value)
    ]
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{document.name}:{number}"
        if problems.SECRET.search(line) and not any(f"{one}:".startswith(f"{where}:") for one in found):
            found.append(where)
    return [StokerError("STK115", where) for where in found]


def _wide_quotes(document: Document) -> list[StokerError]:
    leaves = ((path, value) for path, value in _leaves(document.values) if isinstance(value, str))
    said = ((path, syntax.in_wide_quotes(value)) for path, value in leaves)
    return [syntax.invalid(document.where(path), sentence) for path, sentence in said if sentence]


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value that is no mapping and no list, with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, value


def _conflicts(run: Run, document: Document) -> list[StokerError]:
    """Words that are right alone and wrong together."""
    found = []

    def conflict(path: KeyPath, code: str, **fields: Any) -> None:
        found.append(StokerError(code, document.where(path), **fields))

    if isinstance(run.model, Shape):
        found += _shape_conflicts(run, run.model, document)
    elif prefix := next((one for one in _DATA_PREFIXES if run.model.startswith(one)), ""):
        conflict(("model",), "STK154", prefix=prefix, name=run.model.removeprefix(prefix))
    elif isinstance(run.tokenizer, TrainTokenizer):
        conflict(("tokenizer",), "STK134")
    if run.save.best and not run.data.eval:
        conflict(("save", "best"), "STK135")
    if run.save.best and run.train.eval_every == "never":
        conflict(("train", "eval_every"), "STK135")
    for block, methods in (("lora", ("lora", "qlora")), ("quantization", ("qlora",))):
        if getattr(run.native, block) and run.tune.method not in methods:
            listed = [f"`{one}`" for one in methods]
            conflict(("native", block), "STK137", key=f"native.{block}", methods=listed, method=run.tune.method)
    found += mixing.conflicts(run, document) + objective_conflicts.conflicts(run, document)
    found += _data_conflicts(run, document)
    return found + _host_conflicts(run, document) + _schedule_conflicts(run, document) + _in_bf16(run, document)


def _in_bf16(run: Run, document: Document) -> list[StokerError]:
    """What weights in bf16 do not go with."""
    if run.train.precision != "bf16":
        return []
    others = {
        "tune.method": (run.tune.method, "full"),
        "train.optimizer": (run.train.optimizer, "adamw"),
        "where.precision": (run.where.precision.replace("auto", "bf16"), "bf16"),
    }
    where = document.where(("train", "precision"))
    return [
        StokerError("STK246", where, word=word, asked=asked, needed=needed)
        for word, (asked, needed) in others.items()
        if asked != needed
    ]


def _data_conflicts(run: Run, document: Document) -> list[StokerError]:
    """Rows to prepare or a set that is prepared already; only a set is streamed."""
    if (run.data.train is None) == (run.data.set is None):
        return [StokerError("STK167", document.where(("data",)))]
    if run.data.stream and run.data.set is None:
        return [StokerError("STK168", document.where(("data", "stream")))]
    rows_only = {"pipeline": run.data.pipeline is not None, "duplicates": run.data.duplicates == "drop"}
    if run.data.set is not None and any(rows_only.values()):
        word = next(word for word, asked in rows_only.items() if asked)
        return [StokerError("STK163", document.where(("data", word)), key=f"data.{word}", other="data.set")]
    if run.data.stream and isinstance(run.data.set, list):
        return [StokerError("STK169", document.where(("data", "stream")))]
    return _column_conflicts(run, document)


def _column_conflicts(run: Run, document: Document) -> list[StokerError]:
    """Columns that make no row, and words that would not agree with them."""
    train = run.data.train
    several = (
        [(("data", "train", number), one.columns) for number, one in enumerate(train)]
        if isinstance(train, list)
        else []
    )
    alone = [(("data", "train"), train.columns)] if isinstance(train, Source) else []
    given = [((*place, "columns"), one) for place, one in ((("data",), run.data.columns), *alone, *several) if one]
    found = [
        StokerError(
            "STK171", document.where(place), given=[f"`{name}`" for name, value in one if value is not None] or "-"
        )
        for place, one in given
        if columns.layout_of(one) in ((None,) if objectives.facts(run.train.objective).prompts else (None, "prompt"))
    ]
    for word, is_set in (("format", run.data.format != "auto"), ("pipeline", run.data.pipeline), ("set", run.data.set)):
        if given and is_set:
            found.append(StokerError("STK163", document.where(given[0][0]), key="data.columns", other=f"data.{word}"))
    listed = [one for one in mixing.sources(run.data) if dataset_info.is_named(one.path)]
    if listed and run.data.pipeline:
        found.append(StokerError("STK172", document.where(("data", "pipeline")), path=listed[0].path))
    return found


def _host_conflicts(run: Run, document: Document) -> list[StokerError]:
    found, host, several = [], run.where.host, run.where.hosts or []
    # Stated, it is meant: on the machine that a run was sent to, its place is `local`.
    if "place" not in run.where.model_fields_set and (host or several):
        where = document.where(("where", "hosts" if several else "host"))
        found.append(StokerError("STK141", where, host=host or several[0]))
    if run.where.place == "ssh" and not host and not several:
        found.append(StokerError("STK136", document.where(("where", "host"))))
    if several and (host or len(several) < 2 or len(set(several)) < len(several)):
        found.append(StokerError("STK140", document.where(("where", "hosts"))))
    return found


def _schedule_conflicts(run: Run, document: Document) -> list[StokerError]:
    """Options in `lr_scheduler_kwargs` that the schedule does not have."""
    given = run.native.trainer.get("lr_scheduler_kwargs")
    known = native.schedule_options(run.train.schedule)
    fields = {"block": "trainer.lr_scheduler_kwargs", "nearest": ClosestNames(known)}
    return [
        StokerError("STK111", document.where(("native", "trainer", "lr_scheduler_kwargs", name)), option=name, **fields)
        for name in (given if isinstance(given, dict) else ())
        if name not in known
    ]


def _shape_conflicts(run: Run, shape: Shape, document: Document) -> list[StokerError]:
    found = []
    if run.tune.method != "full":
        found.append(StokerError("STK130", document.where(("tune", "method")), method=run.tune.method))
    if run.tokenizer == "auto":
        found.append(StokerError("STK131", document.where(("tokenizer",))))
    if shape.width % shape.heads:
        found.append(StokerError("STK132", document.where(("model", "heads")), width=shape.width, heads=shape.heads))
    if shape.kv_heads and shape.heads % shape.kv_heads:
        where = document.where(("model", "kv_heads"))
        found.append(StokerError("STK133", where, heads=shape.heads, kv_heads=shape.kv_heads))
    return found
