"""The steps of `data.pipeline`: blocks of datatrove by their own names, and their options, checked by name.

A step that datatrove runs as several blocks (`MinhashDedupSignature`, `MinhashDedupBuckets`, ...) has the name they
begin with. The options are in `known_options.json`, generated from datatrove's source by `tools/known_options.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from stoker.config import native
from stoker.config.reader import Document
from stoker.config.section import NonEmpty, Section
from stoker.errors import StokerError, closest


def _text_or_list(value: Any) -> str:
    return "list" if isinstance(value, list) else "text"


class Block(Section):
    """A filter, a formatter, an extractor or a deduplication."""

    step: Literal[
        "LanguageFilter",
        "GopherQualityFilter",
        "GopherRepetitionFilter",
        "C4QualityFilter",
        "FineWebQualityFilter",
        "ExactDedup",
        "MinhashDedup",
        "PIIFormatter",
        "Trafilatura",
    ]
    """The name of datatrove's block; `MinhashDedup` and `ExactDedup` are all blocks of that name together."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the block (of `MinhashDedup`: of `MinhashConfig`), by datatrove's names. Default: datatrove's."""


class Decontamination(Section):
    """Removes documents that share n-grams with eval sets."""

    step: Literal["NGramsDecont"]
    """All blocks of datatrove whose names begin so."""
    against: Annotated[
        Annotated[NonEmpty, Tag("text")] | Annotated[list[NonEmpty], Field(min_length=1), Tag("list")],
        Discriminator(_text_or_list),
    ]
    """The eval sets: a file, folder or glob of jsonl, csv or parquet, or a list of such. All words of a row count."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `NGramsDecontConfig`, by datatrove's names. Default: datatrove's."""

    @property
    def eval_sets(self) -> list[str]:
        """`against` as a list."""
        return [self.against] if isinstance(self.against, str) else self.against


Step = Annotated[Block | Decontamination, Field(discriminator="step")]


def check(document: Document) -> list[StokerError]:
    """Options that datatrove's blocks do not have."""
    data = document.values.get("data")
    steps = data.get("pipeline") if isinstance(data, dict) else None
    problems = []
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        known = native.step_options().get(str(step.get("step"))) if isinstance(step, dict) else None
        options = step.get("options") if known is not None else None
        for name in options if isinstance(options, dict) else ():
            if known is not None and name not in known:
                where = document.where(("data", "pipeline", number, "options", name))
                nearest = closest(name, known)
                problems.append(StokerError("STK165", where, option=name, step=step["step"], nearest=nearest))
    return problems
