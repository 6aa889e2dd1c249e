"""The eval program: mean loss over the trained tokens of the eval split, of the trained model on disk."""

import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from stoker.engine import generate, models, program
from stoker.engine.dataset import Arrangement, InOrder, MicroBatch, PreparedSplit, StepItem
from stoker.errors import StokerError
from stoker.rundir import prepared
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

_TOKENS_AT_ONCE = 4096


def mean_loss(items: Iterable[StepItem], summed_loss: Callable[[MicroBatch], torch.Tensor]) -> float:
    """Mean loss per trained token; sums in double precision."""
    total, count = 0.0, 0
    for item in items:
        total += sum(summed_loss(micro).item() for micro in item.micro_batches)
        count += item.trained_tokens
    return total / count


def main(path: Path) -> int:
    """Evaluate and write the figures as an event."""
    run_dir = RunDir(path)
    report = prepared.read_report(run_dir.data)
    if report is None or report.eval is None:
        raise StokerError("STK503", name=run_dir.name)
    model, tokenizer = generate.load(run_dir)
    started = time.perf_counter()
    micro = max(1, _TOKENS_AT_ONCE // report.eval.longest)
    arrangement = Arrangement("grouped", micro, report.eval.longest, flatten=False, pad=tokenizer.pad_token_id or 0)
    items = InOrder(PreparedSplit(run_dir.data / "eval", report.eval), arrangement, micro)

    def summed_loss(batch: MicroBatch) -> torch.Tensor:
        on_device = {name: tensor.to(model.device) for name, tensor in batch.items()}
        return model(**on_device, num_items_in_batch=torch.tensor(1, device=model.device), use_cache=False).loss

    with models.evaluating(model):
        loss = mean_loss(items, summed_loss)
    EventLog(run_dir.events_file).write(
        "evaluated",
        eval_loss=loss,
        perplexity=math.exp(min(loss, 700)),
        trained_tokens=report.eval.trained_tokens,
        sequences=report.eval.sequences,
        seconds=round(time.perf_counter() - started, 3),
    )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
