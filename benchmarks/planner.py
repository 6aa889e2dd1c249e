"""The planner against published measurements: errors, interval coverage, fits and does-not-fit, per group.

`python benchmarks/planner.py [CSV] --json [--sample N --seed S]` predicts each row that can be compared; `--intervals`
writes what `stoker plan` shows beside its figures; `--report` writes the docs page. Rows that cannot be compared are
listed with the reason.
"""

import argparse
import datetime
import json
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measurements
import planner_intervals
import planner_report
import split_steps
import stated
from measurements import Measured

from stoker.estimate import speed
from stoker.estimate.step import replace_foreign
from stoker.facts import intervals
from stoker.plan import search

ROOT = Path(__file__).resolve().parent.parent
INTERVALS = ROOT / "src" / "stoker" / "facts" / "data" / "intervals.json"
EVIDENCE = ROOT / "docs" / "evidence" / "planner.json"
GRADED = ("A", "B")
BARS = {
    "memory, one GPU, grade A/B": (0.04, 0.12),
    "memory, one GPU, fixed lengths only, grade A/B": (0.04, 0.12),
    "memory, sharded, grade A/B": (0.08, 0.20),
    "memory, sharded, without tensor/pipeline rows, grade A/B": (0.08, 0.20),
    "speed, grade A": (0.08, 0.25),
    "speed, grade B": (0.15, None),
}
"""Median and 90th percentile of the absolute error that must not be passed; 1.5 times that with the source left out."""
LEFT_OUT = 1.5
COVERAGE = (0.87, 0.95)
"""Share of rows of a source that was left out which the 90 % intervals hold."""
WIDTHS = {"memory": 2.0, "speed": 1.8}
"""Median of upper over lower bound: of memory on one GPU, and of all speeds."""
SURE = 0.70
"""Of the rows that ran, so many are called sure, and none that ran out of memory."""
SPARE = 1.1
"""Room over need of the rows that an upper bound so narrow would call sure: what intervals can reach at best."""
OPEN_RANK = 64
"""Where a row leaves its rank open, a sure fit must hold at the largest rank that several sources state."""
SMALL_BOX = 8
SWEEPS = 20
"""Of the search for constants without a source; three minutes for all sources."""


@dataclass(frozen=True)
class Compared:
    """One figure of one row beside its prediction."""

    figure: str
    """`memory` or `speed`."""
    of: Measured
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted

    @property
    def grade(self) -> str:
        return self.of.grade_memory if self.figure == "memory" else self.of.grade_speed

    @property
    def group(self) -> tuple[str, str, str]:
        """As `estimate.ranges` groups runs: pretraining is full training of all weights.

        What a cache holds where lengths vary is no need, and no plan states it; nor does Stoker cut a sequence over
        devices: such rows are classes of their own, which no plan looks up.
        """
        card = intervals.card_class(self.of.card) if self.of.card else intervals.ANY
        return self.of.method.replace("pretrain", "full"), self.of.strategy + self._apart, card

    @property
    def _apart(self) -> str:
        if self.of.step is None:
            return ""
        if self.of.step.foreign.context_parallel > 1:
            return "-context"
        if self.of.step.offload != "none":
            return "-offload"
        return "-varied" if self.figure == "memory" and self.of.step.foreign.varied else ""

    def inside(self, bounds: intervals.Interval) -> bool:
        return bounds.low <= self.ratio <= bounds.high


# Predicting.


def memory_of(row: Measured) -> Compared:
    assert row.step
    assert row.memory
    held = float(getattr(split_steps.estimate(row.step), row.figure))
    if row.step.foreign.varied and row.capacity:
        # What the cache holds beyond the need is given back before a card is overfull.
        held = min(held, max(float(row.capacity), float(needed_by(row))))
    return Compared("memory", row, held, row.memory)


def speed_of(row: Measured) -> Compared:
    assert row.step
    assert row.card
    assert row.speed
    pace = speed.estimate(row.step, speed.hardware(row.card, row.link))
    return Compared("speed", row, pace.tokens_per_second * row.kept, row.speed)


def checked(rows: list[Measured]) -> list[Measured]:
    """Rows whose step the planner cannot compute get that as their reason: a strange table must not end the script."""
    return [replace(row, **_failures(row)) for row in rows]


