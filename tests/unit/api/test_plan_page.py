"""A plan in words: lists and marks are those of the language."""

import pytest

import stoker
from stoker.api import figures, plan_page
from stoker.messages import in_language
from stoker.plan.plan import Cost, Resume, StepCounts

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


@pytest.mark.parametrize(
    ("total", "epochs", "said"),
    [
        (546, 2, "546 = 273 per epoch x 2 epochs"),
        (200, 1, "200 (0.73 of an epoch of 273 steps)"),
        (400, 2, "400 (1.47 epochs of 273 steps)"),
    ],
)
def test_steps_are_epochs_or_a_share_of_one(
    total: int, epochs: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    assert plan_page.steps_text(StepCounts(total=total, per_epoch=273, epochs=epochs, warmup=0)) == said


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ((0.002, 0.001, 0.004), "<0.01 USD"),
        ((0.02, 0.004, 0.05), "0.02 USD (<0.01 to 0.05)"),
        ((0.0, 0.0, 0.0), "0.00 USD (0.00 to 0.00)"),
    ],
)
def test_less_than_a_cent_is_not_nothing(
    amounts: tuple[float, float, float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    facts = {"price_per_hour": 1.0, "billed_devices": 1, "source": "a", "age_days": 0}
    assert figures.paid(Cost(amount=amounts[0], amount_range=amounts[1:], currency="USD", **facts)) == said
