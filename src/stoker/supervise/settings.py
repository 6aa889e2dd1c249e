"""How patient the supervisor is: every timeout and threshold, in one place."""

from dataclasses import dataclass

from stoker.supervise import limits


@dataclass(frozen=True)
class SupervisorSettings:
    """The defaults are for real machines; tests are less patient."""

    look_seconds: float = 0.5
    """Between two looks at a trainer."""
    beat_seconds: float = 5.0
    """Between two writes of supervisor.json."""
    start_seconds: float = 7200.0
    """From the start to the first sign of life: a model may have to be downloaded."""
    hang_floor_seconds: float = 900.0
    hang_steps: float = 100.0
    """A trainer hangs that gives no sign of life for the floor and so many median steps."""
    first_wait_seconds: float = 5.0
    longest_wait_seconds: float = 300.0
    fruitless_most: int = 8
    """Restarts in a row without a newer checkpoint."""
    passed_over_most: int = 3
    """Steps passed over without a newer checkpoint: more is divergence, not a bad batch."""
    plan_seconds: float = 600.0
    """For a new plan."""
    stop_seconds: float = 1800.0
    """For a trainer that was asked to stop to commit and exit."""
    deadline_reserve_seconds: float = 120.0
    """Held back before a platform's hard end, on top of what saving took so far."""
    copy_seconds: float = 3600.0
    """For the last copy in the store."""
    notice_seconds: float = 5.0
    """Between two queries for a spot notice."""
    warning_share: float = 0.8
    """Of a budget: from there on the user is warned."""
    overtime_seconds: float = 300.0
    """Beyond a limit, for a trainer that was asked to stop: what a save may take at worst."""
    silent_seconds: float = 30.0
    """After that, one without a sign of life for so long is killed; one that works or writes has `stop_seconds`."""
    rank_silent_seconds: float = 30.0
    """Of several ranks, one that neither writes a pulse nor works for so long is lost."""
    blame_seconds: float = 3.0
    """A rank that merely lost the others exits at once; the one that caused it may report a moment later."""
    stacks_seconds: float = 1.0
    """For ranks to write their stacks before they are killed."""
    part_seconds: float = 15.0
    """For the ranks of other nodes to end after the head's."""
    listen_seconds: float = 60.0
    """For the port at which nodes report to be free."""
    join_seconds: float = 600.0
    """For a node that is away to join."""
    elastic_seconds: float = 60.0
    """The same where the run may go on without it."""

    def pause_seconds(self, failures: int) -> float:
        """Before the try that follows so many failures in a row."""
        return limits.backoff_seconds(failures, self.first_wait_seconds, self.longest_wait_seconds)
