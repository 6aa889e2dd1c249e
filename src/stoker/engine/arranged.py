"""How the sequences of a run form micro batches, as its plan says."""

from typing import Any

from stoker.config import objectives
from stoker.engine import models, objective, streaming
from stoker.engine.dataset import Arrangement, InOrder
from stoker.engine.opened import Opened
from stoker.rundir.prepared import Report, Split


def arrangement(opened: Opened) -> Arrangement:
    """Of training and of the eval split."""
    plan = opened.plan
    pad = models.padded(models.load_tokenizer(opened.run_dir.data / "tokenizer"), opened.run).pad_token_id
    return Arrangement(
        kind=plan.arrange,
        micro=plan.batch.micro,
        length=longest(opened, opened.report.train),
        flatten=plan.attention == "flash_attention_2",
        pad=0 if pad is None else pad,
        objective=objective.of(opened.run),
        numbered=_generates(opened),
    )


def longest(opened: Opened, split: Split) -> int:
    """Tokens of the longest sequence that is trained: of a prompt, with the longest answer."""
    return split.longest + (opened.run.train.answers.max_new_tokens if _generates(opened) else 0)


def longest_prompt(report: Report) -> int:
    """Tokens of the longest prompt that is answered, in training or in an evaluation."""
    return max(report.train.longest, report.eval.longest if report.eval else 0)


def eval_items(opened: Opened, made: Arrangement) -> InOrder | list[Any]:
    """The eval split, a batch per item; empty without one."""
    if opened.report.eval is None:
        return []
    split = streaming.open_split(opened.run_dir, "eval", opened.report.eval)
    return InOrder(split, made, opened.plan.batch.effective, opened.ranks)


def _generates(opened: Opened) -> bool:
    return objectives.facts(opened.run.train.objective).prompts
