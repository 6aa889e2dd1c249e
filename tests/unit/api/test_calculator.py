import json
import re
import shlex
from pathlib import Path

import pytest

from stoker.api import calculator
from stoker.cli import main as command

KEYS = {"tune.method": "qlora", "data.length": 1024, "train.batch": 32, "data.rows": 5000, "data.tokens": 2_000_000}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
}
PAGE = Path(__file__).parents[3] / "tools" / "calculator"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.argv", [*shlex.split(line), "--json"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "question",
    [
        {"recipe": "qlora_qwen2.5_7b", "keys": {}, "card": "RTX4090"},
        {"recipe": "qlora_qwen2.5_7b", "keys": {"data.length": 4096}, "card": "T4", "gpus": 2},
        {"model": "Qwen/Qwen3-8B", "keys": KEYS, "card": "A100-80-SXM4"},
        {"config": json.dumps(CONFIG), "keys": KEYS, "card": "RTX4090", "gpus": 4},
        {"model": "Qwen/Qwen3-8B", "keys": KEYS, "budget": "30USD", "by": "6h", "goal": "speed"},
    ],
)
def test_the_copied_files_and_command_print_the_answer_byte_for_byte(question, capsys, monkeypatch):
    answer = calculator.answer(question)
    for name, text in answer["files"].items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    assert printed(answer["command"], capsys, monkeypatch) == answer["json"] + "\n"


def test_the_parts_of_the_bar_add_up_to_what_the_card_holds():
    answer = calculator.answer({"recipe": "qlora_qwen2.5_7b", "keys": {}, "card": "RTX4090"})
    assert sum(size for _, size in answer["memory"]) == json.loads(answer["json"])["memory"]["peak_device_bytes"]


def test_words_around_the_figures_are_in_the_language_that_is_set(monkeypatch):
    monkeypatch.setenv("STOKER_LANG", "zh")
    answer = calculator.answer({"recipe": "qlora_qwen2.5_7b", "keys": {}, "card": "RTX4090"})
    assert answer["memory"][0][0] == "权重"
    assert answer["arithmetic"][0][0] == "批次"


def test_a_question_that_cannot_be_read_is_answered_with_its_errors():
    answer = calculator.answer({"recipe": "qlora_qwen2.5_7b", "keys": {"data.length": 0}})
    assert [error["code"] for error in answer["errors"]] == ["STK107"]


def test_every_recipe_offers_the_values_that_its_fields_show():
    offered = {one["name"]: one for one in calculator.choices()["recipes"]}
    assert offered["qlora_qwen2.5_7b"]["keys"] == {
        "tune.method": "qlora",
        "data.length": 2048,
        "train.batch": 16,
        "train.epochs": 3,
        "data.rows": 48818,
        "data.tokens": 12_200_000,
    }


def test_the_page_has_every_word_in_both_languages():
    english, chinese = (PAGE / "words.js").read_text(encoding="utf-8").split("  zh: {")
    keys = [re.findall(r"^    (\w+):", text, re.MULTILINE) for text in (english, chinese)]
    assert keys[0] == keys[1]
    fields = [re.findall(r"\{(\w+)\}", text) for text in (english, chinese)]
    assert fields[0] == fields[1]
    used = (PAGE / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'data-(?:word|hint)="(\w+)"', used)) <= set(keys[0])
