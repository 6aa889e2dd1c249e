"""A real open model learns a stated preference: SmolLM2-135M-Instruct by DPO, "sizes and weights in metric units".

Pairs of answers to "How long is a cabinet?" differ in unit, figure and wording, drawn apart for each, so that only the
unit tells the better one. Things held out of training are asked before and after: which of the two answers is likelier
(to the model alone, and against what it was, as DPO counts it), and in which units it answers by itself; through the
adapter, merged, and as vLLM serves it. Control: the same pairs, of which a coin says the better one.
Usage: python benchmarks/preference.py [--folder FOLDER] [--out FILE]
"""

import argparse
import datetime
import json
import os
import random
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import smollm2

SEED = 20
TRAIN, HELD_OUT = 320, 120
BAR = 0.8
QUESTIONS = {
    "length": ("How long is a {}?", "What is the usual length of a {}?", "Tell me how long a {} is."),
    "weight": ("How heavy is a {}?", "What does a {} weigh?", "Tell me the weight of a {}."),
}
UNITS = {
    "length": (("centimetres", "metres"), ("inches", "feet")),
    "weight": (("kilograms", "grams"), ("pounds", "ounces")),
}
ANSWERS = (
    "It is about {} {}.",
    "Around {} {}, I would say.",
    "Usually {} {}.",
    "That is {} {} on average.",
    "I think {} {}.",
)
METRIC = r"\b(centimet(re|er)s?|met(re|er)s?|millimet(re|er)s?|kilomet(re|er)s?|kilograms?|grams?|cm|mm|kg)\b"
IMPERIAL = r"\b(inch(es)?|feet|foot|yards?|miles?|pounds?|ounces?|lbs?|oz)\b"
RUN_FILE = """
name: {name}
model: {model}
data: {{train: {name}.jsonl, eval: held_out.jsonl, length: 128, pack: false}}
tune: {{method: lora, rank: 16}}
train: {{objective: dpo, batch: 8, epochs: 1, learning_rate: 2e-4, warmup: 10%, dpo: {{beta: 0.1}}}}
save: {{every: 10m}}
"""

Pair = dict[str, str]


def things() -> list[str]:
    """Things one can touch, of one word: WordNet's artifacts."""
    found = set()
    for line in (smollm2.WORDNET / "data.noun").read_text(encoding="utf-8").splitlines():
        if re.match(r"\d{8} 06 n ", line) and re.fullmatch(r"[a-z]{4,9}", word := line.split()[4]):
            found.add(word)
    return sorted(found)


