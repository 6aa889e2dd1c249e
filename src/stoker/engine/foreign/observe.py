"""How a model folder answers when led along the reference: one forward pass per prompt, through transformers.

Imports nothing of Stoker's, so that it also runs in the environment of a tool whose format only that tool reads:
    python observe.py FOLDER REFERENCE OUT
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

Json = dict[str, Any]


def observe(folder: Path, reference: Json, model: Any = None) -> Json:
    """What `stoker.plan.parity_limits.Observation` holds, of a folder that transformers loads (or of `model`)."""
    missing: list[str] = []
    if model is None:
        model, missing = load(folder)
    words = {"through": "transformers", "missing": missing, **text_facts(folder, model, reference)}
    if missing:
        return words
    model = model.to(device()).eval()
    tokens, logprobs = follow(model, reference["prompts"])
    loss = corpus_loss(model, reference["corpus"])
    return {**words, "tokens": tokens, "logprobs": logprobs, "corpus_loss": loss}


def device() -> str:
    """Where models compute here."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def load(folder: Path) -> tuple[Any, list[str]]:
    """The model, and the weights the folder lacks: random numbers would stand in their place."""
    has_tower = type(AutoConfig.from_pretrained(folder)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    kind = AutoModelForImageTextToText if has_tower else AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, use_safetensors=True, output_loading_info=True)
    return model, sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]}))


# ---- words


def text_facts(folder: Path, model: Any, reference: Json) -> Json:
    """Template, stop tokens and tokenizer as whoever loads the folder gets them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    named = model.generation_config.eos_token_id
    return {
        "template": template(tokenizer),
        "stops": named if isinstance(named, list) else [] if named is None else [named],
        "tokenizer": tokenizer_digest(tokenizer),
        "rendered": rendered(tokenizer, reference),
    }


def template(tokenizer: Any) -> str:
    """The chat template's text; empty where there is none."""
    return tokenizer.get_chat_template() if tokenizer.chat_template else ""


def tokenizer_digest(tokenizer: Any) -> str:
    """Of everything that decides tokens, and of the special ones; not of file layout or padding."""
    does = json.loads(tokenizer.backend_tokenizer.to_str())
    for setting in ("version", "truncation", "padding"):
        does.pop(setting, None)
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    text = json.dumps([does, special], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def rendered(tokenizer: Any, reference: Json) -> dict[int, str]:
    """Shipped prompts that become other tokens here, with their text."""
    other = {}
    for at, prompt in enumerate(reference["prompts"]):
        if prompt["source"] == "shipped":
            text, ids = render(tokenizer, prompt["messages"], prompt["text"])
            if ids != prompt["ids"]:
                other[at] = text
    return other


def render(tokenizer: Any, messages: list[dict[str, str]] | None, text: str) -> tuple[str, list[int]]:
    """A conversation through the template, or a plain text; as text and as tokens."""
    if messages is None:
        return text, tokenizer(text).input_ids
    if not tokenizer.chat_template:
        return "", []
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text, tokenizer(text, add_special_tokens=False).input_ids


# ---- tokens


@torch.no_grad()
def follow(model: Any, prompts: list[Json]) -> tuple[list[list[int]], list[list[list[float]]]]:
    """Per prompt and token of the reference's answer: the first choice, and log-probabilities of the reference's."""
    tokens, logprobs = [], []
    for prompt in prompts:
        lines = answer_logits(model, prompt["ids"], prompt["answer"]).log_softmax(-1)
        tokens.append(lines.argmax(-1).tolist())
        logprobs.append(lines.gather(1, torch.tensor(prompt["top"], device=lines.device)).tolist())
    return tokens, logprobs


def answer_logits(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Logits that decide each token of an answer, all at once, in single precision."""
    ids = torch.tensor([[*prompt, *answer[:-1]]], device=model.device)
    return model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].float()


@torch.no_grad()
def corpus_loss(model: Any, corpus: list[list[int]]) -> float:
    """Mean loss per token that counts, over sequences whose other tokens are stored as ~id."""
    total, count = 0.0, 0
    for sequence in corpus:
        tokens = torch.tensor(sequence, device=model.device)
        ids = torch.where(tokens < 0, ~tokens, tokens)
        targets = torch.where(tokens < 0, -100, tokens)[1:]
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        count += int((targets >= 0).sum())
    return total / count


if __name__ == "__main__":
    _reference = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    Path(sys.argv[3]).write_text(json.dumps(observe(Path(sys.argv[1]), _reference)), encoding="utf-8")
