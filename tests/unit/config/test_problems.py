"""Findings in our words: every key has an example, every foreign name leads to a key that exists."""

import copy
import json
from typing import Any

import pytest

from stoker.config import load, native, problems, reader
from stoker.config.run import Run
from stoker.errors import StokerError, StokerErrors


def test_every_key_of_the_run_file_has_an_example() -> None:
    keys = list(problems.all_keys())
    assert {"model", "data.train.path", "tune.rank", "native.trainer"} <= set(keys)
    assert [key for key in keys if not problems.example(key)[0].startswith("`")] == []
    assert [key for key in keys if "null" in str(problems.example(key))] == []


WHOLE = {
    "model": {"shape": "llama", "layers": 2, "width": 64, "heads": 2},
    "tokenizer": {"train": "bpe", "vocab": 300},
    "data": {"train": {"path": "a"}},
    "tune": {"method": "qlora"},
}


LISTED: dict[str, dict[str, Any]] = {
    "stages": {"mix": {"wiki": "100%"}},
    "pipeline": {"step": "MinhashDedup"},
    "set": {"path": "run:wiki"},
    "rewards": {"exact": {"column": "answer"}, "length": {"target": 400}, "verifiers": {"environment": "my-env"}},
}
"""Sections that are lists, and what one of their parts has."""


def first_of(data: dict[str, Any], section: str, last: str) -> dict[str, Any]:
    """The only part of such a section, in which a key is to be set."""
    data[section] = [{**LISTED[section], **({"step": "NGramsDecont"} if last == "against" else {})}]
    part: dict[str, Any] = data[section][0]
    return part


@pytest.mark.parametrize("key", [key for key in problems.all_keys() if key != "model.shape"])
def test_every_example_is_one_that_is_read(key: str) -> None:
    for text in (one.strip("`") for one in problems.example(key)):
        values: Any = copy.deepcopy(WHOLE)
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {}) if section not in LISTED else first_of(place, section, last)
        place[last] = reader.parse(text, "x").values if ":" in text or "[" in text else reader.scalar(text)
        Run.model_validate(values)


def test_every_foreign_name_leads_to_a_key_that_exists() -> None:
    assert set(problems._ELSEWHERE.values()) <= set(problems.all_keys())
    assert problems._ELSEWHERE.keys() & set(problems.all_keys()) == set()


LLAMA_FACTORY = """
    model_name_or_path trust_remote_code quantization_bit stage do_train finetuning_type lora_rank lora_target
    dataset template cutoff_len overwrite_cache preprocessing_num_workers dataloader_num_workers output_dir
    logging_steps save_steps overwrite_output_dir save_only_model report_to per_device_train_batch_size
    gradient_accumulation_steps num_train_epochs lr_scheduler_type warmup_ratio bf16 ddp_timeout val_size
    eval_strategy eval_steps per_device_eval_batch_size resume_from_checkpoint"""
"""Keys of its `qwen3_lora_sft.yaml` and `llama3_lora_sft_otfq.yaml`."""


def test_every_key_of_llama_factory_s_example_is_answered() -> None:
    keys = LLAMA_FACTORY.split()
    with pytest.raises(StokerErrors) as caught:
        load.parse("\n".join(["model: m", "data: {train: a}", *(f"{key}: x" for key in keys)]), "run.yaml")
    found = {one.fields["key"]: one.fields["nearest"] for one in caught.value.errors}
    assert set(found) == set(keys)
    assert {key for key, nearest in found.items() if not nearest} <= {"do_train", "trust_remote_code", "ddp_timeout"}
    assert "`tune.method`" in found["quantization_bit"]
    assert "chat template" in found["template"]
    assert problems._NEEDLESS.keys() & {*problems._ELSEWHERE, *problems.all_keys()} == set()


def test_every_owner_of_a_native_option_is_a_key_that_exists() -> None:
    owners = {owner for block in native.OWNED.values() for owner in block.values()}
    owners |= set(native.OWNED_BY_SHAPE.values())
    assert owners - native.REFUSED.keys() <= set(problems.all_keys())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "`text`"),
        (True, "`true`"),
        (1.5, "`1.5`"),
        ([1, "a"], '`[1, "a"]`'),
        ({"a": None}, '`{"a": null}`'),
        ("你好", "`你好`"),
        ("x" * 61, "`" + "x" * 57 + "...`"),
        ("hf_" + "a" * 30, "`***`"),
        ({"key": "sk-" + "a" * 30}, "`***`"),
    ],
)
def test_a_value_is_shown_as_the_file_has_it(value: object, shown: str) -> None:
    assert problems.shown(value) == shown


@pytest.mark.parametrize(
    "text",
    ["hf_" + "a" * 30, "sk-" + "a1-_" * 8, "AKIA" + "Z" * 16, "https://me:pass@host/x", "s3://key:secret@bucket"],
)
def test_a_secret_is_seen(text: str) -> None:
    assert problems.SECRET.search(text)
    assert problems.SECRET.search(f"x={text}")


@pytest.mark.parametrize(
    "text",
    ["data/task-instruction-following-v2.jsonl", "disk-usage-of-all-my-machines", "my_hf_model", "hub:owner/name",
     "s3://bucket/prefix", "https://host:8080/path", "C:/data/a@b.jsonl"],
)  # fmt: skip
def test_an_ordinary_name_is_no_secret(text: str) -> None:
    assert not problems.SECRET.search(text)


def codes(text: str) -> list[str]:
    with pytest.raises(StokerErrors) as caught:
        load.parse(text, "run.yaml")
    return [error.code for error in caught.value.errors]


def test_one_mistake_is_one_error() -> None:
    assert codes("modle: m\ndata: {train: a}") == ["STK104"]
    assert codes("model: m\ndataset: a") == ["STK104"]
    assert codes("model: {name: m}\ndata: {train: a}") == ["STK105"]
    assert codes("model: m\ndata: {train: a}\ntune: {method: lora, targets: 5}") == ["STK109"]


def test_a_key_named_like_a_member_of_a_union_keeps_its_name() -> None:
    with pytest.raises(StokerErrors) as caught:
        load.parse("model: m\ndata: {train: a}\ntext: 1\nwhere: {lora: 2}", "run.yaml")
    assert [error.where for error in caught.value.errors] == ["run.yaml:3: text", "run.yaml:4: where.lora"]


WRONG = [None, True, 1.5, "x", "", [], {}, [None], {"x": 1}, -1, 10**12, float("nan")]


@pytest.mark.parametrize("key", list(problems.all_keys()))
def test_every_wrong_value_of_a_key_is_explained(key: str) -> None:
    refused = 0
    for value in WRONG:
        *sections, last = key.split(".")
        values: Any = copy.deepcopy(WHOLE)
        place = values
        for section in sections:
            place = place.setdefault(section, {}) if section not in LISTED else first_of(place, section, last)
        place[last] = value
        found = refusals(json.dumps(values).replace("NaN", ".nan"))
        assert all(one.what and one.hint for one in found)
        refused += bool(found)
    assert refused >= 4


def refusals(text: str) -> list[StokerError]:
    try:
        load.parse(text, "run.yaml")
    except StokerErrors as several:
        return several.errors
    return []


def test_of_several_keys_of_one_name_the_shortest_is_the_first_choice() -> None:
    with pytest.raises(StokerError) as caught:
        load.parse("model: m\ndata: {train: a}\nepochs: 3\n", "run.yaml")
    assert caught.value.choices[0] == "train.epochs"
