"""What an artifact is held to: kinds and their limits, and the two sides that are compared. Pure.

`Reference` holds the trained model's answers, `Observation` those of an artifact or endpoint, teacher-forced along the
reference's tokens: at each of them its top choice and its log-probabilities of the reference's top tokens. Equal
choices everywhere are equal greedy answers, and one divergence does not hide what comes after it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

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


def limits(reference: Reference) -> tuple[float, float]:
    """The largest log-probability difference of two correct computations, and the largest margin of a tie."""
    rounding = ROUNDING[reference.dtype]
    unit = rounding.unit * max(1.0, reference.largest_logit)
    return rounding.logits * unit, rounding.tie * unit
