"""When an artifact counts as the trained model: reference, observation, limits and verdict. Pure.

`Reference` holds the trained model's answers, `Observation` those of an artifact or endpoint, teacher-forced along the
reference's tokens: at each of them its top choice and its log-probabilities of the reference's top tokens. Equal
choices everywhere are equal greedy answers, and one divergence does not hide what comes after it.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stoker import messages
from stoker.errors import StokerError

FORMAT = 1
PROMPTS = 64
LEAST_PROMPTS = 50
ANSWER_TOKENS = 32
PROMPT_TOKENS = 256
"""Longer prompts are truncated."""
TOP = 16
"""Log-probabilities kept per token; endpoints give up to 20."""
CORPUS_TOKENS = 2048
"""Tokens over which perplexity is measured."""

_NO_ADAPTER = 0.01
"""A smaller factor of the delta means no adapter."""


@dataclass(frozen=True)
class Kind:
    """What may differ from the trained model."""

    exact: bool
    """Equal token by token, except for ties."""
    agreement: float = 1.0
    """Smallest share of equal tokens."""
    perplexity: float = 0.0
    """Largest relative increase of perplexity."""


EXACT = Kind(exact=True)

KINDS: dict[str, Kind] = {
    "merged": EXACT,
    "export": EXACT,
    "served": EXACT,
    "int8": Kind(exact=False, agreement=0.90, perplexity=0.02),
    "fp8": Kind(exact=False, agreement=0.90, perplexity=0.03),
    "gguf-q8_0": Kind(exact=False, agreement=0.95, perplexity=0.01),
    "gguf-q4_k_m": Kind(exact=False, agreement=0.80, perplexity=0.10),
    "gptq": Kind(exact=False, agreement=0.80, perplexity=0.10),
}
"""By artifact. Limits of quantised ones are loose enough for models of 100 M weights, which lose most."""


@dataclass(frozen=True)
class Rounding:
    """How far two correct computations in one type may differ, in units of its precision at the largest logit."""

    unit: float
    """Distance of 1 to the next number."""
    logits: int
    """Largest distance of log-probabilities."""
    tie: int
    """Tokens closer than this may swap rank."""
    ties: float
    """Largest share of tokens that may do so."""


ROUNDING: dict[str, Rounding] = {
    "float32": Rounding(unit=2.0**-23, logits=256, tie=64, ties=0.002),
    "float16": Rounding(unit=2.0**-10, logits=16, tie=4, ties=0.02),
    "bfloat16": Rounding(unit=2.0**-7, logits=8, tie=2, ties=0.05),
}
"""Sums are in fp32 everywhere, so shorter types lose fewer of their own units."""


class _ParityRecord(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Prompt(_ParityRecord):
    """One prompt, and what the trained model answers to it."""

    source: Literal["data", "shipped", "random"]
    messages: list[dict[str, str]] | None
    """The conversation, if rendered by the chat template."""
    text: str
    ids: list[int]
    answer: list[int]
    """Its greedy answer, with the stop token."""
    stopped: bool
    """Whether the last token of the answer is a stop token."""
    top: list[list[int]]
    """For each token of the answer the most likely ones, best first."""
    logprobs: list[list[float]]
    """Their log-probabilities."""


class Reference(_ParityRecord):
    """`artifacts/reference.json`: the trained model's side of every comparison."""

    format: int = FORMAT
    key: str
    """Digest of the weights, tokenizer, data and program versions it was made with."""
    dtype: str
    plain: bool
    """A text completion model, not trained on conversations."""
    template: str
    """The chat template; empty where there is none."""
    stops: list[int]
    """Tokens that end an answer."""
    tokenizer: str
    """Digest of what the tokenizer does."""
    largest_logit: float
    own_distance: float
    """Between the trained model's own token-by-token and single-pass logits."""
    texts: dict[int, str]
    """Text of the tokens named here."""
    prompts: list[Prompt]
    corpus: list[list[int]]
    """Token sequences for the perplexity; a token that does not count is stored as ~id."""
    corpus_loss: float


