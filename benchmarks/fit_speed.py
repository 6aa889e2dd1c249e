"""Fits the constants of the speed model to the published measurements, and says how well they hold.

    python benchmarks/fit_speed.py             # figures of the shipped constants
    python benchmarks/fit_speed.py --fit       # fit anew and write src/stoker/facts/data/speed.json
    python benchmarks/fit_speed.py --leave-out # fit without each source in turn, and predict it

Constants are global or by generation of cards; none belongs to a row or to a source. The error is the logarithm of
predicted over measured tokens/s, with Huber's loss, capped; a source's weight grows with the root of its rows.
"""

import argparse
import collections
import dataclasses
import datetime
import functools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import measurements
from measurements import Measured

from stoker.estimate import speed
from stoker.estimate.speed import Hardware
from stoker.estimate.step import Step
from stoker.facts.rates import Rates, rates

FILE = Path(__file__).parents[1] / "src" / "stoker" / "facts" / "data" / "speed.json"
RANGES = {
    "flash": (0.3, 1.2),
    "efficient": (0.15, 0.8),
    "older": (0.3, 1.0),
    "experts": (0.2, 1.0),
    "bandwidth": (0.5, 0.92),
    "kernel": (0.5e-6, 8e-6),
    "launch": (4e-6, 30e-6),
    "module": (5e-5, 1.5e-3),
    "link": (0.3, 0.8),
    "bounce": (0.1, 0.8),
    "processor": (8e9, 6e10),
    "hidden": (0.0, 1.0),
}
"""What is physically possible: streaming kernels have been seen at 92 % of the bandwidth, NCCL at 80 % of NVLink."""
TABLE_RANGES = {"peak": (0.15, 1.2)}
"""GeForce cards clock higher than the figure of their peak assumes."""
NEUTRAL: dict[str, float] = {
    "flash": 0.6,
    "efficient": 0.4,
    "older": 0.6,
    "experts": 0.6,
    "bandwidth": 0.8,
    "kernel": 5e-6,
    "launch": 15e-6,
    "module": 3e-4,
    "link": 0.7,
    "bounce": 0.5,
    "processor": 2e10,
    "hidden": 0.5,
}
NEUTRAL_PEAK = 0.6
"""Where a search without a source starts: round figures, the same for every card, and none of a former fit."""
GRADE_WEIGHT = {"A": 1.0, "B": 0.5}
SPLIT_WEIGHT = 0.25
"""Of rows with tensor or pipeline parallelism, which Stoker does not run: their networks are rarely stated."""
HUBER = 0.1
CAP = 0.7
SMALLEST_MOVE = 0.003

