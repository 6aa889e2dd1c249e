"""`stoker init`: every path through the five questions gives a run file that loads, in both languages."""

import itertools
import json
import re
from pathlib import Path

import pytest
from made_runs import CommandLine, Outcome

from stoker.cli import init_command
from stoker.config import load
from stoker.config.run import Run, Shape
from stoker.launch import data_look
from stoker.rows import token_rates
from stoker.terminal import starter

ROWS: dict[str, tuple[dict[str, object], str]] = {
    "messages": ({"messages": [{"role": "user", "content": "hi"}]}, "sft"),
    "sharegpt": ({"conversations": [], "id": 1}, "sft"),
    "alpaca": ({"instruction": "a", "input": "", "output": "b"}, "sft"),
    "prompt_completion": ({"prompt": "a", "completion": "b"}, "sft"),
    "question_answer": ({"question": "a", "answer": "b"}, "sft"),
    "query_response": ({"query": "a", "response": "b"}, "sft"),
    "prompt_response": ({"prompt": "a", "response": "b"}, "sft"),
    "prompt_answer": ({"prompt": "a", "answer": "b"}, "sft"),
    "question_response": ({"question": "a", "response": "b"}, "sft"),
    "preference": ({"prompt": "a", "chosen": "b", "rejected": "c"}, "dpo"),
    "text": ({"text": "a"}, "pretrain"),
    "unknown": ({"body": "a", "title\n  tune": "b"}, "sft"),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(stoker: CommandLine, *lines: str, path: str = "run.yaml", language: str = "en") -> Outcome:
    return stoker("init", path, stdin="".join(f"{line}\n" for line in lines), language=language)


def written(path: str = "run.yaml") -> Run:
    return load.load(path).run


WHATS = [("1", "Qwen/Qwen2.5-7B"), ("1", "./my model"), ("2", "1"), ("2", "2"), ("scratch", "medium")]
DATA = ["data/rows.jsonl", "data", "data/*.jsonl", "文本.txt", "hub:owner/name", "absent.jsonl"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_path_through_the_questions_gives_a_run_file_that_loads(
    stoker: CommandLine, tmp_path: Path, language: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "my model").mkdir()
    (tmp_path / "my model" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "data" / "rows.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (tmp_path / "文本.txt").write_text("从前有座山。\n", encoding="utf-8")
    paths = itertools.product(WHATS, DATA, ("1", "RTX4090"), ("1", "2"))
    for number, ((what, model), data, where, goal) in enumerate(paths):
        name = f"run-{number}.yaml"
        outcome = answer(stoker, what, model, data, where, goal, path=name, language=language)
        assert outcome.code == 0, outcome.err
        run = written(name)
        assert isinstance(run.model, Shape) == (what != "1")
        assert run.data.train == data
        assert (run.train.steps is None) == (goal == "2")
        text = Path(name).read_text(encoding="utf-8")
        assert bool(re.search(r"[一-鿿]", text.replace("文本.txt", ""))) == (language == "zh")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("words", [["init"], ["init", "--yes"]])
def test_no_answers_are_the_defaults(stoker: CommandLine, words: list[str], language: str) -> None:
    outcome = stoker(*words, language=language)
    assert outcome.code == 0
    run = written()
    assert run.model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert (run.tune.method, run.train.objective) == ("lora", "sft")
    assert run.train.steps is not None
    assert ("1/5" in outcome.err) == ("--yes" not in words)
    assert "data/train.jsonl" in outcome.err
    assert outcome.out == ""


def test_whole_file_as_people_see_it(stoker: CommandLine, tmp_path: Path) -> None:
    Path("rows.jsonl").write_text('{"instruction": "a", "output": "b"}\n' * 40, encoding="utf-8")
    outcome = answer(stoker, "1", "Qwen/Qwen2.5-7B", "rows.jsonl", "4090", "2")
    seen = data_look.look("rows.jsonl", tmp_path, token_rates.of("qwen2", 152_064))
    each, packed = f"{seen.lengths[-1]:,.0f}", seen.packed(256, splits=False) - 1
    assert Path("run.yaml").read_text(encoding="utf-8").splitlines() == [
        "# Written by `stoker init`. All keys: `stoker schema`.",
        "# Does it fit, how long, how much? stoker plan run.yaml --card RTX4090",
        "# Train, or resume after a stop: stoker train run.yaml",
        "# Intended for RTX4090; the same file trains elsewhere too.",
        "",
        "model: Qwen/Qwen2.5-7B  # hub id or local folder",
        "",
        f"# 40 rows, about {seen.tokens:,} tokens: half of the rows have at most {each}, 99 % at most {each}, "
        f"the longest {each}; Latin letters 100 %",
        "# 39 of 40 rows repeat an earlier one exactly",
        "data:",
        "  train: rows.jsonl  # file, folder, glob or `hub:owner/name`; paths are relative to this file's folder",
        "  eval: 5%  # held out to measure the eval loss",
        f"  length: 256  # 100 % of the rows are not longer; the longest has about {each} tokens",
        f"  pack: false  # packed, 40 rows would be only {packed} sequences and about 3 optimizer steps; "
        "`batch` counts rows",
        "",
        "# 4-bit weights: 14.2 GiB in 16 bits is more than half of the 24.0 GiB of RTX4090",
        "tune: {method: qlora, rank: 16}",
        "",
        "train:",
        "  # the rows have instruction, output: only the answers are trained",
        "  objective: sft",
        "  epochs: 4  # 4 passes over the data x 10 steps = 40 optimizer steps",
        "  batch: 4  # rows per optimizer step over all devices; an epoch is 10 steps",
        "  learning_rate: 2e-4  # usual for an adapter; lower this first if the loss spikes",
        "  seed: 42  # decides data order, initial weights and dropout",
        "",
        "save:",
        "  every: auto  # how often a checkpoint is committed: `10m`, `500 steps`, `epoch`",
        "  keep: 3  # how many of the newest to keep",
        "  best: eval_loss  # the best checkpoint by eval loss becomes the final model",
        "",
        "where: {place: local, gpus: all}  # all GPUs found here; never changes what is trained",
    ]
    assert "stoker plan run.yaml --card RTX4090" in outcome.err
    assert stoker("plan", "run.yaml", "--card", "RTX4090", "--json").code == 0


@pytest.mark.parametrize("name", ROWS)
def test_the_keys_of_the_rows_decide_the_objective_and_the_reason_is_said(stoker: CommandLine, name: str) -> None:
    row, objective = ROWS[name]
    Path("rows.jsonl").write_text("\n" + json.dumps(row) + "\n", encoding="utf-8")
    outcome = answer(stoker, "1", "", "rows.jsonl")
    assert written().train.objective == objective
    reason = next(line for line in outcome.err.splitlines() if line.startswith(f"objective: {objective} ("))
    assert "text" in reason if objective == "pretrain" else any(key.split()[0] in reason for key in row)


@pytest.mark.parametrize(
    ("file", "content", "objective"),
    [
        ("rows.csv", b"prompt,completion\na,b\n", "sft"),
        ("rows.csv", b"\xef\xbb\xbftext\na\n", "pretrain"),
        ("book.txt", "从前".encode(), "pretrain"),
        ("rows.jsonl", b"not json\n", "sft"),
        ("rows.jsonl", b"[1, 2]\n", "sft"),
        ("rows.jsonl", b"", "sft"),
        ("rows.jsonl", b"\xff\xfe{}", "sft"),
        ("rows.json", b'[{"text": "a"}]', "pretrain"),
        ("rows.json", b'{"rows": 1}', "sft"),
    ],
)
def test_files_of_other_kinds_and_broken_ones_are_looked_at_or_left_to_prepare(
    stoker: CommandLine, file: str, content: bytes, objective: str
) -> None:
    Path(file).write_bytes(content)
    assert answer(stoker, "1", "", file).code == 0
    assert written().train.objective == objective


def test_conversations_for_a_model_from_scratch_are_warned_of(stoker: CommandLine) -> None:
    Path("rows.jsonl").write_text(json.dumps(ROWS["messages"][0]), encoding="utf-8")
    assert "chat template" in answer(stoker, "2", "1", "rows.jsonl").err


@pytest.mark.parametrize(
    ("model", "where", "method"),
    [
        ("Qwen/Qwen2.5-0.5B", "T4", "lora"),
        ("Qwen/Qwen2.5-7B", "T4", "qlora"),
        ("Qwen/Qwen2.5-7B", "A100-80-SXM4", "lora"),
        ("Qwen/Qwen2.5-7B", "M2-Max", "lora"),
        ("nobody/knows-it", "T4", "lora"),
    ],
)
def test_method_follows_from_weights_and_memory(stoker: CommandLine, model: str, where: str, method: str) -> None:
    outcome = answer(stoker, "1", model, "", where)
    assert outcome.code == 0, outcome.err
    assert written().tune.method == method


@pytest.mark.parametrize("language", ["en", "zh"])
def test_file_that_exists_is_never_touched(stoker: CommandLine, language: str) -> None:
    Path("run.yaml").write_text("mine", encoding="utf-8")
    outcome = stoker("init", language=language)
    assert outcome.code == 1
    assert "STK504" in outcome.err
    assert "1/5" not in outcome.err
    assert Path("run.yaml").read_text(encoding="utf-8") == "mine"


def test_file_that_appears_while_questions_are_asked_is_not_touched(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_all = init_command._ask_all

    def slowly(*arguments: object) -> object:
        Path("run.yaml").write_text("mine", encoding="utf-8")
        return ask_all(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(init_command, "_ask_all", slowly)
    assert "STK504" in stoker("init", "--yes").err
    assert Path("run.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["3"], "STK108"),
        (["2", "huge"], "STK108"),
        (["", "", "", "RTX9999"], "STK203"),
        (["", "", "", "", "yes"], "STK108"),
    ],
)
def test_wrong_answer_without_a_terminal_is_an_error_and_writes_nothing(
    stoker: CommandLine, lines: list[str], code: str, language: str
) -> None:
    outcome = answer(stoker, *lines, language=language)
    assert outcome.code == 1
    assert code in outcome.err
    assert not Path("run.yaml").exists()


@pytest.mark.parametrize(("language", "meaning"), [("en", "2 (train from scratch)"), ("zh", "2（从零训练）")])
def test_choices_of_a_wrong_answer_are_said_in_the_language(stoker: CommandLine, language: str, meaning: str) -> None:
    assert meaning in answer(stoker, "3", language=language).err


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    "model", ["models/tinny", "./nope", "/no/such/place", "~nobody-of-this-name/here", "data", "a/b/c"]
)
def test_a_folder_without_a_model_is_refused_with_what_to_do(stoker: CommandLine, model: str, language: str) -> None:
    for folder in ("models/tiny", "data"):
        Path(folder).mkdir(parents=True)
    Path("models/tiny/config.json").write_text("{}", encoding="utf-8")
    outcome = answer(stoker, "1", model, language=language)
    assert (outcome.code, "STK465" in outcome.err) == (1, True)
    assert "modelscope download" in outcome.err
    assert ("`models/tiny`" in outcome.err) == (model == "models/tinny")
    assert not Path("run.yaml").exists()


@pytest.mark.parametrize("model", ["models/tiny", "nobody/knows-it", "gpt2", "~/tiny"])
def test_a_model_s_folder_is_found_from_the_run_file_s_and_a_hub_is_not_asked(
    stoker: CommandLine, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "models"))
    Path("models/tiny").mkdir(parents=True)
    Path("models/tiny/config.json").write_text("{}", encoding="utf-8")
    outcome = answer(stoker, "1", model, path="deep/run.yaml")
    assert outcome.code == 0, outcome.err
    found = str(written("deep/run.yaml").model)
    assert (Path("deep") / found / "config.json").is_file() == model.endswith("tiny")


def test_a_model_of_modelscope_is_told_the_way(stoker: CommandLine) -> None:
    said = answer(stoker, "1", "modelscope:Qwen/Qwen2.5-0.5B").err
    assert "STK154" in said
    assert "modelscope download --model Qwen/Qwen2.5-0.5B" in said


def test_the_result_of_a_run_must_be_there(stoker: CommandLine) -> None:
    assert "STK501" in answer(stoker, "1", "run:never-trained").err


def test_token_in_an_answer_is_refused_and_nothing_is_written(stoker: CommandLine) -> None:
    outcome = answer(stoker, "1", "https://me:hf_secret@huggingface.co/model")
    assert "STK115" in outcome.err
    assert not Path("run.yaml").exists()


def test_path_named_from_the_current_folder_is_found_from_the_run_files(stoker: CommandLine) -> None:
    Path("rows.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    answer(stoker, "1", "", "rows.jsonl", path="deep/er/run.yaml")
    run = written("deep/er/run.yaml")
    assert run.data.train == "../../rows.jsonl"
    assert run.train.objective == "pretrain"


@pytest.mark.parametrize(
    "text",
    [
        "plain/name-1.5",
        "with space",
        "a: b",
        "# no",
        'quote"d',
        "back\\slash",
        "null",
        "True",
        "1e5",
        "名字",
        "*x",
        "é\t",
    ],
)
def test_any_text_survives_as_a_scalar(text: str) -> None:
    run = load.parse(f"model: {starter.scalar(text)}  # why\ndata: {{train: x}}\n", "run.yaml")
    assert run.model == text