class Observation(_ParityRecord):
    """Observations of an artifact or an endpoint. None: not observable this way."""

    through: str
    tokens: list[list[int]] = []
    """Per prompt and token of the reference's answer, its own top choice."""
    logprobs: list[list[list[float | None]]] = []
    """Per prompt and token, its log-probabilities of the reference's `top`."""
    ended_elsewhere: list[int] = []
    """Prompts whose answer continues after the stop token, or stops before it."""
    rendered: dict[int, str] = {}
    """Prompts that are tokenized differently here, with the rendered text."""
    template: str | None = None
    stops: list[int] | None = None
    tokenizer: str | None = None
    corpus_loss: float | None = None
    weights: dict[str, Any] | None = None
    """How the tensors themselves compare: compared, of, worst, and a `cause` where they differ."""
    missing: list[str] = []
    """Tensors of its configuration that its files lack."""
    problems: list[dict[str, Any]] = []
    """Errors that ended the observation, as `StokerError.to_json` writes them."""


@dataclass(frozen=True)
class Parting:
    """A token that differs from the reference."""

    prompt: int
    position: int
    expected: int
    got: int
    margin: float
    """By how much the trained model prefers its own; infinite if the other is not among its top tokens."""


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison."""

    figures: dict[str, Any]
    """For parity.json."""
    problems: list[StokerError]
    """Empty: accepted. The first is the most likely cause of the others."""


def judge(name: str, reference: Reference, seen: Observation) -> Verdict:
    """Compare an observation with the reference, by the limits of the artifact's kind."""
    kind = KINDS[name]
    problems = [StokerError.from_json(problem) for problem in seen.problems]
    if seen.missing:
        reason = messages.text("weights.absent", tensor=seen.missing[0])
        problems.append(StokerError("STK644", file=name, reason=reason))
    problems += _text_problems(name, reference, seen)
    if seen.weights and seen.weights.get("cause"):
        problems.append(StokerError("STK646", name=name, tensor=seen.weights["worst"], cause=_cause(seen.weights)))
    figures: dict[str, Any] = {"through": seen.through, "exact": kind.exact, "prompts": len(reference.prompts)}
    if seen.tokens:
        figures |= _token_figures(kind, reference, seen)
        problems += _exact_problems(name, reference, seen, figures) if kind.exact else _loss_problems(name, figures)
    figures |= _text_figures(reference, seen)
    figures |= {
        "weights": seen.weights,
        "accepted": not problems,
        "problems": [problem.to_json() for problem in problems],
        "reference": reference.key,
    }
    return Verdict(figures, problems)


def limits(reference: Reference) -> tuple[float, float]:
    """The largest log-probability difference of two correct computations, and the largest margin of a tie."""
    rounding = ROUNDING[reference.dtype]
    unit = rounding.unit * max(1.0, reference.largest_logit)
    return rounding.logits * unit, rounding.tie * unit


# ---- template, stop tokens, tokenizer


def _text_problems(name: str, reference: Reference, seen: Observation) -> list[StokerError]:
    problems = []
    if seen.template is not None and seen.template != reference.template:
        at = _first_difference(reference.template, seen.template)
        expected, got = (_excerpt(text, at) for text in (reference.template, seen.template))
        problems.append(StokerError("STK641", name=name, position=at, expected=expected, got=got))
    if seen.stops is not None and set(seen.stops) != set(reference.stops):
        wanted, found = (_shown_stops(reference, ids) for ids in (reference.stops, seen.stops))
        problems.append(StokerError("STK642", name=name, expected=wanted, got=found))
    elif seen.ended_elsewhere:
        prompt = reference.prompts[seen.ended_elsewhere[0]]
        stop = _shown_token(reference, prompt.answer[-1])
        got = messages.text("parity.ended_elsewhere", prompts=len(seen.ended_elsewhere))
        problems.append(StokerError("STK642", name=name, expected=stop, got=got))
    return problems + _tokenizer_problems(name, reference, seen)


