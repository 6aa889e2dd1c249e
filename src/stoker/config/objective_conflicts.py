"""Words of a run file that do not go with its objective."""

from typing import Any

from stoker.config import mixing, objectives, rewards
from stoker.config.reader import Document, KeyPath
from stoker.config.run import Run, Shape
from stoker.errors import StokerError

_OPTIONS = ("dpo", "simpo", "orpo", "kto", "grpo", "distill")
"""Blocks of `train` that belong to the objective of the same name."""


def conflicts(run: Run, document: Document) -> list[StokerError]:
    """Options of another objective, and what an objective over pairs of answers cannot have."""
    name = run.train.objective
    found = [
        StokerError("STK190", document.where(("train", block)), block=block, objective=name)
        for block in _OPTIONS
        if block in run.train.model_fields_set and block != name
    ]
    known = objectives.facts(name)
    if known.by_row and run.data.pack:
        found.append(StokerError("STK191", document.where(("data", "pack")), objective=name))
    if known.prompts:
        found += (_of_teacher if name == "distill" else _of_answers)(run, document)
    if known.by_row:
        others = _unsupported_scores(run) if known.scores else _unfit(run) if known.prompts else []
        refused = [(path, asked) for path, asked in (*_unsupported(run), *others) if asked]
        found += [
            StokerError("STK192", document.where(path), word=".".join(map(str, path)), objective=name)
            for path, _ in refused
        ]
    return found


def _unsupported(run: Run) -> list[tuple[KeyPath, Any]]:
    """Words that change how rows or the loss are computed, and whether they are set so."""
    trainer = run.native.trainer
    return [
        (("model", "dropout"), isinstance(run.model, Shape) and run.model.dropout),
        (("tune", "dropout"), run.tune.method != "full" and run.tune.dropout),
        (("data", "pipeline"), run.data.pipeline),
        (("data", "stream"), run.data.stream),
        (("where", "arrange"), run.where.arrange == "rows"),
        (("where", "loss"), run.where.loss == "fused"),
        (("where", "compile"), run.where.compile == "on"),
        (("where", "strategy"), run.where.strategy in ("zero2", "zero3")),
        (("native", "deepspeed"), run.native.deepspeed),
        *(
            (("native", "trainer", option), trainer.get(option))
            for option in ("use_liger_kernel", "label_smoothing_factor", "neftune_noise_alpha")
        ),
    ]


def _unsupported_scores(run: Run) -> list[tuple[KeyPath, Any]]:
    """The same for a model with one output: what knows the names of a language model's layers, or needs its words."""
    return [
        (("model",), isinstance(run.model, Shape)),
        (("tune", "method"), run.tune.method == "qlora"),
        (("where", "kernels"), run.where.kernels == "liger"),
    ]


def _of_room(run: Run, document: Document) -> list[StokerError]:
    """A prompt and its answer have room within the length."""
    name, longest, length = run.train.objective, run.train.answers.max_new_tokens, run.data.length
    where = document.where(("train", name, "max_new_tokens"))
    return [StokerError("STK452", where, longest=longest, length=length, objective=name)] if longest >= length else []


def _of_teacher(run: Run, document: Document) -> list[StokerError]:
    """Distillation has a model to learn from."""
    none = [] if run.train.teacher else [StokerError("STK470", document.where(("train", "distill")))]
    return [*none, *_of_room(run, document)]


def _of_answers(run: Run, document: Document) -> list[StokerError]:
    """What an objective that generates its answers needs, and what does not go together in its options."""
    options, found = run.train.grpo, []
    if options.rewards is None:
        found.append(StokerError("STK450", document.where(("train", "grpo"))))
    found += rewards.conflicts(options.rewards or [], document, ("train", "grpo", "rewards"))
    if rest := run.train.batch % options.group:
        nearest = [one for one in (run.train.batch - rest, run.train.batch - rest + options.group) if one]
        where = document.where(("train", "batch"))
        found.append(StokerError("STK451", where, batch=run.train.batch, group=options.group, nearest=nearest))
    found += _of_room(run, document)
    if options.beta and run.tune.method == "full":
        found.append(StokerError("STK453", document.where(("train", "grpo", "beta")), beta=options.beta))
    return found


def _unfit(run: Run) -> list[tuple[KeyPath, Any]]:
    """Words for a loss that is above 0, and words that mix sources: no objective that generates takes them."""
    return [
        (("train", "spike"), run.train.spike),
        (("data", "stages"), run.data.stages),
        (("data", "set"), run.data.set),
        (("data", "train"), mixing.is_mixed(run.data) and not run.data.stages),
    ]
