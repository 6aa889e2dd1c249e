"""The ranks of an attempt by their pulses: which is gone, silent, behind the others, or slower.

A pulse is what every rank writes each second (`engine/pulse.py`); its reader adds whether the process lives and what it
has used so far. This file knows nothing of processes and nodes.
"""

import statistics
from typing import Any

_MARKS = ("join", "open", "build", "rehearsal", "data", "micro", "sum", "update", "eval", "save")
"""What a rank does, in the order of a run and of a step."""
_ENDED = {"end", "failed"}
"""Last marks: such a rank reports itself how it ended, by an error or its exit code."""
_LEAST_STEPS = 10
_SLOWER_TIMES = 1.5
_SLOWER_SECONDS = 0.05
"""A rank is a straggler that takes so much longer than the others, by both."""
_NAMED_STEPS = 500
"""A straggler is named once in so many steps."""
_CAUSES = {"compute": "own_seconds", "data": "data_seconds"}

Pulse = dict[str, Any]


class RankWatch:
    """What the pulses of an attempt have shown so far."""

    def __init__(self, silent_seconds: float, unseen_seconds: float) -> None:
        """Watch ranks.

        Args:
            silent_seconds: A rank without a pulse that computes nothing either is lost after so long.
            unseen_seconds: The same where the system does not show CPU time: it may compute.
        """
        self._silent_seconds = silent_seconds
        self._unseen_seconds = unseen_seconds
        self._newest: dict[int, Pulse] = {}
        self._silent: dict[int, float] = {}
        self._named: dict[int, int] = {}

    def see(self, pulses: list[Pulse], passed_seconds: float) -> None:
        """Take the newest pulses of all ranks; `passed_seconds` since the last look."""
        for pulse in pulses:
            rank, before = pulse["rank"], self._newest.get(pulse["rank"], {})
            is_same = all(before.get(key) == pulse[key] for key in ("pid", "at", "used"))
            self._silent[rank] = self._silent[rank] + passed_seconds if is_same else 0.0
        self._newest = {pulse["rank"]: pulse for pulse in pulses}

    def lost(self) -> tuple[Pulse, str] | None:
        """A rank whose process is gone, that is silent for too long, or that failed while others go on.

        One that failed may merely have `lost` the others: it could not reach them.
        """
        working = [pulse for pulse in self._newest.values() if pulse["mark"] not in _ENDED]
        for pulse in working:
            if not pulse["alive"]:
                return pulse, "dead"
        longest = max(working, key=lambda pulse: self._silent[pulse["rank"]], default=None)
        if longest is not None and self._is_silent(longest):
            return longest, "silent"
        failed = [pulse for pulse in self._newest.values() if pulse["mark"] == "failed"]
        return next(((pulse, "lost") for pulse in failed if not pulse["alive"]), None)

    def _is_silent(self, pulse: Pulse) -> bool:
        most = self._silent_seconds if pulse["used"] else self._unseen_seconds
        return self._silent[pulse["rank"]] > most

    def living(self, rank: int) -> int | None:
        """The process of a rank that shows life; None where it does not."""
        pulse = self._newest.get(rank)
        return int(pulse["pid"]) if pulse and pulse["alive"] and not self._is_silent(pulse) else None

    def behind(self) -> Pulse | None:
        """The rank that all others wait for; None where no single one is behind."""
        places = sorted((_place(pulse), rank) for rank, pulse in self._newest.items())
        if len(places) < 2 or places[0][0] == places[1][0]:
            return None
        return self._newest[places[0][1]]

    def straggler(self) -> Pulse | None:
        """A rank that takes longer than the others, with the cause and both times; once in a while."""
        for cause, key in _CAUSES.items():
            medians = {rank: _median(pulse[key]) for rank, pulse in self._newest.items()}
            known = {rank: seconds for rank, seconds in medians.items() if seconds is not None}
            if len(known) < max(2, len(medians)):
                continue
            slowest = max(known, key=known.__getitem__)
            seconds = known.pop(slowest)
            others = statistics.median(known.values())
            pulse = self._newest[slowest]
            if seconds > _SLOWER_TIMES * others and seconds - others > _SLOWER_SECONDS and self._is_news(pulse):
                times = round(seconds / max(others, 0.001), 1)
                return {**pulse, "cause": cause, "seconds": seconds, "others_seconds": others, "times": times}
        return None

    def _is_news(self, pulse: Pulse) -> bool:
        rank, step = pulse["rank"], pulse["step"]
        if rank in self._named and step < self._named[rank] + _NAMED_STEPS:
            return False
        self._named[rank] = step
        return True


def _median(seconds: list[float]) -> float | None:
    return statistics.median(seconds) if len(seconds) >= _LEAST_STEPS else None


def _place(pulse: Pulse) -> tuple[int, int, int]:
    """How far a rank is: its step, and what it does in it."""
    word, _, number = pulse["mark"].partition(" ")
    order = _MARKS.index(word) if word in _MARKS else len(_MARKS)
    return pulse["step"], order, int(number) if number.isdecimal() else 0
