"""The verdict: exact kinds part only at ties and within rounding, quantised ones within their stated limits."""

import json
import math
from typing import Any

import pytest

from stoker.artifacts.parity_verdict import judge
from stoker.plan.parity_limits import KINDS, ROUNDING, Observation, Prompt, Reference, limits

TOP = [[5, 6, 7], [8, 6, 5]]
LOGPROBS = [[-0.1, -2.5, -6.0], [-0.2, -0.3, -4.0]]


def prompt(**words: Any) -> Prompt:
    plain = {"source": "shipped", "messages": None, "text": "Hello", "ids": [1, 2], "answer": [5, 8], "stopped": False}
    return Prompt(**{**plain, "top": TOP, "logprobs": LOGPROBS, **words})


def reference(**words: Any) -> Reference:
    plain: dict[str, Any] = {
        "key": "k",
        "dtype": "float32",
        "plain": False,
        "template": "{{ messages }}",
        "stops": [2, 3],
        "tokenizer": "t",
        "largest_logit": 16.0,
        "own_distance": 0.0,
        "texts": {5: "five", 6: "six", 8: "eight", 2: "</s>", 3: "<end>"},
        "prompts": [prompt()] * 50,
        "corpus": [[1, 2]],
        "corpus_loss": 1.0,
    }
    return Reference(**{**plain, **words})


def seen(**words: Any) -> Observation:
    """An observation that is the reference itself, but for `words`."""
    plain: dict[str, Any] = {
        "through": "transformers",
        "tokens": [[5, 8]] * 50,
        "logprobs": [LOGPROBS] * 50,
        "template": "{{ messages }}",
        "stops": [3, 2],
        "tokenizer": "t",
        "corpus_loss": 1.0,
    }
    return Observation(**{**plain, **words})


def codes(name: str, observation: Observation, **words: Any) -> list[str]:
    return [problem.code for problem in judge(name, reference(**words), observation).problems]


def first(token: int, position: int = 1) -> list[list[int]]:
    """Everything agrees but one token of the first prompt."""
    changed = [5, 8]
    changed[position] = token
    return [changed, *[[5, 8]] * 49]


def test_the_same_answers_are_accepted() -> None:
    figures = judge("merged", reference(), seen()).figures
    assert figures["accepted"]
    assert figures["agree"] == figures["tokens"] == 100
    assert figures["logit_distance"] == figures["mean_kl"] == figures["perplexity_change"] == 0


def test_another_token_is_refused_and_its_place_named() -> None:
    (problem,) = judge("merged", reference(), seen(tokens=first(6))).problems
    assert problem.code == "STK640"
    fields = {key: problem.fields[key] for key in ("prompt", "position", "expected", "got")}
    assert fields == {"prompt": 1, "position": 2, "expected": "'eight' (8)", "got": "'six' (6)"}


def test_a_token_the_trained_model_did_not_think_of_is_no_tie() -> None:
    assert codes("merged", seen(tokens=first(99)), dtype="bfloat16") == ["STK640"]


def test_two_tokens_closer_than_rounding_may_change_places() -> None:
    """0.1 apart at logits of 16: two units of bf16 are 0.25, of fp32 nothing."""
    verdict = judge("merged", reference(dtype="bfloat16"), seen(tokens=first(6)))
    assert verdict.problems == []
    assert verdict.figures["ties"] == 1
    assert verdict.figures["agree"] == 99
    assert codes("merged", seen(tokens=first(6)), dtype="float32") == ["STK640"]


def test_many_ties_are_not_ties() -> None:
    allowed = math.floor(ROUNDING["bfloat16"].ties * 100)
    few = [[5, 6]] * allowed + [[5, 8]] * (50 - allowed)
    many = [[5, 6]] * (allowed + 1) + [[5, 8]] * (49 - allowed)
    assert codes("merged", seen(tokens=few), dtype="bfloat16") == []
    assert codes("merged", seen(tokens=many), dtype="bfloat16") == ["STK640"]


@pytest.mark.parametrize("dtype", ROUNDING)
def test_logits_may_differ_by_rounding_and_no_more(dtype: str) -> None:
    limit, _ = limits(reference(dtype=dtype))

    def shifted(by: float) -> Observation:
        return seen(logprobs=[[[value - by for value in row] for row in LOGPROBS]] * 50)

    assert codes("merged", shifted(0.9 * limit), dtype=dtype) == []
    assert codes("merged", shifted(1.1 * limit), dtype=dtype) == ["STK645"]


