"""`stoker init`: five questions, then a commented run file. Answers are lines of standard input, or all defaults."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stoker.config import load
from stoker.errors import StokerError, closest
from stoker.facts import cards, machine
from stoker.rundir import inputs
from stoker.terminal import console, starter
from stoker.terminal.starter import SIZES, Answers, Size, Target

T = TypeVar("T")

_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
_EXAMPLES, _TEXT = "data/train.jsonl", "data/train.txt"
_HERE = ("", "1", "local")


def init(name: str, *, defaults: bool) -> None:
    """Write a run file.

    Args:
        name: The file to write; one that exists is never touched.
        defaults: Ask nothing.
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
    _write(path, text)
    console.talk("init.chosen", what=f"objective: {guessed.objective}", why=guessed.objective_reason.text)
    console.talk("init.chosen", what=f"tune: {guessed.method}", why=guessed.method_reason.text)
    if remark := starter.family_remark(answers.model, guessed.method, folder):
        console.talk(remark.key, **remark.fields)
    card = f" --card {answers.target.card}" if answers.target.card else ""
    key = "init.written" if guessed.rows else "init.written_without_data"
    commands = {verb: f"stoker {verb} {name}" for verb in ("prepare", "train")}
    console.talk(key, path=path, plan=f"stoker plan {name}{card}", **commands)


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
        model = ask(lambda answer: answer or _MODEL, "init.model", default=_MODEL)
    default = _TEXT if scratch else _EXAMPLES
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
            listed = [f"{number} ({option})" for number, option in numbered.items()]
            raise StokerError("STK108", given=f"`{answer}`", choices=listed, nearest=closest(answer.lower(), options))
        return chosen

    return read


def _data_path(answer: str, folder: Path) -> str:
    """The path as the run file has it: from its own folder. A file named from the current folder is found too."""
    if inputs.is_remote(answer):
        return answer
    path = Path(answer)
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


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise StokerError("STK504", path=path) from error
