"""A run whose model writes answers: what every command of a finished model needs, but for `eval`."""

from stoker.config import objectives
from stoker.errors import StokerError
from stoker.rundir import layout
from stoker.rundir.layout import RunDir


def find(name: str, command: str) -> RunDir:
    """The run of that name, for a command that needs a model that writes."""
    return require(layout.find(name), command)


def require(run_dir: RunDir, command: str) -> RunDir:
    """Refuse the run of a reward model.

    Raises:
        StokerError: STK444.
    """
    if _scores(run_dir):
        raise StokerError("STK444", name=run_dir.name, command=command, path=run_dir.final)
    return run_dir


def _scores(run_dir: RunDir) -> bool:
    try:
        return objectives.facts(run_dir.run().train.objective).scores
    except (StokerError, OSError):  # what is wrong with its run file is said by whoever needs that
        return False