Constants = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement, ready to be predicted."""

    own: Measured
    step: Step
    on: Hardware
    described: float
    """Tokens of the step over all devices, as the source counts them."""
    measured: float

    def error(self, constants: Rates) -> float:
        """Logarithm of predicted over measured tokens/s."""
        seconds = sum(speed.seconds_by_part(self.step, self.on, constants).values())
        return math.log(self.described / seconds / self.measured)

    @functools.cached_property
    def touched(self) -> tuple[str, ...]:
        """Constants that can change the error, apart from the share of the peak.

        Tried where the device is fastest and sending hides behind nothing: with a slow host, so that launches show, and
        with a quick one, so that they hide nothing else.
        """
        low = ("kernel", "link", "bounce", "hidden")
        fast = {name: ends[0] if name in low else ends[1] for name, ends in RANGES.items()}
        fast[f"peak {self.on.rate_class}"] = TABLE_RANGES["peak"][1]
        quick = fast | {name: RANGES[name][0] for name in ("launch", "module")}
        return tuple(
            name
            for name, ends in RANGES.items()
            if any(len({self.error(_rates(base | {name: end})) for end in ends}) > 1 for base in (fast, quick))
        )


def comparable(grades: str = "AB") -> list[Row]:
    """Rows of these grades that can be predicted."""
    rows = []
    for own in measurements.read():
        if own.grade_speed in tuple(grades) and not own.speed_reason:
            assert own.step
            assert own.card
            assert own.speed
            on = speed.hardware(own.card, own.link)
            rows.append(Row(own, own.step, on, speed.tokens_of(own.step) * own.kept, own.speed))
    return rows


def fit(rows: list[Row], start: Rates, sweeps: int) -> Rates:
    """Search along each constant in turn, then along the way all of them went (Hooke and Jeeves)."""
    loss = _loss(rows)
    seen = _seen(rows)
    best = {key: _within(key, value) for key, value in _flat(start).items()}
    moves = {key: 0.15 for key in best if " " not in key or key in seen}
    lowest = loss(best)
    for _ in range(sweeps):
        before = best
        best, lowest = _sweep(best, lowest, moves, loss)
        best, lowest = _further(before, best, lowest, moves, loss)
        if max(map(abs, moves.values())) < SMALLEST_MOVE:
            break
    return _rates(best)


def neutral() -> Rates:
    """The constants that a search without a source starts from."""
    return _rates(NEUTRAL | {f"peak {name}": NEUTRAL_PEAK for name in rates().peak})


def _loss(rows: list[Row]) -> Callable[[Constants], float]:
    """The loss, summed by class of card and by the constants that a row depends on: others leave its error as it is."""
    weighed = collections.defaultdict(list)
    for weight, row in zip(_weights(rows), rows, strict=True):
        weighed[f"peak {row.on.rate_class}", row.touched].append((weight, row))

    @functools.cache
    def of_kind(kind: tuple[str, tuple[str, ...]], values: tuple[float, ...]) -> float:
        made = _rates(NEUTRAL | dict(zip((kind[0], *kind[1]), values, strict=True)))
        return sum(weight * _huber(row.error(made)) for weight, row in weighed[kind])

    def loss(constants: Constants) -> float:
        return sum(of_kind(kind, tuple(constants[name] for name in (kind[0], *kind[1]))) for kind in weighed)

    return loss


def _sweep(
    best: Constants, lowest: float, moves: Constants, loss: Callable[[Constants], float]
) -> tuple[Constants, float]:
    for key in moves:
        for move in (moves[key], -moves[key]):
            tried = {**best, key: _within(key, best[key] * math.exp(move))}
            if tried[key] != best[key] and (found := loss(tried)) < lowest:
                best, lowest, moves[key] = tried, found, max(-0.4, min(0.4, 1.3 * move))
                break
        else:
            moves[key] /= 2
    return best, lowest


def _further(
    before: Constants, best: Constants, lowest: float, moves: Constants, loss: Callable[[Constants], float]
) -> tuple[Constants, float]:
    reach = 1.0
    while reach < 40:
        tried = best | {key: _within(key, best[key] * (best[key] / before[key]) ** reach) for key in moves}
        if tried == best or (found := loss(tried)) >= lowest:
            break
        best, lowest, reach = tried, found, 1.5 * reach
    return best, lowest


def _within(key: str, value: float) -> float:
    low, high = RANGES.get(key) or TABLE_RANGES[key.split()[0]]
    return min(high, max(low, value))


def _huber(error: float) -> float:
    size = min(abs(error), CAP)
    return size * size / (2 * HUBER) if size < HUBER else size - HUBER / 2


def _weights(rows: list[Row]) -> list[float]:
    counts = collections.Counter(row.own.source for row in rows)
    return [_weight(row) / math.sqrt(counts[row.own.source]) for row in rows]


def _weight(row: Row) -> float:
    return GRADE_WEIGHT[row.own.grade_speed] * (SPLIT_WEIGHT if row.own.strategy == "split" else 1.0)


def _seen(rows: list[Row]) -> set[str]:
    """Constants of a class of cards that some row depends on."""
    return {f"peak {row.on.rate_class}" for row in rows}


def _flat(made: Rates) -> Constants:
    """Constants by name, those of a table as `table key`."""
    flat: Constants = {}
    for name, value in dataclasses.asdict(made).items():
        flat |= {f"{name} {key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _rates(constants: Constants) -> Rates:
    nested: dict[str, Any] = {table: {} for table in TABLE_RANGES}
    for key, value in constants.items():
        table, _, inner = key.partition(" ")
        if inner:
            nested[table][inner] = value
        else:
            nested[key] = value
    return Rates(**nested)


def leave_out(rows: list[Row], sweeps: int) -> dict[str, float]:
    """Errors of each row under constants fitted without its source, from a start that never saw it either."""
    errors = {}
    for source in sorted({row.own.source for row in rows}):
        others = fit([row for row in rows if row.own.source != source], neutral(), sweeps)
        errors |= {row.own.id: row.error(others) for row in rows if row.own.source == source}
        sys.stderr.write(f"{source}\n")
    return errors


def figures(errors: Iterable[float]) -> dict[str, float]:
    """Median and ninth decile of the relative error, and the bias."""
    every = list(errors)
    sizes = sorted(abs(math.exp(error) - 1) for error in every)
    return {
        "n": len(sizes),
        "median": round(statistics.median(sizes), 4),
        "p90": round(sizes[math.ceil(0.9 * len(sizes)) - 1], 4),
        "bias": round(math.exp(statistics.median(every)) - 1, 4),
    }


def report(rows: list[Row], errors: dict[str, float]) -> dict[str, dict[str, float]]:
    """Figures by grade, group, class of card and source."""
    keys: tuple[Callable[[Row], str], ...] = (
        lambda row: f"grade {row.own.grade_speed}",
        lambda row: f"grade {row.own.grade_speed}, {row.own.method}, {row.own.strategy}",
        lambda row: f"grade {row.own.grade_speed}, {row.on.rate_class}",
        lambda row: f"{row.own.source}, grade {row.own.grade_speed}",
    )
    found = {}
    for key in keys:
        groups = collections.defaultdict(list)
        for row in rows:
            groups[key(row)].append(errors[row.own.id])
        found |= {name: figures(group) for name, group in sorted(groups.items())}
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _write(rows: list[Row], made: Rates) -> None:
    flat = {key: _rounded(value) for key, value in _flat(made).items()}
    seen = _seen(rows)
    about = {
        "what": "Constants of the speed model (stoker.facts.rates says what each means), fitted, not measured here",
        "made_by": "benchmarks/fit_speed.py --fit",
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "rows": len(rows),
        "sources": sorted({row.own.source for row in rows}),
        "defaults": sorted(key for key in flat if " " in key and key not in seen),
        "figures": {grade: figures(row.error(made) for row in rows if row.own.grade_speed == grade) for grade in "AB"},
    }
    text = json.dumps({"about": about, "constants": dataclasses.asdict(_rates(flat))}, indent=2)
    FILE.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Run what was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit anew and write the constants")
    parser.add_argument("--leave-out", action="store_true", help="fit without each source in turn")
    parser.add_argument("--sweeps", type=int, default=40)
    asked = parser.parse_args()
    rows, made = comparable(), rates()
    if asked.fit:
        made = fit(rows, made, asked.sweeps)
        _write(rows, made)
    own = {row.own.id: row.error(made) for row in rows}
    errors = leave_out(rows, asked.sweeps) if asked.leave_out else own
    json.dump({"constants": dataclasses.asdict(made), "figures": report(rows, errors)}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
