"""Which rank brought an attempt of several ranks to its end: the first that did not merely lose the others.

Knows what was seen of ranks and what nodes reported; asks nobody and ends nothing.
"""

from dataclasses import dataclass

from stoker.supervise import judge
from stoker.supervise.judge import Report
from stoker.supervise.limits import Clock


@dataclass(frozen=True)
class Lost:
    """A rank that brought an attempt to its end."""

    rank: int | None
    node: str
    step: int
    reason: str
    """A signal, an error's code, surprise, dead, silent, node, hang, or lost: it could not reach the others."""


class Blame:
    """Of one attempt."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        """Nobody is to blame yet.

        Args:
            clock: How time passes.
            seconds: After a rank lost the others, for the one that caused it to be found.
        """
        self.reports: dict[str, Report] = {}
        """How the processes of each node ended."""
        self._clock, self._seconds = clock, seconds
        self._lost: list[Lost] = []
        self._first_at = 0.0

    def add(self, lost: Lost) -> None:
        """Somebody is lost."""
        if not self._lost:
            self._first_at = self._clock.own()
        self._lost.append(lost)

    def add_report(self, node: str, said: Report, first_rank: int | None, step: int) -> None:
        """Take how a node's processes ended; a rank of theirs is to blame where they failed by themselves.

        Args:
            node: Its name.
            said: Its report.
            first_rank: Blamed where none is named: then what starts the ranks there failed itself.
            step: The step the attempt was in.
        """
        self.reports[node] = said
        if reason := judge.reported_reason(said):
            rank = first_rank if said["rank"] is None else said["rank"]
            self.add(Lost(rank, node, step, reason))

    def culprit(self, *, final: bool = False) -> Lost | None:
        """Who caused it; None while a rank that lost the others may still be followed by the one that caused that.

        Args:
            final: Nobody else will be found.
        """
        own = [one for one in self._lost if one.reason != "lost"]
        if not own and not final and self._clock.own() - self._first_at < self._seconds:
            return None
        return next(iter(own or self._lost), None)

    def gone_nodes(self) -> set[str]:
        """Nodes that train no more: lost, or with a report."""
        return {one.node for one in self._lost if one.reason == "node"} | set(self.reports)
