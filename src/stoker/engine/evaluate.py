"""The eval program: the trained model's mean loss over the trained tokens of the eval split.

On request also: answers to task files, and samples before and after training.
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

from stoker.engine import generate, models, program, samples, tasks
from stoker.engine.dataset import Arrangement, InOrder, MicroBatch, PreparedSplit, StepItem
from stoker.engine.parallel import ALONE, Ranks
from stoker.errors import StokerError
from stoker.rundir import files, prepared
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Split

_TOKENS_AT_ONCE = 4096
_TELL_SECONDS = 2.0


def mean_loss(
    items: Iterable[StepItem], summed_loss: Callable[[MicroBatch], torch.Tensor], ranks: Ranks = ALONE
) -> float:
    """Mean loss per trained token; summed in double precision in item order, independent of ranks."""
    sums, count = [], 0
    for item in items:
        own = torch.zeros(item.leaves, dtype=torch.float64)
        values = [summed_loss(micro) for micro in item.micro_batches][: len(item.numbers)]
        if values:  # this rank may have none of a small item
            own[item.numbers] = torch.stack(values).double().cpu()
        sums.append(own)
        count += item.trained_tokens
    return sum(ranks.gather(torch.cat(sums)).tolist()) / count


def main(path: Path) -> int:
    """Evaluate and write the figures as events.

    Options are a JSON object on the command line: `artifact`, `tasks` (files) and `samples` (a number).
    """
    run_dir = RunDir(path)
    asked = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    questions = {name: tasks.read(Path(name)) for name in asked.get("tasks", [])}
    report = prepared.read_report(run_dir.data)
    if not (questions or asked.get("samples")) and (report is None or report.eval is None):
        raise StokerError("STK503", name=run_dir.name)
    model, tokenizer = generate.load(run_dir, asked.get("artifact"))
    with closing(EventLog(run_dir.events_file)) as log:
        if report and report.eval:
            log.write("evaluated", artifact=asked.get("artifact"), **_figures(run_dir, report.eval, model, tokenizer))
        for name, rows in questions.items():
            judged = tasks.judge(model, tokenizer, rows, plain=generate.is_plain(run_dir, tokenizer))
            figures = {"artifact": asked.get("artifact"), "task": Path(name).name, "measure": rows[0].kind}
            _answer(run_dir, log, figures, judged, len(rows))
        if report and asked.get("samples"):
            for sample in samples.make(run_dir, report, model, tokenizer, asked["samples"]):
                log.write("sample", **sample)
    return 0


def _figures(run_dir: RunDir, split: Split, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Loss and perplexity over the eval split."""
    started = time.perf_counter()
    micro = max(1, _TOKENS_AT_ONCE // split.longest)
    arrangement = Arrangement("grouped", micro, split.longest, flatten=False, pad=tokenizer.pad_token_id or 0)
    items = InOrder(PreparedSplit(run_dir.data / "eval", split), arrangement, micro)

    def summed_loss(batch: MicroBatch) -> torch.Tensor:
        on_device = {name: tensor.to(model.device) for name, tensor in batch.items()}
        return model(**on_device, num_items_in_batch=torch.tensor(1, device=model.device), use_cache=False).loss

    with models.evaluating(model):
        loss = mean_loss(items, summed_loss)
    return {
        "eval_loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        "trained_tokens": split.trained_tokens,
        "sequences": split.sequences,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _answer(
    run_dir: RunDir, log: EventLog, figures: dict[str, Any], judged: Iterable[dict[str, Any]], count: int
) -> None:
    """Answer a task's questions; all answers are saved with the figures."""
    started = told = time.perf_counter()
    answers = []
    for answer in judged:
        answers.append(answer)
        if time.perf_counter() - told > _TELL_SECONDS:
            told = time.perf_counter()
            log.write("evaluating", task=figures["task"], done=len(answers), of=count)
    kept = run_dir.evals / f"{Path(figures['task']).stem}-{figures['artifact'] or 'trained'}.json"
    files.write_json(kept, answers)
    right = sum(answer["right"] for answer in answers)
    seconds = round(time.perf_counter() - started, 3)
    log.write("task", **figures, rows=count, right=right, answers=str(kept), seconds=seconds)


if __name__ == "__main__":
    sys.exit(program.run(main))
