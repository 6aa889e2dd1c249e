"""`stoker init`: five questions, then a commented run file. Answers are lines of standard input, or all defaults."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stoker import messages
from stoker.config import dataset_info, load
from stoker.errors import StokerError, closest, is_utf8
from stoker.facts import cards, machine, shapes
from stoker.rundir import inputs
from stoker.terminal import console, starter
from stoker.terminal.starter import SIZES, Answers, Size, Target

T = TypeVar("T")

_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
_EXAMPLES, _TEXT = "data/train.jsonl", "data/train.txt"
_ROWS = {".jsonl", ".csv", ".parquet"}
"""Files that hold rows; a `.json` may hold anything."""
_HERE = ("", "1", "local")
_ABSENT = ("init.why.absent", "init.why.beside", "init.why.remote")
"""Why the data was not looked at: there is nothing to mend in it."""


def init(name: str, *, defaults: bool, as_json: bool) -> None:
    """Write a run file.

    Args:
        name: The file to write; one that exists is never touched.
        defaults: Ask nothing.
        as_json: Print what was chosen, and the commands that come next.
    """
    path = Path(name)
    if path.exists():
        raise StokerError("STK504", path=path)
    folder = path.resolve().parent
    answers = _ask_all(_Asking(defaults=defaults), folder)
    folder.mkdir(parents=True, exist_ok=True)
    guessed = starter.guess(answers, folder)
    text = starter.compose(answers, guessed, name)
    load.parse(text, path.name)
    write_new(path, text)
    for note in guessed.notes:
        console.talk(note.key, **note.fields)
    for what, why in starter.chosen(guessed):
        console.talk("init.chosen", what=what, why=why.text)
    if remark := starter.family_remark(answers.model, guessed.method, folder):
        console.talk(remark.key, **remark.fields)
    card = f" --card {answers.target.card}" if answers.target.card else ""
    key = "init.written" if guessed.seen and guessed.seen.lengths else "init.written_unread"
    if guessed.unseen and guessed.unseen.key in _ABSENT:
        key = "init.written_without_data"
    if guessed.method_reason.key == starter.TOO_LARGE:
        key = "init.written_too_large"
    commands = {verb: f"stoker {verb} {name}" for verb in ("prepare", "train")}
    commands = {"plan": f"stoker plan {name}{card}", **commands}
    console.talk(key, path=path, file=name, machine=answers.target.name, **commands)
    if as_json:
        chosen = {"objective": guessed.objective, "method": guessed.method, "data_found": guessed.seen is not None}
        console.data_json({"path": str(path), **chosen, "commands": commands})


class _Asking:
    """Asks a question until its answer can be read; without a terminal a wrong answer is an error."""

    def __init__(self, *, defaults: bool) -> None:
        self._defaults = defaults

    def __call__(self, read: Callable[[str], T], key: str, /, **fields: Any) -> T:
        while True:
            if not self._defaults:
                console.talk(key, **fields)
            try:
                return read("" if self._defaults else console.ask().strip())
            except StokerError as error:
                if not sys.stdin.isatty():
                    raise
                console.show_error(error)


def _ask_all(ask: _Asking, folder: Path) -> Answers:
    scratch = ask(_choice("examples", "scratch"), "init.what") == "scratch"
    model: str | Size
    if scratch:
        weights = {name: f"{size.weights() / 1e6:.0f}" for name, size in SIZES.items()}
        model = SIZES[ask(_choice(*SIZES), "init.size", **weights)]
    else:
        model = ask(lambda answer: _model(answer or _MODEL, folder), "init.model", default=_MODEL)
    default = _TEXT if scratch else _only_rows(folder) or _EXAMPLES
    data = ask(lambda answer: _data_path(answer or default, folder), "init.data", default=default, folder=folder)
    here = _this_machine()
    target = ask(lambda answer: here if answer.lower() in _HERE else _card(answer), "init.where", machine=here.name)
    full = ask(_choice("try", "full"), "init.goal") == "full"
    return Answers(model, data, target, full)


def _choice(*options: str) -> Callable[[str], str]:
    """Reads an option by its number or name; the first is the default."""

    def read(answer: str) -> str:
        numbered = {str(number): option for number, option in enumerate(options, start=1)}
        chosen = numbered.get(answer, answer.lower()) or options[0]
        if chosen not in options:
            meant = {number: messages.text(f"init.option.{option}") for number, option in numbered.items()}
            listed = [messages.text("init.option", number=number, meaning=text) for number, text in meant.items()]
            raise StokerError("STK108", given=f"`{answer}`", choices=listed, nearest=closest(answer.lower(), options))
        return chosen

    return read


def _model(answer: str, folder: Path) -> str:
    """The model as the run file has it. A folder without one is refused; the name of a hub is not looked up."""
    if answer.startswith(inputs.EARLIER_RUN):
        inputs.model_path(answer, folder)  # refuses a run that has made no whole model
        return answer
    if prefix := next((one for one in inputs.REMOTE if answer.startswith(one)), ""):
        raise StokerError("STK154", prefix=prefix, name=answer.removeprefix(prefix))
    named = _expanded(answer)
    path = named.resolve() if named.exists() else folder / named
    if "://" in answer or (not path.exists() and not shapes.can_only_be_folder(answer, folder)):
        return answer  # what no hub has is refused by `plan`
    inputs.model_path(str(path), folder)  # refuses an adapter
    if not (path / "config.json").is_file():
        raise StokerError("STK465", path=path, folder=folder, nearest=shapes.nearest(answer, folder))
    return _from_folder(named, folder)


def _expanded(answer: str) -> Path:
    try:
        return Path(answer).expanduser()
    except RuntimeError:  # nobody of that name has a home
        return Path(answer)


def _data_path(answer: str, folder: Path) -> str:
    """The path as the run file has it: from its own folder. A file named from the current folder is found too."""
    if inputs.is_remote(answer):
        return answer
    # Of a set in a list, the path is the list's.
    path, mark, name = answer.rpartition("#") if dataset_info.is_named(answer) else (answer, "", "")
    written = _from_folder(Path(path), folder) + mark + name
    try:
        inputs.expand(written, folder)
    except StokerError as error:
        if error.code in ("STK173", "STK361", "STK362", "STK363"):  # of a list: another name is asked for
            raise
    return written


def _only_rows(folder: Path) -> str:
    """The one file of rows in the folder, where there is none at the usual place."""
    if (folder / _EXAMPLES).exists() or not folder.is_dir():
        return ""
    found = [path.name for path in folder.iterdir() if inputs.kind(path) in _ROWS and path.is_file()]
    found = [name for name in found if not name.startswith(".")]
    return found[0] if len(found) == 1 and is_utf8(found[0]) else ""


def _from_folder(path: Path, folder: Path) -> str:
    if (folder / path).exists() or not path.exists():
        return path.as_posix()
    if path.resolve().anchor == folder.anchor:
        return Path(os.path.relpath(path, folder)).as_posix()
    return path.resolve().as_posix()


def _this_machine() -> Target:
    here = machine.examine()
    return Target(here.name, here.kind, here.memory_per_device, card=None)


def _card(answer: str) -> Target:
    card = cards.find(answer)
    return Target(card.name, "mps" if card.kind == "mps" else "cuda", card.memory_bytes, card.name)


def write_new(path: Path, text: str) -> None:
    """Write a run file; one that exists is never touched."""
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise StokerError("STK504", path=path) from error
