"""The eval program: the trained model's mean loss over the eval split.

On request also: answers to task files, samples before and after training, and pairs of answers for a judge.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from stoker.config import objectives
from stoker.engine import (
    answer_pairs,
    divergence,
    generate,
    models,
    objective,
    program,
    reference,
    rollouts,
    samples,
    tasks,
)
from stoker.engine.dataset import Arrangement, InOrder, MicroBatch, PreparedSplit, StepItem
from stoker.engine.objective import Loss, Objective, TokenMean
from stoker.engine.parallel import ALONE, Ranks
from stoker.errors import StokerError
from stoker.rundir import files, prepared
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report, Split

Means = dict[str, float]
"""`loss`, `perplexity` where the loss is of tokens, and the objective's figures."""

_TOKENS_AT_ONCE = 4096
_TELL_SECONDS = 2.0


def means(
    items: Iterable[StepItem], summed: Callable[[MicroBatch], Loss], objective: Objective, ranks: Ranks = ALONE
) -> Means:
    """Mean loss and figures by name; summed in double precision in item order, independent of ranks."""
    names = ("loss", *objective.figures)
    sums, weight = [], 0
    for item in items:
        own = torch.zeros(len(names), item.leaves, dtype=torch.float64)
        values = [_column(summed(micro)) for micro in item.micro_batches][: len(item.numbers)]
        if values:  # this rank may have none of a small item
            own[:, item.numbers] = torch.stack(values, 1).cpu().double()  # an Apple GPU has no float64
        sums.append(own)
        weight += item.weight
    gathered = ranks.gather(torch.cat(sums, 1)).tolist()
    found = {name: sum(row) / weight for name, row in zip(names, gathered, strict=True)}
    of_tokens = isinstance(objective, TokenMean)
    return {**found, **({"perplexity": math.exp(min(found["loss"], 700))} if of_tokens else {})}


def _column(found: Loss) -> torch.Tensor:
    """The loss, then the figures."""
    loss = found.loss.detach()[None]
    return loss if found.figures is None else torch.cat([loss, found.figures])


def main(path: Path) -> int:
    """Evaluate and write the figures as events.

    Options are a JSON object on the command line: `artifact`, `tasks` (files) and `samples` (a number); or `pairs` (a
    number) alone.
    """
    run_dir = RunDir(path)
    asked = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    questions = {name: tasks.read(Path(name)) for name in asked.get("tasks", [])}
    report = prepared.read_report(run_dir.data)
    if asked.get("pairs"):
        with closing(EventLog(run_dir.events_file)) as log:
            _pair(run_dir, report, log, asked["pairs"])
        return 0
    if not (questions or asked.get("samples")) and (report is None or report.eval is None):
        raise StokerError("STK503", name=run_dir.name)
    taught = run_dir.run().train.teacher
    if taught and not (questions or asked.get("samples")):
        raise StokerError("STK472", teacher=taught)
    model, tokenizer = generate.load(run_dir, asked.get("artifact"))
    with closing(EventLog(run_dir.events_file)) as log:
        if report and report.eval and not taught:
            log.write(
                "evaluated", artifact=asked.get("artifact"), **_figures(run_dir, report, report.eval, model, tokenizer)
            )
        for rows, shown in zip(questions.values(), _told_apart(list(questions)), strict=True):
            judged = tasks.judge(model, tokenizer, rows, plain=generate.is_plain(run_dir, tokenizer))
            figures = {"artifact": asked.get("artifact"), "task": shown, "measure": rows[0].kind}
            _answer(run_dir, log, figures, judged, len(rows))
        if report and asked.get("samples"):
            for sample in samples.make(run_dir, report, model, tokenizer, asked["samples"]):
                log.write("sample", **sample)
    return 0


def _pair(run_dir: RunDir, report: Report | None, log: EventLog, count: int) -> None:
    """Answers of the base and of the trained model to held-out prompts, in a file."""
    if report is None or report.eval is None:
        raise StokerError("STK503", name=run_dir.name)
    path = run_dir.evals / f"pairs-{count}.json"
    tell = _teller(lambda done, of: log.write("evaluating", task="pairs", done=done, of=of))
    log.write("paired", pairs=answer_pairs.write(path, run_dir, report, count, tell), file=path.name)


