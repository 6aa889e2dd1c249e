"""A start that is refused leaves the run as it was: also the record of the place that trains it."""

from pathlib import Path

import pytest

from stoker.api import start, store_return
from stoker.api.start import Listener
from stoker.config import load
from stoker.errors import StokerError
from stoker.places import registry
from stoker.rundir import last_known, layout

RUN = """\
model: {shape: llama, layers: 1, width: 32, heads: 2, ffn: 64, vocab: 300}
tokenizer: {train: bpe, vocab: 300}
data: {train: words.txt, length: 32}
train: {objective: pretrain, steps: 4}
save: {store: copies}
"""


def test_a_start_that_the_store_refuses_keeps_the_record_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tiny.yaml").write_text(RUN)
    run_file = load.load(str(tmp_path / "tiny.yaml"))
    run_dir = layout.create(run_file)
    last_known.sent(run_dir, "box-1", {}, None)

    def held(*_: object) -> None:
        raise StokerError("STK656", name="tiny")

    monkeypatch.setattr(store_return, "check", held)
    with pytest.raises(StokerError) as told:
        start.begin(run_file, Listener())
    assert told.value.code == "STK656"
    assert registry.recorded(run_dir) == "box-1"