def pair(thing: str, drawn: random.Random) -> Pair:
    """A question with the better and the worse answer."""
    kind = drawn.choice(sorted(QUESTIONS))
    prompt = drawn.choice(QUESTIONS[kind]).format(thing)
    chosen, rejected = (
        drawn.choice(ANSWERS).format(drawn.randint(2, 60), drawn.choice(units)) for units in UNITS[kind]
    )
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def make_pairs(train: int, held_out: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and some of other things."""
    drawn = random.Random(SEED)
    words = drawn.sample(things(), train + held_out)
    pairs = [pair(word, drawn) for word in words]
    return pairs[held_out:], pairs[:held_out]


def by_coin(pairs: list[Pair]) -> list[Pair]:
    """The same, with nothing to learn."""
    coin = random.Random(SEED)
    swapped = [{**one, "chosen": one["rejected"], "rejected": one["chosen"]} for one in pairs]
    return [coin.choice(both) for both in zip(pairs, swapped, strict=True)]


# ---- what a model prefers, and says


def log_probs(model: Any, tokenizer: Any, pairs: list[Pair]) -> list[tuple[float, float]]:
    """Of each pair, the mean log-probability of a token of the better and of the worse answer."""
    import torch

    from stoker.engine import generate, models

    def mean(prompt: str, answer: str) -> float:
        turns = [{"role": "user", "content": prompt}]
        asked = generate.prompt_ids(tokenizer, turns, plain=False)
        ids = torch.cat([asked, torch.tensor([tokenizer(answer + tokenizer.eos_token).input_ids])], 1)
        logits = model(input_ids=ids).logits[0, asked.shape[1] - 1 : -1].float()
        said = ids[0, asked.shape[1] :]
        return float(logits.log_softmax(-1)[torch.arange(len(said)), said].mean())

    with models.evaluating(model):
        return [(mean(one["prompt"], one["chosen"]), mean(one["prompt"], one["rejected"])) for one in pairs]


def preferred(found: list[tuple[float, float]]) -> float:
    """Share of pairs whose better answer is the likelier one."""
    return round(sum(chosen > rejected for chosen, rejected in found) / len(found), 4)


def units(answers: list[str]) -> dict[str, int]:
    """In which units the answers are."""
    metric = [bool(re.search(METRIC, one.lower())) for one in answers]
    imperial = [bool(re.search(IMPERIAL, one.lower())) for one in answers]
    both = list(zip(metric, imperial, strict=True))
    return {
        "metric": both.count((True, False)),
        "imperial": both.count((False, True)),
        "both": both.count((True, True)),
        "neither": both.count((False, False)),
    }


# ---- the whole


def train(folder: Path, base: Path, name: str, pairs: list[Pair]) -> Any:
    """By the command line, as a user would; the run."""
    from stoker.rundir import layout

    _write(folder / f"{name}.jsonl", pairs)
    path = folder / f"{name}.yaml"
    path.write_text(RUN_FILE.format(name=name, model=base), encoding="utf-8")
    smollm2.stoker("train", str(path))
    return layout.find(name)


def _write(path: Path, pairs: list[Pair]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in pairs)


def eval_accuracy(run_dir: Any) -> float:
    """Share of held-out pairs whose better answer gained more than the worse one, at the end."""
    from stoker.rundir import events

    evals = [one for one in events.read(run_dir.events_file) if one["event"] == "eval"]
    return round(evals[-1]["figures"]["accuracy"], 4)


def measure(folder: Path, base: Path, pairs: list[Pair], held_out: list[Pair]) -> dict[str, Any]:
    """Before, after, merged and served; and the control."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stoker.engine import generate
    from stoker.rundir import artifacts, events

    _write(folder / "held_out.jsonl", held_out)
    before = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    likelier = smollm2.once(folder, "pairs-before", lambda: log_probs(*before, held_out))
    said = smollm2.once(folder, "before", lambda: smollm2.ask(*before, held_out))
    results: dict[str, Any] = {
        "before": {"preferred": preferred(likelier), "units": units(said), "sample": said[:4]},
    }
    run_dir = train(folder, base, "metric", pairs)
    after = generate.load(run_dir)
    likelier = smollm2.once(folder, "pairs-after", lambda: log_probs(*after, held_out))
    said = smollm2.once(folder, "after", lambda: smollm2.ask(*after, held_out))
    seconds = round(sum(step["seconds"] for step in events.steps(run_dir.events_file).values()))
    results["after"] = {
        "preferred": preferred(likelier),
        "accuracy": eval_accuracy(run_dir),
        "units": units(said),
        "sample": said[:4],
        "step_seconds": seconds,
    }
    results["through"] = _through(folder, run_dir, said, held_out)
    results["parity"] = artifacts.parity(run_dir)
    control = train(folder, base, "coin", by_coin(pairs))
    likelier = smollm2.once(folder, "pairs-coin", lambda: log_probs(*generate.load(control), held_out))
    results["control"] = {"preferred": preferred(likelier), "accuracy": eval_accuracy(control)}
    return results


def _through(folder: Path, run_dir: Any, adapter: list[str], rows: list[Pair]) -> dict[str, Any]:
    """The answers of the merged model and of vLLM, beside the adapter's."""
    from stoker import tools
    from stoker.rundir import artifacts

    merged = artifacts.folder(run_dir, "merged")
    if not merged.is_dir():
        smollm2.stoker("merge", run_dir.name)
    found = {"merged": smollm2.once(folder, "merged", lambda: smollm2.ask_folder(merged, rows))}
    if tools.find(tools.VLLM) or smollm2.answers_file(folder, "vllm").exists():
        found["vllm"] = smollm2.once(folder, "vllm", lambda: smollm2.ask_served(run_dir, rows))
    return {
        name: {"units": units(said), "same_words": sum(a == b for a, b in zip(adapter, said, strict=True))}
        for name, said in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep model, runs and answers here; what is finished is kept")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    pairs, held_out = make_pairs(TRAIN, HELD_OUT)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        base = smollm2.fetch_model(folder / "smollm2")
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "versions": {name: version(name) for name in ("stoker", "torch", "transformers", "peft")},
            "model": "SmolLM2-135M-Instruct (Q4_1 weights, dequantised)",
            "seed": SEED,
            "pairs": {"train": len(pairs), "held_out": len(held_out), "first": pairs[0]},
            "bar": f">= {BAR:.0%} of held-out pairs",
            "results": measure(folder, base, pairs, held_out),
        }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    sys.exit(report["results"]["after"]["preferred"] < BAR)


if __name__ == "__main__":
    main()