def _tokenizer_problems(name: str, reference: Reference, seen: Observation) -> list[StokerError]:
    """Different tokens of a plain text are caused by the tokenizer; of conversations only, by the template."""
    if not seen.rendered:
        same = seen.tokenizer in (None, reference.tokenizer)
        reason = messages.text("parity.tokenizer.rules")
        return [] if same else [StokerError("STK643", name=name, reason=reason)]
    first = min(seen.rendered, key=lambda at: (reference.prompts[at].messages is not None, at))
    prompt, got = reference.prompts[first], seen.rendered[first]
    if prompt.messages is not None and seen.tokenizer in (None, reference.tokenizer):
        if seen.template is not None:
            return []  # the template's text was compared
        at = _first_difference(prompt.text, got)
        expected, got = _excerpt(prompt.text, at), _excerpt(got, at)
        return [StokerError("STK641", name=name, position=at, expected=expected, got=got)]
    reason = messages.text("parity.tokenizer.text", text=_excerpt(prompt.text, 0))
    return [StokerError("STK643", name=name, reason=reason)]


def _text_figures(reference: Reference, seen: Observation) -> dict[str, Any]:
    def same(value: object, expected: object) -> bool | None:
        return None if value is None else value == expected

    return {
        "template_same": same(seen.template, reference.template) if seen.template is not None else not seen.rendered,
        "stops_same": same(None if seen.stops is None else set(seen.stops), set(reference.stops)),
        "tokenizer_same": same(seen.tokenizer, reference.tokenizer),
        "ended_elsewhere": len(seen.ended_elsewhere),
    }


def _cause(weights: dict[str, Any]) -> str:
    cause = weights["cause"]
    if cause == "scale" and abs(weights["factor"]) < _NO_ADAPTER:
        return messages.text("parity.cause.no_adapter")
    if cause == "scale":
        return messages.text("parity.cause.scale", factor=f"{weights['factor']:.3g}")
    if cause == "swapped":
        return messages.text("parity.cause.swapped", other=weights["other"])
    keys = {
        "base": "parity.cause.base",
        "dtype": "parity.cause.dtype",
        "tensor": "parity.cause.tensor",
        "shape": "parity.cause.shape",
    }
    return messages.text(keys[cause])


# ---- tokens


def partings(reference: Reference, seen: Observation) -> Iterator[Parting]:
    """Every token that differs, in order."""
    for at, (prompt, chosen) in enumerate(zip(reference.prompts, seen.tokens, strict=True)):
        for position, (expected, got) in enumerate(zip(prompt.answer, chosen, strict=True)):
            if expected != got:
                known = dict(zip(prompt.top[position], prompt.logprobs[position], strict=True))
                margin = known[expected] - known[got] if got in known and expected in known else math.inf
                yield Parting(at, position, expected, got, margin)


def _token_figures(kind: Kind, reference: Reference, seen: Observation) -> dict[str, Any]:
    distance_limit, tie_limit = limits(reference)
    apart = list(partings(reference, seen))
    tokens = sum(len(prompt.answer) for prompt in reference.prompts)
    ties = sum(parting.margin <= tie_limit for parting in apart) if kind.exact else 0
    distance, divergence = _distances(reference, seen)
    change = None if seen.corpus_loss is None else math.expm1(seen.corpus_loss - reference.corpus_loss)
    return {
        "tokens": tokens,
        "agree": tokens - len(apart),
        "ties": ties,
        "ties_limit": max(1, math.floor(ROUNDING[reference.dtype].ties * tokens)) if kind.exact else None,
        "agreement": (tokens - len(apart)) / tokens,
        "agreement_limit": kind.agreement,
        "logit_distance": distance,
        "logit_distance_limit": distance_limit if kind.exact else None,
        "own_logit_distance": reference.own_distance,
        "mean_kl": divergence,
        "perplexity_trained": math.exp(reference.corpus_loss),
        "perplexity_change": change,
        "perplexity_change_limit": None if kind.exact else kind.perplexity,
    }


