"""A plan in words: lists and marks are those of the language."""

import pytest

import stoker
from stoker.api import figures, plan_page
from stoker.messages import in_language
from stoker.plan.plan import Resume

MOVED = Resume(step=120, tier="SAMPLE-EXACT", changed=["precision: bf16 -> fp16", "micro: 4 -> 1"], unseen=["driver"])


@pytest.mark.parametrize(
    ("language", "said"),
    [
        (
            "en",
            "SAMPLE-EXACT: resuming from step 120. Changed since then: precision: bf16 -> fp16, micro: 4 -> 1",
        ),
        ("zh", "SAMPLE-EXACT：从第 120 步继续。与上次相比的变化：precision: bf16 -> fp16、micro: 4 -> 1"),
    ],
)
def test_what_changed_is_listed_as_the_language_does(language: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    assert plan_page.resume_text(MOVED) == said
    same = MOVED.model_copy(update={"changed": []})
    assert plan_page.resume_text(same) == in_language(language, "train.tier", tier="SAMPLE-EXACT", step=120)


@pytest.mark.parametrize(("language", "said"), [("en", "starting at step 0"), ("zh", "从第 0 步开始（只取权重）")])
def test_a_fork_of_weights_starts_and_does_not_resume(
    language: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    assert said in plan_page.resume_text(Resume(step=0, tier="FORK", changed=[], unseen=[]))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [((0.1, 0.1, 0.2), "<1 s"), ((60.0, 50.0, 70.0), "1 min 00 s (50 s to 1 min 10 s)")],
)
def test_a_time_below_a_second_is_no_zero(seconds: tuple[float, float, float], said: str) -> None:
    assert figures.time_range(seconds) == said


@pytest.mark.parametrize(("count", "said"), [(13_408, "0.013"), (494_032_768, "494.0"), (0, "0.0")])
def test_a_tiny_model_has_weights(count: int, said: str) -> None:
    assert figures.millions(count) == said


@pytest.mark.parametrize(("language", "colon"), [("en", ": "), ("zh", "：")])
def test_a_reason_follows_what_it_is_about(language: str, colon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    made = stoker.plan("scratch_tiny", card="RTX4090")
    assert plan_page.reasons(made) == [f"{reason.about}{colon}{reason.text}" for reason in made.reasons]
