"""A real open model learns to call tools: SmolLM2-135M-Instruct by LoRA, asked through `stoker serve`.

Ten tools; requests need one call, two at once, none, or are answered from a tool's result (`tool_rows.py`). SmolLM2's
template has no tools, so the run takes its tokenizer with `tool_calling.jinja`. Held-out requests are sent to the
OpenAI endpoint of one server, to the base and to the adapter; vLLM parses the calls. A call counts if function and
arguments are equal as JSON. Usage: python benchmarks/tool_calling.py [--folder FOLDER] [--out FILE]
"""

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import smollm2
import tool_rows
from tool_rows import Row

NAME = "tool_calling"
TEMPLATE = Path(__file__).parent / "tool_calling.jinja"
SEED = 15
TRAIN = {"call": 700, "parallel": 700, "none": 130, "result": 80}
HELD_OUT = {"call": 190, "parallel": 60, "none": 25, "result": 25}
BAR = 0.8
ANSWER_TOKENS = 112
CLIENTS = 16
PORT = 8128
RUN_FILE = """
name: {name}
model: {model}
tokenizer: tokenizer  # the model's, with a chat template that knows tools
data: {{train: train.jsonl, length: 1024}}
tune: {{method: lora, rank: 16}}
train: {{batch: 1, epochs: 1, learning_rate: 1e-3, warmup: 10%}}
save: {{every: 10m}}
native:
  vllm: {{enable_auto_tool_choice: true, tool_call_parser: hermes, max_model_len: 512, kv_cache_memory_bytes: {cache}}}
"""

Reply = dict[str, Any]
Call = tuple[str, str]
"""A function's name, and its arguments as JSON with sorted keys."""


def write_run(folder: Path, base: Path, rows: list[Row]) -> Path:
    """Rows, tokenizer and run file, as a user would write them."""
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row.trained) + "\n" for row in rows)
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, tokenizer)
    shutil.copy(TEMPLATE, tokenizer / "chat_template.jinja")
    path = folder / f"{NAME}.yaml"
    path.write_text(RUN_FILE.format(name=NAME, model=base, cache=256 << 20), encoding="utf-8")
    return path


@contextmanager
def served() -> Iterator[Any]:
    """The run's server, and its endpoint."""
    from stoker.artifacts import model_server
    from stoker.rundir import layout

    run_dir = layout.find(NAME)
    smollm2.stoker("serve", NAME, "--port", str(PORT))
    try:
        server = model_server.find(run_dir)
        assert server is not None
        yield model_server.endpoint(run_dir, server)
    finally:
        smollm2.stoker("serve", NAME, "--stop")


def ask(at: Any, rows: list[Row]) -> list[Reply]:
    """The answers of a served model, greedily decoded; calls as the server parses them."""
    from stoker.artifacts import endpoint

    def one(row: Row) -> Reply:
        body = {"messages": row.asked, "tools": row.tools, "max_tokens": ANSWER_TOKENS, "temperature": 0}
        message = endpoint.ask(at, "chat/completions", body)["choices"][0]["message"]
        return {"content": message.get("content") or "", "tool_calls": message.get("tool_calls") or []}

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(one, rows))


# ---- scores


def score(rows: list[Row], replies: list[Reply]) -> dict[str, Any]:
    """What was right, by kind of row; `calls` are the kinds that need any."""
    pairs = list(zip(rows, replies, strict=True))
    kinds = {kind: [pair for pair in pairs if pair[0].kind == kind] for kind in tool_rows.KINDS}
    calls = kinds["call"] + kinds["parallel"]
    unseen = [pair for pair in calls if pair[0].unseen_wording]
    return {
        "calls": _count_calls(calls),
        "calls_in_unseen_wordings": _count_calls(unseen),
        "call": _count_calls(kinds["call"]),
        "parallel": _count_calls(kinds["parallel"]),
        "none": _count_answers(kinds["none"]),
        "result": _count_answers(kinds["result"]),
    }


def parsed(reply: Reply) -> list[Call] | None:
    """The calls of a reply, in a fixed order; None if one of them cannot be read."""
    if "<tool_call>" in reply["content"]:
        return None
    try:
        found = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in reply["tool_calls"]]
    except ValueError:
        return None
    return _in_order(found) if all(isinstance(arguments, dict) for _, arguments in found) else None


def is_right(row: Row, reply: Reply) -> bool:
    """Whether a reply calls what is to be called, or else says what is to be said without a call."""
    calls = parsed(reply)
    if row.calls:
        return calls == _in_order(row.calls)
    facts = [value for turn in row.asked if turn["role"] == "tool" for value in json.loads(turn["content"]).values()]
    said = reply["content"]
    return calls == [] and bool(said.strip()) and all(str(fact) in said for fact in facts)


