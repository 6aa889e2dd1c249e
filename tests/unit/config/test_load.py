"""From a name and overrides to a `Run`: recipes, names of runs, overrides, and the places of later errors."""

import os
import sys
from pathlib import Path

import pytest

from stoker.config import load
from stoker.config.data_section import Source
from stoker.config.run import Lora, Shape
from stoker.errors import StokerError, StokerErrors

TEXT = "model: m\ndata: {train: a.jsonl}\ntrain: {epochs: 2}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# ---- files and recipes


def test_a_run_file_is_read_with_its_folder_text_and_name(folder: Path) -> None:
    write(folder / "deep" / "medical qa.yaml")
    read = load.load("deep/medical qa.yaml")
    assert (read.name, read.folder, read.text) == ("medical qa.yaml", folder / "deep", TEXT)
    assert read.run.name == "medical-qa"
    assert read.run.train.epochs == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no file can have such a name")
@pytest.mark.parametrize("name", ["b训练.yaml", "b训练/run.yaml"])
def test_a_run_file_whose_name_is_not_utf8_is_refused(folder: Path, name: str) -> None:
    path = write(folder / os.fsdecode(name.encode("gbk")))
    with pytest.raises(StokerError) as caught:
        load.load(str(path))
    assert caught.value.code == "STK365"
    assert caught.value.fields["folder"] == folder
    str(caught.value).encode()


def test_a_stated_name_wins_over_the_file_s(folder: Path) -> None:
    write(folder / "run.yaml", "name: other\n" + TEXT)
    assert load.load("run.yaml").run.name == "other"


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("run", "run"),
        ("my run", "my-run"),
        (".hidden", "hidden"),
        ("a.b_c-1", "a.b_c-1"),
        ("---", "run"),
        ("x" * 300, "x" * 80),
    ],
)
def test_a_run_is_named_after_its_file(stem: str, name: str) -> None:
    assert load.run_name(stem) == name


def test_files_with_chinese_names_give_different_runs() -> None:
    names = [load.run_name(stem) for stem in ("实验一", "实验二", "实验1", "测试1")]
    assert len(set(names)) == 4
    for name in names:
        assert load.parse(f"name: {name}\n{TEXT}", "run.yaml").name == name
    assert load.run_name("实验一") == names[0]


def test_a_recipe_is_found_by_name_and_its_paths_start_where_the_user_stands(folder: Path) -> None:
    read = load.load("scratch_own_text")
    assert (read.name, read.folder, read.run.name) == ("scratch_own_text.yaml", folder, "scratch_own_text")


def test_a_file_of_the_same_name_wins_over_a_recipe(folder: Path) -> None:
    write(folder / "lora_qwen3_4b")
    assert load.load("lora_qwen3_4b").run.train.epochs == 2


def test_a_missing_file_names_run_files_beside_it_and_recipes(folder: Path) -> None:
    write(folder / "configs" / "medical.yaml")
    with pytest.raises(StokerError) as caught:
        load.load("configs/medcal.yaml")
    assert "`configs/medical.yaml`" in caught.value.hint
    with pytest.raises(StokerError) as caught:
        load.load("loraqwen3_4b")
    assert "`lora_qwen3_4b`" in caught.value.hint


# ---- overrides


def test_an_override_wins_and_leaves_the_rest() -> None:
    run = load.parse(TEXT, "run.yaml", ["train.batch=64", "data.length=128"])
    assert (run.train.batch, run.train.epochs, run.data.length, run.data.train) == (64, 2, 128, "a.jsonl")


def test_an_override_is_read_as_yaml() -> None:
    sets = ["train.learning_rate=1e-4", "data.pack=false", "save.every=500 steps", "tune={method: lora, rank: 8}"]
    sets += ["data.train=[{path: a}, {path: b, weight: 2}]", 'name="12"', "data.eval=2%"]
    run = load.parse(TEXT, "run.yaml", sets)
    assert (run.train.learning_rate, run.data.pack, run.save.every, run.name) == (1e-4, False, "500 steps", "12")
    assert isinstance(run.tune, Lora)
    assert run.tune.rank == 8
    assert run.data.train == [Source(path="a"), Source(path="b", weight=2)]


def test_an_override_makes_the_sections_it_needs() -> None:
    run = load.parse("data: {train: a}", "run.yaml", ["model=m", "native.trainer.neftune_noise_alpha=5"])
    assert (run.model, run.native.trainer) == ("m", {"neftune_noise_alpha": 5})


def test_an_override_may_turn_a_name_into_a_shape() -> None:
    sets = [
        "model.shape=llama",
        "model.layers=1",
        "model.width=64",
        "model.heads=1",
        "tokenizer={train: bpe, vocab: 300}",
    ]
    assert load.parse(TEXT, "run.yaml", sets).model == Shape(shape="llama", layers=1, width=64, heads=1)


def test_the_last_of_two_overrides_wins_and_a_value_may_hold_an_equals_sign() -> None:
    run = load.parse(TEXT, "run.yaml", ["train.epochs=3", "train.epochs=4", "data.train=a=b.jsonl"])
    assert (run.train.epochs, run.data.train) == (4, "a=b.jsonl")


def test_an_override_may_take_a_value_back_to_nothing() -> None:
    assert load.parse(TEXT + "save: {best: eval_loss}\n", "run.yaml", ["save.best="]).save.best is None


def test_an_override_mends_a_mistake_of_the_file() -> None:
    assert (
        load.parse("model: m\ndata: {train: a}\ntrain: {epochs: 0}", "run.yaml", ["train.epochs=1"]).train.epochs == 1
    )


def test_problems_come_in_the_order_of_the_file_and_overrides_first() -> None:
    text = "model: m\nsave: {keep: 1}\ndata: {train: a, pack: x}\nbudget: {time: 1}\nnative: {trainer: {seed: 1}}\n"
    with pytest.raises(StokerErrors) as caught:
        load.parse(text, "run.yaml", ["train.epochs=0"])
    assert [error.where.split(": ")[0] for error in caught.value.errors] == [
        "--set train.epochs",
        "run.yaml:2",
        "run.yaml:3",
        "run.yaml:4",
        "run.yaml:5",
    ]


# ---- errors of the rooms above


def test_an_error_of_a_later_room_gets_the_line_of_its_word(folder: Path) -> None:
    write(folder / "run.yaml")
    read = load.load("run.yaml", ["where.micro=3"])

    def place(code: str, where: str = "", **fields: object) -> str:
        with pytest.raises(StokerError) as caught, read.located():
            raise StokerError(code, where, **fields)
        return caught.value.where

    assert place("STK201") == "run.yaml:3: train.batch"
    assert place("STK207") == "--set where.micro"
    assert place("STK205") == "run.yaml:1: model"
    assert place("STK301", path="a.jsonl") == "run.yaml:2: data.train"
    assert place("STK302", "a.jsonl:7") == "a.jsonl:7"
    assert place("STK900") == ""


def test_each_of_several_errors_gets_its_line(folder: Path) -> None:
    write(folder / "run.yaml", "model: m\ndata:\n  train: [{path: a}, {path: b}]\n  eval: c\n")
    with pytest.raises(StokerErrors) as caught, load.load("run.yaml").located():
        raise StokerErrors([StokerError("STK301", path=name) for name in "bca"])
    assert [error.where for error in caught.value.errors] == [
        "run.yaml:3: data.train[1].path",
        "run.yaml:4: data.eval",
        "run.yaml:3: data.train[0].path",
    ]
