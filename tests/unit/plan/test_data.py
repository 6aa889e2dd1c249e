"""What is known of the data before and after it was prepared."""

import dataclasses

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import setup_times
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


PIPELINE = "pipeline: [{step: GopherQualityFilter}, {step: ExactDedup}, {step: MinhashDedup}]"


def test_preparing_takes_all_processors_from_a_million_tokens_on() -> None:
    run = load.parse("model: m\ndata: {train: a, tokens: 600M}", "run.yaml")
    start, rate = (setup_times.figure(part).value for part in ("prepare_start", "prepare"))
    large, small = data.declared(run), declared("tokens: 600k")
    assert data.preparing_seconds(run, large, 8) == pytest.approx(start + 600e6 / rate / 8)
    assert data.preparing_seconds(run, small, 8) == pytest.approx(start + 600e3 / rate)
    (said,) = data.preparing_reasons(run, large, 8)
    assert said.fields["gigabytes"] == "2.4"
    assert [float(said.fields[name]) for name in ("low", "minutes", "high")] == pytest.approx(
        [part * (start + 600e6 / rate / 8) / 60 for part in (0.5, 1, 2)], abs=0.5
    )
    assert data.preparing_reasons(run, small, 8) == [], "not worth a line"
    prepared = dataclasses.replace(large, digest="0")
    assert data.preparing_seconds(run, prepared, 8) == data.pipeline_bytes(run, prepared) == 0


def test_a_pipeline_takes_time_and_disk_of_its_own() -> None:
    run = load.parse(f"model: m\ndata: {{train: a, tokens: 600M, {PIPELINE}}}", "run.yaml")
    facts = dataclasses.replace(data.declared(run), source_bytes=5_000_000_000)
    plain = setup_times.preparing(facts.tokens, 8)
    start, rate = (setup_times.figure(part).value for part in ("pipeline_start", "pipeline"))
    assert data.preparing_seconds(run, facts, 8) == pytest.approx(plain + 3 * start + 5e9 / rate / 8)
    assert data.pipeline_bytes(run, facts) == 15_000_000_000, "before each of two deduplications, and its output"
