"""Starts the program that keeps a run's lease on its store, beside the supervisor."""

import subprocess
import sys

from stoker import env
from stoker.rundir.layout import RunDir
from stoker.supervise import group


def start(run_dir: RunDir) -> None:
    """Start it in a session of its own, where the run has a store; a second one ends at once."""
    if run_dir.run().save.store is None:
        return
    run_dir.logs.mkdir(parents=True, exist_ok=True)
    with (run_dir.logs / "store.log").open("ab") as output:
        subprocess.Popen(  # noqa: S603  # our own program, no shell
            [sys.executable, "-X", "utf8", "-m", "stoker.store.keep", str(run_dir.path.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env.child_environment({}),
            **group.DETACHED,
        )
