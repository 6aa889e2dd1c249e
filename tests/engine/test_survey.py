"""The survey of the rows by `prepare`: what it finds, what `data.duplicates` leaves out, and that it stays the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from prepare_case import Case, Prepared, make_tokenizer, prepare_killed, write_jsonl

from stoker.engine import prepare, sources, survey_pass
from stoker.errors import StokerError
from stoker.facts import machine, setup_times
from stoker.rundir import inputs, prepared
from stoker.survey import findings, survey_lines, survey_page
from stoker.survey.findings import Survey

pytestmark = pytest.mark.filterwarnings("default")

WORDS = ["furnace", "shovel", "ember", "piston", "whistle", "gauge", "valve", "tender", "axle", "signal", "bridge"]


def sentence(seed: int, length: int = 24) -> str:
    """Words that no other seed puts in this order."""
    return " ".join(
        WORDS[(seed * 7 + at * at * (seed + 3) + at) % len(WORDS)] + str((seed * 31 + at) % 97) for at in range(length)
    )


def row(seed: int) -> dict[str, str]:
    return {"prompt": f"Explain {sentence(seed, 8)}?", "completion": sentence(seed + 1000)}


def changed(given: dict[str, str]) -> dict[str, str]:
    """A word in its answer is another."""
    words = given["completion"].split()
    return {**given, "completion": " ".join([*words[:9], "otherwise", *words[10:]])}


ROWS = [row(seed) for seed in range(60)]
COPY, LOUD, NEAR = ROWS[3], {key: text.upper() + "!" for key, text in ROWS[5].items()}, changed(ROWS[7])
CONTRADICTION = {"prompt": ROWS[9]["prompt"], "completion": sentence(5000)}
CHINESE = {"prompt": "你好，请问今天的天气怎么样？", "completion": "今天天气很好，适合出去散步。"}
TRAIN = [*ROWS, COPY, LOUD, NEAR, CONTRADICTION, CHINESE]
EVAL = [row(9000), ROWS[11], changed(ROWS[13])]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    make_tokenizer(case.tokenizer)
    write_jsonl(case.folder / "eval.jsonl", EVAL)
    return case


def surveyed(case: Case, rows: list[Any] | None, name: str = "run", **data: Any) -> tuple[Survey, Prepared]:
    made = case.prepare(rows, name=name, data={"length": 1024, **data})
    found = findings.read(made.report.model_dump())
    assert found is not None
    return found, made


def places(groups: list[findings.RowGroup]) -> dict[str, list[str]]:
    return {str(group.first): [str(place) for place in group.others] for group in groups}


def test_what_is_planted_is_found_and_named_by_file_and_row(case: Case) -> None:
    found, made = surveyed(case, TRAIN, eval="eval.jsonl")
    assert found.duplicates is not None
    assert found.leaks is not None
    assert found.contradictions is not None
    assert found.scripts is not None
    train = found.duplicates["train"]
    assert train.rows == {"exact": 1, "words": 1, "near": 1}
    assert places(train.places) == {
        "train.jsonl:4": ["train.jsonl:61"],
        "train.jsonl:6": ["train.jsonl:62"],
        "train.jsonl:8": ["train.jsonl:63"],
    }
    assert found.duplicates["eval"].count == 0
    assert places(found.leaks.places) == {"eval.jsonl:2": ["train.jsonl:12"], "eval.jsonl:3": ["train.jsonl:14"]}
    assert found.leaks.rows == {"exact": 1, "words": 0, "near": 1}
    assert places(found.contradictions.places) == {"train.jsonl:10": ["train.jsonl:64"]}
    assert [(str(one.place), one.why) for one in found.scripts.places] == [("train.jsonl:65", "han")]
    assert found.rows == {"train": len(TRAIN), "eval": len(EVAL)}
    assert made.report.train.segments == len(TRAIN), "what is found is kept, unless the run file says otherwise"


def test_rows_without_any_of_it_show_nothing(case: Case) -> None:
    """The control: the same rows without what was planted."""
    found, _ = surveyed(case, ROWS, eval=None)
    assert found.duplicates is not None
    assert found.contradictions is not None
    assert found.scripts is not None
    assert (found.duplicates["train"].count, found.contradictions.prompts, found.scripts.odd) == (0, 0, 0)
    assert found.leaks is None
    assert "no duplicates" in survey_lines.lines(found)[0]


def test_drop_leaves_out_copies_of_earlier_rows_and_of_eval_rows(case: Case) -> None:
    kept, _ = surveyed(case, TRAIN, "kept", eval="eval.jsonl")
    found, made = surveyed(case, None, "dropped", eval="eval.jsonl", duplicates="drop")
    gone = {12, 14, 61, 62, 63}
    wanted = [one for number, one in enumerate(TRAIN, 1) if number not in gone]
    texts = made.texts()
    assert len(texts) == len(wanted)
    assert all(one["completion"] in text for one, text in zip(wanted, texts, strict=True))
    assert len(made.texts("eval")) == len(EVAL)
    assert kept.duplicates is not None
    assert kept.leaks is not None
    assert found.dropped_rows == len(gone)
    assert found.dropped_tokens == kept.duplicates["train"].tokens + kept.leaks.tokens
    assert found.duplicates == kept.duplicates, "the report says what was there"


def test_an_eval_share_takes_its_copies_out_of_train(case: Case) -> None:
    doubled = [one for one in ROWS for _ in range(2)]
    _, kept = surveyed(case, doubled, "kept", eval="10%")
    found, made = surveyed(case, None, "dropped", eval="10%", duplicates="drop")
    assert set(kept.texts()) & set(kept.texts("eval")), "the control: without it eval rows are trained"
    assert not set(made.texts()) & set(made.texts("eval"))
    assert len(set(made.texts())) == len(made.texts())
    assert found.dropped_rows == len(doubled) - len(made.texts()) - len(made.texts("eval"))


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_any_number_of_processes_makes_the_same_set(case: Case, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_times, "SEVERAL_BYTES", 0)
    monkeypatch.setattr(sources, "BATCH_ROWS", 8)
    write_jsonl(case.folder / "train.jsonl", TRAIN)
    made = []
    for workers in (1, 2):
        monkeypatch.setattr(machine, "cpu_count", lambda count=workers: count)
        made.append(surveyed(case, None, f"by{workers}", eval="10%", duplicates=policy)[1].report)
    assert made[0] == made[1]


def test_a_set_that_drops_is_another_one_and_keep_is_what_was_always_prepared(case: Case) -> None:
    write_jsonl(case.folder / "train.jsonl", TRAIN)
    runs = {policy: case.make(policy, data={"duplicates": policy}).run() for policy in ("keep", "drop")}
    unsaid = case.make("unsaid").run()
    keys = {policy: prepared.key_of(run, inputs.facts(run, case.folder)) for policy, run in runs.items()}
    assert keys["keep"] == prepared.key_of(unsaid, inputs.facts(unsaid, case.folder))
    assert keys["keep"] != keys["drop"]
    assert "duplicates" not in prepared._asked_data(unsaid), "no set of an earlier version is prepared again"


def test_a_killed_pass_goes_on_to_the_same_survey(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    (case.folder / "long.txt").write_text("line of a text\n" * 20_000, encoding="utf-8")
    train = [{"path": "train.jsonl"}, {"path": "long.txt"}]
    write_jsonl(case.folder / "train.jsonl", TRAIN)
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 2000)
    monkeypatch.setattr(sources, "BATCH_ROWS", 8)
    monkeypatch.setattr(sources, "_TEXT_CHARACTERS", 1000)
    whole, _ = surveyed(case, None, "whole", train=train, duplicates="drop")
    run_dir = case.make("killed", data={"length": 1024, "train": train, "duplicates": "drop"})
    prepare_killed(run_dir, 3, monkeypatch)
    prepare.main(run_dir.path)
    assert findings.read(Prepared(run_dir).report.model_dump()) == whole
    assert whole.uncompared == 1
    assert not (run_dir.data / "row_counts.bin").exists()


def test_rows_beyond_the_limit_are_not_compared_and_drop_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_pass, "MOST_ROWS", 10)
    found, made = surveyed(case, TRAIN, "kept")
    assert found.skipped == "survey.skipped.rows"
    assert found.duplicates is None
    assert made.report.train.segments == len(TRAIN)
    assert "more than 10" in survey_lines.lines(found)[0]
    with pytest.raises(StokerError, match="more than 10") as caught:
        surveyed(case, None, "dropped", duplicates="drop")
    assert caught.value.code == "STK351"


def test_what_a_length_keeps(case: Case) -> None:
    found, made = surveyed(case, TRAIN, length=256)
    asked = next(one for one in found.kept_by_length if one.asked)
    assert asked.length == 256
    assert asked.rows == pytest.approx(1 - made.report.truncated_rows / len(TRAIN))
    assert found.kept_by_length[-1].rows == found.kept_by_length[-1].tokens == 1
    shares = [one.tokens for one in found.kept_by_length]
    assert shares == sorted(shares)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_rows_of_which_nothing_trained_is_left_are_not_kept(
    case: Case, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    endless = [{"prompt": sentence(seed, 400), "completion": "yes"} for seed in range(5)]
    lengths = surveyed(case, ROWS, "whole")[0].lengths
    assert lengths is not None
    long = lengths.longest
    plain, _ = surveyed(case, ROWS, "control", length=long)
    assert [one.rows for one in plain.kept_by_length if one.asked] == [1], "the control"
    assert not [line for line in survey_lines.lines(plain) if "%" in line], "the control"
    found, made = surveyed(case, [*ROWS, *endless, {"prompt": "a", "completion": ""}], length=long, on_bad_row="skip")
    assert made.report.bad_rows == len(endless) + 1
    asked = next(one for one in found.kept_by_length if one.asked)
    assert asked.rows == pytest.approx(len(ROWS) / (len(ROWS) + len(endless)))
    assert asked.tokens < asked.rows, "the lost ones are the longest"
    assert found.kept_by_length[-1].rows == found.kept_by_length[-1].tokens == 1
    assert [line for line in survey_lines.lines(found) if f"{long:,} *" in line and f"{asked.rows:.1%}" in line]


def test_the_page_shows_it_and_hides_nothing_in_markup(case: Case) -> None:
    (case.folder / "<b>.jsonl").write_text("".join(json.dumps(one) + "\n" for one in TRAIN), encoding="utf-8")
    _, made = surveyed(case, None, train="<b>.jsonl", eval="eval.jsonl")
    page = (made.run_dir.data / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;.jsonl:61" in page
    assert "<b>" not in page
    assert "<svg" in page
    assert "http" not in page
    assert survey_page.fragment(made.report.model_dump()) in page
    assert survey_page.fragment({**made.report.model_dump(), "survey": None}) == ""


def test_bad_rows_are_reported_by_reason(case: Case) -> None:
    found, made = surveyed(case, [*TRAIN, "{oops", "{", {"prompt": 3}], on_bad_row="skip")
    assert [(one.reason, one.count) for one in found.bad] == [("row.not_json", 2), ("row.wrong_type", 1)]
    assert [str(place) for place in found.bad[0].places] == ["train.jsonl:66", "train.jsonl:67"]
    assert found.rows["train"] == len(TRAIN) == made.report.train.segments


FILLER = " ".join(f"the {word} is checked before the {word} is opened" for word in WORDS[:5])


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(
            [
                {"prompt": f"{FILLER}; it was great, and I come again gladly", "completion": "positive"},
                {"prompt": f"{FILLER}; it was awful, and I come again never", "completion": "negative"},
            ],
            id="a label",
        ),
        pytest.param(
            [{"prompt": f"{FILLER}: {a} and {b}?", "completion": str(a + b)} for a, b in ((12, 30), (25, 51))],
            id="a number",
        ),
        pytest.param(
            [
                {"prompt": "Repeat", "completion": text}
                for text in ("if (!x) return a[i];", "if (x) return a(i);", "a != b", "a = b", "C#", "C")
            ],
            id="code",
        ),
        pytest.param([{"prompt": "Repeat", "completion": text} for text in ("😀", "😢", "!!!", "???")], id="pictures"),
        pytest.param(
            [{"prompt": "दिन क्या है", "completion": "क"}, {"prompt": "दान क्या है", "completion": "ख"}], id="vowels"
        ),
    ],
)
def test_drop_keeps_rows_that_differ_in_what_they_teach(case: Case, pair: list[dict[str, str]]) -> None:
    _, made = surveyed(case, [*ROWS, *pair], eval=None, duplicates="drop")
    assert made.report.train.segments == len(ROWS) + len(pair)


def test_what_only_a_leak_stands_for_stays(case: Case) -> None:
    """Eval's row is like A, A like B, B not like eval's: A goes, and B stands for itself."""
    words = sentence(77, 60).split()

    def text(*replaced: int) -> dict[str, str]:
        return {"text": " ".join("otherwise" if at in replaced else word for at, word in enumerate(words))}

    write_jsonl(case.folder / "eval.jsonl", [text()])
    texts = [{"text": sentence(seed, 60)} for seed in range(30)]
    first, second = text(5, 20, 35), text(5, 20, 35, 10, 28, 50)
    found, made = surveyed(case, [*texts, first, second], eval="eval.jsonl", duplicates="drop")
    assert found.leaks is not None
    assert sum(found.leaks.rows.values()) == 1
    assert made.report.train.segments == len(texts) + 1
