"""Answers of the base and of the trained model to the same held-out prompts, for a judge to compare.

Greedy, up to `MOST_TOKENS` each, whatever the row's own answer has: where one model had learned that length and the
other had not, only the other would be cut. One row for each prompt. What a model thinks is not part of its answer.
"""

import gc
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stoker.engine import generate, samples, streaming
from stoker.rundir import files
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

Pair = dict[str, Any]
"""prompt, turns (of a conversation), before, after; before_cut, after_cut: whether an answer had no end."""
MOST_TOKENS = 512
_AT_ONCE, _TOKENS_AT_ONCE = 16, 16_384
"""Answers on a GPU, as long as they have so many tokens with their prompts; a CPU gains nothing from more than one."""
_OPENED = re.compile(r"<think>\s*\Z")
"""What some templates end a prompt with."""
_LOOKED_AT = 4
"""Rows for each pair, in which prompts may repeat."""


def write(path: Path, run_dir: RunDir, report: Report, count: int, tell: Callable[[int, int], None]) -> int:
    """Write pairs to a file, unless those very pairs are there; how many they are.

    Args:
        path: The file: what the answers follow from, and the answers.
        run_dir: The run.
        report: Its prepared data, with an eval split.
        count: How many; fewer where there are fewer prompts.
        tell: Called with how many answers there are and will be.
    """
    about = _about(run_dir, report, count)
    there = files.read_object(path) if path.exists() else {}
    if there.get("about") != about:
        there = {"about": about, "pairs": _make(run_dir, report, count, tell)}
        files.write_json(path, there)
    return len(there["pairs"])


def _about(run_dir: RunDir, report: Report, count: int) -> dict[str, Any]:
    folder = generate.trained_folder(run_dir)
    found = [(path, path.stat()) for path in sorted(folder.glob("*.safetensors"))]
    weights = [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in found]
    return {"folder": folder.name, "weights": weights, "data": report.digest, "count": count, "tokens": MOST_TOKENS}


def _make(run_dir: RunDir, report: Report, count: int, tell: Callable[[int, int], None]) -> list[Pair]:
    model, tokenizer = generate.load(run_dir)
    prompts = _prompts(run_dir, report, count)
    done = itertools.count(1)

    def written(model: Any) -> list[tuple[str, bool]]:
        return _answers(model, tokenizer, prompts, lambda: tell(next(done), 2 * len(prompts)))

    after = written(model)
    if hasattr(model, "disable_adapter"):
        with model.disable_adapter():
            before = written(model)
    else:
        del model  # a card may not have room for two
        gc.collect()
        torch.cuda.empty_cache()
        before = written(generate.load_base(run_dir))
    return [
        {
            **samples.asked(tokenizer, prompt),
            "before": old,
            "before_cut": old_cut,
            "after": new,
            "after_cut": new_cut,
        }
        for prompt, (old, old_cut), (new, new_cut) in zip(prompts, before, after, strict=True)
    ]


def _prompts(run_dir: RunDir, report: Report, count: int) -> list[list[int]]:
    """Different ones, evenly spread over the eval rows."""
    assert report.eval is not None
    split, run = streaming.open_split(run_dir, "eval", report.eval), run_dir.run()
    rows = (split.row(number)[0] for number in split.spread(_LOOKED_AT * count))
    found = list({tuple(samples.cut(row, run).prompt): None for row in rows})
    places = sorted({place * len(found) // count for place in range(count)})
    return [list(found[place]) for place in places]


def _answers(model: Any, tokenizer: Any, prompts: list[list[int]], beat: Callable[[], None]) -> list[tuple[str, bool]]:
    """Of each prompt the answer, and whether it was cut; those of about the same length together, the longest first."""
    waiting = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    found: dict[int, tuple[str, bool]] = {}
    while waiting:
        longest = len(prompts[waiting[0]])
        most = min(MOST_TOKENS, _positions(model) - longest)
        together = model.device.type == "cuda" and most == MOST_TOKENS  # one that is near the end has its own limit
        count = max(1, min(_AT_ONCE, _TOKENS_AT_ONCE // (longest + most))) if together else 1
        some, waiting = waiting[:count], waiting[count:]
        ids = [torch.tensor([prompts[number]]) for number in some]
        made = generate.ended_answers(model, tokenizer, ids, most) if most > 0 else [("", False)]
        for number, (text, ended) in zip(some, made, strict=True):
            opened = _OPENED.search(tokenizer.decode(prompts[number]))
            found[number] = (without_thoughts(text, inside=opened is not None), not ended)
            beat()
    return [found[number] for number in range(len(prompts))]


def _positions(model: Any) -> int:
    """The longest text that the model takes, by its configuration."""
    known = model.config.get_text_config().to_dict()
    return int(next((known[name] for name in ("max_position_embeddings", "n_positions") if known.get(name)), 1 << 40))


def without_thoughts(text: str, *, inside: bool) -> str:
    """What comes behind them; nothing of a thought that has no end. `inside`: the prompt began one."""
    _, closed, rest = text.rpartition("</think>")
    return rest if closed or not (inside or "<think>" in text) else ""
