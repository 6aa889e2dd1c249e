"""How long to train between two saves: Young's and Daly's rule from a save's cost and the place's failures. Pure."""

import math

OVERHEAD_CAP = 0.035
"""Most of the training time that saves may take; CheckFreq's bound (FAST'21)."""
LONGEST_SECONDS = 1800.0
"""Nobody wants to do more than this again, however rare failures are."""


def interval_seconds(cost_seconds: float, between_failures_seconds: float, write_seconds: float = 0.0) -> float:
    """Seconds from one save to the next.

    Args:
        cost_seconds: What one save takes from training.
        between_failures_seconds: Mean time between failures.
        write_seconds: How long a save is being written beside the training: the next one waits for it.
    """
    wanted = min(math.sqrt(2 * cost_seconds * between_failures_seconds), LONGEST_SECONDS)
    return max(wanted, cost_seconds / OVERHEAD_CAP, write_seconds)
