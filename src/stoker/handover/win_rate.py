"""Win rate: how often a judge prefers the trained model's answer to the base's, on held-out prompts."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from stoker.errors import StokerError
from stoker.handover.judges import Judge, Judgement, Pair
from stoker.rundir import events, files, in_place

_SURE = 1.96
"""Standard deviations of a normal distribution that hold 95 % of it."""
_HALVINGS = 40
_MOST_UNJUDGED = 0.2
"""Of all pairs; with more, the rest says little."""


@dataclass(frozen=True)
class WinRate:
    """Of the trained model against its base."""

    wins: int
    ties: int
    losses: int
    same: int
    """Ties of answers that are the same, word for word."""
    contradicted: int
    """Ties of a judge that changed its mind with the order of the answers."""
    unjudged: int
    """Pairs about which the judge could not say anything; they do not count."""
    characters: tuple[float, float]
    """Mean length of the base's answers and of the trained model's: judges like long ones."""
    cut: tuple[int, int]
    """Answers of each that had no end."""

    @property
    def rate(self) -> float:
        """A tie counts half."""
        return (self.wins + self.ties / 2) / (self.wins + self.ties + self.losses)

    @property
    def interval(self) -> tuple[float, float]:
        """95 %: the rates that a score test does not reject; without ties it is Wilson's."""
        return _edge(self.rejects, self.rate, 0.0), _edge(self.rejects, self.rate, 1.0)

    def rejects(self, rate: float) -> bool:
        """Whether the verdicts are so far from a rate that in one of twenty cases they would be, of that rate."""
        if rate in (0.0, 1.0):
            return self.rate != rate
        ties = _likeliest_ties(self, rate)
        variance = rate - ties / 4 - rate**2
        count = self.wins + self.ties + self.losses
        return count * (self.rate - rate) ** 2 > _SURE**2 * variance

    def to_json(self) -> dict[str, Any]:
        """As `stoker eval --json` has it."""
        low, high = self.interval
        return {
            "wins": self.wins,
            "ties": self.ties,
            "losses": self.losses,
            "same": self.same,
            "contradicted": self.contradicted,
            "unjudged": self.unjudged,
            "rate": round(self.rate, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "characters_before": round(self.characters[0], 1),
            "characters_after": round(self.characters[1], 1),
            "cut_before": self.cut[0],
            "cut_after": self.cut[1],
        }


def _edge(rejects: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where it begins to reject, between a rate and the end of the scale."""
    if not rejects(outside):
        return outside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if rejects(middle) else (middle, outside)
    return inside


def _likeliest_ties(found: WinRate, rate: float) -> float:
    """The share of ties that explains the verdicts best, if that were the rate: where the likelihood stops rising."""
    low, high = 0.0, 2 * min(rate, 1 - rate)

    def rises(ties: float) -> bool:
        gained = found.ties / ties
        return gained > found.wins / (2 * rate - ties) + found.losses / (2 - 2 * rate - ties)

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) else (low, middle)
    return low


def measure(name: str, judge: Judge, pairs: Path, kept: Path, tell: Callable[[int, int], None]) -> WinRate:
    """Let a judge compare all pairs.

    Args:
        name: The judge's.
        judge: Who it is.
        pairs: The file of pairs.
        kept: The run's file where each verdict is kept as it is given; those that are there are not asked for again.
        tell: Called with how many are judged of how many.

    Raises:
        StokerError: STK529 where the judge could not say anything about too many of them.
    """
    rows: list[Pair] = files.read_object(pairs)["pairs"]
    # A reward model judges anew: it costs little, and another one may have the name by now.
    known = _known(kept, judge.address) if judge.host else {}
    with in_place.appending(kept, kept.parent.parent) as file:
        if events.is_cut_short(kept):  # by a kill: what comes is a line of its own
            _append(file, b"\n", kept)

        def told(row: Pair, found: Judgement) -> None:
            known[_key(row)] = found
            line = {**row, "judge": judge.address, "verdict": found.value, "replies": found.replies}
            _append(file, json.dumps(line).encode() + b"\n", kept)
            tell(sum(_key(one) in known for one in rows), len(rows))

        judge.judge(pairs, [row for row in rows if _key(row) not in known], told)
    verdicts = [known[_key(row)].value for row in rows]
    unjudged = verdicts.count(None)
    if unjudged > _MOST_UNJUDGED * len(rows):
        raise StokerError("STK529", judge=name, count=unjudged, pairs=len(rows), path=kept)
    wins, losses = verdicts.count(1.0), verdicts.count(0.0)
    characters = [sum(len(row[key]) for row in rows) / len(rows) for key in ("before", "after")]
    cut = [sum(row[key] for row in rows) for key in ("before_cut", "after_cut")]
    ties = len(rows) - unjudged - wins - losses
    same = sum(row["before"] == row["after"] and known[_key(row)].value is not None for row in rows)
    contradicted = ties - same if judge.host else 0
    return WinRate(wins, ties, losses, same, contradicted, unjudged, (characters[0], characters[1]), (cut[0], cut[1]))


def _key(row: Pair) -> tuple[str, str, str]:
    return row["prompt"], row["before"], row["after"]


def _append(file: BinaryIO, content: bytes, path: Path) -> None:
    """All of it, however the system divides it; an error names the file."""
    left = memoryview(content)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _known(kept: Path, judge: str) -> dict[tuple[str, str, str], Judgement]:
    """Verdicts of an earlier call, if it was that judge who gave them."""
    lines = kept.read_bytes().split(b"\n") if kept.exists() else []
    return dict(found for line in lines if (found := _remembered(line, judge)))


def _remembered(line: bytes, judge: str) -> tuple[tuple[str, str, str], Judgement] | None:
    try:
        row = files.parse_json(line)
        given = row["judge"] == judge and row["verdict"] is not None
        return (_key(row), Judgement(float(row["verdict"]), [])) if given else None
    except files.FOREIGN:  # a line that a kill cut
        return None
