"""Stops a run, also while it is being launched: the request then waits for the supervisor, which starts no trainer."""

from stoker.api.run_progress import RunProgress, wait_a_little
from stoker.launch import training
from stoker.messages import MessageCallback
from stoker.rundir import lock
from stoker.rundir.layout import RunDir


def is_under_way(run_dir: RunDir) -> bool:
    """Whether it is trained, or is being launched: data is prepared, a plan is made, a supervisor starts."""
    locks = (run_dir.launch_lock, run_dir.supervisor_lock)
    return training.is_running(run_dir) or any(lock.is_held(path) for path in locks)


def stop(run_dir: RunDir, tell: MessageCallback) -> bool:
    """Ask the run to stop and wait until it has; False where there was nothing to stop."""
    if not is_under_way(run_dir):
        return False
    is_launching = lock.is_held(run_dir.launch_lock)
    tell("stop.launching" if is_launching else _now(run_dir), name=run_dir.name)
    training.ask_to_stop(run_dir)
    while lock.is_held(run_dir.launch_lock):
        wait_a_little()
    if is_launching and is_under_way(run_dir):
        training.ask_to_stop(run_dir)  # a launch that had just begun takes the request for an old one
    while is_under_way(run_dir):
        wait_a_little()
    if is_launching and run_dir.stop_file.exists():
        run_dir.stop_file.unlink()  # the lock was held by what starts nothing, such as `stoker prepare`
        return False
    return True


def _now(run_dir: RunDir) -> str:
    progress = RunProgress(run_dir)
    progress.update()
    return said(progress)


def said(progress: RunProgress) -> str:
    """The key of the sentence that says what a request to stop does now: an attempt without a step has none to end."""
    return "train.stopping" if progress.recent else "train.stopping_early"
