"""`stoker train RUN --on sky`: writes SkyPilot's task file and says what to type. Nothing is started here."""

import shlex

from stoker.cli.prepare_command import ensure_prepared
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.launch import programs
from stoker.places import package, sky
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console


def emit(run_file: RunFile, name: str, overrides: list[str]) -> None:
    """Prepare where this machine can, choose a card, write the task."""
    with run_file.located():
        sky.check(run_file.run, run_file.folder)
        run_dir = layout.create(run_file, overrides)
        _prepare(run_dir)
        row = sky.machine(run_file, run_dir)
        if row is not None:
            console.talk("sky.card", card=row.card, count=row.devices)
        path = sky.write(run_file, package.make(name, run_file, overrides), run_dir, row)
    if run_file.run.where.after == "release" and not run_file.run.where.spot:
        verify, down = sky.release(run_dir.name, str(run_file.run.save.store))
        console.talk("sky.release", verify=verify, down=down)
    console.talk("sky.written", path=path)
    console.data(shlex.join(sky.command(run_file.run, path)))


def _prepare(run_dir: RunDir) -> None:
    """Tokenised before the meter runs, where this machine can."""
    try:
        programs.check_engine()
    except StokerError:
        console.talk("remote.not_prepared", host="sky")
        return
    ensure_prepared(run_dir)
