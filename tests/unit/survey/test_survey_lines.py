"""A survey in words and as a page: each finding is said, and only where there is one."""

from typing import Any

import pytest

from stoker.survey import findings, survey_lines, survey_page
from stoker.survey.findings import (
    BadReason,
    Contradictions,
    Duplicates,
    KeptByLength,
    Leaks,
    Lengths,
    NamedRow,
    OddRow,
    RowGroup,
    Scripts,
    Survey,
)


def place(row: int, *, record: bool = False) -> NamedRow:
    return NamedRow(file="a.json" if record else "a.jsonl", row=row, record=record)


NOTHING = Survey(
    policy="keep",
    rows={"train": 9, "eval": 0},
    duplicates={"train": Duplicates(rows={"exact": 0, "words": 0, "near": 0}, tokens=0, share=0, groups=0, places=[])},
    contradictions=Contradictions(prompts=0, rows=0, places=[]),
)
ALL = Survey(
    policy="keep",
    rows={"train": 1200, "eval": 20},
    duplicates={
        "train": Duplicates(
            rows={"exact": 3, "words": 0, "near": 1},
            tokens=4000,
            share=0.25,
            groups=2,
            places=[
                RowGroup(first=place(5), others=[place(17), place(18)], count=9, kind="exact"),
                RowGroup(first=place(6), others=[place(2, record=True)], count=1, kind="near"),
            ],
        )
    },
    leaks=Leaks(
        rows={"exact": 1, "words": 0, "near": 0},
        tokens=9,
        eval_rows=1,
        places=[RowGroup(first=place(1), others=[place(30)], count=1, kind="exact")],
    ),
    contradictions=Contradictions(
        prompts=1, rows=2, places=[RowGroup(first=place(40), others=[place(41)], count=1, kind=None)]
    ),
    scripts=Scripts(
        rows={"latin": 99, "han": 1}, main="latin", odd=1, places=[OddRow(place=place(7), why="han", tokens=12)]
    ),
    lengths=Lengths(
        median=50,
        low=5,
        high=500,
        longest=9000,
        odd={"long": 1, "short": 0},
        places=[OddRow(place=place(8), why="long", tokens=9000)],
        histogram=[(32, 4), (38, 0), (45, 9)],
    ),
    kept_by_length=[
        KeptByLength(length=64, rows=0.5, tokens=0.25, asked=True),
        KeptByLength(length=128, rows=1, tokens=1),
    ],
    bad=[BadReason(reason="row.not_json", text="not JSON <", count=2, places=[place(3), place(4)])],
)


def report(found: Survey) -> dict[str, Any]:
    split = {"tokens": 9, "trained_tokens": 4}
    counts = {"rows_read": 9, "bad_rows": 2, "digest": "d", "length": 40}
    return {**counts, "train": split, "eval": None, "survey": found.model_dump()}


def test_each_finding_is_said_with_its_places() -> None:
    said = "\n".join(survey_lines.lines(ALL))
    assert "4 training rows repeat an earlier one (3 equal, 1 nearly equal); 4,000 tokens, 25.0% of all" in said
    assert "a.jsonl:5 = a.jsonl:17, a.jsonl:18 and 7 more" in said
    assert "a.jsonl:6 ≈ a.json: record 2" in said
    assert "1 training row stands in eval" in said
    assert "a.jsonl:40 ≠ a.jsonl:41" in said
    assert "a.jsonl:7 (Chinese, 12 tokens)" in said
    assert "1 row above 500 tokens" in said
    assert "64 * tokens:" in said
    assert survey_lines.bad_rows(ALL) == ["2 x not JSON <: a.jsonl:3, a.jsonl:4"]


def test_where_nothing_is_found_one_line_says_so() -> None:
    assert survey_lines.lines(NOTHING) == ["no duplicates, leaks or contradictions in 9 rows"]


def test_what_was_not_looked_for_is_not_said_to_be_absent() -> None:
    skipped = Survey(policy="keep", rows={"train": 9}, skipped="survey.skipped.rows", limit=1000)
    assert survey_lines.lines(skipped) == ["rows were not compared, because there are more than 1,000"]
    assert "none found" not in survey_page.fragment(report(skipped))


def test_rows_that_were_left_out_are_not_offered_to_be_left_out() -> None:
    dropped = ALL.model_copy(update={"policy": "drop", "dropped_rows": 5, "dropped_tokens": 4009})
    said = "\n".join(survey_lines.lines(dropped))
    assert "left out of train by `data.duplicates: drop`: 5 rows, 4,009 tokens" in said
    assert "leaves them out" not in said
    assert "better than the model" not in said
    assert "better than the model" in "\n".join(survey_lines.lines(ALL)), "the control"


def test_a_report_is_read_back_as_it_was_and_earlier_ones_have_none() -> None:
    assert findings.read(report(ALL)) == ALL
    assert findings.read({"digest": "d"}) is None


def test_the_page_says_the_same_escaped_without_script_or_address() -> None:
    page = survey_page.page(report(ALL), "<run>")
    assert "&lt;run&gt;" in page
    assert "not JSON &lt;" in page
    assert "a.jsonl:5 = a.jsonl:17" in page
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<rect") == len(ALL.lengths.histogram if ALL.lengths else []) + 2
    assert 'class="good"' not in page
    assert survey_page.page(report(NOTHING), "run").count('class="good"') == 2


def test_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert "4 个训练行与前面的行重复" in "\n".join(survey_lines.lines(ALL))
    assert "训练集中的评估行" in survey_page.fragment(report(ALL))
