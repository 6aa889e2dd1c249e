"""What is known of the data before and after it was prepared."""

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import plan_inputs
from stoker.plan import data
from stoker.rundir.prepared import Report, Split


def declared(words: str) -> data.DataFacts:
    return data.declared(load.parse(f"model: m\ndata: {{train: a, {words}}}", "run.yaml"))


def test_without_a_size_there_is_no_plan() -> None:
    for words in ("length: 64", "rows: 100"):
        with pytest.raises(StokerError) as caught:
            declared(words)
        assert caught.value.code == "STK206"


@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        ("tokens: 9700, length: 100", 100),
        ("tokens: 9701, length: 100", 101),
        ("tokens: 9700, length: 100, pack: false, rows: 500", 500),
        ("tokens: 9750, length: 100, pack: false", 98),
        ("tokens: 9700, length: 100, pack: false, rows: 500, eval: 2%", 490),
        ("tokens: 19400, length: 100, eval: 50%", 100),
        ("tokens: 9700, length: 100, eval: other.jsonl", 100),
        ("tokens: 1, length: 100", 1),
        ("tokens: 1, length: 100, eval: 99%", 1),
    ],
)
def test_declared_sequences(words: str, sequences: int) -> None:
    facts = declared(words)
    assert facts.sequences == sequences
    assert facts.estimated
    assert facts.has_eval is ("eval" in words)


def test_rows_that_are_cut_have_no_more_tokens_than_their_length() -> None:
    assert declared("tokens: 5M, rows: 1000, length: 1024, pack: false").tokens == 1000 * 1024
    assert declared("tokens: 5M, rows: 1000, length: 1024").tokens == 5_000_000


@pytest.mark.parametrize("share", ["100%", "'100% '", "100.0%"])
def test_a_share_that_leaves_nothing_is_refused(share: str) -> None:
    with pytest.raises(StokerError) as caught:
        declared(f"tokens: 1000, eval: {share}")
    assert caught.value.code == "STK307"


def test_counted_facts_are_those_of_the_report() -> None:
    split = Split(
        sequences=7, segments=9, tokens=500, trained_tokens=400, longest=90, longest_segment=80, shards=[], files={}
    )
    report = Report(
        digest="d",
        key="k",
        length=100,
        packed=True,
        vocab=300,
        objective="sft",
        detected=[],
        rows_read=9,
        bad_rows=0,
        truncated_rows=0,
        length_histogram={},
        pack_efficiency=0.7,
        unigram_entropy=1.0,
        train=split,
        eval=split.model_copy(update={"tokens": 50}),
    )
    run = load.parse("model: m\ndata: {train: a}", "run.yaml")
    facts = plan_inputs.counted(report, run)
    assert (facts.sequences, facts.tokens, facts.longest, facts.longest_segment) == (7, 500, 90, 80)
    assert (facts.digest, facts.has_eval, facts.disk_bytes, facts.estimated) == ("d", True, 4 * 550, False)
    assert not plan_inputs.counted(report.model_copy(update={"eval": None}), run).has_eval
