"""The state of a run in words."""

from stoker import messages
from stoker.api.run_progress import RunProgress

STATES = {
    "new": "state.new",
    "running": "state.running",
    "stopped": "state.stopped",
    "done": "state.done",
    "failed": "state.failed",
    "interrupted": "state.interrupted",
    "sent": "state.sent",
    "queued": "state.queued",
    "short": "state.running",
    "unreachable": "state.unreachable",
}
"""The word for each of `RunProgress.state`."""


def state_word(state: str, failed_in: str = "") -> str:
    """A state in words; one that another place has made up, as it is.

    Args:
        state: As `RunProgress.state` says it.
        failed_in: The program that failed: of a run that failed before it was trained, that is said.
    """
    if (state, failed_in) == ("failed", "prepare"):
        return messages.text("state.failed_prepare")
    return messages.text(STATES[state]) if state in STATES else state


def of(progress: RunProgress) -> str:
    """The state of a run; a failed preparation is told from a failed training."""
    return state_word(progress.state, progress.failed_in)
