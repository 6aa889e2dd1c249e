"""The parity gate in a terminal: a progress line, and the result."""

import functools
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.artifacts import parity_gate
from stoker.artifacts.endpoint import Endpoint
from stoker.plan.parity_limits import Reference
from stoker.rundir.layout import RunDir
from stoker.terminal import console


def compare(
    run_dir: RunDir,
    name: str,
    endpoint: Endpoint | None = None,
    reference: Reference | None = None,
    *,
    python: Path | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Compare an artifact with the trained model and print the result; raises if they differ."""
    with console.status() as status:
        status.show(messages.text("parity.comparing"))
        take = functools.partial(_show, status)
        figures = parity_gate.compare(run_dir, name, endpoint, take, python=python, folder=folder, reference=reference)
    console.sentence(_line(figures), screen=console.stderr)
    return figures


def say_same_files(figures: dict[str, Any], name: str) -> None:
    """Print the result of an artifact that this one has the files of."""
    said = messages.text("parity.same_files", line=_line(figures), name=name)
    console.sentence(said, screen=console.stderr)


def make_reference(run_dir: RunDir) -> Reference:
    """Get the trained model's answers first: there may be no memory for it beside a server."""
    with console.status() as status:
        status.show(messages.text("parity.asking"))
        return parity_gate.make_reference(run_dir, functools.partial(_show, status))


def _show(status: console.StatusLine, event: dict[str, Any]) -> None:
    if event["event"] == "parity":
        status.show(messages.text("parity.progress", done=event["done"], of=event["of"]))


def _line(figures: dict[str, Any]) -> str:
    return messages.text("parity.line", **_counts(figures), rest=_rest(figures))


def _counts(figures: dict[str, Any]) -> dict[str, str]:
    return {key: f"{figures[key]:,}" for key in ("prompts", "agree", "tokens")}


def _rest(figures: dict[str, Any]) -> str:
    if not figures["exact"]:
        change = figures["perplexity_change"]
        return messages.text(
            "parity.quantised",
            agreement=f"{figures['agreement']:.1%}",
            agreement_limit=f"{figures['agreement_limit']:.0%}",
            change=messages.text("parity.unmeasured") if change is None else f"{change:+.2%}",
            change_limit=f"{figures['perplexity_change_limit']:+.0%}",
        )
    distance = f"{figures['logit_distance']:.0e}" if figures["logit_distance"] else "0"
    if figures["ties"]:
        return messages.text("parity.exact_ties", ties=figures["ties"], distance=distance)
    return messages.text("parity.exact", distance=distance)
