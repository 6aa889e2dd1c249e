"""Training that streams its set from a real S3 server (`rclone serve s3`) over a slow line, against a local set.

speed     pairs of a local and a streamed run, one after the other. The line is so slow that the reader takes most of
          it, the cache is 5 % of the set. Tokens/s once warm, and the share of the time that steps waited for rows.
          Once with steps of a fixed time (a sleep makes up the rest, as a card would), and once as fast as this machine
          computes: reader and model share its cores. A busy machine changes its speed from second to second, so the
          line follows the training's; `ratio` is of the time that is not spent on waiting for rows, which other
          processes hardly change, and the tokens/s by the clock stand beside it.
campaign  runs over a line that is cut (reset, stall, half-open, one byte a second, server away) and slow by turns.
          Every loss, every sequence and the weights must be those of the local run.
controls  a byte that is wrong in the store is refused; one that is wrong on the line is fetched again; and without the
          rows' digests both change the weights, so the campaign would have seen it.
Usage: python benchmarks/streamed.py [--pairs N] [--out FILE]
"""

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/campaigns"), str(ROOT / "tests/engine")]

import numpy as np  # noqa: E402
import store_servers  # noqa: E402
import streamed_case as case  # noqa: E402
import tiny_run  # noqa: E402
import torch  # noqa: E402
from network import DOWN, KINDS, Cut, Proxy, proxied  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from stoker.engine.trainer import ExactTrainer  # noqa: E402
from stoker.rundir import events, prepared, set_list  # noqa: E402
from stoker.rundir.layout import RunDir  # noqa: E402
from stoker.store import row_ranges  # noqa: E402
from stoker.store.row_ranges import RowPlace  # noqa: E402
from stoker.store.store_protocol import Patience  # noqa: E402

LENGTH, BATCH, STEPS, WARM = 1024, 4, 160, 30
NEWEST, AHEAD, HEADERS = 10, 10, 1.1
"""Steps by which the line follows the training; steps that the cache holds; what requests add to the rows."""
CACHE_SHARE = 0.05
PERIOD = 0.4
LINE_SHARE = 0.8
"""Of the line that a local run's rows would take; what is measured is reported."""
BAR, BAR_LINE = 0.98, 0.7
CUTS, SLOW, RUNS = 50, 20, 5
QUICK = Patience(stall_seconds=2)


def model(folder: Path, width: int, layers: int) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tiny_run.VOCAB,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def rows(count: int, length: int) -> list[list[np.ndarray]]:
    made = np.random.default_rng(7).integers(3, tiny_run.VOCAB, size=(count, length), dtype=np.int32)
    made[:, 0] = ~made[:, 0]
    return [[row] for row in made]


def text(base: Path, data: str, length: int, steps: int) -> str:
    return f"""
model: {base}
data: {{{data}, length: {length}}}
tune: {{method: lora, rank: 4}}
train: {{batch: {BATCH}, steps: {steps}, epochs: 9, learning_rate: 1e-3}}
save: {{every: 1000 steps}}
where: {{micro: {BATCH}}}
"""


def local(folder: Path, base: Path, length: int, steps: int) -> RunDir:
    made = rows(BATCH * steps, length)
    return tiny_run.make_run(folder, text(base, "train: rows.jsonl", length, steps), made)


def streamed(folder: Path, base: Path, store: str, length: int, steps: int) -> RunDir:
    size = 4 * length * BATCH * steps
    words = f'set: "{store}", stream: true, cache: {size * CACHE_SHARE / 1000:.3f} kB'
    return case.brought(folder, text(base, words, length, steps))


