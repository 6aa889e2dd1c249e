"""Planted duplicates, leaks and contradictions against what the survey of `stoker prepare` finds, and what it costs.

Rows are made of real sentences (WordNet's glosses, docstrings of Python's own library): a prompt of two, an answer of
two. Sentences are used again in other rows, so that rows overlap without being alike. Planted are copies, copies with
other case and marks, with one word in twenty changed, with a sentence appended, the same between eval and train, and
other answers to a prompt. Hard negatives are rows of long templates with little content of their own. The control is
the same rows with nothing planted. Writes docs/evidence/data_survey.json.
"""

import argparse
import ast
import json
import os
import random
import re
import resource
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WORDNET = Path("/usr/share/wordnet")
_BARS = {"f1": 0.98, "seconds": 600, "gib": 2.0, "share_of_prepare": 0.25}
_SHARES = {"exact": 0.02, "marks": 0.01, "words": 0.02, "appended": 0.02, "contradiction": 0.01}
_LEAKS = {"leak exact": 0.0005, "leak words": 0.0005, "leak appended": 0.0005}
_TEMPLATED = 0.05
_EVAL = 0.005
_CONTROL_ROWS = 100_000
_OVERHEAD_ROWS = 20_000
_TEMPLATES = [
    "You are a careful assistant. Classify the sentiment of the review that follows as positive or negative and answer "
    "with one word only, without any explanation. Review: {} Sentiment:",
    "Translate the sentence below from English into French. Keep its tone, its length and its punctuation, and do not "
    "add anything of your own to it. Sentence: {}",
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request. Input: {} Response:",
    "What is the capital of {}? The capital of it is",
]
_APPENDED = (
    "I hope that this answer helps you.",
    "Let me know if you need anything else!",
    "That is all there is to it.",
)
Row = tuple[str, str]


