"""Published chat templates and a tokenizer to render them with."""

from importlib import resources
from pathlib import Path
from typing import Any

import tiny_run
from transformers import AutoTokenizer

from stoker.artifacts import turn_pieces
from stoker.artifacts.turn_pieces import RenderedConversation, TurnPieces
from stoker.engine import conversation_samples

ENDS = {
    "deepseekv3": "<｜end▁of▁sentence｜>",
    "gemma": "<end_of_turn>",
    "gemma3": "<end_of_turn>",
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "phi3": "<|end|>",
    "phi3_5": "<|end|>",
    "qwen2_5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
}
"""Templates that TRL carries, by the token that ends a turn."""


def published(name: str) -> str:
    return resources.files("trl").joinpath("chat_templates", f"{name}.jinja").read_text(encoding="utf-8")


def make_tokenizer(folder: Path) -> Any:
    """A tokenizer of no template yet, with a start token."""
    tiny_run.make_tokenizer(folder)
    made = AutoTokenizer.from_pretrained(folder)
    made.add_special_tokens({"bos_token": "<s>"})
    return made


def find(tokenizer: Any, template: str, end: str) -> TurnPieces | None:
    tokenizer.chat_template = template
    return turn_pieces.find(
        [RenderedConversation(**one) for one in conversation_samples.samples(tokenizer)], [end, "<eos>"]
    )
