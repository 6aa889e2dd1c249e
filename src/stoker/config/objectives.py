"""Training objectives: the name of each, and what must be known of it without torch. Losses are the engine's.

A built-in objective is an entry of `OBJECTIVES` here and a class in `engine/objective.py`. Other packages add some by
the entry point group `stoker.objectives`: their names come from package metadata; only a run that uses one loads it.
"""

from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticKnownError

from stoker import messages, plugins


@dataclass(frozen=True)
class ObjectiveFacts:
    """What an objective makes of rows."""

    name: str
    trains_all: bool = False
    """Every token of a row is trained, and a long row is split. Else: answers are, and a long row is truncated."""
    pairs: bool = False
    """A row is two answers to one prompt, the better one first: two segments that stay together."""
    reference: bool = False
    """It needs the log-probabilities of the answers before training."""
    labels: bool = False
    """A row is one answer that is judged good or bad."""
    scores: bool = False
    """What is trained is a model with one output, which scores answers and writes none."""
    prompts: bool = False
    """A row is a prompt, with columns for whoever scores: answers are generated while training."""

    @property
    def by_row(self) -> bool:
        """Something is known of each row, or it is one answer: a sequence holds no other, and all logits are needed."""
        return self.pairs or self.reference or self.prompts

    @property
    def takes(self) -> str:
        """What its rows must be, where not any row will do: `pairs`, `labels` or `prompts`."""
        return "pairs" if self.pairs else "labels" if self.labels else "prompts" if self.prompts else ""

    @property
    def segments(self) -> int:
        """Segments of a row that stay together."""
        return 2 if self.pairs else 1


OBJECTIVES = (
    ObjectiveFacts("pretrain", trains_all=True),
    ObjectiveFacts("sft"),
    ObjectiveFacts("dpo", pairs=True, reference=True),
    ObjectiveFacts("simpo", pairs=True),
    ObjectiveFacts("orpo", pairs=True),
    ObjectiveFacts("kto", reference=True, labels=True),
    ObjectiveFacts("reward", pairs=True, scores=True),
    ObjectiveFacts("grpo", prompts=True),
    ObjectiveFacts("distill", prompts=True),
)
"""The built-in objectives."""
BUILT_IN = {one.name: one for one in OBJECTIVES}
DECLARED = ("trains_all", "pairs", "reference", "labels", "scores")
"""Attributes by which an objective of another package says the same."""


def facts(name: str) -> ObjectiveFacts:
    """What is known of an objective; one of another package is loaded."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    loaded = load(name, DECLARED)
    return ObjectiveFacts(name, **{word: bool(getattr(loaded, word)) for word in DECLARED})


def has_pairs(name: str) -> bool:
    """Whether a row is two answers; of an objective of another package, not known here."""
    return name in BUILT_IN and BUILT_IN[name].pairs


def title(name: str) -> str:
    """The name; of another package's objective with its version, of which prepared data may depend."""
    return name if name in BUILT_IN else plugins.offered(plugins.OBJECTIVES)[name].title


def load(name: str, words: tuple[str, ...]) -> Any:
    """The objective that another package provides; it has these attributes and methods."""
    plugin = plugins.offered(plugins.OBJECTIVES)[name]
    loaded = plugin.load()
    missing = [word for word in words if not hasattr(loaded, word)]
    if missing:
        raise plugin.broken(messages.text("plugin.lacks", missing=[f"`{word}`" for word in missing]))
    return loaded


def check(value: Any) -> Any:
    """Accept a built-in name, else one that an installed package provides."""
    others = {} if isinstance(value, str) and value in BUILT_IN else plugins.offered(plugins.OBJECTIVES)
    if isinstance(value, str) and (value in BUILT_IN or value in others):
        return value
    choices = [*(f"`{name}`" for name in BUILT_IN), *(one.choice for one in others.values())]
    raise PydanticKnownError("literal_error", {"expected": ", ".join(choices)})
