"""Broken data, through the door people use: each mistake is named once, as those of run files are."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from errors.data_files import DATA_CASES, GOOD, ROW_CASES
from errors.expected import err
from errors.terminal import Terminal, in_words, stoker

from stoker.launch import programs
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, monkeypatch, capsys)


def in_this_process(program: str, run_dir: RunDir, on_event: Callable[[dict[str, Any]], None]) -> int:
    """What `local.run_engine` does, without the seconds a new process takes to import."""
    from stoker.engine import prepare
    from stoker.engine import program as engine_program

    assert program == "prepare"
    start = run_dir.events_file.stat().st_size if run_dir.events_file.exists() else 0
    log = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stderr(log):
        patched.setattr(sys, "argv", ["prepare", str(run_dir.path)])
        code = engine_program.run(prepare.main)
    if code:
        programs.raise_engine_error(program, run_dir, code, start)
    return code


@pytest.fixture
def preparing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"<eos>": 0, "<unk>": 1, "a": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    plain = {"tokenizer_object": core, "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(**plain).save_pretrained(terminal.folder / "plain")
    PreTrainedTokenizerFast(
        **plain,
        chat_template="{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.role + ' ' + m.content + eos_token }}{% endfor %}",
    ).save_pretrained(terminal.folder / "chat")
    monkeypatch.setattr(programs, "run_engine", in_this_process)
    return terminal


def run_file(data: str, tokenizer: str = "chat") -> str:
    return f"model: {{shape: llama, layers: 1, width: 64, heads: 1}}\ntokenizer: {tokenizer}\ndata:\n  {data}\n"


@pytest.mark.parametrize("name", ROW_CASES)
def test_a_bad_row_is_named_by_file_and_row(preparing: Terminal, name: str) -> None:
    row, reason = ROW_CASES[name]
    lines = [json.dumps(GOOD), "", row if isinstance(row, str) else json.dumps(row), json.dumps(GOOD)]
    preparing.write("\n".join(lines) + "\n", "rows.jsonl")
    preparing.write(run_file("train: rows.jsonl"))
    preparing.refuses([err("STK302", "rows.jsonl:3", reason, "data.on_bad_row: skip")], "prepare", "run.yaml")
    code, _, said = preparing.run("en", "prepare", "run.yaml", "--set", "data.on_bad_row=skip")
    assert code == 0, said


@pytest.mark.parametrize("name", DATA_CASES)
def test_broken_data_is_explained(preparing: Terminal, name: str) -> None:
    case = DATA_CASES[name]
    for file, content in case.files.items():
        (preparing.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (preparing.folder / file).write_bytes(content)
    preparing.write(run_file(case.data, case.tokenizer))
    preparing.refuses(case.expected, "prepare", "run.yaml")


def test_bad_rows_of_a_file_are_named_at_once_by_their_reasons(preparing: Terminal) -> None:
    preparing.write("\n".join([json.dumps(GOOD), *["{"] * 25, json.dumps({"messages": []})]), "rows.jsonl")
    preparing.write(run_file("train: rows.jsonl"))
    expected = err("STK352", "rows.jsonl:2", "25 rows", "not JSON", "rows.jsonl:3", "bad_rows.jsonl")
    preparing.refuses([expected, err("STK302", "rows.jsonl:27", "is empty")], "prepare", "run.yaml")
    assert len((preparing.folder / "runs/run/data/bad_rows.jsonl").read_text().splitlines()) == 26


def test_a_hub_that_does_not_answer_is_named(preparing: Terminal) -> None:
    preparing.write(run_file("train: hub:nobody/nothing"))
    expected = err("STK310", "run.yaml:4: data.train", "`hub:nobody/nothing`", "HF_ENDPOINT")
    preparing.refuses([expected], "prepare", "run.yaml")


def test_a_report_that_cannot_be_read_is_named(preparing: Terminal) -> None:
    preparing.write(json.dumps(GOOD), "rows.jsonl")
    preparing.write(run_file("train: rows.jsonl"))
    assert preparing.run("en", "prepare", "run.yaml")[0] == 0
    report = preparing.folder / "runs/run/data/report.json"
    report.write_text("{")
    preparing.refuses([err("STK311", str(report), "stoker prepare")], "prepare", "run.yaml")


def test_bad_data_found_by_the_preparing_process_is_told_once_however_often_one_tries(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "run.yaml").write_text(run_file("train: a.txt", "{train: bpe, vocab: 32000}"))
    for _ in range(2):
        done = stoker(tmp_path, "prepare", "run.yaml", OMP_NUM_THREADS="1")
        assert done.returncode == 1
        assert [(said.code, said.where) for said in in_words(done.stderr)] == [
            ("STK316", "run.yaml:2: tokenizer.vocab")
        ]
        assert "Traceback" not in done.stderr


PAIR = {"prompt": "a a", "chosen": "a", "rejected": "a a"}
BAD_PAIRS: dict[str, Any] = {
    "no answers": {"prompt": "a"},
    "one answer": {"prompt": "a", "chosen": "a"},
    "an empty answer": {**PAIR, "chosen": ""},
    "the same answers": {**PAIR, "rejected": "a"},
    "no prompt": {"chosen": "a", "rejected": "a a"},
    "a number": {**PAIR, "chosen": 5},
    "a picture": {**PAIR, "images": ["a.png"]},
    "no object": [1],
}
ONLY_AS_TOKENS = {
    "answers of the same tokens": {**PAIR, "chosen": "b", "rejected": "c"},
    "a prompt longer than the length": {**PAIR, "prompt": "a " * 40},
}
"""Pairs that a plan, which has no tokenizer, takes for good ones."""


def pairs(preparing: Terminal, rows: list[Any], data: str = "") -> None:
    preparing.write("".join(json.dumps(row) + "\n" for row in rows), "rows.jsonl")
    preparing.write(
        run_file(f"{{train: rows.jsonl, length: 32, pack: false{data}}}") + "train: {objective: dpo, batch: 2}\n"
    )


def test_a_plan_says_at_least_as_many_bad_pairs_as_it_can_know(preparing: Terminal) -> None:
    for more in ([], list(ONLY_AS_TOKENS.values())):
        pairs(preparing, [PAIR, *BAD_PAIRS.values(), *more, PAIR], ", on_bad_row: skip")
        for language, words in (("en", "at least {} of the rows"), ("zh", "至少有 {} 行")):
            code, said, _ = preparing.run(language, "plan", "run.yaml")
            assert code == 0
            assert words.format(len(BAD_PAIRS)) in said.replace("\n", " ")
        assert preparing.run("en", "prepare", "run.yaml")[0] == 0
        report = json.loads((preparing.folder / "runs/run/data/report.json").read_text())
        assert report["bad_rows"] == len(BAD_PAIRS) + len(more)


def test_figures_that_are_declared_hide_no_bad_rows(preparing: Terminal) -> None:
    declared = ", rows: 10, tokens: 1000"
    for rows, said in (
        ([PAIR, PAIR], ("", "")),
        ([PAIR, BAD_PAIRS["one answer"]], ("at least 1 of the rows", "至少有 1 行不能用")),
        ([{"q": "a", "good": "a"}], ("STK376", "STK376")),
    ):
        pairs(preparing, rows, declared)
        for language, words in zip(("en", "zh"), said, strict=True):
            code, out, _ = preparing.run(language, "plan", "run.yaml")
            assert code == 0
            assert words in out
            assert ("rows.jsonl" in out) == bool(words)
    (preparing.folder / "rows.jsonl").unlink()  # a plan before the data is there
    code, out, _ = preparing.run("en", "plan", "run.yaml")
    assert (code, "rows.jsonl" in out) == (0, False)


def test_prepared_pairs_are_counted_as_pairs(preparing: Terminal) -> None:
    pairs(preparing, [{**PAIR, "prompt": "a " * (number + 1)} for number in range(6)], ", eval: 20%")
    for language, unit, other in (("en", "pairs of answers", "sequence"), ("zh", "对回答", "条序列")):
        code, said, _ = preparing.run(language, "prepare", "run.yaml", "--show", "1")
        report = json.loads((preparing.folder / "runs/run/data/report.json").read_text())
        assert code == 0
        assert f"{report['train']['sequences']} {unit}" in said
        assert report["train"]["sequences"] + report["eval"]["sequences"] == 6
        assert other not in said
    preparing.write(json.dumps(GOOD), "rows.jsonl")
    preparing.write(run_file("{train: rows.jsonl, pack: false}") + "name: talks\n")
    assert "1 sequence of" in preparing.run("en", "prepare", "run.yaml")[1]
