"""Sample answers before and after training: prompts from the run's data, the base's answer, the trained model's."""

import itertools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from stoker.config import objectives
from stoker.config.run import Run, Shape
from stoker.engine import generate, streaming
from stoker.engine.dataset import Segment, token_ids
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

_LONGEST_ANSWER = 128
Sample = dict[str, Any]
"""prompt, turns (of a conversation), wanted where the row has it, after and, where the model started from a trained
one, before."""


class Cut(NamedTuple):
    """A row of which the model writes the rest."""

    prompt: list[int]
    wanted: list[int]
    longest: int
    """Tokens that it may write."""


_SPEAKERS = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "inst"), "user"),
    **dict.fromkeys(("assistant", "model", "/inst"), "assistant"),
    **dict.fromkeys(("tool", "ipython", "observation"), "tool"),
}
"""Who speaks, by what templates call them: in a mark of their own, or in the line or text after a mark."""
_OPEN_THOUGHT = re.compile(r"<think>\s*(</think>)?\s*\Z")
"""What a template may write for the assistant before it speaks."""


def make(run_dir: RunDir, report: Report, model: Any, tokenizer: Any, count: int) -> list[Sample]:
    """`count` samples, evenly spread over the eval rows, or over the training rows if there are none."""
    name, facts = ("eval", report.eval) if report.eval else ("train", report.train)
    split, run = streaming.open_split(run_dir, name, facts), run_dir.run()
    cuts = [cut(split.row(number)[0], run) for number in split.spread(count)]

    def written(model: Any) -> list[str]:
        prompts = [(torch.tensor([one.prompt]), one.longest) for one in cuts]
        return [generate.answers(model, tokenizer, [ids], longest)[0].strip() for ids, longest in prompts]

    after = written(model)
    before = [] if isinstance(run.model, Shape) else _of_base(run_dir, model, written)
    return [
        {
            **asked(tokenizer, one.prompt),
            **({"wanted": _words(tokenizer, one.wanted)} if one.wanted else {}),
            **({"before": before[place]} if before else {}),
            "after": after[place],
        }
        for place, one in enumerate(cuts)
    ]


def asked(tokenizer: Any, prompt: list[int]) -> Sample:
    """A prompt as text and, where its template says who speaks, as turns; a mark of the beginning is no part of it."""
    spoken = turns(tokenizer, prompt)
    begun = not spoken and len(prompt) > 1 and prompt[0] == tokenizer.bos_token_id
    return {"prompt": tokenizer.decode(prompt[1:] if begun else prompt), **({"turns": spoken} if spoken else {})}


def turns(tokenizer: Any, tokens: list[int]) -> list[dict[str, str]]:
    """Who said what in a rendered conversation, without the template's marks; empty where no mark names a speaker."""
    marks = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    found: list[dict[str, str]] = []
    for is_mark, part in itertools.groupby(tokens, marks.__contains__):
        ids = list(part)
        if is_mark:
            names = (re.sub(r"[^a-z/]", "", tokenizer.decode([one]).lower()) for one in ids)
            found += [{"role": _SPEAKERS[name], "content": ""} for name in names if name in _SPEAKERS]
            continue
        text = _OPEN_THOUGHT.sub("", tokenizer.decode(ids)).strip()
        first, _, rest = text.partition("\n")
        if role := _SPEAKERS.get(first.strip().lower()):
            found.append({"role": role, "content": rest.strip()})
        elif text and found:
            found[-1]["content"] = f"{found[-1]['content']} {text}".strip()
    return [one for one in found if one["content"]]


def cut(segment: Segment, run: Run) -> Cut:
    """A document split before its first trained tokens; fully trained text is split in the middle, a prompt nowhere."""
    tokens = [int(token) for token in segment]
    if objectives.facts(run.train.objective).prompts:
        return Cut(token_ids(segment).tolist(), [], min(_LONGEST_ANSWER, run.train.answers.max_new_tokens))
    trained = [at for at, token in enumerate(tokens) if token >= 0]
    start = trained[0] if trained and trained[0] > 1 else max(1, len(tokens) // 2)
    end = next((at for at in range(start, len(tokens)) if tokens[at] < 0), len(tokens))
    wanted = tokens[start:end]
    return Cut(token_ids(segment[:start]).tolist(), wanted, min(_LONGEST_ANSWER, 2 * len(wanted) + 16))


def _of_base(run_dir: RunDir, model: Any, written: Callable[[Any], list[str]]) -> list[str]:
    """What the model wrote before it was trained."""
    adapter = hasattr(model, "disable_adapter")
    without: AbstractContextManager[Any] = model.disable_adapter() if adapter else nullcontext()
    with without:
        return written(model if adapter else generate.load_base(run_dir))


def _words(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True).strip()
