"""Figures of an objective in words, besides the loss: how pairs of answers are told apart, or what answers are like."""

from collections.abc import Mapping
from typing import Any

from stoker import messages
from stoker.api.run_progress import RunProgress


def figures(found: Mapping[str, Any]) -> str:
    """`accuracy 0.625, margin 0.310`; a figure of another package's objective by its own name."""
    named = {messages.named("figure", name): value for name, value in found.items()}
    values = ((name, f"{value:.3f}" if isinstance(value, float) else value) for name, value in named.items())
    return messages.text("list.comma").join(f"{name} {value}" for name, value in values)


def seen(progress: RunProgress) -> list[tuple[str, str]]:
    """Label and value of the newest step's figures and of those of the newest evaluation; nothing without any."""
    rows = (
        ("watch.figures", "watch.answers", progress.step),
        ("watch.eval_figures", "watch.eval_answers", progress.evaluation),
    )
    found = [
        (answers if "length" in said else pairs, said)
        for pairs, answers, event in rows
        if (said := event.get("figures"))
    ]
    return [(messages.text(label), figures(said)) for label, said in found]


def before_training(progress: RunProgress) -> str:
    """How far the pass before training is; empty where there is none."""
    found = progress.reference
    return messages.text("watch.reference", done=found["done"], of=found["of"], split=found["split"]) if found else ""