def main() -> None:
    """Make rows, survey them, compare; or with `--survey` the part that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "data_survey")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "data_survey.json")
    parser.add_argument("--again", action="store_true", help="take the rows that the folder has")
    parser.add_argument("--survey", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", choices=["with", "without"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.prepare:
        print(json.dumps(_prepared(asked.folder, surveyed=asked.prepare == "with")))
    elif asked.survey:
        print(json.dumps(_surveyed(asked.survey)))
    else:
        _report(asked)


def _report(asked: argparse.Namespace) -> None:
    sentences = _sentences()
    truth = asked.folder / "planted.json"
    if not asked.again:
        planted = _make(asked.folder / "planted", sentences, asked.rows, plant=True)
        truth.write_text(json.dumps(planted))
        _make(asked.folder / "control", sentences, min(asked.rows, _CONTROL_ROWS), plant=False)
        _make(asked.folder / "overhead", sentences, _OVERHEAD_ROWS, plant=True)
    planted = json.loads(truth.read_text())
    found, control = (_child(asked, "--survey", asked.folder / name) for name in ("planted", "control"))
    overhead = _overhead(asked)
    scores = _scores(planted, found)
    report = {
        "what": "planted rows found by the survey of `stoker prepare`; seconds and memory of the survey alone",
        "bars": _BARS,
        "rows": found["rows"],
        "sentences": len(sentences),
        "planted": {kind: len(rows) for kind, rows in planted.items()},
        "scores": scores,
        "recall_by_kind": _recalls(planted, found),
        "templated_rows_called_duplicates": len(set(planted["templated"]) & set(found["copies"])),
        "control": {"rows": control["rows"]}
        | {kind: len(control[kind]) for kind in ("copies", "leaks", "contradictions")},
        "cost": {name: found[name] for name in ("seconds", "processor_seconds", "gib", "processes")},
        "overhead": overhead,
        "met": _met(scores, found, overhead),
        "machine": {"processors": os.cpu_count(), "python": sys.version.split()[0], "numpy": np.__version__},
    }
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def _met(scores: dict[str, Any], found: dict[str, Any], overhead: dict[str, Any]) -> dict[str, bool]:
    return {
        "f1": all(one["f1"] >= _BARS["f1"] for one in scores.values()),
        "seconds": found["seconds"] <= _BARS["seconds"],
        "gib": found["gib"] <= _BARS["gib"],
        "share_of_prepare": overhead["share"] <= _BARS["share_of_prepare"],
    }


# ---- rows


def _sentences() -> list[str]:
    """Distinct sentences of 6 to 30 words."""
    found = []
    for path in sorted(WORDNET.glob("data.*")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.split("|")[1].strip() for line in lines if "|" in line and not line.startswith(" ")]
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
        texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
        found += [" ".join(one.split()) for text in texts for one in re.split(r"(?<=\.)\s|\n\n", text)]
    distinct = {" ".join(re.findall(r"\w+", one.lower())): one for one in found if 6 <= len(one.split()) <= 30}
    return list(distinct.values())


def _make(folder: Path, sentences: list[str], count: int, *, plant: bool) -> dict[str, list[int]]:
    """Rows of train and eval as jsonl; by kind the numbers of planted rows: of two that are alike, the later one."""
    draw = random.Random(7)
    base = int(count * (1 - _TEMPLATED - sum(_SHARES.values()) - sum(_LEAKS.values()) - _EVAL))
    rows = [_base(draw, sentences) for _ in range(base)]
    kinds: list[tuple[str, int]] = [("", -1)] * base
    for _ in range(int(count * _TEMPLATED)):
        rows.append(_templated(draw, sentences))
        kinds.append(("templated", -1))
    held = [_base(draw, sentences) for _ in range(int(count * _EVAL))]
    shares = {**_SHARES, **_LEAKS} if plant else {}
    sources = {False: iter(draw.sample(range(base), base)), True: iter(draw.sample(range(len(held)), len(held)))}
    for kind, share in shares.items():
        is_leak = kind.startswith("leak")
        for _ in range(int(count * share)):
            origin = next(sources[is_leak])
            rows.append(_changed(kind.removeprefix("leak "), (held if is_leak else rows)[origin], draw, sentences))
            kinds.append((kind, -1 if is_leak else origin))
    order = draw.sample(range(len(rows)), len(rows))
    folder.mkdir(exist_ok=True)
    _write(folder / "train.jsonl", (rows[at] for at in order))
    _write(folder / "eval.jsonl", held)
    at = np.empty(len(rows), dtype=np.int64)
    at[order] = np.arange(len(rows))
    planted: dict[str, list[int]] = {kind: [] for kind in [*shares, "templated"]}
    for number, (kind, origin) in enumerate(kinds):
        if kind:
            planted[kind].append(int(max(at[number], at[origin]) if origin >= 0 else at[number]))
    return planted


def _base(draw: random.Random, sentences: list[str]) -> Row:
    one, two, three, four = draw.sample(sentences, 4)
    return f"{one}. {two}?", f"{three}. {four}."


def _templated(draw: random.Random, sentences: list[str]) -> Row:
    content = " ".join(draw.choice(sentences).split()[:5] + draw.choice(sentences).split()[-3:])
    return draw.choice(_TEMPLATES).format(content), draw.choice(["positive", "negative", draw.choice(sentences)])


def _changed(kind: str, row: Row, draw: random.Random, sentences: list[str]) -> Row:
    prompt, answer = row
    if kind == "marks":
        return prompt.upper(), answer.replace(".", " !").replace(",", ";")
    if kind == "appended":
        return prompt, f"{answer} {draw.choice(_APPENDED)}"
    if kind == "contradiction":
        return prompt, ". ".join(draw.sample(sentences, 2))
    return (_replaced(prompt, draw), _replaced(answer, draw)) if kind == "words" else row


def _replaced(text: str, draw: random.Random) -> str:
    """One word in twenty is another, at least one."""
    words = text.split()
    for at in draw.sample(range(len(words)), max(1, round(len(words) / 20))):
        words[at] = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=len(words[at]) + 1))
    return " ".join(words)


def _write(path: Path, rows: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        for prompt, completion in rows:
            file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


# ---- what is measured, in a process of its own


def _child(asked: argparse.Namespace, *words: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--folder", str(asked.folder), *map(str, words)]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]))


def _surveyed(folder: Path) -> dict[str, Any]:
    from stoker.config import load
    from stoker.engine import survey_findings, survey_pass
    from stoker.engine.sources import Input
    from stoker.rows import row_files
    from stoker.rundir import inputs

    run_file = _run_file(folder)
    run = load.load(str(run_file)).run
    eval_source = inputs.eval_source(run)
    assert eval_source is not None
    asked = [("train", inputs.train_sources(run)[0]), ("eval", eval_source)]
    files = [Input(source.path, 1.0, split, row_files.files(source, folder)) for split, source in asked]
    began, processes = time.monotonic(), 2
    rows = survey_pass.survey(run, files, has_template=True, workers=processes)
    assert isinstance(rows, survey_pass.SurveyedRows)
    held = rows.source_of == 1
    related = survey_findings.relations(rows, held)
    _, contradicting = survey_findings.contradictions(rows, related)
    survey_findings.findings(rows, rows.facts.lengths.astype(np.int64), held, None, cut_at=2048)
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "rows": len(held),
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(sum(one.ru_utime + one.ru_stime for one in (own, children)), 1),
        "gib": round((own.ru_maxrss + processes * children.ru_maxrss) / 2**20, 3),
        "processes": processes,
        "copies": np.flatnonzero((related.copy_of >= 0) & ~held).tolist(),
        "leaks": np.flatnonzero(related.leak_of >= 0).tolist(),
        "contradictions": contradicting.tolist(),
    }


def _run_file(folder: Path, tokenizer: str = "{train: bpe, vocab: 8000}") -> Path:
    path = folder / "run.yaml"
    path.write_text(
        f"model: {{shape: llama, layers: 1, width: 64, heads: 1}}\ntokenizer: {tokenizer}\n"
        "data: {train: train.jsonl, eval: eval.jsonl, length: 512}\n",
        encoding="utf-8",
    )
    return path


def _overhead(asked: argparse.Namespace) -> dict[str, Any]:
    """Processor seconds of preparing with and without the survey, the best of two each, in turns."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(2):
        for which in found:
            found[which].append(_child(asked, "--prepare", which)["processor_seconds"])
    best = {which: min(seconds) for which, seconds in found.items()}
    return {"rows": _OVERHEAD_ROWS, **best, "share": round(best["with"] / best["without"] - 1, 3)}


