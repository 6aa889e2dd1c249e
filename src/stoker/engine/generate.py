"""Text generation with the trained model: loading it from a run directory, prompts, answers, stop tokens."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from transformers import AutoConfig, GenerationConfig, TextIteratorStreamer

from stoker.config import objectives
from stoker.engine import models, reading, template_limits, trained_on
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.rundir import artifacts, checkpoints, files
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


def load(run_dir: RunDir, artifact: str | None = None) -> tuple[Any, Any]:
    """The trained model, or an artifact of it, and its tokenizer, in evaluation mode."""
    folder = artifacts.folder(run_dir, artifact) if artifact else trained_folder(run_dir)
    run = run_dir.run()
    scores = run.train.scores
    if (folder / "adapter_config.json").is_file():
        reading.require_safetensors(folder)
        plan = files.read_record(run_dir.plan_file, Plan)
        with reading.named("STK512", path=folder):
            model = models.with_trained_adapter(_as_loaded(run_dir, plan), plan, folder)
    else:
        with reading.named("STK512", path=folder):
            kind = models.auto_class(AutoConfig.from_pretrained(folder, trust_remote_code=False), scores=scores)
            model, found = kind.from_pretrained(folder, use_safetensors=True, output_loading_info=True, **_placement())
            models.require_none(found["missing_keys"])  # transformers would make them of random numbers
        model = _placed(model)
    tokenizer = models.padded(models.load_tokenizer(folder), run)
    if scores:  # by this it finds the end of a row; an adapter's base may not say it
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.eval(), tokenizer


def load_base(run_dir: RunDir) -> Any:
    """The base model as training used it: the same revision, precision and 4-bit weights."""
    plan = files.read_record(run_dir.plan_file, Plan)
    return models.runnable(_as_loaded(run_dir, plan), plan)


def _as_loaded(run_dir: RunDir, plan: Plan) -> Any:
    # The attention kernel it trained with may not be here; the class's own choice runs everywhere.
    options = {**_placement(), "attn_implementation": None}
    run = run_dir.run()
    base = trained_on.checked(run_dir, run)
    return _placed(models.load_base(run, plan, run_dir.folder(), base, **options)).eval()


def _placement() -> dict[str, str]:
    """Spread over all GPUs: a model trained on several may need them for generation too."""
    return {"device_map": "auto"} if torch.cuda.device_count() > 1 else {}


def _placed(model: Any) -> Any:
    return model if _placement() else model.to(_device())


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def is_plain(run_dir: RunDir, tokenizer: Any) -> bool:
    """Whether this is a text completion model, without a chat template."""
    return objectives.facts(run_dir.run().train.objective).trains_all or not tokenizer.chat_template


def prompt_ids(tokenizer: Any, messages: Messages, *, plain: bool) -> torch.Tensor:
    """The conversation as tokens."""
    return text_ids(tokenizer, prompt_text(tokenizer, messages, plain=plain), plain=plain)


def prompt_text(tokenizer: Any, messages: Messages, *, plain: bool) -> str:
    """The conversation rendered by the chat template; plain text for a completion model."""
    if plain:
        return "".join(message["content"] for message in messages)
    return rendered(tokenizer, messages, add_generation_prompt=True)


def rendered(tokenizer: Any, messages: Messages, **options: Any) -> str:
    """A conversation by the tokenizer's chat template, which may be a stranger's: bounded in time and size."""
    name = tokenizer.name_or_path
    with reading.named_whatever("STK513", tokenizer=name), template_limits.limited(name):
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    template_limits.require_size(name, [text])
    return text


def text_ids(tokenizer: Any, text: str, *, plain: bool) -> torch.Tensor:
    """Text as tokens; rendered conversations contain their special tokens already."""
    return tokenizer(text, return_tensors="pt", add_special_tokens=plain).input_ids


def answers(model: Any, tokenizer: Any, prompts: list[torch.Tensor], max_tokens: int) -> list[str]:
    """Greedy answers to a batch of prompts."""
    return [text for text, _ in ended_answers(model, tokenizer, prompts, max_tokens)]


def ended_answers(model: Any, tokenizer: Any, prompts: list[torch.Tensor], max_tokens: int) -> list[tuple[str, bool]]:
    """The same, each with whether the model ended it."""
    longest = max(prompt.shape[1] for prompt in prompts)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    left = [longest - prompt.shape[1] for prompt in prompts]
    ids = torch.cat([F.pad(prompt, (gap, 0), value=pad) for prompt, gap in zip(prompts, left, strict=True)])
    mask = (torch.arange(longest) >= torch.tensor(left)[:, None]).long()
    options = {**_options(model, tokenizer, ids, max_tokens), "attention_mask": mask.to(model.device)}
    with models.evaluating(model):
        made = model.generate(**options, do_sample=False)[:, longest:]
    ended = torch.isin(made, torch.tensor(options["eos_token_id"], device=made.device)).any(1).tolist()
    return list(zip(tokenizer.batch_decode(made, skip_special_tokens=True), ended, strict=True))


def stream(model: Any, tokenizer: Any, prompt: torch.Tensor, max_tokens: int, *, sample: bool) -> Iterator[str]:
    """The answer, piece by piece: greedy, or sampled with a fixed seed (small completion models repeat themselves)."""
    torch.manual_seed(0)
    pieces = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    options = {
        **_options(model, tokenizer, prompt, max_tokens),
        **({"do_sample": True, "temperature": 0.8, "top_k": 50} if sample else {"do_sample": False}),
        "streamer": pieces,
    }
    failed: list[Exception] = []

    def generate() -> None:
        try:
            with models.evaluating(model):
                model.generate(**options)
        except Exception as error:  # noqa: BLE001  # raised in the caller below
            failed.append(error)
        finally:
            pieces.end()

    thread = Thread(target=generate, daemon=True)
    thread.start()
    yield from pieces
    thread.join()
    if failed:
        raise failed[0]


def _options(model: Any, tokenizer: Any, prompt: torch.Tensor, max_tokens: int) -> dict[str, Any]:
    return {
        "input_ids": prompt.to(model.device),
        "attention_mask": torch.ones_like(prompt).to(model.device),
        "max_new_tokens": max_tokens,
        "use_cache": True,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": stop_ids(model, tokenizer),
    }


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """The model's stop tokens."""
    return end_ids(model.generation_config, tokenizer)


