"""The rehearsal (law 11): before step 0, the longest batch, an eval batch and, in a new run, a save; all undone.

What would fail in the third hour fails in the first minute. The save also measures what saves will cost.
"""

import os
import shutil
import time
from collections.abc import Callable

import torch

from stoker import messages
from stoker.engine import arranged, guard, isolation, models, parallel
from stoker.engine.dataset import ROWS, MicroBatch, document_ends
from stoker.engine.objective import DESIRED, SFT, Objective
from stoker.engine.opened import Opened
from stoker.engine.saving import SaveJob, Saver
from stoker.engine.trainer import ExactTrainer
from stoker.errors import StokerError
from stoker.rundir import checkpoints, files


def rehearse(opened: Opened, trainer: ExactTrainer, saver: Saver, *, first: bool) -> None:
    """Run every part of the rehearsal; `first`: the run has no checkpoint yet."""
    opened.pulse.mark = "rehearsal"
    if first and not trainer.is_deepspeed_enabled and not trainer.objective.scores:  # it has one output
        _part(opened, "causality", lambda: _causality(opened, trainer))
    if _packs(opened) and not trainer.is_deepspeed_enabled:
        _part(opened, "isolation", lambda: _isolation(opened, trainer))
    micro = _synthetic(opened, arranged.longest(opened, opened.report.train), trainer.objective)
    _part(opened, "step", lambda: _step(opened, trainer, micro, first=first))
    if trainer.rollouts is not None:
        _part(opened, "rollout", trainer.rollouts.rehearse)
    if opened.report.eval is not None:
        micro_eval = _synthetic(opened, arranged.longest(opened, opened.report.eval), trainer.objective)
        _part(opened, "eval", lambda: _eval(trainer, micro_eval))
    if first:
        _part(opened, "save", lambda: _save(opened, trainer, saver))


def _part(opened: Opened, name: str, run: Callable[[], None]) -> None:
    started = time.perf_counter()
    try:
        run()
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        if guard.is_out_of_memory(error):
            raise StokerError("STK408", reason=str(error).partition("\n")[0]) from error
        if parallel.is_lost(error) or files.error_number(error) in files.DISK_ERRORS:
            raise
        advice = messages.text("advice.rehearsal", name=opened.run_dir.name)
        raise StokerError("STK402", part=name, reason=str(error).splitlines()[0], advice=advice) from error
    opened.events.write("rehearsal", part=name, seconds=round(time.perf_counter() - started, 3))


def _packs(opened: Opened) -> bool:
    """Whether a row of a micro batch may hold several documents."""
    return opened.plan.arrange == "rows" and (_is_flash(opened) or opened.report.packed)


def _is_flash(opened: Opened) -> bool:
    """Whether a micro batch of a single row has the ends of its documents."""
    return opened.plan.attention == "flash_attention_2"


def _causality(opened: Opened, trainer: ExactTrainer) -> None:
    packed, flat = _packs(opened), _is_flash(opened)
    if isolation.looks_ahead(trainer.model, opened.report.vocab, trainer.inputs, packed=packed, flat=flat):
        raise StokerError("STK434", family=trainer.model.config.model_type)


def _isolation(opened: Opened, trainer: ExactTrainer) -> None:
    if isolation.leaks(trainer.model, opened.report.vocab, trainer.inputs, flat=_is_flash(opened)):
        raise StokerError("STK433", family=trainer.model.config.model_type)


def _synthetic(opened: Opened, longest: int, asked: Objective = SFT) -> MicroBatch:
    """A micro batch as large as any of the run, with the position ids of packed rows where the run has them."""
    plan = opened.plan
    flash = _is_flash(opened)
    flat = flash and plan.arrange == "rows"
    count, length = (1, plan.batch.micro * longest) if flat else (plan.batch.micro, longest)
    if asked.pairs:
        count, length = 2 * count, longest // 2
    document = max(1, longest // 2) if _packs(opened) else length
    ids = torch.arange(count * length).reshape(count, length) % opened.report.vocab
    micro: MicroBatch = {"input_ids": ids, "labels": ids.clone()}
    if _packs(opened):
        micro["position_ids"] = (torch.arange(length) % document).expand(count, length)
    if flash and count == 1:
        micro |= document_ends(torch.tensor([*range(0, length, document), length]), document)
    if asked.reference:
        micro[ROWS] = torch.zeros(plan.batch.micro, 1, dtype=torch.int64)
    if asked.labels:
        micro[DESIRED] = torch.ones(plan.batch.micro, 1, dtype=torch.int64)
    return micro


def _step(opened: Opened, trainer: ExactTrainer, micro: MicroBatch, *, first: bool) -> None:
    # Reserve what later steps hold and this one does not: gradient sums and, in a new run, optimizer state.
    used, cuda = opened.plan.memory, opened.plan.device == "cuda"
    room = used.gradient_sum_bytes + (used.optimizer_bytes if first else 0)
    reserved = torch.empty(max(0, room) if cuda else 0, dtype=torch.uint8, device=trainer.args.device)
    trainer.model.train()
    if trainer.is_deepspeed_enabled:
        # The gradients of a backward pass would stay in DeepSpeed's own accumulation.
        trainer.model_wrapped(**trainer.inputs(micro))
    else:
        divisor = torch.tensor(micro["labels"].numel(), device=trainer.args.device)
        trainer.forward_backward(trainer.model_wrapped, micro, divisor)
        trainer.model_wrapped.zero_grad()
    del reserved


def _eval(trainer: ExactTrainer, micro: MicroBatch) -> None:
    one = torch.ones((), dtype=torch.int64, device=trainer.args.device)
    with models.evaluating(trainer.model):
        trainer.loss_of(trainer.model_wrapped, micro, one, "eval")


def _save(opened: Opened, trainer: ExactTrainer, saver: Saver) -> None:
    """Write a checkpoint into a temporary folder; its duration and size are what saves will cost."""
    started, writers = time.perf_counter(), saver.writers
    copied = trainer.copied(writers)
    stall = time.perf_counter() - started
    if writers.first:
        facts = opened.commit_facts(trainer.tokens, trainer.seen.tokens, trainer.due)
        job = SaveJob(0, copied, facts, best=None, stall_seconds=stall)
        aside = opened.run_dir.checkpoints / f".{checkpoints.folder_name(0)}.{os.getpid()}.tmp"
        try:
            with writers.leading():
                saver.write(aside, job)
            written = time.perf_counter() - started - stall
            saver.measure(stall, written, files.folder_bytes(aside))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    elif copied.share is not None:
        writers.assist(copied.share, saver.folder)
    opened.ranks.wait()