def _count_calls(pairs: list[tuple[Row, Reply]]) -> dict[str, Any]:
    read = [(row, parsed(reply)) for row, reply in pairs]
    right = sum(is_right(row, reply) for row, reply in pairs)
    return {
        "rows": len(pairs),
        "parse": sum(bool(calls) for _, calls in read),
        "same_functions": sum([name for name, _ in calls or []] == _names(row) for row, calls in read),
        "match": right,
        "share": round(right / len(pairs), 4) if pairs else None,
    }


def _count_answers(pairs: list[tuple[Row, Reply]]) -> dict[str, Any]:
    return {
        "rows": len(pairs),
        "no_call": sum(parsed(reply) == [] for _, reply in pairs),
        "match": sum(is_right(row, reply) for row, reply in pairs),
        "same_words": sum(reply["content"].strip() == row.messages[-1]["content"] for row, reply in pairs),
    }


def _names(row: Row) -> list[str]:
    return [name for name, _ in _in_order(row.calls)]


def _in_order(calls: list[tuple[str, dict[str, Any]]]) -> list[Call]:
    return sorted((name, json.dumps(arguments, sort_keys=True)) for name, arguments in calls)


# ---- the whole


def measure(folder: Path, train: list[Row], held_out: list[Row]) -> dict[str, Any]:
    """Train through the command line, serve, ask the base and the adapter the same."""
    from stoker.rundir import events, layout

    base = smollm2.fetch_model(folder / "smollm2")
    smollm2.stoker("train", str(write_run(folder, base, train)))
    with served() as at:
        after = smollm2.once(folder, "tuned", lambda: ask(at, held_out))
        before = smollm2.once(folder, "base", lambda: ask(replace(at, model=f"{NAME}-base"), held_out))
    steps = events.steps(layout.find(NAME).events_file)
    share = score(held_out, after)["calls"]["share"]
    return {
        "bar": f"calls match in >= {BAR:.0%} of held-out rows",
        "reached": share >= BAR,
        "base": {**score(held_out, before), "sample": _samples(held_out, before)},
        "tuned": {**score(held_out, after), "wrong": _samples(held_out, after)},
        "training": {"steps": len(steps), "step_seconds": round(sum(step["seconds"] for step in steps.values()))},
    }


def counted(rows: list[Row]) -> dict[str, int]:
    """How many rows there are of each kind, and of wordings that are held out."""
    kinds = {kind: sum(row.kind == kind for row in rows) for kind in tool_rows.KINDS}
    return {"rows": len(rows), **kinds, "unseen_wordings": sum(row.unseen_wording for row in rows)}


def _samples(rows: list[Row], replies: list[Reply]) -> list[dict[str, Any]]:
    """The first replies that are not right."""
    wrong = [(row, reply) for row, reply in zip(rows, replies, strict=True) if not is_right(row, reply)]
    return [
        {
            "request": row.request,
            "wanted": row.calls or row.messages[-1]["content"],
            "got": [list(call) for call in parsed(reply) or []] or reply["content"],
        }
        for row, reply in wrong[:8]
    ]


def _vllm_version() -> str:
    from stoker import tools

    python = tools.find(tools.VLLM)
    assert python, "needs vLLM: `just tools vllm`"
    (found,) = python.parent.parent.glob("lib/*/site-packages/vllm*.dist-info")
    return found.stem.replace("-", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="keep model, run and answers here; what is finished is not done again"
    )
    parser.add_argument("--divide", type=int, default=1, help="a part of the rows, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    sizes = [{kind: count // options.divide for kind, count in counts.items()} for counts in (TRAIN, HELD_OUT)]
    train, held_out = tool_rows.make_sets(SEED, *sizes)
    assert not {row.request for row in train} & {row.request for row in held_out}
    assert not tool_rows.held_out_values(train)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        vllm = _vllm_version()
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "versions": {name: version(name) for name in ("stoker", "torch", "transformers", "peft")} | {"vllm": vllm},
            "model": "SmolLM2-135M-Instruct (Q4_1 weights, dequantised)",
            "seed": SEED,
            "tools": [tool.name for tool in tool_rows.TOOLS],
            "train": counted(train),
            "held_out": counted(held_out),
            "results": measure(folder, train, held_out),
        }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    sys.exit(not report["results"]["reached"])


if __name__ == "__main__":
    main()