def end_ids(settings: Any, tokenizer: Any) -> list[int]:
    """Stop tokens: end of text, those of the generation settings, and the chat template's end of turn."""
    named = settings.eos_token_id
    ids = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named]), _turn_end(tokenizer)}
    # A configuration's default may name a token that a small vocabulary does not have.
    return sorted(i for i in ids if i is not None and i < len(tokenizer))


def write_settings(source: Path, config: Any, folder: Path, words: Path | None = None) -> None:
    """Write the generation settings of the model in `source`, with every stop token.

    Args:
        source: The model.
        config: Its configuration, if it has no generation settings.
        folder: The target.
        words: The tokenizer's folder, if not the target.
    """
    tokenizer = models.load_tokenizer(words or folder)
    try:
        settings = GenerationConfig.from_pretrained(source)
    except OSError:
        settings = GenerationConfig.from_model_config(config)
    settings.eos_token_id = end_ids(settings, tokenizer)
    if tokenizer.pad_token_id is not None:
        settings.pad_token_id = tokenizer.pad_token_id
    settings.use_cache = True
    settings._from_model_config = False  # else transformers would rebuild it from config.json
    settings.to_json_file(folder / "generation_config.json")


def _turn_end(tokenizer: Any) -> int | None:
    """The special token after an assistant's message, as the template writes it."""
    if not tokenizer.chat_template:
        return None
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = tokenizer(rendered(tokenizer, turn), add_special_tokens=False).input_ids
    special = [i for i in ids if i in tokenizer.all_special_ids or i in tokenizer.added_tokens_decoder]
    return special[-1] if special else None
