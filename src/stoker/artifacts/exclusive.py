"""Work on a finished run that only one command at a time may do: each kind has a lock in the run directory.

The operating system gives a lock back when its process ends, however it ends. A process does not take one twice: the
end of the inner block would give it back. So commands take them, and what they call does not.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from stoker.errors import StokerError
from stoker.rundir import lock
from stoker.rundir.layout import RunDir


def making(run_dir: RunDir) -> AbstractContextManager[None]:
    """Artifacts are made, compared and accepted, and copied from where they are."""
    return _alone(run_dir.path / "artifacts.lock", StokerError("STK605", name=run_dir.name))


def publishing(run_dir: RunDir) -> AbstractContextManager[None]:
    """A staging folder is sent; meanwhile other artifacts may be made."""
    return _alone(run_dir.path / "publish.lock", StokerError("STK539", name=run_dir.name))


def evaluating(run_dir: RunDir) -> AbstractContextManager[None]:
    """The model is measured: the figures are read from the events of the run. A training may go on."""
    return _alone(run_dir.path / "eval.lock", StokerError("STK525", name=run_dir.name))


def serving_lock(run_dir: RunDir) -> Path:
    """Held from the look for a running server to the record of a new one."""
    return run_dir.path / "serve.lock"


def starting_server(run_dir: RunDir) -> AbstractContextManager[None]:
    """A server is started, unless there is one."""
    return _alone(serving_lock(run_dir), StokerError("STK606", name=run_dir.name))


@contextmanager
def _alone(path: Path, refusal: StokerError) -> Iterator[None]:
    with lock.held(path) as is_alone:
        if not is_alone:
            raise refusal
        yield