def test_limits_follow_the_type_and_the_size_of_the_logits() -> None:
    assert limits(reference(dtype="float32"))[0] < 1e-3
    assert limits(reference(dtype="bfloat16")) == (1.0, 0.25)
    assert limits(reference(largest_logit=32.0))[0] == 2 * limits(reference())[0]


def test_what_an_endpoint_does_not_tell_is_not_compared() -> None:
    quiet = seen(template=None, stops=None, tokenizer=None, corpus_loss=None, logprobs=[[[None] * 3] * 2] * 50)
    verdict = judge("served", reference(), quiet)
    assert verdict.problems == []
    assert verdict.figures["logit_distance"] is None
    assert verdict.figures["perplexity_change"] is None
    assert verdict.figures["stops_same"] is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"template": "{{ other }}"}, "STK641"),
        ({"stops": [2]}, "STK642"),
        ({"ended_elsewhere": [4]}, "STK642"),
        ({"tokenizer": "u"}, "STK643"),
        ({"rendered": {0: "Hello"}}, "STK643"),
        ({"missing": ["lm_head.weight"], "tokens": [], "logprobs": []}, "STK644"),
        ({"weights": {"worst": "lm_head.weight", "cause": "base"}}, "STK646"),
    ],
)
@pytest.mark.parametrize("name", ["merged", "int8"])
def test_words_and_weights_count_for_every_kind(name: str, words: dict[str, Any], code: str) -> None:
    assert codes(name, seen(**words)) == [code]


def test_other_tokens_for_a_conversation_alone_are_the_templates_doing() -> None:
    said = [{"role": "user", "content": "Hello"}]
    talks = [prompt(messages=said, text="<user>Hello")] * 50
    hidden = seen(template=None, tokenizer=None, rendered={0: "[user] Hello"})
    assert codes("served", hidden, prompts=talks) == ["STK641"]


def test_quantised_kinds_are_held_to_their_limits() -> None:
    kind = KINDS["gguf-q8_0"]
    apart = math.floor(100 * (1 - kind.agreement))
    tokens = [[5, 6]] * apart + [[5, 8]] * (50 - apart)
    rise = math.log1p(kind.perplexity)
    assert codes("gguf-q8_0", seen(tokens=tokens, corpus_loss=1 + 0.9 * rise)) == []
    assert codes("gguf-q8_0", seen(tokens=[[5, 6], *tokens[:-1]])) == ["STK647"]
    assert codes("gguf-q8_0", seen(corpus_loss=1 + 1.1 * rise)) == ["STK647"]
    assert codes("gguf-q8_0", seen(corpus_loss=0.5)) == [], "a lower perplexity is no loss"


@pytest.mark.parametrize("kind", ["export", "served", "int8"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_not_accepted(kind: str, value: float) -> None:
    odd = [[LOGPROBS[0], [-0.2, value, -4.0]], *[LOGPROBS] * 49]
    for observation, trained in [
        (seen(logprobs=odd), {}),
        (seen(corpus_loss=value), {}),
        (seen(), {"corpus_loss": value}),
        (seen(), {"prompts": [prompt(logprobs=odd[0]), *[prompt()] * 49]}),
    ]:
        verdict = judge(kind, reference(**trained), observation)
        assert [problem.code for problem in verdict.problems] == ["STK639"]
        assert ("trained" in verdict.problems[0].what) == bool(trained)
        json.dumps(verdict.figures, allow_nan=False)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_an_exact_kind_has_the_trained_models_loss_on_the_data_too(dtype: str) -> None:
    limit, _ = limits(reference(dtype=dtype))
    for sign in (-1, 1):
        assert codes("export", seen(corpus_loss=1 + sign * 0.9 * limit), dtype=dtype) == []
        assert codes("export", seen(corpus_loss=1 + sign * 1.1 * limit), dtype=dtype) == ["STK645"]
    assert codes("export", seen(corpus_loss=3.0), dtype=dtype) == ["STK645"]


def test_a_loss_without_a_finite_perplexity_is_refused_too() -> None:
    assert codes("int8", seen(corpus_loss=1e30)) == ["STK647"]
    assert codes("export", seen(corpus_loss=1e30)) == ["STK645"]


def test_every_quantised_kind_states_its_limits() -> None:
    for kind in KINDS.values():
        assert kind.exact or (0.5 < kind.agreement < 1 and 0 < kind.perplexity < 0.5)