def _failures(row: Measured) -> dict[str, str]:
    failed: dict[str, str] = {}
    tries: dict[str, Callable[[Measured], object]] = {"memory": memory_of, "speed": speed_of, "fit": needed_by}
    for figure, attempt in tries.items():
        if not getattr(row, f"{figure}_reason"):
            try:
                attempt(row)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                failed[f"{figure}_reason"] = f"the planner fails: {type(error).__name__} {error}"
    return failed


def needed_by(row: Measured) -> int:
    """Bytes without which it does not run; what the cache holds beyond that is given back when memory is short."""
    assert row.step
    return split_steps.estimate(replace_foreign(row.step, varied=False)).device


def comparable(rows: Iterable[Measured], figure: str, grades: Iterable[str] = GRADED) -> list[Measured]:
    reason, grade = f"{figure}_reason", f"grade_{figure}"
    return [row for row in rows if not getattr(row, reason) and getattr(row, grade) in grades]


def all_compared(rows: list[Measured]) -> list[Compared]:
    """Every comparable figure, coarse rows (grade C) too: their groups say so."""
    grades = ("A", "B", "C")
    by_memory = [memory_of(row) for row in comparable(rows, "memory", grades)]
    return by_memory + [speed_of(row) for row in comparable(rows, "speed", grades)]


def left_out(rows: list[Measured]) -> list[Compared]:
    """Graded rows, speed with constants fitted on all other sources; memory has no fitted constants."""
    import fit_speed  # here, because it takes minutes and reads this table

    own = {row.id: speed_of(row) for row in comparable(rows, "speed")}
    ready = [fitted(fit_speed.Row, pair.of) for pair in own.values()]
    errors = fit_speed.leave_out(ready, SWEEPS)
    by_speed = [replace(own[name], predicted=math.exp(error) * own[name].measured) for name, error in errors.items()]
    return [memory_of(row) for row in comparable(rows, "memory")] + by_speed


def fitted(kind: Callable[..., Any], row: Measured) -> Any:
    """A row as the fit of constants takes it."""
    assert row.step
    assert row.card
    hardware = speed.hardware(row.card, row.link)
    return kind(row, row.step, hardware, speed.tokens_of(row.step) * row.kept, row.speed)


# Saying.


def summary(pairs: list[Compared], bounds: dict[str, Any] | None = None) -> dict[str, Any]:
    """n, median and p90 of the absolute error, bias (median error), and the share inside the interval."""
    if not pairs:
        return {"n": 0}
    errors = sorted(abs(pair.error) for pair in pairs)
    told = {
        "n": len(pairs),
        "median": round(statistics.median(errors), 4),
        "p90": round(errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)], 4),
        "bias": round(statistics.median(pair.error for pair in pairs), 4),
    }
    if bounds:
        inside = [pair.inside(shown(bounds, pair.figure, pair.group)) for pair in pairs]
        told["covered"] = round(sum(inside) / len(inside), 4)
    return told


