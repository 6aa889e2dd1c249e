"""`stoker init --from`: another trainer's file as a run file, and what became of each of its keys."""

from pathlib import Path

from stoker.cli import init_command
from stoker.config import load
from stoker.errors import StokerError
from stoker.migrate import dialects, run_file
from stoker.rundir import inputs
from stoker.terminal import console


def migrate(theirs: str, name: str, devices: int | None, *, as_json: bool) -> None:
    """Write a run file.

    Args:
        theirs: LLaMA-Factory's or axolotl's YAML.
        name: The file to write; one that exists is never touched.
        devices: How many GPUs theirs was trained on; 1 unless told.
        as_json: Print what became of the keys, and the commands that come next.
    """
    path = Path(name)
    if path.exists():
        raise StokerError("STK504", path=path)
    read = dialects.read(Path(theirs), path, devices or 1)
    path.resolve().parent.mkdir(parents=True, exist_ok=True)
    init_command.write_new(path, read.text)
    counts = {outcome: len(read.of(outcome)) for outcome in ("carried", "equal", "decided", "own")}
    console.talk("migrate.summary", dialect=read.dialect, total=read.keys, left=len(read.not_carried), **counts)
    for heading, findings in (("migrate.differs", read.not_carried), ("migrate.beside", read.beside)):
        if findings:
            console.talk(heading)
        for finding in findings:
            console.sentence(run_file.describe(finding), indent="  ", screen=console.stderr)
    if devices is None:
        console.talk("migrate.batch", batch=read.batch, devices=1)
    commands = {verb: f"stoker {verb} {name}" for verb in ("prepare", "plan", "train")}
    console.talk("init.written" if _has_data(name) else "init.written_without_data", path=path, **commands)
    if as_json:
        outcomes = {one.key: one.outcome for one in read.findings}
        console.data_json({"path": str(path), "dialect": read.dialect, "keys": outcomes, "commands": commands})


def _has_data(name: str) -> bool:
    """Whether every file that the run file names is there; what is on a hub is not looked for."""
    run_file = load.load(name)
    try:
        for path, kinds in inputs.named(run_file.run):
            if not inputs.is_remote(path):
                inputs.expand(path, run_file.folder, kinds)
    except StokerError:
        return False
    return True
