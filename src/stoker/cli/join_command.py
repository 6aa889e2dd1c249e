"""`stoker join`: this machine takes part in a run whose head is another machine."""

import sys

from stoker import env
from stoker.api import preparation
from stoker.cli.prepare_command import ensure_prepared
from stoker.cluster import assemble, node_daemon
from stoker.launch import programs
from stoker.rundir import layout
from stoker.terminal import recipe_table


def join(name: str, overrides: list[str]) -> None:
    """Prepare the data here, then follow the head's orders until the run is over."""
    run_file = recipe_table.named(name, overrides)
    programs.check_engine()
    with run_file.located():
        if env.read(env.MEETING):  # in a shared folder the head prepares the data
            run_dir = layout.named(str(run_file.run.name))
            assemble.awaited(run_dir)
        else:
            with preparation.created(run_file) as run_dir:
                ensure_prepared(run_dir)
        sys.exit(node_daemon.serve(run_dir.path))