def groups(pairs: list[Compared], bounds: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same summary cut by kind of run, card, source and grade."""
    graded = [pair for pair in pairs if pair.grade in GRADED]
    cuts: dict[str, tuple[list[Compared], Callable[[Compared], str]]] = {
        "kind": (graded, lambda pair: f"{pair.group[1]} {pair.of.method}"),
        "card": (graded, lambda pair: pair.group[2]),
        "source": (graded, lambda pair: pair.of.source),
        "grade": (pairs, lambda pair: pair.grade),
    }
    told: dict[str, dict[str, Any]] = {}
    for cut, (chosen, key) in cuts.items():
        names = sorted({key(pair) for pair in chosen})
        told[cut] = {name: summary([pair for pair in chosen if key(pair) == name], bounds) for name in names}
    return told


def bar_rows(pairs: list[Compared]) -> dict[str, list[Compared]]:
    """The figures that have a bar."""
    by_memory = [pair for pair in pairs if pair.figure == "memory" and pair.grade in GRADED]
    by_speed = [pair for pair in pairs if pair.figure == "speed"]
    one = [pair for pair in by_memory if pair.of.strategy == "single"]
    several = [pair for pair in by_memory if pair.of.strategy != "single"]
    whole = [pair for pair in several if pair.of.strategy != "split"]
    return {
        "memory, one GPU, grade A/B": one,
        "memory, one GPU, fixed lengths only, grade A/B": [pair for pair in one if "varied" not in pair.group[1]],
        "memory, sharded, grade A/B": several,
        "memory, sharded, without tensor/pipeline rows, grade A/B": whole,
        "speed, grade A": [pair for pair in by_speed if pair.grade == "A"],
        "speed, grade B": [pair for pair in by_speed if pair.grade == "B"],
    }


def against_bars(pairs: list[Compared], bounds: dict[str, Any], factor: float = 1.0) -> list[dict[str, Any]]:
    told = []
    for name, chosen in bar_rows(pairs).items():
        if not chosen:
            continue
        own, (median, p90) = summary(chosen, bounds), BARS[name]
        met = own["median"] <= median * factor and (p90 is None or own["p90"] <= p90 * factor)
        limits = [round(bar * factor, 4) if bar else None for bar in (median, p90)]
        told.append({"what": name, **own, "bar": limits, "met": met})
    return told


def fit_confusion(rows: list[Measured], bounds: dict[str, Any]) -> dict[str, Any]:
    """Rows that ran must fit, rows that ran out of memory must not; and how many of either are called sure."""
    counts: Counter[str] = Counter()
    wrong, sure, spare = [], {"fits": 0, "oom": []}, 0
    by_source: dict[str, list[bool]] = {}
    for row in rows:
        if row.fit_reason or row.outcome == "limit":
            continue
        kind, ratio, least = fit_of(row)
        said = "fits" if ratio >= 1 else "oom"
        counts[f"{row.outcome} said {said}"] += 1
        if said != row.outcome:
            wrong.append({"id": row.id, "was": row.outcome, "room_over_need": round(ratio, 3)})
        surely = shown(bounds, "memory", kind).high <= least
        if row.outcome == "oom":
            sure["oom"] += [row.id] if surely else []
        else:
            sure["fits"] += surely
            spare += least >= SPARE
            by_source.setdefault(row.source, []).append(surely)
    ran, out, hits = (
        sum(counts[key] for key in keys)
        for keys in (
            ("fits said fits", "fits said oom"),
            ("oom said oom", "oom said fits"),
            ("fits said fits", "oom said oom"),
        )
    )
    return {
        "n": ran + out,
        "right": _share(hits, ran + out),
        "always_fits": _share(ran, ran + out),
        "recall_ran": _share(counts["fits said fits"], ran),
        "recall_oom": _share(counts["oom said oom"], out),
        **counts,
        "oom_sure": sure["oom"],
        "ran_sure": _share(sure["fits"], ran),
        "ran_spare": _share(spare, ran),
        "ran_sure_by_source": {source: [sum(own), len(own)] for source, own in sorted(by_source.items())},
        "sure_bar": SURE,
        "wrong": wrong,
    }


def shown(bounds: dict[str, Any], figure: str, group: tuple[str, str, str]) -> intervals.Interval:
    """The interval as a plan looks it up: assumed for a class of cards that nobody measured."""
    measured = any(name.endswith(f" {group[2]}") for name in bounds.get(figure, {}))
    known = measured or group[2] == intervals.ANY
    return planner_intervals.find(bounds, figure, *group) if known else intervals.assumed(figure)  # type: ignore[arg-type]


def _share(part: int, of: int) -> float | None:
    return round(part / of, 4) if of else None


def fit_of(row: Measured) -> tuple[tuple[str, str, str], float, float]:
    """A row's class, and what the card has over what is needed: as described, and with the largest of what is open."""
    assert row.capacity
    assert row.step
    room = row.capacity * search.USABLE_SHARE
    group = Compared("memory", replace(row, step=replace_foreign(row.step, varied=False)), 1.0, 1.0).group
    ratio = room / needed_by(row)
    adapter = row.step.adapter
    if adapter is None or row.row["lora_r"].strip(" ?"):
        return group, ratio, ratio
    widest = replace(row.step, adapter=replace(adapter, rank=max(OPEN_RANK, adapter.rank)))
    return group, ratio, room / needed_by(replace(row, step=widest))


def limits(rows: list[Measured]) -> dict[str, Any]:
    """Rows that state the longest context that fits: what is predicted there, against the card."""
    own = [row for row in rows if not row.fit_reason and row.outcome == "limit"]
    errors = {row.id: round(needed_by(row) / float(row.capacity or 1) - 1, 4) for row in own}
    return {"n": len(own), "median": statistics.median(map(abs, errors.values())) if own else None, "errors": errors}


def unmapped(rows: list[Measured]) -> dict[str, dict[str, list[str]]]:
    """Graded rows that cannot be compared, by figure and reason."""
    told: dict[str, dict[str, list[str]]] = {}
    for figure, grades in (("memory", GRADED), ("speed", GRADED), ("fit", ("F",))):
        grade = "grade_memory" if figure == "fit" else f"grade_{figure}"
        for row in rows:
            reason = getattr(row, f"{figure}_reason")
            if reason and getattr(row, grade) in grades:
                told.setdefault(figure, {}).setdefault(reason, []).append(row.id)
    return {figure: dict(sorted(why.items(), key=lambda item: -len(item[1]))) for figure, why in told.items()}


def worst(pairs: list[Compared], count: int = 15) -> list[dict[str, Any]]:
    """The rows that carry the error."""
    ranked = sorted(pairs, key=lambda pair: -abs(math.log(pair.ratio)))[:count]
    return [{"id": pair.of.id, "source": pair.of.source, "model": pair.of.row["model"], "error": round(pair.error, 3),
             "measured": round(pair.measured), "predicted": round(pair.predicted)} for pair in ranked]  # fmt: skip


def evaluate(rows: list[Measured], table: str, apart: list[Compared] | None = None) -> dict[str, Any]:
    """The whole account of a table; `apart` are graded rows as predicted without their source, where that was done."""
    pairs = all_compared(rows)
    bounds = json.loads(INTERVALS.read_text(encoding="utf-8"))["intervals"]
    by = {figure: [pair for pair in pairs if pair.figure == figure] for figure in ("memory", "speed")}
    sure = {figure: [pair for pair in own if pair.grade in GRADED] for figure, own in by.items()}
    told: dict[str, Any] = {
        "made": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {"stoker": version("stoker"), "python": sys.version.split()[0]},
        "table": table,
        "rows": len(rows),
        "compared": dict(Counter(f"{pair.figure} {pair.grade}" for pair in pairs)),
        "bars": against_bars(pairs, bounds),
        "coverage": {figure: summary(own, bounds) for figure, own in sure.items()},
        "fits": fit_confusion(rows, bounds),
        "limits": limits(rows),
        "groups": {figure: groups(own, bounds) for figure, own in by.items()},
        "worst": {figure: worst(own) for figure, own in sure.items()},
        "unmapped": unmapped(rows),
    }
    if apart:
        told["left_out"] = left_out_account(apart)
    return told


def left_out_account(apart: list[Compared]) -> dict[str, Any]:
    """Each source judged by constants and intervals that never saw it, against the bars of issue 17."""
    without = planner_intervals.without_each(apart)
    around = {id(pair): planner_intervals.find(without[pair.of.source], pair.figure, *pair.group) for pair in apart}

    def held(chosen: list[Compared]) -> dict[str, Any]:
        widths = [around[id(pair)].high / around[id(pair)].low for pair in chosen]
        inside = [pair.inside(around[id(pair)]) for pair in chosen]
        return {
            **summary(chosen),
            "covered": round(sum(inside) / len(inside), 4),
            "width": round(statistics.median(widths), 3),
            "sources": len({pair.of.source for pair in chosen}),
        }

    told: dict[str, Any] = {"bars": against_bars(apart, {}, LEFT_OUT), "coverage": {}, "classes": {}, "by_source": {}}
    for figure in WIDTHS:
        own = [pair for pair in apart if pair.figure == figure]
        if not own:
            continue
        told["coverage"][figure] = held(own)
        for cut, key in (
            ("classes", lambda pair: " ".join(pair.group[:2])),
            ("by_source", lambda pair: pair.of.source),
        ):
            names = sorted({key(pair) for pair in own})
            told[cut][figure] = {name: held([pair for pair in own if key(pair) == name]) for name in names}
    told["relied"] = [
        {"what": what, **held(chosen), "bar": bar} for what, (chosen, bar) in relied_on(apart).items() if chosen
    ]
    return told


def relied_on(apart: list[Compared]) -> dict[str, tuple[list[Compared], dict[str, Any]]]:
    """What a user may rely on: rows by what they are, and the bars on them."""
    by_memory, by_speed = ([pair for pair in apart if pair.figure == figure] for figure in ("memory", "speed"))
    whole = [pair for pair in by_memory if stated.states_everything(pair.of)]
    several = [
        [pair for pair in own if pair.of.strategy in ("replicated", "sharded") and pair.of.step.devices <= SMALL_BOX]
        for own in (by_memory, by_speed)
    ]
    return {
        "memory, all": (by_memory, {"covered": COVERAGE}),
        "memory, one GPU": ([p for p in by_memory if p.of.strategy == "single"], {"width": WIDTHS["memory"]}),
        "memory, one GPU, rows that state everything": (whole, {"median": 0.06, "p90": 0.15}),
        "memory, one GPU, everything and its meter": ([p for p in whole if stated.names_its_meter(p.of)], {}),
        "memory, DDP, FSDP, ZeRO on <= 8 GPUs": (several[0], {"median": 0.12}),
        "speed, all": (by_speed, {"covered": COVERAGE, "width": WIDTHS["speed"]}),
        "speed, one GPU": ([p for p in by_speed if p.of.strategy == "single"], {}),
        "speed, DDP, FSDP, ZeRO on <= 8 GPUs": (several[1], {"median": 0.09}),
    }


def sampled(rows: list[Measured], count: int | None, seed: int) -> list[Measured]:
    if count is None or count >= len(rows):
        return rows
    return random.Random(seed).sample(rows, count)


def print_tables(told: dict[str, Any]) -> None:
    print(f"{told['rows']} rows of {told['table']}; compared: {told['compared']}")
    for title, bars in (("in sample", told["bars"]), ("source left out", told.get("left_out", {}).get("bars", []))):
        for bar in bars:
            print(f"{title:16} {bar['what']:28} n {bar['n']:4} median {bar['median']:.1%} p90 {bar['p90']:.1%} "
                  f"bias {bar['bias']:+.1%} bar {bar['bar']} {'met' if bar['met'] else 'MISSED'}")  # fmt: skip
    print("coverage", {figure: own.get("covered") for figure, own in told["coverage"].items()})
    for one in told.get("left_out", {}).get("relied", []):
        print(f"source left out  {one['what']:48} n {one['n']:4} median {one['median']:.1%} p90 {one['p90']:.1%} "
              f"covered {one['covered']:.1%} width {one['width']:.2f} bar {one['bar']}")  # fmt: skip
    print("fits", {key: value for key, value in told["fits"].items() if key != "wrong"})
    for figure, cuts in told["groups"].items():
        for cut, names in cuts.items():
            for name, own in names.items():
                covered = f"{own['covered']:.0%}" if "covered" in own else ""
                print(f"{figure:7}{cut:7}{name[:44]:45} n {own['n']:4} median {own['median']:6.1%} "
                      f"p90 {own['p90']:7.1%} bias {own['bias']:+7.1%} covered {covered}")  # fmt: skip
    for figure, reasons in told["unmapped"].items():
        for reason, count in planner_report.shortened(reasons):
            print(f"not compared: {figure:7} {count:4} {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", type=Path, default=measurements.TABLE)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--sample", type=int, help="so many rows, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--intervals", action="store_true", help="write src/stoker/facts/data/intervals.json")
    parser.add_argument("--report", action="store_true", help="write docs/concepts/planner-accuracy.* and the evidence")
    parser.add_argument("--left-out", action="store_true", help="also fit without each source in turn (slow)")
    asked = parser.parse_args()
    rows = checked(sampled(measurements.read(asked.table), asked.sample, asked.seed))
    apart = left_out(rows) if asked.intervals or asked.report or asked.left_out else None
    if asked.intervals and apart:
        planner_intervals.write(INTERVALS, planner_intervals.make(apart))
    told = evaluate(rows, asked.table.name, apart)
    if asked.report:
        bounds = json.loads(INTERVALS.read_text(encoding="utf-8"))["intervals"]
        planner_report.write(ROOT / "docs", told, all_compared(rows), bounds)
        EVIDENCE.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if asked.json:
        print(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        print_tables(told)


if __name__ == "__main__":
    main()
