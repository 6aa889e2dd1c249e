"""The sources of a mixture in words: what was prepared of each, and what a training has seen of it."""

from typing import Any

from stoker import messages
from stoker.config import objectives
from stoker.rundir.prepared import Report


def prepared(report: Report) -> list[str]:
    """A line per source; nothing without a mixture."""
    found = [(one.name, one.sequences, one.tokens) for one in report.train.sources]
    key = "prepare.pairs.source" if objectives.has_pairs(report.objective) else "prepare.source"
    return [messages.text(key, name=name, **fields) for name, fields in _figures(found)]


def seen(step: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and value per source, by the newest step's event; nothing without a mixture."""
    found = [(name, *counts) for name, counts in (step.get("sources") or {}).items()]
    labelled = ((messages.text("watch.mixture", name=name), fields) for name, fields in _figures(found))
    return [(label, messages.text("watch.mixture_value", **fields)) for label, fields in labelled]


def _figures(counts: list[tuple[str, int, int]]) -> list[tuple[str, dict[str, str]]]:
    whole = max(1, sum(tokens for _, _, tokens in counts))
    return [
        (name, {"sequences": f"{sequences:,}", "tokens": f"{tokens:,}", "share": f"{tokens / whole:.1%}"})
        for name, sequences, tokens in counts
    ]
