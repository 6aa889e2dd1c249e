"""`stoker eval`: loss and perplexity of the trained model on its eval split."""

from typing import Any

from stoker import messages
from stoker.cli import console
from stoker.launch import local
from stoker.rundir import layout


def evaluate(name: str, *, as_json: bool) -> None:
    """Evaluate a run's model and print the figures."""
    run_dir = layout.find(name)
    found: dict[str, Any] = {}

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "evaluated":
            found.update(event)

    local.run_engine("evaluate", run_dir, take)
    figures = {key: found[key] for key in ("eval_loss", "perplexity", "trained_tokens", "sequences", "seconds")}
    if as_json:
        console.data_json(figures)
    else:
        loss, perplexity = f"{found['eval_loss']:.4f}", f"{found['perplexity']:.2f}"
        fields = {"loss": loss, "perplexity": perplexity, "tokens": found["trained_tokens"]}
        console.data(messages.text("eval.line", **fields))
