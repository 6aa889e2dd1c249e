"""The neutral conversations that ship with Stoker, for comparing a model with what was made of it."""

import json
from importlib import resources


def conversations() -> list[list[dict[str, str]]]:
    """All of them as messages; the user speaks first and last."""
    text = resources.files("stoker.facts").joinpath("data", "prompts.json").read_text(encoding="utf-8")
    return [_messages(words) for words in json.loads(text)["conversations"]]


def _messages(words: list[str]) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[turn % 2], "content": said} for turn, said in enumerate(words)]
