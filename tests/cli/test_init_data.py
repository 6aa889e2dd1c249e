"""`stoker init` reads the data and says what it saw; what it proposes is a job of a sensible number of steps."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from init_data import draw, init, jsonl, one_text, pairs, parquet, planned, twenty, words
from made_runs import CommandLine

from stoker.cli import init_command
from stoker.config import load
from stoker.launch import data_look, parquet_sample, starter_choices
from stoker.launch.starter_choices import StarterQuestion
from stoker.rows.training_length import FEWEST_STEPS, MOST_EPOCHS
from stoker.terminal.starter import Target, scalar


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
    assert said not in init(stoker, "other.json", "2", language)[1]


@pytest.mark.parametrize(
    ("lying", "taken"),
    [
        (["mine.csv"], "mine.csv"),
        (["mine.csv", "requirements.txt"], "mine.csv"),
        (["package.json"], "data/train.jsonl"),
        (["dataset_info.json", "mine.jsonl.gz"], "mine.jsonl.gz"),
        ([".x.jsonl"], "data/train.jsonl"),
        ([".x.csv", "mine.parquet"], "mine.parquet"),
        (["a.jsonl", "b.jsonl"], "data/train.jsonl"),
        (["mine.csv", "data/train.jsonl"], "data/train.jsonl"),
    ],
)
def test_the_only_file_of_rows_in_the_folder_is_the_default(stoker: CommandLine, lying: list[str], taken: str) -> None:
    for name in lying:
        Path(name).parent.mkdir(exist_ok=True)
        jsonl(name, pairs(1))
    stoker("init", "--yes")
    assert load.load("run.yaml").run.data.train == taken


def test_parquet_without_pyarrow_is_said(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    data = parquet()
    monkeypatch.setattr(parquet_sample.importlib.util, "find_spec", lambda name: None)
    assert "pip install pyarrow" in init(stoker, data, "2")[1]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("keys", [("问题", "回答", "类别"), ("question_text", "reply", "id")])
def test_columns_whose_names_leave_no_doubt_are_taken_and_the_rows_seen_through_them(
    stoker: CommandLine, keys: tuple[str, str, str], name: str
) -> None:
    rows = [dict(zip(keys, (words(9), words(300), str(number)), strict=True)) for number in range(200)]
    if name == "a.csv":
        lines = [",".join(keys), *(",".join(row.values()) for row in rows)]
        Path(name).write_text("\n".join(lines), encoding="utf-8")
    run, said = init(stoker, jsonl(name, rows) if name == "a.jsonl" else name, "2")
    assert run.data.columns is not None
    assert (run.data.columns.prompt, run.data.columns.answer) == keys[:2]
    assert f"guessed from the names: check them; not read: {scalar(keys[2])}" in said
    assert f"answer: {scalar(keys[1])}}}  # guessed from the names" in Path("run.yaml").read_text(encoding="utf-8")
    assert "200 rows" in said
    assert run.data.length == 512
    assert planned(stoker)["total"] >= FEWEST_STEPS


@pytest.mark.parametrize(
    "keys", [("问题", "背景", "回答"), ("sentence", "source", "label"), ("review", "user_id", "target")]
)
def test_columns_that_may_be_called_otherwise_are_proposed_in_a_comment(
    stoker: CommandLine, keys: tuple[str, ...]
) -> None:
    rows = [{key: words(9) for key in keys} for _ in range(50)]
    run, said = init(stoker, jsonl("a.jsonl", rows), "2")
    assert run.data.columns is None
    assert "`data.columns`" in said
    assert "  # columns: {prompt: " in Path("run.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("goal", ["1", "2"])
def test_labels_of_other_words_are_named_and_the_run_file_is_written(
    stoker: CommandLine, language: str, goal: str
) -> None:
    rows = [{"prompt": words(9), "completion": words(30), "label": number % 2} for number in range(40)]
    run, said = init(stoker, jsonl("thumbs.jsonl", rows), goal, language)
    assert (run.train.objective, run.data.pack) == ("kto", False)
    assert "thumbs.jsonl:1" in said
    assert "`label`" in said
    assert "STK302" in stoker("plan", "run.yaml").err


@pytest.mark.parametrize(("language", "pass_"), [("en", "one pass over the data"), ("zh", "正好把数据过一遍")])
@pytest.mark.parametrize("last", ["completion", "pairs"])
def test_a_quick_try_names_the_passes_that_full_training_has(
    stoker: CommandLine, language: str, last: str, pass_: str
) -> None:
    rows = pairs(38)
    if last == "pairs":
        rows = [{"prompt": words(9), "chosen": words(9), "rejected": words(8)} for _ in range(150)]
    full = init(stoker, jsonl("a.jsonl", rows), "2", language)[0].train.epochs
    said = init(stoker, "a.jsonl", "1", language)[1]
    assert pass_ in said
    assert f"`epochs: {full}`" in said
    assert "100 %" not in next(line for line in said.splitlines() if line.startswith("train.steps"))


@pytest.mark.parametrize(("language", "absent"), [("en", "does not exist yet"), ("zh", "还不存在")])
def test_text_that_is_not_there_yet_is_said_and_a_plan_names_the_file(
    stoker: CommandLine, language: str, absent: str
) -> None:
    outcome = stoker("init", stdin="2\n1\ndata/train.txt\n\n1\n", language=language)
    assert (outcome.code, absent in outcome.err) == (0, True)
    assert "stoker prepare" in outcome.err
    assert "STK301" in stoker("plan", "run.yaml", language=language).err


def test_a_model_that_does_not_fit_on_this_processor_is_said_and_a_card_is_asked_for(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for memory, fits in ((24, False), (32, True)):
        here = Target("a CPU", "cpu", memory << 30, card=None)
        monkeypatch.setattr(init_command, "_this_machine", lambda here=here: here)
        Path("run.yaml").unlink(missing_ok=True)
        said = stoker("init", stdin="1\nQwen/Qwen2.5-7B\n\n\n1\n").err
        assert "28.4 GiB in fp32" in said
        assert ("stoker plan run.yaml --card NAME" in said) != fits
        assert ("`stoker train run.yaml`" in said) == fits


def test_unknown_columns_are_left_to_be_named_in_the_file(stoker: CommandLine) -> None:
    jsonl("a.jsonl", [{"question_text": words(9), "reply": words(30), "user": words(9)} for _ in range(200)])
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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no file can have such a name")
def test_a_file_whose_name_no_run_file_can_have_is_not_proposed_and_refused_by_plan(stoker: CommandLine) -> None:
    name = os.fsdecode("b训练.jsonl".encode("gbk"))
    Path(jsonl("a.jsonl", pairs(3))).rename(name)
    stoker("init", "--yes")
    assert load.load("run.yaml").run.data.train == "data/train.jsonl"
    assert "STK365" in stoker("plan", "run.yaml", "--set", "data.train=b训练.jsonl").err


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
