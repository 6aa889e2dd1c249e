"""`stoker bundle`: a run as one zip and a notebook of three cells, for places that offer no ssh."""

from pathlib import Path

from stoker.api import preparation
from stoker.api.figures import size
from stoker.cli.prepare_command import ensure_prepared
from stoker.errors import StokerError
from stoker.launch import programs
from stoker.places import bundle as bundles
from stoker.places import package
from stoker.rundir.layout import RunDir
from stoker.terminal import console, recipe_table


def bundle(name: str, overrides: list[str], folder: str, *, as_json: bool) -> None:
    """Pack a run file or recipe."""
    run_file = recipe_table.named(name, overrides)
    with run_file.located(), preparation.created(run_file) as run_dir:
        _prepare(run_dir)
        packed = package.make(name, run_file, overrides)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    made = bundles.make(packed, run_file.run, target / f"{packed.name}.zip")
    page = target / f"{packed.name}.ipynb"
    bundles.write(made, run_file.run, page)
    names = bundles.secret_names(run_file.run)
    if names:
        console.talk("bundle.secrets", names=names)
    if run_file.run.save.store is None:
        console.talk("bundle.no_store")
    console.talk("bundle.done", path=made.path, size=size(made.path.stat().st_size), notebook=page)
    if as_json:
        console.data_json({"bundle": str(made.path), "notebook": str(page), "digest": made.digest, "secrets": names})


def _prepare(run_dir: RunDir) -> None:
    """Tokenise before the meter runs, if this machine can."""
    try:
        programs.check_engine()
    except StokerError:
        console.talk("bundle.not_prepared")
        return
    ensure_prepared(run_dir)
