"""Rows and tokens of data that is not prepared, as far as files let estimate them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import intervals, shapes
from stoker.launch import raw_data
from stoker.plan.data import DataFacts
from stoker.rows import token_rates

SENTENCE = "The quick brown fox jumps over the lazy dog, and the engine keeps the fire going. "
QWEN = "Qwen/Qwen2.5-7B"


def size(folder: Path, data: str, rest: str = "") -> DataFacts:
    run = load.parse(f"model: {QWEN}\ndata: {{{data}}}\n{rest}", "run.yaml")
    return raw_data.size(run, folder, shapes.resolve(QWEN, folder).shape)


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def alpaca(question: str, answer: str) -> dict[str, str]:
    return {"instruction": question, "output": answer}


def test_a_sentence_is_about_the_tokens_that_qwen_gives_it() -> None:
    rates = token_rates.of("qwen2", 152_064)
    assert (rates.name, rates.known) == ("qwen", True)
    # Counted with Qwen2.5's own tokenizer.
    for text, counted in [(SENTENCE * 20, 361), ("炉火不熄，列车不停。" * 20, 160)]:
        found = token_rates.count(text)
        assert rates.tokens(found, token_rates.english_share(found)) == pytest.approx(counted, rel=0.2)


def test_another_vocabulary_is_estimated_by_the_nearest_with_a_wider_interval() -> None:
    known, unknown = token_rates.of("qwen2", 152_064), token_rates.of("glm4", 151_552)
    assert (unknown.name, unknown.known) == ("qwen", False)
    assert unknown.interval[1] / unknown.interval[0] > known.interval[1] / known.interval[0]


def test_the_same_rows_in_any_file_have_the_same_size(tmp_path: Path) -> None:
    rows = [alpaca(f"Question {i}?", SENTENCE * (i % 5 + 1)) for i in range(300)]
    write(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    lines = [f'"{row["instruction"]}","{row["output"]}"' for row in rows]
    (tmp_path / "a.csv").write_text("\n".join(["instruction,output", *lines]), encoding="utf-8")
    sizes = [size(tmp_path, f"train: {name}, pack: false") for name in ("a.jsonl", "a.jsonl.gz", "a.json", "a.csv")]
    assert len({one.tokens for one in sizes}) == 1
    assert {one.sequences for one in sizes} == {300}
    assert all(one.estimated for one in sizes)


def test_eval_rows_that_are_not_there_are_named_before_anything_is_paid(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [alpaca(f"Question {i}?", SENTENCE) for i in range(30)])
    with pytest.raises(StokerError) as caught:
        size(tmp_path, "train: a.jsonl, eval: held.jsonl")
    assert (caught.value.code, caught.value.fields["path"]) == ("STK301", "held.jsonl")
    scratch = load.load("scratch_tiny", ["data.eval=held.txt"]).run  # its tokenizer is trained first
    with pytest.raises(StokerError) as caught:
        raw_data.size(scratch, tmp_path, shapes.resolve(QWEN, tmp_path).shape)
    assert (caught.value.code, caught.value.fields["path"]) == ("STK301", "held.txt")
    assert size(tmp_path, "train: a.jsonl, eval: a.jsonl").sequences == size(tmp_path, "train: a.jsonl").sequences


def test_rows_are_cut_at_the_length_and_text_is_split(tmp_path: Path) -> None:
    write(tmp_path / "long.jsonl", [alpaca("Tell me.", SENTENCE * 100)] * 10)
    write(tmp_path / "text.jsonl", [{"text": SENTENCE * 100}] * 10)
    assert size(tmp_path, "train: long.jsonl, length: 64, pack: false").tokens == 640
    assert size(tmp_path, "train: text.jsonl, length: 64, pack: false").tokens > 10_000


def test_a_large_file_is_sampled_without_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [alpaca("Tell me.", SENTENCE * (1 + i * 7 % 40)) for i in range(800)]
    write(tmp_path / "a.jsonl", rows)
    whole = size(tmp_path, "train: a.jsonl, pack: false, length: 4096")
    monkeypatch.setattr(raw_data, "_READ_BYTES", 1 << 18)
    sampled = size(tmp_path, "train: a.jsonl, pack: false, length: 4096")
    assert sampled.tokens == pytest.approx(whole.tokens, rel=0.1)
    assert sampled.sequences == pytest.approx(800, rel=0.1)
    assert sampled.interval[1] > whole.interval[1]
    (said,) = sampled.reasons
    assert said.key == "why.data.sampled"
    rows_said = int(said.fields["rows"])
    assert rows_said == pytest.approx(800, rel=0.1)
    assert rows_said % 10 == 0  # no digit that was not counted
    assert int(said.fields["read"]) < 800


def test_weights_and_the_eval_share_count(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", SENTENCE)] * 100)
    once = size(tmp_path, "train: a.jsonl, pack: false").tokens
    assert size(tmp_path, "train: [{path: a.jsonl, weight: 2}], pack: false").tokens == pytest.approx(2 * once, abs=1)
    assert size(tmp_path, "train: a.jsonl, pack: false, eval: 10%").tokens == pytest.approx(0.9 * once, abs=1)


def test_rows_that_are_stated_for_a_sample_are_not_ignored_in_silence(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", SENTENCE)] * 300)
    once = size(tmp_path, "train: a.jsonl, pack: false")
    stated = size(tmp_path, "train: a.jsonl, pack: false, rows: 20000")
    (said,) = [reason for reason in stated.reasons if reason.key == "why.data.stated"]
    assert "`data.rows: 20000` was not used" in said.text
    assert stated.tokens == once.tokens
    assert said.fields["tokens"] == pytest.approx(once.tokens * 20_000 / 300, abs=100)
    same = size(tmp_path, "train: a.jsonl, pack: false, rows: 300")
    assert "why.data.stated" not in [one.key for one in (*once.reasons, *same.reasons)]


@pytest.mark.parametrize(("stated", "is_said"), [(1601, False), (1500, False), (1200, True), (2000, True)])
def test_a_sample_contradicts_only_a_number_of_rows_that_is_far_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: int, *, is_said: bool
) -> None:
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", SENTENCE * (1 + i * 7 % 40)) for i in range(1601)])
    monkeypatch.setattr(raw_data, "_READ_BYTES", 1 << 18)
    reasons = [one.key for one in size(tmp_path, f"train: a.jsonl, pack: false, rows: {stated}").reasons]
    assert "why.data.sampled" in reasons
    assert ("why.data.stated" in reasons) == is_said


def test_a_file_that_is_missing_is_named_also_where_a_tokenizer_is_to_be_trained(tmp_path: Path) -> None:
    model = "{shape: llama, layers: 2, width: 64, heads: 2}\ntokenizer: {train: bpe, vocab: 300}"
    run = load.parse(f"model: {model}\ndata: {{train: a.txt}}\ntrain: {{objective: pretrain}}\n", "run.yaml")
    for code in ("STK301", "STK206"):
        with pytest.raises(StokerError) as caught:
            raw_data.size(run, tmp_path, shapes.resolve(QWEN, tmp_path).shape)
        assert caught.value.code == code
        (tmp_path / "a.txt").write_text(SENTENCE, encoding="utf-8")


def test_packed_sequences_are_nearly_full(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", SENTENCE)] * 1000)
    packed = size(tmp_path, "train: a.jsonl, length: 512")
    assert 0.9 < packed.tokens / (packed.sequences * 512) <= 1


def test_bad_rows_are_said_and_nothing_but_bad_rows_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", SENTENCE), alpaca("Tell me.", "")])
    for data, key in [("train: a.jsonl", "why.data.bad.stops"), ("train: a.jsonl, on_bad_row: skip", "why.data.bad")]:
        (bad,) = [reason for reason in size(tmp_path, data).reasons if reason.key == key]
        assert bad.fields["where"] == "a.jsonl:2"
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", "")])
    (tmp_path / "empty.jsonl").touch()
    for name, code in [("a.jsonl", "STK302"), ("empty.jsonl", "STK364"), ("none.jsonl", "STK301")]:
        with pytest.raises(StokerError) as caught:
            size(tmp_path, f"train: {name}")
        assert caught.value.code == code


def test_skipping_is_not_advised_where_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", "")] * 3)
    for language, none_left in (("en", "none of the 3 rows"), ("zh", "3 行全都不能用")):
        monkeypatch.setenv("STOKER_LANG", language)
        for word, code in (("stop", "STK302"), ("skip", "STK304")):
            with pytest.raises(StokerError) as caught:
                size(tmp_path, f"train: a.jsonl, on_bad_row: {word}")
            assert (caught.value.code, caught.value.where) == (code, "a.jsonl:1")
            assert ("on_bad_row: skip" in caught.value.hint) == (word == "stop")
            assert (none_left in caught.value.hint) == (word == "skip")


@pytest.mark.parametrize("data", ["train: a.parquet", "train: 'hub:owner/name'"])
def test_what_cannot_be_read_here_has_no_size(tmp_path: Path, data: str) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(StokerError) as caught:
        size(tmp_path, data)
    assert caught.value.code == "STK206"


def test_errors_that_are_independent_add_like_sides_of_a_right_angle() -> None:
    low, high = intervals.together((0.5, 2.0), (1.0, 1.0))
    assert (low, high) == pytest.approx((0.5, 2.0))
    low, high = intervals.together((0.9, 1.1), (0.8, 1.25))
    assert 0.9 * 0.8 < low < 0.8
    assert 1.25 < high < 1.1 * 1.25


def test_a_tokenizer_config_with_a_number_beyond_64_bits_is_read(tmp_path: Path) -> None:
    config = {"model_max_length": 10**30, "chat_template": "x"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    write(tmp_path / "a.jsonl", [alpaca("Tell me.", SENTENCE)])
    assert size(tmp_path, "train: a.jsonl", f"tokenizer: {tmp_path}").tokens > 0


def test_the_disk_of_a_set_is_its_tokens_and_a_copy_of_the_tokenizer(tmp_path: Path) -> None:
    write(tmp_path / "few.jsonl", [alpaca("Question?", SENTENCE)])
    write(tmp_path / "many.jsonl", [alpaca("Question?", SENTENCE)] * 100)
    few, many = size(tmp_path, "train: few.jsonl"), size(tmp_path, "train: many.jsonl")
    assert many.disk_bytes - few.disk_bytes == pytest.approx(4 * (many.tokens - few.tokens), abs=8)
    # Qwen2.5's tokenizer.json has 7.0 MB; as transformers saves it, indented, 11.4 MB.
    assert few.disk_bytes - 4 * few.tokens == pytest.approx(11.4e6, rel=0.05)
