"""What a model's template, tokenizer and generation settings say, for a program that has only a GGUF file of it.

    python -m stoker.engine.conversation_samples RUN_DIR MODEL_FOLDER OUT

Writes OUT: conversations as the chat template renders them, texts of the stop tokens, the one system prompt that all
rows were trained with, generation settings, the context's length, the licence.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig

from stoker.engine import export, generate, models, program, streaming
from stoker.engine.dataset import token_ids
from stoker.errors import EXIT_DONE, StokerError
from stoker.facts import prompts
from stoker.rundir import files, prepared
from stoker.rundir.layout import RunDir

_SHAPES = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "user", "assistant", "user"),
)
_ROWS = 2000
"""Rows that are looked at for a system prompt."""
_CLOCK = "strftime_now"
"""The one function that transformers gives a template whose answer changes by itself."""


def main(path: Path) -> int:
    """Write everything to OUT."""
    run_dir, source, out = RunDir(path), Path(sys.argv[2]), Path(sys.argv[3])
    tokenizer = models.load_tokenizer(source)
    settings = GenerationConfig.from_pretrained(source)
    plain = generate.is_plain(run_dir, tokenizer)
    files.write_json(
        out,
        {
            "plain": plain,
            "samples": [] if plain else samples(tokenizer),
            "trims": not plain and _trims(tokenizer),
            "clock": not plain and _CLOCK in tokenizer.get_chat_template(),
            "start": tokenizer.bos_token or "",
            "stops": [tokenizer.convert_ids_to_tokens(one) for one in generate.end_ids(settings, tokenizer)],
            "system": None if plain else constant_system(run_dir, tokenizer),
            "settings": settings.to_diff_dict(),
            "context": _context(source),
            "licence": export.licence(run_dir),
        },
    )
    return EXIT_DONE


def samples(tokenizer: Any) -> list[dict[str, Any]]:
    """Conversations of every shape in words found nowhere else, and the shipped ones."""
    word = (f"stk{number}word" for number in itertools.count(100))
    shaped = [[{"role": role, "content": next(word)} for role in shape] for shape in _SHAPES]
    return [_sample(tokenizer, messages) for messages in (*shaped, *prompts.conversations())]


def _sample(tokenizer: Any, messages: list[dict[str, str]]) -> dict[str, Any]:
    text = _rendered(tokenizer, messages)
    ids = [] if text is None else tokenizer(text, add_special_tokens=False).input_ids
    return {"messages": messages, "text": text, "ids": ids}


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str | None:
    """The conversation and the prompt for an answer; None where the template refuses it."""
    try:
        return generate.rendered(tokenizer, messages, add_generation_prompt=True)
    except StokerError:
        return None


def _trims(tokenizer: Any) -> bool:
    """Whether the template removes white space around a message."""
    text = _rendered(tokenizer, [{"role": "user", "content": " stk99word "}])
    return text is not None and " stk99word " not in text


def constant_system(run_dir: RunDir, tokenizer: Any) -> str | None:
    """The system prompt that every row looked at begins with, if it is the same in all of them."""
    asked = [{"role": "system", "content": "stk98word"}, {"role": "user", "content": "stk99word"}]
    text, report = _rendered(tokenizer, asked), prepared.read_report(run_dir.data)
    if text is None or report is None or "stk98word" not in text:
        return None
    before, _, rest = text.partition("stk98word")
    after = rest.partition("stk99word")[0]
    split = streaming.open_split(run_dir, "train", report.train)
    rows = (token_ids(segment).tolist() for number in split.spread(_ROWS) for segment in split.row(number))
    first = next(rows, None)
    if first is None:
        return None
    said = str(tokenizer.decode(first))
    if not after or not said.startswith(before) or after not in said[len(before) :]:
        return None
    system = said[len(before) :].partition(after)[0]
    beginning = tokenizer(before + system + after, add_special_tokens=False).input_ids
    same = first[: len(beginning)] == beginning and all(row[: len(beginning)] == beginning for row in rows)
    return system if same else None


def _context(source: Path) -> int | None:
    """The longest text that the model takes, by its configuration."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config()
    longest = config.to_dict().get("max_position_embeddings")
    return longest if isinstance(longest, int) else None


if __name__ == "__main__":
    sys.exit(program.run(main))
