"""Recipes at the terminal: the list of them, and the new name of one that was asked for by an old one."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from stoker import messages
from stoker.config import load
from stoker.config.load import RunFile
from stoker.rundir import layout
from stoker.terminal import console


def named(name: str, overrides: Sequence[str]) -> RunFile:
    """A run file or recipe; says what a recipe is called now, and what a new run is called if not as its file."""
    run_file = load.load(name, overrides)
    run, stem = run_file.run.name or "", Path(run_file.name).stem
    if run != stem and run == load.run_name(stem) and not layout.named(run).manifest_file.exists():
        console.talk("run.named", name=run, asked=stem)
    if run_file.renamed:
        console.talk("recipe.renamed", old=name, new=run_file.renamed)
    return run_file


def show(*, as_json: bool) -> None:
    """Print every recipe: what it is for, its model, method and card."""
    before = {new: old for old, new in load.RENAMED.items()}
    rows = []
    for name in load.recipe_names():
        read = load.load(name)
        model = read.run.model if isinstance(read.run.model, str) else read.run.model.shape
        card = load.recipe_card(read.text)
        rows.append({"name": name, "model": model, "method": read.run.tune.method, "card": card, "for": _purpose(read)})
        rows[-1]["formerly"] = before.get(name, "")
    if as_json:
        console.data_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for head in ("recipes.name", "recipes.card"):
        table.add_column(messages.text(head), no_wrap=True)
    table.add_column(messages.text("recipes.for"), overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["card"], row["for"])
    console.table(table)


def _purpose(read: RunFile) -> str:
    """The first sentence of a recipe's comment, in the user's language."""
    chinese = messages.language() == "zh"
    lines = [line for line in read.text.splitlines() if line.startswith("# ") and not line.startswith("# card: ")]
    if chinese:
        return "".join(line.removeprefix("# zh: ") for line in lines if line.startswith("# zh: ")).partition("。")[0]
    words = " ".join(line.removeprefix("# ") for line in lines if not line.startswith("# zh: "))
    return words.partition(". ")[0].rstrip(".")