def _prepared(folder: Path, *, surveyed: bool) -> dict[str, Any]:
    from stoker.config import load
    from stoker.engine import prepare, survey_pass
    from stoker.rundir import layout

    os.environ["STOKER_RUNS"] = str(folder / "runs")
    work = folder / "overhead"
    trained = folder / "runs" / "tokenizer"
    if not trained.exists():
        path = _run_file(work).rename(work / "tokenizer.yaml")
        made = layout.create(load.load(str(path)))
        prepare.main(made.path)
    name = "with" if surveyed else "without"
    path = _run_file(work, str(trained / "data" / "tokenizer")).rename(work / f"{name}-{time.time_ns()}.yaml")
    run_dir = layout.create(load.load(str(path)))
    if not surveyed:
        survey_pass.survey = lambda *_, **__: survey_pass.Skipped("survey.skipped.problem")
    before = _processor_seconds()
    prepare.main(run_dir.path)
    return {"processor_seconds": round(_processor_seconds() - before, 2)}


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


# ---- scores


def _scores(planted: dict[str, list[int]], found: dict[str, Any]) -> dict[str, dict[str, float]]:
    wanted = {
        "copies": {row for kind in ("exact", "marks", "words", "appended") for row in planted[kind]},
        "leaks": {row for kind in _LEAKS for row in planted[kind]},
        "contradictions": set(planted["contradiction"]),
    }
    return {kind: _score(rows, set(found[kind])) for kind, rows in wanted.items()}


def _score(wanted: set[int], found: set[int]) -> dict[str, float]:
    right = len(wanted & found)
    precision, recall = right / max(1, len(found)), right / max(1, len(wanted))
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return {"precision": round(precision, 5), "recall": round(recall, 5), "f1": round(f1, 5)}


def _recalls(planted: dict[str, list[int]], found: dict[str, Any]) -> dict[str, float]:
    every = {*found["copies"], *found["leaks"], *found["contradictions"]}
    kinds = [kind for kind in planted if kind != "templated"]
    return {kind: round(len(set(planted[kind]) & every) / max(1, len(planted[kind])), 5) for kind in kinds}


if __name__ == "__main__":
    main()
