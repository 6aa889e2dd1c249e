"""A plan in words: lists and marks are those of the language."""

import pytest

import stoker
from stoker.api import plan_page
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


@pytest.mark.parametrize(("language", "colon"), [("en", ": "), ("zh", "：")])
def test_a_reason_follows_what_it_is_about(language: str, colon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    made = stoker.plan("scratch_tiny", card="RTX4090")
    assert plan_page.reasons(made) == [f"{reason.about}{colon}{reason.text}" for reason in made.reasons]
