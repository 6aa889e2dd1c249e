"""Four sources by tokens over three stages: counts against a replay, kills at every step, and 1, 2 and 4 processes.

The replay hands out one sequence after the other (tests/mixture_case.py). Bars: every step of every mixture is that of
the replay, a count is within one sequence of its share in each stage, a run killed at any step ends with the weights of
one that was left alone, as do 2 and 4 processes, and a seek into 10^9 sequences takes less than a second. Controls: an
order that forgets the stages, one that begins every source anew at each stage, and largest remainders, must be caught.
Usage: python benchmarks/mixture.py [--cases N] [--kill-every N] [--folder FOLDER] [--out FILE]
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/engine")]

from mixture_case import any_case, replayed, run_of, split_of  # noqa: E402  # after the path

from stoker.engine.mixed_order import MixedOrder  # noqa: E402
from stoker.rows import mixture  # noqa: E402
from stoker.rows.mixture import Mixture  # noqa: E402
from stoker.rundir import events  # noqa: E402
from stoker.rundir.layout import RunDir  # noqa: E402

STAGES = (
    "[{share: 40%, mix: {wiki: 60%, code: 30%, qa: 10%}},"
    " {share: 35%, mix: {wiki: 30%, code: 30%, qa: 20%, books: 20%}}, {share: 25%, mix: {qa: 50%, books: 50%}}]"
)
STEPS = 300
TRAINED_STEPS = 20


def large() -> tuple[Mixture, int]:
    """Four sources, three stages, 9,600 sequences."""
    run = run_of(STAGES, f"steps: {STEPS}, batch: 32")
    mixed = mixture.of(run, split_of([9_001, 4_003, 1_999, 301], [510.5, 333.25, 120.75, 61.5]))
    assert mixed is not None
    return mixed, run.train.batch


def wrong_steps(mixed: Mixture, batch: int, seed: int = 42) -> int:
    """Steps whose sequences are not those of the replay."""
    order = MixedOrder("digest", seed, mixed, batch)
    return sum(order.sequences(step) != found for step, found in enumerate(replayed(mixed, "digest", seed, batch)))


def farthest(mixed: Mixture, batch: int) -> float:
    """The largest distance of a count from its share within a stage, after any step, in sequences."""
    first, found = 0, 0.0
    for stage in mixed.stages:
        before = mixed.seen(first)
        for place in range(first, first + stage.sequences, batch):
            counts = zip(mixed.seen(place), before, stage.parts, strict=True)
            shares = sum(stage.parts)
            found = max(found, *(abs(n - b - (place - first) * part / shares) for n, b, part in counts))
        first += stage.sequences
    return round(found, 4)


def forgets_stages(mixed: Mixture, sequences: int) -> list[int]:
    """As if the first stage went on for ever."""
    return mixture.divided(sequences, mixed.stages[0].parts)


def forgets_position(mixed: Mixture, sequences: int) -> list[int]:
    """As if every source began anew at each stage."""
    ends = itertools.accumulate(stage.sequences for stage in mixed.stages)
    number = next((number for number, end in enumerate(ends) if sequences <= end), len(mixed.stages) - 1)
    first = sum(stage.sequences for stage in mixed.stages[:number])
    return mixture.divided(sequences - first, mixed.stages[number].parts)


def by_remainders(total: int, parts: Sequence[int]) -> list[int]:
    """Largest remainders, which can take a sequence back."""
    whole = sum(parts)
    counts = [total * part // whole for part in parts]
    rests = sorted(range(len(parts)), key=lambda number: (counts[number] * whole - total * parts[number], number))
    return [count + (number in rests[: total - sum(counts)]) for number, count in enumerate(counts)]


def taken_back(mixed: Mixture, batch: int) -> int:
    """Steps after which less of a source was seen than before."""
    places = [mixed.seen(place) for place in range(0, mixed.sequences, batch)]
    return sum(any(b < a for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(places))


def counted(cases: int) -> dict[str, Any]:
    """The pure function, with its controls."""
    mixed, batch = large()
    generator, wrong, steps = random.Random(18), 0, 0
    for _ in range(cases):
        run, split = any_case(generator)
        drawn = mixture.of(run, split)
        assert drawn is not None
        wrong += wrong_steps(drawn, run.train.batch)
        steps += mixture.total_steps(run, split)
    rare = mixture.of(
        run_of("[{mix: {wiki: 43%, code: 43%, qa: 14%}}]", "steps: 200, batch: 1", ("wiki", "code", "qa")),
        split_of([50, 50, 50], [10, 10, 10]),
    )
    assert rare is not None
    controls = {}
    for broken in (forgets_stages, forgets_position):
        with patch.object(Mixture, "seen", broken):
            controls[broken.__name__] = wrong_steps(mixed, batch)
    plainly = taken_back(rare, 1)
    with patch.object(mixture, "divided", by_remainders):
        controls["by_remainders"] = taken_back(rare, 1)
    return {
        "sequences": mixed.sequences,
        "seen": dict(zip((one.name for one in mixed.sources), mixed.seen(mixed.sequences), strict=True)),
        "wrong_steps": wrong_steps(mixed, batch),
        "farthest_from_share": farthest(mixed, batch),
        "random": {"mixtures": cases, "steps": steps, "wrong_steps": wrong},
        "taken_back": plainly,
        "controls": controls,
    }


def sought() -> dict[str, Any]:
    """A step far into 10^9 sequences."""
    run = run_of("[{tokens: 9T, mix: {wiki: 60%, code: 39%, qa: 1%}}]", "batch: 64")
    mixed = mixture.of(run, split_of([10**9, 10**8, 10**6, 5], [2000, 2000, 700.5, 3]))
    assert mixed is not None
    order = MixedOrder("digest", 42, mixed, 64)
    tracemalloc.start()
    begun, processor = time.perf_counter(), time.process_time()
    order.sequences(mixed.sequences // 64 - 1)
    found = {
        "seconds": round(time.perf_counter() - begun, 5),
        "processor_seconds": round(time.process_time() - processor, 5),
        "peak_bytes": tracemalloc.get_traced_memory()[1],
    }
    tracemalloc.stop()
    return {"step": mixed.sequences // 64 - 1, **found}


def trained(folder: Path, every: int) -> dict[str, Any]:
    """Real trainings: alone, killed at every n-th step, by 2 and 4 processes, by an order that forgets the stages."""
    import mixed_run  # with torch, which counting does not need
    import tiny_run

    base = folder / "base"
    if not base.exists():
        tiny_run.make_base_model(base, dropout=0.1, width=32, layers=1)

    def done(name: str, where: str = "", kill_after: int | None = None) -> tuple[str, list[str]]:
        run_dir = RunDir(folder / name / "runs/run")
        if not run_dir.final.exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            run_dir = mixed_run.make(folder / name, base, where)
            if kill_after:
                assert tiny_run.train(run_dir, kill_after=kill_after) == -9
            assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        orders = [event["order"] for _, event in sorted(events.steps(run_dir.events_file).items())]
        return tiny_run.weights_sha(run_dir.final), orders

    alone = done("alone")
    killed = {step: done(f"killed-{step}", kill_after=step) == alone for step in range(1, TRAINED_STEPS, every)}
    ranks = {count: done(f"ranks-{count}", f", strategy: ddp, processes: {count}") == alone for count in (2, 4)}
    with patch.object(Mixture, "seen", forgets_stages):
        forgetful = done("forgetful")
    return {
        "weights": alone[0],
        "killed_after": list(killed),
        "differing_after_a_kill": [step for step, same in killed.items() if not same],
        "differing_by_processes": [count for count, same in ranks.items() if not same],
        "control_differs": {"weights": forgetful[0] != alone[0], "order": forgetful[1] != alone[1]},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--kill-every", type=int, default=1, help="steps between two places of a kill")
    parser.add_argument("--folder", type=Path, help="keeps the trainings; those finished there are not done again")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/mixture.json")
    asked = parser.parse_args()
    counts, seek = counted(asked.cases), sought()
    with tempfile.TemporaryDirectory(prefix="mixture-") as made:
        training = trained(asked.folder or Path(made), asked.kill_every)
    bars = {
        "counts_exact": counts["wrong_steps"] == counts["random"]["wrong_steps"] == counts["taken_back"] == 0,
        "within_one": counts["farthest_from_share"] <= 1,
        "resume_exact": not training["differing_after_a_kill"],
        "any_world": not training["differing_by_processes"],
        "seek_below_a_second": seek["seconds"] < 1,
        "controls_caught": all([*counts["controls"].values(), *training["control_differs"].values()]),
    }
    report = {
        "what": "a mixture of four sources by tokens over three stages: counts, resumes, worlds, seeks",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": f"just mixture --cases {asked.cases} --kill-every {asked.kill_every}",
        "bars": bars,
        "counts": counts,
        "seek": seek,
        "training": training,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True), "load": os.getloadavg()},
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"bars": bars, "counts": counts, "seek": seek}, indent=1))
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
