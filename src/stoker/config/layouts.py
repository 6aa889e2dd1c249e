"""How a row can be laid out, by its keys. Knows names only: reading rows is the engine's."""

PAIRS = (("prompt", "completion"), ("question", "answer"), ("query", "response"), ("prompt", "response"))
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("messages", ("messages",)),
    ("sharegpt", ("conversations",)),
    ("alpaca", ("instruction", "output")),
    *(("prompt_completion", pair) for pair in PAIRS),
    ("text", ("text",)),
)
"""Which keys speak for which layout; the first that matches counts."""

CONVERSATIONS = ("messages", "sharegpt")
"""Layouts that need a chat template."""
