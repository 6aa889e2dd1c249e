"""`stoker join`: this machine takes part in a run that another one decides about."""

import sys

from stoker import env
from stoker.cli.prepare_command import ensure_prepared
from stoker.cluster import assemble, node_daemon
from stoker.config import load
from stoker.launch import programs
from stoker.rundir import layout
from stoker.rundir.layout import RunDir


def join(name: str, overrides: list[str]) -> None:
    """Make ready what a rank reads here, then do as the deciding machine says until the run is over."""
    run_file = load.load(name, overrides)
    programs.check_engine()
    with run_file.located():
        if env.read(env.MEETING):  # a folder that all share: the deciding machine sees to it
            run_dir = RunDir(layout.runs_folder() / str(run_file.run.name))
            assemble.awaited(run_dir)
        else:
            run_dir = layout.create(run_file, overrides)
            ensure_prepared(run_dir)
        sys.exit(node_daemon.serve(run_dir.path))
