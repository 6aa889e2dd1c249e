"""The trained model as it answers: loading it from a run directory, and a stream of text."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from transformers import AutoModelForCausalLM, TextIteratorStreamer

from stoker.engine import models
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, files
from stoker.rundir.layout import RunDir

Messages = list[dict[str, str]]


def trained_folder(run_dir: RunDir) -> Path:
    """The finished model, else the newest verified checkpoint."""
    if run_dir.final.is_dir():
        return run_dir.final
    newest, _ = checkpoints.newest_verified(run_dir.checkpoints)
    if newest is None:
        raise StokerError("STK502", name=run_dir.name)
    return newest.path


def load(run_dir: RunDir) -> tuple[Any, Any]:
    """The trained model and its tokenizer, ready to answer."""
    folder = trained_folder(run_dir)
    if (folder / "adapter_config.json").is_file():
        from peft import PeftModel

        # As trained: the same revision, precision and 4-bit weights.
        plan = Plan.model_validate(files.read_json(run_dir.plan_file))
        model = PeftModel.from_pretrained(models.load_base(run_dir.run(), plan, run_dir.folder()), folder)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return model.to(device).eval(), models.load_tokenizer(folder)


def prompt_ids(tokenizer: Any, messages: Messages, *, plain: bool) -> torch.Tensor:
    """The conversation as tokens: through the chat template, or plain text for a model that only goes on writing."""
    if plain:
        text = "".join(message["content"] for message in messages)
        return tokenizer(text, return_tensors="pt").input_ids
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids


def stream(model: Any, tokenizer: Any, prompt: torch.Tensor, max_tokens: int, *, sample: bool) -> Iterator[str]:
    """The answer, piece by piece: greedy, or drawn with a fixed seed (small plain models repeat themselves else)."""
    torch.manual_seed(0)
    pieces = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    options = {
        "input_ids": prompt.to(model.device),
        "attention_mask": torch.ones_like(prompt).to(model.device),
        "max_new_tokens": max_tokens,
        **({"do_sample": True, "temperature": 0.8, "top_k": 50} if sample else {"do_sample": False}),
        "use_cache": True,
        "streamer": pieces,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": stop_ids(model, tokenizer),
    }
    failed: list[Exception] = []

    def answer() -> None:
        try:
            with models.evaluating(model):
                model.generate(**options)
        except Exception as error:  # noqa: BLE001  # handed to the caller below
            failed.append(error)
        finally:
            pieces.end()

    thread = Thread(target=answer, daemon=True)
    thread.start()
    yield from pieces
    thread.join()
    if failed:
        raise failed[0]


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that end an answer: end of text, what the model names, and the end of turn of the chat template."""
    named = model.generation_config.eos_token_id
    ids = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named]), _turn_end(tokenizer)}
    return sorted(i for i in ids if i is not None)


def _turn_end(tokenizer: Any) -> int | None:
    """The special token behind an assistant's words, as the template writes it."""
    if not tokenizer.chat_template:
        return None
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = tokenizer(tokenizer.apply_chat_template(turn, tokenize=False), add_special_tokens=False).input_ids
    special = [i for i in ids if i in tokenizer.all_special_ids or i in tokenizer.added_tokens_decoder]
    return special[-1] if special else None
