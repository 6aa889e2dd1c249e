"""Mixtures in the run file: names, what is refused and where."""

from fractions import Fraction

import pytest

from stoker.config import load, mixing
from stoker.config.data_section import Source
from stoker.errors import StokerErrors

HEAD = "model: {shape: llama, layers: 2, width: 64, heads: 2}\ntokenizer: tok\ndata:\n  train:\n"
TWO = "    - {path: data/wiki.jsonl}\n    - {path: 'hub:owner/code'}\n"


def refused(body: str) -> list[tuple[str, str]]:
    with pytest.raises(StokerErrors) as caught:
        load.parse(HEAD + body, "run.yaml")
    return [(one.code, one.where.partition(": ")[2]) for one in caught.value.errors]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/wiki.jsonl.gz", "wiki"),
        ("hub:owner/code", "code"),
        ("recipe:lines.txt", "lines"),
        ("books/", "books"),
        ("数据/维基.parquet", "维基"),
        ("v1.2.csv", "v1.2"),
    ],
)
def test_a_source_is_called_by_the_last_part_of_its_path(path: str, name: str) -> None:
    assert mixing.name_of(Source(path=path)) == name
    assert mixing.name_of(Source(path=path, name="mine")) == "mine"


def test_shares_at_the_sources_are_one_stage() -> None:
    sources = "    - {path: a.txt, share: 12.5%}\n    - {path: b.txt, name: c, share: 87.5 %}\n"
    data = load.parse(HEAD + sources, "run.yaml").data
    assert mixing.is_mixed(data)
    assert [stage.mix for stage in mixing.stages(data)] == [{"a": "12.5%", "c": "87.5 %"}]
    assert [mixing.part(share) for share in ("12.5%", "87.5 %")] == [Fraction(1, 8), Fraction(7, 8)]


def test_without_the_words_there_is_no_mixture() -> None:
    data = load.parse(HEAD + "    - {path: a.txt, weight: 2}\n    - {path: a.txt, name: a}\n", "run.yaml").data
    assert not mixing.is_mixed(data)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            TWO + "  stages:\n    - {share: 50%, mix: {wiki: 60%, cod: 40%}}\n"
            "    - {share: 40%, mix: {wiki: 60%, code: 30%}}\n",
            [("STK160", "data.stages"), ("STK161", "data.stages[0].mix.cod"), ("STK160", "data.stages[1].mix")],
        ),
        ("    - {path: a.txt, share: 60%}\n    - {path: b.txt, share: 39.9%}\n", [("STK160", "data.train")]),
        (
            "    - {path: a/x.txt, epochs: 1}\n    - {path: b/x.txt, epochs: 2}\n",
            [("STK162", "data.train[1].name")],
        ),
        ("    - {path: a.txt, share: 100%}\n    - {path: b.txt}\n", [("STK164", "data.train[1]")]),
        ("    - {path: a.txt, share: 100%, weight: 2}\n", [("STK163", "data.train[0].weight")]),
        ("    - {path: a.txt, epochs: 2}\ntrain: {epochs: 3}\n", [("STK163", "train.epochs")]),
        (
            "    - {path: a.txt, share: 100%}\n  stages: [{mix: {a: 100%}}]\n",
            [("STK163", "data.train[0].share")],
        ),
        (
            TWO + "  stages: [{tokens: 5B, mix: {wiki: 100%}}]\ntrain: {steps: 3}\n",
            [("STK163", "train.steps")],
        ),
        (
            TWO + "  stages:\n    - {share: 1%, tokens: 9, mix: {wiki: 100%}}\n    - {tokens: 9, mix: {wiki: 100%}}\n",
            [("STK163", "data.stages[0].share")],
        ),
        (
            TWO + "  stages:\n    - {mix: {wiki: 100%}}\n    - {mix: {code: 100%}}\n",
            [("STK164", "data.stages[0]")],
        ),
        (TWO + "  stages: [{mix: {wiki: lots}}]\n", [("STK109", "data.stages[0].mix.wiki")]),
        (TWO + "  stages: [{mix: {wiki: 120%}}]\n", [("STK107", "data.stages[0].mix.wiki")]),
        (TWO + "  stages: [{mix: {}}]\n", [("STK120", "data.stages[0].mix")]),
        (TWO + "  stages: [{share: 100%}]\n", [("STK105", "data.stages[0].mix")]),
        (TWO + "  stages: [wiki]\n", [("STK106", "data.stages[0]")]),
        (TWO + "  stages: []\n", [("STK120", "data.stages")]),
    ],
)
def test_what_does_not_agree_is_refused_at_its_place(body: str, found: list[tuple[str, str]]) -> None:
    assert refused(body) == found


SETS = "    - {path: 's3://bucket/wiki'%s}\n    - {path: 'run:code'%s}\n"


def test_prepared_sets_are_mixed_as_sources_are() -> None:
    data = load.parse(HEAD.replace("train", "set") + SETS % (", share: 60%", ", share: 40%"), "run.yaml").data
    assert mixing.is_mixed(data)
    assert mixing.sources(data) == []
    assert mixing.set_paths(data) == ["s3://bucket/wiki", "run:code"]
    assert [stage.mix for stage in mixing.stages(data)] == [{"wiki": "60%", "code": "40%"}]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (SETS % ("", ""), [("STK170", "data.set")]),
        (SETS % (", share: 60%", ", share: 30%"), [("STK160", "data.set")]),
        (SETS % (", share: 60%", ", epochs: 1"), [("STK164", "data.set[0]"), ("STK164", "data.set[1]")]),
        (SETS % (", name: code, epochs: 1", ", epochs: 1"), [("STK162", "data.set[1].name")]),
        (SETS % ("", "") + "  stages: [{mix: {wiki: 50%, cod: 50%}}]\n", [("STK161", "data.stages[0].mix.cod")]),
        (SETS % (", epochs: 1", ", epochs: 1") + "  stream: true\n", [("STK169", "data.stream")]),
        (SETS % (", epochs: 1", ", epochs: 1") + "train: {epochs: 2}\n", [("STK163", "train.epochs")]),
        (SETS % (", weight: 2", ", share: 100%"), [("STK104", "data.set[0].weight")]),
        ("    - wiki-set\n", [("STK106", "data.set[0]")]),
    ],
)
def test_a_list_of_sets_that_does_not_agree_is_refused_at_its_place(body: str, found: list[tuple[str, str]]) -> None:
    with pytest.raises(StokerErrors) as caught:
        load.parse(HEAD.replace("train", "set") + body, "run.yaml")
    assert [(one.code, one.where.partition(": ")[2]) for one in caught.value.errors] == found


def test_a_set_that_was_prepared_as_a_mixture_takes_stages_of_its_own_sources() -> None:
    text = HEAD.partition("data:")[0] + "data: {set: 's3://b/x', stages: [{mix: {wiki: 50%, code: 50%}}]}\n"
    assert mixing.is_mixed(load.parse(text, "run.yaml").data)


def test_a_pipeline_is_for_rows() -> None:
    with pytest.raises(StokerErrors) as caught:
        load.parse("model: m\ndata: {set: a, pipeline: [{step: ExactDedup}]}\n", "run.yaml")
    assert [one.code for one in caught.value.errors] == ["STK163"]
