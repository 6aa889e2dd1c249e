"""The interval between saves by Young's and Daly's rule, from a save's cost and the failure rate. Pure."""

import math

OVERHEAD_CAP = 0.035
"""Largest share of training time that saves may take; CheckFreq's bound (FAST'21)."""
LONGEST_SECONDS = 1800.0
"""Upper bound of the work lost by a failure, however rare failures are."""


def interval_seconds(cost_seconds: float, between_failures_seconds: float, write_seconds: float = 0.0) -> float:
    """Seconds from one save to the next.

    Args:
        cost_seconds: Training time lost per save.
        between_failures_seconds: Mean time between failures.
        write_seconds: Duration of a background write: the next save waits for it.
    """
    wanted = min(math.sqrt(2 * cost_seconds * between_failures_seconds), LONGEST_SECONDS)
    return max(wanted, cost_seconds / OVERHEAD_CAP, write_seconds)
