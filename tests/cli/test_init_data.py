"""`stoker init` reads the data and says what it saw; what it proposes is a job of a sensible number of steps."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from init_data import draw, init, jsonl, one_text, pairs, parquet, planned, twenty, words
from made_runs import CommandLine

from stoker.launch import data_look, parquet_sample, starter_choices
from stoker.launch.starter_choices import StarterQuestion
from stoker.rows.training_length import FEWEST_STEPS, MOST_EPOCHS


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw.seed(1)


# ---- data


def test_what_plan_says_of_the_old_defaults_is_not_said_of_these(stoker: CommandLine) -> None:
    init(stoker, jsonl("a.jsonl", pairs(300)), "2")
    old = ("data.pack=true", "data.length=1024", "train.batch=16", "train.epochs=3")
    words = [one for setting in old for one in ("--set", setting)]
    before = stoker("plan", "run.yaml", "--card", "RTX4090", *words)
    now = stoker("plan", "run.yaml", "--card", "RTX4090")
    assert "too few to learn much" in before.out
    assert "too few to learn much" not in now.out
    tries = stoker("plan", "run.yaml", "--card", "RTX4090", *words, "--set", "train.steps=50")
    assert "by heart" in tries.out


def test_the_table_of_all_cards_has_the_remark_too(stoker: CommandLine) -> None:
    init(stoker, twenty(), "2")
    assert "too few to learn much" in stoker("plan", "run.yaml", "--set", "train.epochs=1").out


def test_the_model_s_context_bounds_the_length_and_that_is_said(stoker: CommandLine) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 2048, **sizes}
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(config), encoding="utf-8")
    data = jsonl("a.jsonl", [{"instruction": words(30), "output": words(3000)} for _ in range(120)])
    run, said = init(stoker, data, "2", model="model")
    assert run.data.length == config["max_position_embeddings"]
    assert "2,048 positions" in said
    beyond = "positions that this model was made for"
    assert beyond not in stoker("plan", "run.yaml").out
    assert beyond in stoker("plan", "run.yaml", "--set", "data.length=4096").out
    assert beyond in stoker("plan", "run.yaml", "--card", "RTX4090", "--set", "data.length=4096").out


def test_positions_are_read_of_a_model_whose_weights_no_formula_counts(stoker: CommandLine) -> None:
    Path("model").mkdir()
    config = {"model_type": "never-heard-of", "text_config": {"max_position_embeddings": 300}}
    Path("model/config.json").write_text(json.dumps(config), encoding="utf-8")
    run, said = init(stoker, jsonl("a.jsonl", pairs(100, answer=900)), "2", model="model")
    assert (run.data.length, "300 positions" in said) == (300, True)


def test_rows_that_repeat_are_counted(stoker: CommandLine) -> None:
    rows = pairs(100)
    assert "7 of 107 rows repeat" in init(stoker, jsonl("a.jsonl", [*rows, *rows[:7]]), "2")[1]
    assert "rows repeat" not in init(stoker, jsonl("a.jsonl", rows), "2")[1]


@pytest.mark.parametrize(("broken", "skips"), [(0, False), (10, True), (60, False)])
def test_a_run_file_for_data_with_a_few_bad_rows_leaves_them_out(stoker: CommandLine, broken: int, skips: bool) -> None:
    rows = [*pairs(200), *({"prompt": words(5), "completion": ""} for _ in range(broken))]
    run, said = init(stoker, jsonl("a.jsonl", rows), "2")
    assert (run.data.on_bad_row == "skip") == skips
    assert ("cannot be used" in said) == bool(broken)


@pytest.mark.parametrize("long", ["prompt", "completion"])
@pytest.mark.parametrize(("far", "length"), [(0, 256), (6, 256), (40, 8192)])
def test_a_few_rows_that_are_far_longer_than_the_others_do_not_decide_the_length(
    stoker: CommandLine, far: int, length: int, long: str
) -> None:
    rows = [*pairs(300, answer=30), *({**pairs(1)[0], long: words(12_000)} for _ in range(far))]
    run, said = init(stoker, jsonl("a.jsonl", rows), "2")
    assert run.data.length == length
    assert (run.data.on_bad_row == "skip") == (far == 6)  # what is cut off may leave no answer
    assert ("far longer" in said) == (far == 6)


def test_text_for_a_model_that_was_trained_to_answer_is_warned_of(stoker: CommandLine) -> None:
    assert "its base model" in init(stoker, one_text(), "2", model="Qwen/Qwen2.5-0.5B-Instruct")[1]
    run, said = init(stoker, "book.txt", "2")
    assert "its base model" not in said
    assert run.train.learning_rate < 2e-4
    assert run.train.objective == "pretrain"


@pytest.mark.parametrize(
    ("language", "said"), [("en", "`my_data.jsonl` is next to it"), ("zh", "旁边有 `my_data.jsonl`")]
)
def test_a_file_with_another_ending_is_named(stoker: CommandLine, language: str, said: str) -> None:
    jsonl("my_data.jsonl", pairs(50))
    assert said in init(stoker, "my_data.json", "2", language)[1]
    assert "my_data.jsonl" not in init(stoker, "other.json", "2", language)[1]


def test_parquet_without_pyarrow_is_said(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    data = parquet()
    monkeypatch.setattr(parquet_sample.importlib.util, "find_spec", lambda name: None)
    assert "pip install pyarrow" in init(stoker, data, "2")[1]


def test_unknown_columns_are_left_to_be_named_in_the_file(stoker: CommandLine) -> None:
    jsonl("a.jsonl", [{"question_text": words(9), "reply": words(30)} for _ in range(200)])
    _, said = init(stoker, "a.jsonl", "2")
    assert "`data.columns`" in said
    text = Path("run.yaml").read_text(encoding="utf-8")
    named = text.replace(
        "# columns: {prompt: question_text, answer: reply}", "columns: {prompt: question_text, answer: reply}"
    )
    assert named != text
    Path("run.yaml").write_text(named, encoding="utf-8")
    assert planned(stoker)["total"] > 0


def test_a_set_of_llama_factory_is_read_by_its_list(stoker: CommandLine) -> None:
    Path("data").mkdir()
    jsonl("data/mine.jsonl", [{"ask": words(9), "tell": words(40)} for _ in range(200)])
    entry = {"file_name": "mine.jsonl", "columns": {"prompt": "ask", "response": "tell"}}
    Path("data/dataset_info.json").write_text(json.dumps({"mine": entry}), encoding="utf-8")
    run, said = init(stoker, "data/dataset_info.json#mine", "2")
    assert run.data.train == "data/dataset_info.json#mine"
    assert "200 rows" in said
    assert planned(stoker)["total"] >= FEWEST_STEPS
    Path("run.yaml").unlink()
    outcome = stoker("init", stdin="1\n\ndata\n")
    assert "STK173" in outcome.err
    assert "data/dataset_info.json#mine" in outcome.err


# ---- choices alone


def look(lengths: Sequence[float], rows: int | None = None) -> data_look.DataLook:
    count = rows or len(lengths)
    tokens = round(sum(lengths) * count / len(lengths))
    return data_look.DataLook(None, count, 0, tokens, sorted(lengths), [], [], 1.0, is_running=False)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("rows", [4, 10, 33, 64, 100, 333, 1000, 5000, 20_000, 300_000])
def test_no_number_of_rows_gives_too_few_steps_or_too_many_passes(rows: int, splits: bool, full: bool) -> None:
    question = StarterQuestion(splits=splits, scratch_length=None, context=32_768, full=full)
    made = starter_choices.propose(question, look([400.0] * min(rows, 2000), rows))
    assert made.total is not None
    assert made.epochs <= MOST_EPOCHS
    possible = rows * 0.9 >= (FEWEST_STEPS / MOST_EPOCHS if full else FEWEST_STEPS + 3)
    assert made.total >= FEWEST_STEPS or not possible
    assert made.steps is None if full else made.steps is not None


@pytest.mark.parametrize("context", [512, 2048, None])
@pytest.mark.parametrize("longest", [10, 200, 300, 1500, 100_000])
def test_the_length_covers_the_rows_as_far_as_the_model_goes(longest: int, context: int | None) -> None:
    question = StarterQuestion(splits=False, scratch_length=None, context=context, full=True)
    made = starter_choices.propose(question, look([float(longest)] * 500))
    assert made.length <= (context or made.length)
    assert made.length >= min(longest, context or 8192, 8192)
    assert made.length <= max(256, 2 * longest)
