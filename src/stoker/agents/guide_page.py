"""`stoker guide`: one page for coding agents, and the same as a skill. Commands, keys and errors are the code's own."""

import importlib.resources
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.config.run import Run
from stoker.rundir import files
from stoker.terminal import console

SKILL = "SKILL.md"
_NAME = "stoker"
_DESCRIPTION = (
    "Plan, train, fine-tune, verify, export and serve language models on local or rented GPUs with the `stoker` "
    "command. Use it to write or mend a Stoker run file (YAML), to say what a training will need and cost before "
    "anything is paid, to start, watch, stop or resume a run, and to read `STKnnn` errors."
)
_LICENCE = "Apache-2.0"
_ERROR = re.compile(r"\{(STK\d{3})\}")


def guide(root: Any, folder: str | None, *, as_json: bool) -> None:
    """Print the page, or write it as a skill.

    Args:
        root: The command line: its commands and their help.
        folder: Where skills are kept.
        as_json: Print the page as JSON text, or where the skill was written.
    """
    if folder is None:
        text = page(root, messages.language())
        if as_json:
            console.data_json({"page": text})
        else:
            console.data(text.rstrip("\n"))
        return
    path = Path(folder) / _NAME / SKILL
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, skill(root))
    console.talk("guide.written", path=path)
    if as_json:
        console.data_json({"path": str(path)})


def skill(root: Any) -> str:
    """The page with the front matter that agents find it by; in English, whatever the user's language is."""
    head = {"name": _NAME, "description": _DESCRIPTION, "license": _LICENCE}
    return "\n".join(["---", *(f"{key}: {text}" for key, text in head.items()), "---", "", page(root, "en")])


def page(root: Any, language: str) -> str:
    """The page in a language."""
    template = importlib.resources.files(__package__).joinpath(f"guide.{language}.md").read_text(encoding="utf-8")
    parts = {"{commands}": "\n".join(_commands(root, language)), "{keys}": "\n".join(_keys())}
    for mark, text in parts.items():
        template = template.replace(mark, text)
    catalogue = messages.CATALOGUES[language]
    return _ERROR.sub(lambda found: f"`{found[1]}` | {catalogue[found[1]]}", template)


def _commands(root: Any, language: str, before: str = "") -> Iterator[str]:
    """A line for each command, those of a group under their whole name."""
    for name, one in root.commands.items():
        if one.hidden:
            continue
        if hasattr(one, "commands"):
            yield from _commands(one, language, f"{before}{name} ")
        else:
            arguments = "".join(f" {_spelt(part)}" for part in one.params if part.param_type_name == "argument")
            yield f"- `{before}{name}{arguments}`: {messages.in_language(language, one.help)}"


def _spelt(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return str(name) if argument.required else f"[{name}]"


def _keys() -> Iterator[str]:
    """A line for each section of the run file: its keys, those of every method and kind together."""
    schema = Run.model_json_schema()
    alone = []
    for name, entry in schema["properties"].items():
        inner = sorted({key for model in _models(entry) for key in schema["$defs"][model]["properties"]})
        if inner:
            yield f"- `{name}`: " + ", ".join(f"`{key}`" for key in inner)
        else:
            alone.append(name)
    yield "- " + ", ".join(f"`{key}`" for key in alone)


def _models(entry: Any) -> Iterator[str]:
    """The models that a schema refers to, at any depth."""
    if isinstance(entry, dict):
        if "$ref" in entry:
            yield entry["$ref"].rpartition("/")[2]
        entry = list(entry.values())
    if isinstance(entry, list):
        for one in entry:
            yield from _models(one)
