"""Whether an artifact counts as the trained model: the verdict by `plan/parity_limits.py`, and the figures. Pure."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stoker import messages
from stoker.errors import StokerError
from stoker.plan.parity_limits import KINDS, ROUNDING, Kind, Observation, Reference, limits

_NO_ADAPTER = 0.01
"""A smaller factor of the delta means no adapter."""
_LARGEST_LOSS = 700.0
"""e to more than that is no finite perplexity."""


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
    not_finite = _not_finite(name, reference, seen)
    problems += not_finite
    if seen.tokens and not not_finite:
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


def _not_finite(name: str, reference: Reference, seen: Observation) -> list[StokerError]:
    """NaN compares as neither more nor less, so nothing is compared with it."""
    trained = [prompt.logprobs for prompt in reference.prompts]
    if not _is_finite(trained, reference.corpus_loss):
        return [StokerError("STK639", name=name, whose=messages.text("parity.trained"))]
    if not _is_finite(seen.logprobs, seen.corpus_loss):
        return [StokerError("STK639", name=name, whose=messages.text("parity.artifact"))]
    return []


def _is_finite(logprobs: Sequence[Sequence[Sequence[float | None]]], loss: float | None) -> bool:
    values = (value for prompt in logprobs for row in prompt for value in row)
    return all(value is None or math.isfinite(value) for value in itertools.chain(values, [loss]))


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
    rise = None if seen.corpus_loss is None else seen.corpus_loss - reference.corpus_loss
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
        "corpus_distance": None if rise is None else abs(rise),
        "mean_kl": divergence,
        "perplexity_trained": math.exp(min(reference.corpus_loss, _LARGEST_LOSS)),
        "perplexity_change": None if rise is None else math.expm1(min(rise, _LARGEST_LOSS)),
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
    real = [parting for parting in apart if not parting.margin <= tie_limit]
    ties = list(itertools.islice(apart, figures["ties_limit"], None)) if not real else []
    if real or ties:
        return [_parted(name, reference, figures, (real or ties)[0])]
    distance = _distance(figures)
    if distance is not None and not distance <= distance_limit:
        cause = messages.text(_likely_cause(reference, figures))
        return [
            StokerError("STK645", name=name, distance=f"{distance:.2g}", limit=f"{distance_limit:.2g}", cause=cause)
        ]
    return []


def _distance(figures: dict[str, Any]) -> float | None:
    """Of log-probabilities, at most; a corpus whose mean is further off has a token that is."""
    seen = (figures["logit_distance"], figures["corpus_distance"])
    return max((distance for distance in seen if distance is not None), default=None)


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
    distance = _distance(figures)
    shortest = ROUNDING["bfloat16"]
    if distance is not None and distance <= shortest.logits * shortest.unit * max(1.0, reference.largest_logit):
        return "parity.cause.dtype"
    return "parity.cause.model"


def _loss_problems(name: str, figures: dict[str, Any]) -> list[StokerError]:
    """Of quantised artifacts."""
    change, limit = figures["perplexity_change"], figures["perplexity_change_limit"]
    too_far = change is None or not change <= limit
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
