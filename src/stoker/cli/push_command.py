"""`stoker push`: copy a run's newest checkpoint and records into its store. The supervisor does so after each save."""

import sys

from stoker.errors import EXIT_STOPPED, StokerError
from stoker.rundir import layout
from stoker.store import push as copying
from stoker.terminal import console


def push(name: str, *, as_json: bool) -> None:
    """Copy; ends with 0 where newest checkpoint and finished model stand verified in the store, 75 if not for now."""
    run_dir = layout.find(name)
    if run_dir.run().save.store is None:
        raise StokerError("STK661", name=run_dir.name)
    outcome = copying.push(run_dir)
    if as_json:
        console.data_json(outcome)
    elif not outcome["copied"]:
        console.talk("push.failed", reason=outcome["reason"])
    elif outcome["step"] is None:
        console.talk("push.nothing")
    else:
        console.talk("push.done", step=outcome["step"])
    if not outcome["copied"]:
        sys.exit(EXIT_STOPPED)
