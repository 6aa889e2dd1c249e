"""A base's sentencepiece file stays with the model: llama.cpp's converter needs it for Gemma, Phi 3 and Llama 2."""

from pathlib import Path

import pytest
import sentencepiece_case
from prepare_case import Case

from stoker.engine import models, tokenizer
from stoker.rundir import prepared

pytestmark = pytest.mark.filterwarnings("default")

ROWS = [{"messages": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Seven  wagons."}]}]


@pytest.mark.parametrize("prefix", [False, True])
def test_preparing_and_saving_keep_the_file_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: bool
) -> None:
    case = Case(tmp_path, monkeypatch)
    sentencepiece_case.make_tokenizer(case.tokenizer, vocab=400, prefix=prefix)
    published = (case.tokenizer / "tokenizer.model").read_bytes()
    data = case.prepare(ROWS).run_dir.data
    assert (data / "tokenizer" / "tokenizer.model").read_bytes() == published
    report = prepared.read_report(data)
    assert report is not None
    assert "tokenizer.model" in report.tokenizer
    opened = models.load_tokenizer(data / "tokenizer")
    tokenizer.write(opened, tmp_path / "checkpoint")  # as the trainer does
    assert (tmp_path / "checkpoint" / "tokenizer.model").read_bytes() == published
    again = models.load_tokenizer(tmp_path / "checkpoint")
    text = "The  stoker<|im_end|>\n司炉 keeps the fire"
    assert again(text).input_ids == opened(text).input_ids == models.load_tokenizer(case.tokenizer)(text).input_ids


def test_other_vocabularies_bring_no_such_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, monkeypatch)
    sentencepiece_case.make_tokenizer(case.tokenizer, vocab=400)
    (case.tokenizer / "tokenizer.model").unlink()
    data = case.prepare(ROWS).run_dir.data
    assert not (data / "tokenizer" / "tokenizer.model").exists()
