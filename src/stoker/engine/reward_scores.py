"""The program `python -m stoker.engine.reward_scores RUN_DIR PAIRS` writes what a reward model thinks of answers.

PAIRS is the file that `evaluate` writes. Its rows are rendered as the reward model's own training pairs were. Stdout:
a list of [score of `before`, score of `after`]; null where there is none: an answer that cannot be rendered, such as an
empty one, or that begins where training would have cut its row.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.config import layouts, objectives
from stoker.engine import generate, models, program, tokenizer
from stoker.engine.dataset import token_ids
from stoker.engine.rendering import Renderer
from stoker.errors import EXIT_DONE
from stoker.rows import formats
from stoker.rows.row_values import BadRow
from stoker.rundir import files
from stoker.rundir.layout import RunDir


def main(path: Path) -> int:
    """Score the answers of a file."""
    run_dir = RunDir(path)
    model, words = generate.load(run_dir)
    described = tokenizer.described(words.name_or_path, words)
    rows = files.read_object(Path(sys.argv[2]))
    with models.evaluating(model):
        found = list(scores(model, described, run_dir.run().data.length, rows["pairs"]))
    sys.stdout.write(json.dumps(found) + "\n")
    return EXIT_DONE


def scores(model: Any, words: tokenizer.Tokenizer, length: int, rows: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """Of each row the scores of `before` and `after`; a longer text is cut as training cut it."""
    renderer = Renderer(words, objectives.facts("reward"))
    for row in rows:
        tokens = [_tokens(renderer, words, row, row[key], length) for key in ("before", "after")]
        yield [None if one is None else _score(model, one) for one in tokens]


def _tokens(
    renderer: Renderer, words: tokenizer.Tokenizer, row: dict[str, Any], answer: str, length: int
) -> np.ndarray | None:
    """A prompt with one of its answers, as a row of a judged answer is read."""
    chat = words.template is not None
    given = {"prompt": (chat and row.get("turns")) or row["prompt"], "completion": answer, "label": True}
    try:
        document = formats.parse(given, layouts.LABELLED, has_template=chat)
    except BadRow:
        return None
    assert isinstance(document, formats.Judged)
    (found,) = renderer.tokens([document.answer])
    if isinstance(found, BadRow) or not (found[:length] >= 0).any():
        return None
    return token_ids(found[:length])


def _score(model: Any, tokens: np.ndarray) -> float:
    ids = torch.from_numpy(tokens.astype(np.int64))[None].to(model.device)
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, 0].float().item()


if __name__ == "__main__":
    sys.exit(program.run(main))