def trained(run_dir: RunDir, period: float = 0.0) -> RunDir:
    """Train to the end, each step in so many seconds at least."""

    def paced(plain: Any, *words: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        done = plain(*words, **options)
        time.sleep(max(0.0, period - (time.perf_counter() - begun)))
        return done

    with tiny_run.replaced(ExactTrainer, "training_step", paced):
        code = tiny_run.train(run_dir)
    assert code == 0, tiny_run.said(run_dir)
    return run_dir


# ---- speed


def warm(run_dir: RunDir) -> dict[str, float]:
    """Tokens/s of the steps after the first ones, by the clock, and the share of it that was spent on waiting."""
    steps = [event for step, event in sorted(events.steps(run_dir.events_file).items()) if step > WARM]
    seconds = sum(event["seconds"] for event in steps)
    return {
        "tokens_per_second": sum(event["tokens"] for event in steps) / seconds,
        "waited_share": sum(event["wait_seconds"] for event in steps) / seconds,
        "seconds": seconds,
    }


@contextmanager
def followed(proxy: Proxy, run_dir: RunDir) -> Iterator[list[tuple[float, float]]]:
    """A line a quarter faster than the training takes its rows; for each second what came and what could have."""
    log: list[tuple[float, float]] = []
    ended = threading.Event()

    def look() -> None:
        moved, then = proxy.moved[DOWN], time.monotonic()
        while not ended.wait(1.0):
            now = time.monotonic()
            could, came = proxy.bytes_per_second * (now - then), proxy.moved[DOWN] - moved
            moved, then = proxy.moved[DOWN], now
            newest = dict(sorted(events.newest_steps(run_dir.events_file, NEWEST).items())[-NEWEST:])
            if len(newest) == NEWEST:
                log.append((came, could))
                seconds = sum(event["seconds"] for event in newest.values())
                tokens = sum(event["tokens"] for event in newest.values())
                proxy.bytes_per_second = 4 * HEADERS * tokens / seconds / LINE_SHARE
            if newest and max(newest) >= STEPS - AHEAD:  # all is read ahead by then
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield log
    finally:
        ended.set()
        thread.join()


def speed(folder: Path, server: int, pairs: int, period: float) -> dict[str, Any]:
    base = model(folder / "model", *((16, 1) if period else (128, 3)))
    first = local(folder / "first", base, LENGTH, STEPS)
    store = f"s3://{store_servers.BUCKET}/speed-{period:g}"
    case.pushed(first, store)
    found = []
    with proxied(lambda _: server) as proxy, store_servers.reached(store_servers.s3_settings(proxy.port)):
        for number in range(pairs):
            own = trained(local(folder / f"local-{number}", base, LENGTH, STEPS), period)
            before = warm(own)
            run_dir = streamed(folder / f"streamed-{number}", base, store, LENGTH, STEPS)
            proxy.bytes_per_second = 4 * HEADERS * before["tokens_per_second"] / LINE_SHARE
            with followed(proxy, run_dir) as log:
                trained(run_dir, period)
            after = warm(run_dir)
            assert case.sha(run_dir) == case.sha(own)
            found.append(
                {
                    "local": before,
                    "streamed": after,
                    "tokens_per_second_ratio": after["tokens_per_second"] / before["tokens_per_second"],
                    "ratio": (1 - after["waited_share"]) / (1 - before["waited_share"]),
                    "line_share": sum(came for came, _ in log) / sum(could for _, could in log),
                    "load": os.getloadavg()[0],
                }
            )
            proxy.bytes_per_second = 0
            print(json.dumps(found[-1]), flush=True)
    return {
        "step_seconds_at_least": period,
        "set_bytes": 4 * LENGTH * BATCH * STEPS,
        "cache_share": CACHE_SHARE,
        "steps": STEPS,
        "warm_after": WARM,
        "pairs": found,
        "ratio": statistics.median(one["ratio"] for one in found),
        "tokens_per_second_ratio": statistics.median(one["tokens_per_second_ratio"] for one in found),
        "line_share": statistics.median(one["line_share"] for one in found),
    }


# ---- cuts and slow phases


def campaign(folder: Path, server: int, served: Path) -> dict[str, Any]:
    base, length, steps = model(folder / "model", 16, 1), 256, 120
    own = trained(local(folder / "local", base, length, steps))
    store = f"s3://{store_servers.BUCKET}/campaign"
    case.pushed(own, store)
    size = 4 * length * BATCH * steps
    away = threading.Event()
    draw = random.Random(18)
    row_ranges.PATIENCE = QUICK
    undo = case.hasty(said_seconds=1)
    result: dict[str, Any] = {"cuts": {}, "slow_phases": 0, "wrong": [], "stalled_events": 0, "damaged_events": 0}
    with (
        proxied(lambda _: 9 if away.is_set() else server) as proxy,
        store_servers.reached(store_servers.s3_settings(proxy.port)),
    ):
        for number in range(RUNS):
            run_dir = streamed(folder / f"cut-{number}", base, store, length, steps)
            kinds = [draw.choice((*KINDS, "flip")) for _ in range(CUTS // RUNS - 2)]
            proxy.bytes_per_second = size / 12
            proxy.arm([Cut(kind, DOWN, draw.randrange(1000, size // 12)) for kind in kinds])
            with troubled(proxy, away, size / 12, draw) as done:
                trained(run_dir)
            for kind in [*(cut.kind for cut in proxy.fired), *done["away"]]:
                result["cuts"][kind] = result["cuts"].get(kind, 0) + 1
            proxy.heal()
            result["slow_phases"] += done["slow"]
            result["stalled_events"] += len(case.told(run_dir, "stalled"))
            result["damaged_events"] += len(case.told(run_dir, "damaged"))
            checks = (tiny_run.losses, tiny_run.sequences, case.sha)
            result["wrong"] += [f"{number} {one.__name__}" for one in checks if one(run_dir) != one(own)]
            print(json.dumps(result), flush=True)
        proxy.bytes_per_second = 0
        result["controls"] = controls(folder, base, store, own, proxy, served, length, steps)
    undo()
    return result


@contextmanager
def troubled(proxy: Proxy, away: threading.Event, rate: float, draw: random.Random) -> Iterator[dict[str, Any]]:
    """While the block runs: phases in which the line is slow, and twice the server is not there."""
    done: dict[str, Any] = {"slow": 0, "away": []}
    ended = threading.Event()

    def trouble() -> None:
        plan = ["slow"] * (SLOW // RUNS) + ["away"] * 2
        draw.shuffle(plan)
        ended.wait(4)
        for kind in plan:
            if ended.wait(draw.uniform(0.5, 2.0)):
                return
            if kind == "slow":
                proxy.bytes_per_second = rate / 20
                done["slow"] += 1
            else:
                away.set()
                drop(proxy)
                done["away"].append("away")
            ended.wait(draw.uniform(1.0, 2.0))
            proxy.bytes_per_second = rate
            away.clear()

    thread = threading.Thread(target=trouble, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


def drop(proxy: Proxy) -> None:
    """Every connection ends, as where the server was killed; what is armed stays armed."""
    armed, fired = list(proxy._armed), list(proxy.fired)
    proxy.heal()
    if armed:
        proxy.arm(armed)
    proxy.fired = fired


def controls(  # noqa: PLR0913
    folder: Path, base: Path, store: str, own: RunDir, proxy: Proxy, served: Path, length: int, steps: int
) -> dict[str, bool]:
    """Wrong bytes, on the line and in the store, with and without the digests of rows."""
    report = prepared.read_report(own.data)
    listed = set_list.read(streamed(folder / "listed", base, store, length, steps).data)
    assert report is not None
    assert listed is not None
    name = f"train/{report.train.shards[0]}/tokens.bin"
    stored = served / store_servers.BUCKET / "campaign" / set_list.object_name(listed.files[name])
    plain, found = RowPlace.is_row, {}
    RowPlace.is_row = lambda *_: True
    try:
        proxy.arm([Cut("flip", DOWN, 60_000)])
        run_dir = trained(streamed(folder / "unchecked-line", base, store, length, steps))
        found["a flipped bit on the line changes an unchecked run"] = case.sha(run_dir) != case.sha(own)
    finally:
        RowPlace.is_row = plain
    content = bytearray(stored.read_bytes())
    content[len(content) // 2] ^= 1
    stored.write_bytes(content)
    time.sleep(2)  # rclone keeps listings for a second
    run_dir = streamed(folder / "planted", base, store, length, steps)
    code = tiny_run.train(run_dir)
    found["a wrong byte in the store ends the run"] = code != 0 and "STK345" in tiny_run.said(run_dir)
    found["and is said"] = len(case.told(run_dir, "damaged")) == 3
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", choices=("paced", "unpaced", "campaign"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/streamed.json")
    asked = parser.parse_args()
    before = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="streamed-") as made:
        folder = Path(made)
        with store_servers.rclone(folder / "data") as server, store_servers.reached(server.settings):
            work = {
                "campaign": lambda: campaign(folder / "cuts", server.port, folder / "data"),
                "paced": lambda: speed(folder / "paced", server.port, asked.pairs, PERIOD),
                "unpaced": lambda: speed(folder / "unpaced", server.port, asked.pairs, 0.0),
            }
            parts = {name: run() for name, run in work.items() if asked.only in (None, name)}
    report = {
        "what": "training that streams its set from S3 over a slow line, against a local set; cuts and controls",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": "just streamed",
        "bar": {"ratio": BAR, "line_share": BAR_LINE, "cuts": CUTS, "slow_phases": SLOW, "wrong": 0},
        **{name: parts.get(name, before.get(name)) for name in work},
        "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True), "load": os.getloadavg()},
        "versions": {name: version(name) for name in ("torch", "transformers", "boto3")} | store_servers.versions(),
    }
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