def _distances(reference: Reference, seen: Observation) -> tuple[float | None, float | None]:
    """The largest log-probability difference, and the mean KL divergence over the top tokens and the rest."""
    largest, divergences = 0.0, []
    for prompt, row in zip(reference.prompts, seen.logprobs, strict=True):
        for ours, theirs in zip(prompt.logprobs, row, strict=True):
            pairs = [(p, q) for p, q in zip(ours, theirs, strict=True) if q is not None]
            if pairs:
                largest = max(largest, *(abs(p - q) for p, q in pairs))
                divergences.append(_divergence(pairs))
    if not divergences:
        return None, None
    return largest, sum(divergences) / len(divergences)


def _divergence(pairs: list[tuple[float, float]]) -> float:
    inside = sum(math.exp(p) * (p - q) for p, q in pairs)
    rest = [max(1e-12, 1 - sum(math.exp(pair[side]) for pair in pairs)) for side in (0, 1)]
    return max(0.0, inside + rest[0] * math.log(rest[0] / rest[1]))


def _exact_problems(name: str, reference: Reference, seen: Observation, figures: dict[str, Any]) -> list[StokerError]:
    distance_limit, tie_limit = limits(reference)
    apart = list(partings(reference, seen))
    real = [parting for parting in apart if parting.margin > tie_limit]
    ties = list(itertools.islice(apart, figures["ties_limit"], None)) if not real else []
    if real or ties:
        return [_parted(name, reference, figures, (real or ties)[0])]
    distance = figures["logit_distance"]
    if distance is not None and distance > distance_limit:
        cause = messages.text(_likely_cause(reference, figures))
        return [
            StokerError("STK645", name=name, distance=f"{distance:.2g}", limit=f"{distance_limit:.2g}", cause=cause)
        ]
    return []


def _parted(name: str, reference: Reference, figures: dict[str, Any], parting: Parting) -> StokerError:
    prompt = reference.prompts[parting.prompt]
    stop_missed = parting.expected in reference.stops or parting.got in reference.stops
    cause = "parity.cause.stop" if stop_missed else _likely_cause(reference, figures)
    return StokerError(
        "STK640",
        name=name,
        prompt=parting.prompt + 1,
        text=_excerpt(prompt.text, max(0, len(prompt.text) - 40)),
        position=parting.position + 1,
        expected=_shown_token(reference, parting.expected),
        got=_shown_token(reference, parting.got),
        agree=f"{figures['agree']:,}",
        tokens=f"{figures['tokens']:,}",
        cause=messages.text(cause),
    )


def _likely_cause(reference: Reference, figures: dict[str, Any]) -> str:
    """A distance within the rounding of a shorter type is blamed on the dtype; a larger one on the model."""
    distance = figures["logit_distance"]
    shortest = ROUNDING["bfloat16"]
    if distance is not None and distance <= shortest.logits * shortest.unit * max(1.0, reference.largest_logit):
        return "parity.cause.dtype"
    return "parity.cause.model"


def _loss_problems(name: str, figures: dict[str, Any]) -> list[StokerError]:
    """Of quantised artifacts."""
    change, limit = figures["perplexity_change"], figures["perplexity_change_limit"]
    too_far = change is None or change > limit
    if figures["agreement"] >= figures["agreement_limit"] and not too_far:
        return []
    shown = messages.text("parity.unmeasured") if change is None else f"{change:+.1%}"
    fields = {
        "agreement": f"{figures['agreement']:.1%}",
        "agreement_limit": f"{figures['agreement_limit']:.0%}",
        "change": shown,
        "change_limit": f"{limit:+.0%}",
    }
    return [StokerError("STK647", name=name, **fields)]


# ---- shown to people


def _shown_token(reference: Reference, token: int) -> str:
    return f"{reference.texts[token]!r} ({token})" if token in reference.texts else str(token)


def _shown_stops(reference: Reference, ids: list[int]) -> list[str]:
    return [_shown_token(reference, token) for token in sorted(ids)] or [messages.text("parity.none")]


def _first_difference(expected: str, got: str) -> int:
    pairs = enumerate(zip(expected, got, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(expected), len(got)))


def _excerpt(text: str, at: int, length: int = 40) -> str:
    """An excerpt in one line."""
    return repr(text[at : at + length])
