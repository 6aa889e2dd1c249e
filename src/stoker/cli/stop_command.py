"""`stoker stop`: ask a run to commit a checkpoint and end."""

from stoker.launch import training
from stoker.rundir import layout
from stoker.terminal import console
from stoker.terminal.progress import Progress, wait_a_little


def stop(name: str) -> None:
    """Ask the run to stop at the next step boundary, and wait until it has."""
    run_dir = layout.find(name)
    if not training.is_running(run_dir):
        console.talk("stop.idle", name=run_dir.name)
        return
    training.ask_to_stop(run_dir)
    console.talk("train.stopping")
    while training.is_running(run_dir):
        wait_a_little()
    progress = Progress(run_dir)
    progress.update()
    console.talk("train.stopped" if progress.checkpoint else "stop.before_first", step=progress.done_steps)
