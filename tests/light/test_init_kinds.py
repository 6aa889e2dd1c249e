"""`stoker init` on every kind of data: a job of a sensible number of optimizer steps, and a reason for each choice."""

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from init_data import chinese, draw, init, jsonl, one_text, pairs, parquet, planned, twenty, words
from made_runs import CommandLine

from stoker.config.run import Run
from stoker.launch import data_look, own_tokenizer
from stoker.rows import token_rates
from stoker.rows.training_length import FEWEST_STEPS, MOST_EPOCHS

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def stoker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    draw.seed(1)
    return CommandLine(tmp_path / "runs", monkeypatch, capsys)


# ---- kinds of data; each writes its files and says what `init` is answered


def sharegpt() -> str:
    lengths = [draw.randint(20, 300) for _ in range(300)]
    talks = [[{"from": "human", "value": words(20)}, {"from": "gpt", "value": words(one)}] for one in lengths]
    return jsonl("a.jsonl", [{"conversations": talk} for talk in talks])


def chinese_alpaca() -> str:
    return jsonl("a.jsonl", [{"instruction": chinese(20), "input": "", "output": chinese(200)} for _ in range(3000)])


def with_tools() -> str:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "weather", "arguments": {"city": "Paris"}}]}
    rest = [{"role": "tool", "content": "rain"}, {"role": "assistant", "content": "Take an umbrella."}]
    talks = [[{"role": "user", "content": words(15)}, call, *rest] for _ in range(600)]
    return jsonl("a.jsonl", [{"messages": talk, "tools": TOOLS} for talk in talks])


def notes() -> str:
    for number in range(120):
        folder = Path("notes", str(number % 3))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.md").write_text(words(900), encoding="utf-8")
    return "notes"


def table() -> str:
    with Path("a.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows({"question": words(9), "answer": words(50)} for _ in range(1000))
    return "a.csv"


def array() -> str:
    Path("a.json").write_text(json.dumps(pairs(800)), encoding="utf-8")
    return "a.json"


def packed() -> str:
    Path("a.jsonl.gz").write_bytes(gzip.compress(Path(jsonl("a.jsonl", pairs(800))).read_bytes()))
    return "a.jsonl.gz"


def many_short() -> str:
    return jsonl(
        "a.jsonl", [{"prompt": f"{number}?", "completion": "yes, the train rolls"} for number in range(200_000)]
    )


def long_documents() -> str:
    return jsonl("a.jsonl", [{"instruction": words(30), "output": words(9000)} for _ in range(120)])


def long_texts() -> str:
    return jsonl("a.jsonl", [{"text": words(5000)} for _ in range(100)])


def remote() -> str:
    return "hub:owner/name"


@dataclass(frozen=True)
class Kind:
    """What `init` should make of it."""

    write: Callable[[], str]
    rows: int | None
    objective: str = "sft"
    pack: bool | None = None
    """None where it may be either."""
    says: str = ""
    """A word of the reasons that only this kind has."""


KINDS = {
    "300 rows of ShareGPT": Kind(sharegpt, 300, pack=False, says="300 rows"),
    "Chinese Alpaca": Kind(chinese_alpaca, 3000, says="Chinese characters"),
    "messages with tools": Kind(with_tools, 600, says="messages"),
    "one text of 5 MB": Kind(one_text, 1, "pretrain", pack=True, says="pieces"),
    "a folder of notes": Kind(notes, 120, "pretrain", pack=True, says="120 files"),
    "csv": Kind(table, 1000, says="question, answer"),
    "a json list": Kind(array, 800, says="800 rows"),
    "gzip": Kind(packed, 800, says="800 rows"),
    "parquet": Kind(parquet, 1000, "pretrain", pack=True, says="1,000 rows"),
    "20 rows": Kind(twenty, 20, pack=False, says="20 rows"),
    "200,000 short rows": Kind(many_short, 200_000, pack=True, says="200,000 rows"),
    "long documents": Kind(long_documents, 120, pack=False, says="cut off"),
    "long texts": Kind(long_texts, 100, "pretrain", pack=True, says="pieces"),
    "on a hub": Kind(remote, None, pack=True, says="hub"),
}
CHOSEN = ("data.length", "data.pack", "train.batch", "train.learning_rate", "objective", "tune")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_data_gets_a_job_of_enough_steps_with_reasons(stoker: CommandLine, name: str) -> None:
    kind = KINDS[name]
    data = kind.write()
    for language, goal, word in (("zh", "1", "train.steps"), ("en", "2", "train.epochs")):
        run, said = init(stoker, data, goal, language)
        assert run.train.objective == kind.objective
        assert kind.pack in (None, run.data.pack)
        for chosen in (*CHOSEN, word):
            assert f"\n{chosen}: " in said
        if kind.rows is None:
            continue
        steps = planned(stoker)
        if goal == "1":
            assert steps["total"] <= steps["per_epoch"] * 1.1
            assert steps["total"] >= FEWEST_STEPS or 1 < kind.rows < FEWEST_STEPS
        else:
            assert steps["total"] >= FEWEST_STEPS
            assert steps["epochs"] <= MOST_EPOCHS
    assert kind.says in said
    assert _covered(run, data) >= 0.99 or name == "long documents"


def _covered(run: Run, data: str) -> float:
    """The share of rows that `data.length` does not cut; of running text, which is split, all."""
    if run.train.objective == "pretrain" or data == remote():
        return 1.0
    return data_look.look(data, Path.cwd(), token_rates.of("qwen2", 151_936)).within(run.data.length)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_local_model_s_own_tokenizer_counts(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    """One token for each letter: no vocabulary that is known here cuts text like that."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 128}
    Path("model").mkdir()
    config = {"model_type": "llama", "max_position_embeddings": 4096, **sizes}
    Path("model/config.json").write_text(json.dumps(config), encoding="utf-8")
    letters = {chr(code): code for code in range(32, 127)}
    core = {"type": "BPE", "vocab": letters, "merges": []}
    Path("model/tokenizer.json").write_text(json.dumps({"version": "1.0", "model": core}), encoding="utf-8")
    rows = [{"prompt": "a", "completion": "z" * 700} for _ in range(200)]
    run, said = init(stoker, jsonl("a.jsonl", rows), "2", language, model="model")
    assert run.data.length == 768  # the first of its lengths that covers 700 letters and a template's marks
    assert "`tokenizer.json`" in said
    monkeypatch.setattr(own_tokenizer.importlib.util, "find_spec", lambda name: None)
    run, said = init(stoker, "a.jsonl", "2", language, model="model")
    assert run.data.length < 768
    assert "pip install tokenizers" in said