def _teller(tell: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """The same, but not more often than is worth reading."""
    told = time.perf_counter()

    def often(done: int, of: int) -> None:
        nonlocal told
        if time.perf_counter() - told > _TELL_SECONDS:
            told = time.perf_counter()
            tell(done, of)

    return often


def _figures(run_dir: RunDir, report: Report, split: Split, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Loss and perplexity over the eval split."""
    started, run = time.perf_counter(), run_dir.run()
    if objectives.facts(run.train.objective).prompts:
        options, rows = run.train.grpo, PreparedSplit(run_dir.data / "eval", split)
        at_once = max(1, _TOKENS_AT_ONCE // (split.longest + options.max_new_tokens))
        found = rollouts.measure(options, run_dir.folder(), model, tokenizer, rows, at_once)
        return _told(found, split, started)
    micro = max(1, _TOKENS_AT_ONCE // split.longest)
    asked, pad = objective.of(run), tokenizer.pad_token_id or 0
    longest = report.train.longest if asked.labels else split.longest  # where answers are cut
    arrangement = Arrangement("grouped", micro, longest, flatten=False, pad=pad, objective=asked)
    items = InOrder(PreparedSplit(run_dir.data / "eval", split), arrangement, micro)
    one = torch.tensor(1, device=model.device)
    table = reference.stored(run_dir.data, report, "eval") if asked.reference else None
    moved = _divergence(run_dir, report, items, model) if asked.labels else None

    def token_loss(model: Any, inputs: MicroBatch, num_items_in_batch: torch.Tensor) -> torch.Tensor:
        return model(**inputs, num_items_in_batch=num_items_in_batch).loss

    def summed(batch: MicroBatch) -> Loss:
        on_device = {name: tensor.to(model.device) for name, tensor in reference.told(batch, table, moved).items()}
        return asked.loss(model, {**on_device, "use_cache": False}, one, token_loss)

    with models.evaluating(model):
        found = means(items, summed, asked)
    return _told(found, split, started)


def _told(found: Means, split: Split, started: float) -> dict[str, Any]:
    return {
        "eval_loss": found.pop("loss"),
        "perplexity": found.pop("perplexity", None),
        **({"figures": found} if found else {}),
        "trained_tokens": split.trained_tokens,
        "sequences": split.sequences,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _told_apart(paths: list[str]) -> list[str]:
    """Names of task files, with the folder of those that share one: `math/test.jsonl` and `law/test.jsonl`."""
    found = [Path(path).resolve() for path in paths]
    names = [path.name for path in found]
    return [path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}" for path in found]


def _divergence(run_dir: RunDir, report: Report, items: InOrder, model: Any) -> torch.Tensor:
    """How far the model has moved on answers to other prompts, over the eval split."""
    table = reference.stored(run_dir.data, report, f"eval{reference.MISMATCHED}").to(model.device)
    with models.evaluating(model):
        return divergence.of(items, model, lambda micro: {**micro, "use_cache": False}, table, ALONE)


def _answer(
    run_dir: RunDir, log: EventLog, figures: dict[str, Any], judged: Iterable[dict[str, Any]], count: int
) -> None:
    """Answer a task's questions; all answers are saved with the figures."""
    started = time.perf_counter()
    tell = _teller(lambda done, of: log.write("evaluating", task=figures["task"], done=done, of=of))
    answers = []
    for answer in judged:
        answers.append(answer)
        tell(len(answers), count)
    kept = run_dir.evals / f"{figures['task'].replace('/', '-')}-{figures['artifact'] or 'trained'}.json"
    files.write_json(kept, answers)
    right = sum(answer["right"] for answer in answers)
    seconds = round(time.perf_counter() - started, 3)
    log.write("task", **figures, rows=count, right=right, answers=str(kept), seconds=seconds)


if __name__ == "__main__":
    sys.exit(program.run(main))
