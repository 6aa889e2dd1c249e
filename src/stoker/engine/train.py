"""The training program: `python -m stoker.engine.train RUN_DIR`. Reads like a run: open, resume, build, fit, finish.

It decides nothing: every choice is in plan.json. Started again, it goes on from the newest checkpoint that verifies.
"""

import copy
import os
import shutil
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import torch
from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from stoker import env
from stoker.config import objectives
from stoker.engine import (
    arranged,
    callbacks,
    deterministic,
    fused_loss,
    guard,
    models,
    optimizer_factory,
    parallel,
    program,
    pulse,
    reading,
    reference,
    rehearsal,
    resume,
    rollouts,
    streaming,
    vllm_sampler,
    writers,
)
from stoker.engine.distillation import Distillation
from stoker.engine.opened import READ_AT_START_BYTES, Opened, open_run
from stoker.engine.rollouts import Rollouts
from stoker.engine.saving import SaveJob, Saver
from stoker.engine.trainer import ExactTrainer, Interrupted, UnplacedArguments, heed_stop
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USER, StokerError
from stoker.plan.plan import Plan
from stoker.rundir import artifacts, checkpoints, events, files, filesystem, in_place, lock, prepared
from stoker.rundir.checkpoints import Checkpoint
from stoker.rundir.layout import RunDir
from stoker.supervise import early_trainer


def main(path: Path) -> int:
    """Train until done or asked to stop, alone in the run directory."""
    run_dir = RunDir(path)
    plan = files.read_record(run_dir.plan_file, Plan)
    rank = parallel.take_place()
    try:
        _log_apart(run_dir, rank)
        return _alone(run_dir, plan, rank)
    except Exception as error:
        number = files.error_number(error)
        if isinstance(error, StokerError | files.Unreadable) or number not in files.DISK_ERRORS:
            raise
        raise _refused(run_dir, plan, number) from error


def _refused(run_dir: RunDir, plan: Plan, number: int) -> StokerError:
    """The error of a disk that is full, read-only or broken."""
    try:
        free = f"{filesystem.room(run_dir.path).free_bytes:,}"
    except OSError:
        free = "?"
    return StokerError(
        "STK421", folder=run_dir.path, reason=os.strerror(number), needed=f"{plan.disk_bytes:,}", free=free
    )


def _alone(run_dir: RunDir, plan: Plan, rank: int) -> int:
    torch.set_num_threads(plan.threads)
    if plan.deterministic and plan.device == "cuda":
        deterministic.use_deterministic_kernels()
    # Only the first rank reads the stop file: other machines may not have it.
    stop = callbacks.StopRequest(run_dir.stop_file if rank == 0 else None)
    with (
        pulse.beating(rank, cuda=plan.device == "cuda") as beat,
        parallel.joined(plan, run_dir.events_file) as ranks,
        lock.held(run_dir.lock_file) if ranks.first else nullcontext(True) as alone,
    ):
        if not all(ranks.agree([alone])):
            # Only in this attempt's log: the events belong to the process that trains.
            sys.stderr.write(f"{StokerError('STK411', pid='?', name=run_dir.name)}\n")
            return EXIT_USER
        return _train(open_run(run_dir, plan, ranks, beat), stop)


def _log_apart(run_dir: RunDir, rank: int) -> None:
    """Give every rank but the first a log of its own; the first inherits the attempt's."""
    if rank and env.read(env.ATTEMPT):
        with in_place.appending(run_dir.log_file(int(env.read(env.ATTEMPT)), rank), run_dir.path) as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())


def _train(opened: Opened, stop: callbacks.StopRequest) -> int:
    total = opened.plan.steps.total
    if any(opened.ranks.follow([opened.ranks.first and _is_finished(opened)])):
        opened.events.write("end", status="done", step=total)
        return EXIT_DONE
    found = resume.newest(opened)
    known = reference.known(opened, arranged.arrangement(opened), lambda: stop.requested)
    if known is None:
        return _stopped(opened, found.step if found else 0)
    opened = known
    if found and opened.ranks.first:
        resume.require_tier(opened, found)
    best = checkpoints.best_step(found) if found else None
    if found is None or found.step < total or found.commit.due:
        if any(opened.ranks.anyone([stop.requested])):  # the model is not loaded for nothing
            return _stopped(opened, found.step if found else 0)
        step, best, due = _fit(opened, stop, found)
        if step < total or due:
            return _stopped(opened, step)
    if opened.ranks.first and not _finished(opened, best):
        return _stopped(opened, total)
    opened.events.write("end", status="done", step=total)
    return EXIT_DONE


def _is_finished(opened: Opened) -> bool:
    """Whether the run is done and its model there, while its checkpoints were deleted."""
    run_dir = opened.run_dir
    if checkpoints.committed(run_dir.checkpoints) or not run_dir.final.is_dir():
        return False
    ends = [event for event in events.skim(run_dir.events_file) if event["event"] == "end"]
    return bool(ends) and (ends[-1]["status"], ends[-1]["step"]) == ("done", opened.plan.steps.total)


def _stopped(opened: Opened, step: int) -> int:
    """The run ended early, with a committed checkpoint of that step."""
    opened.events.write("end", status="stopped", step=step)
    if opened.ranks.first:
        with suppress(OSError):  # a disk that is read-only by now
            opened.run_dir.stop_file.unlink(missing_ok=True)
    # torchrun knows only success and failure; the light world reads the event.
    return EXIT_STOPPED if opened.ranks.world == 1 else EXIT_DONE


def _fit(opened: Opened, stop: callbacks.StopRequest, found: Checkpoint | None) -> tuple[int, int | None, list[str]]:
    """Train; returns the newest committed step, the best one, and what a stop postponed."""
    saver = _saver(opened, found)
    try:
        _check_disk(opened, saver)
        _try_disk(opened, saver)
        with rollouts.scoring(opened) as score, vllm_sampler.opened_for(opened) as vllm:
            trainer = _build(opened, stop, saver, found, (score, vllm))
            saver.writers = writers.of(opened.ranks, opened.plan, saver.folder, trainer.model)
            _announce(opened, found, trainer)
            _loop(trainer, saver, found)
    except (RuntimeError, MemoryError) as error:
        if guard.is_out_of_memory(error):
            raise StokerError("STK408", reason=str(error).partition("\n")[0]) from error
        raise
    finally:
        # However training ended, a save in progress is committed.
        saver.join()
    saver.wait()
    (step,) = opened.ranks.follow([saver.committed])
    if step < 0:
        raise _refused(opened.run_dir, opened.plan, saver.refused)
    if step >= opened.plan.steps.total:
        saver.require_checked()
        opened.ranks.meet()  # until every machine has checked its data
    return step, trainer.state.best_global_step, trainer.due


def _loop(trainer: ExactTrainer, saver: Saver, found: Checkpoint | None) -> None:
    if found:
        with reading.named("STK512", path=found.path / TRAINER_STATE_NAME):
            TrainerState.load_from_json(str(found.path / TRAINER_STATE_NAME))  # as the Trainer will
    try:
        trainer.train(resume_from_checkpoint=str(found.path) if found else None)
    except Interrupted:
        saver.committed = max(saver.committed, 0)  # before the first step: what it resumed from is the newest state
    except OSError:
        # A logger that cannot close its file on a full disk, after everything is committed.
        if not trainer.control.should_training_stop or saver.failed:
            raise


def _announce(opened: Opened, found: Checkpoint | None, trainer: ExactTrainer) -> None:
    opened.events.write(
        "attempt",
        pid=os.getpid(),
        world=opened.ranks.world,
        strategy=opened.plan.strategy,
        tier=resume.tier(opened, found),
        changed=resume.changed(opened, found),
        resumed_step=found.step if found else 0,
        total_steps=opened.plan.steps.total,
        steps_per_epoch=opened.plan.steps.per_epoch,
        batch=opened.plan.batch.model_dump(),
        base=opened.fingerprint["base"],
        trainable_parameters=sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
    )


# ---- build


def _build(
    opened: Opened,
    stop: callbacks.StopRequest,
    saver: Saver,
    found: Checkpoint | None,
    answering: tuple[rollouts.Scorer | None, vllm_sampler.VllmSampler | None],
) -> ExactTrainer:
    run, plan, report, data = opened.run, opened.plan, opened.report, opened.run_dir.data
    opened.pulse.mark = "build"
    past, base = resume.past(opened, found), opened.fingerprint["base"]
    tokenizer = models.padded(models.load_tokenizer(data / "tokenizer"), run)
    model = models.build(run, plan, opened.run_dir.folder(), found.path if found else None, base, opened.ranks)
    arrangement = arranged.arrangement(opened)
    arguments = _arguments(opened)
    steps_guard = guard.StepGuard(plan.guard, past)
    looks = callbacks.flush_every(run, plan.device)
    recorder = callbacks.Recorder(opened.events, plan.steps.per_epoch, looks, steps_guard)
    around = [callbacks.Schedule(plan, stop, opened.ranks, saver), recorder]
    if run.save.best:
        around.append(callbacks.Best())
    trainer = ExactTrainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=optimizer_factory.of(run, arguments),
        callbacks=around,
        steps=streaming.steps(opened.run_dir, run, plan, report, arrangement, opened.ranks),
        start_step=found.step if found else 0,
        plan=plan,
        ranks=opened.ranks,
        eval_items=arranged.eval_items(opened, arrangement),
        commit=lambda: _commit(opened, trainer, saver),
        asked_to_stop=lambda: stop.requested,
    )
    trainer.tokens, trainer.seen.tokens = (found.commit.tokens, dict(found.commit.source_tokens)) if found else (0, {})
    said = trainer.model_accepts_loss_kwargs
    trainer.model_accepts_loss_kwargs = models.takes_weight(model, run, plan.attention, said=said)
    if plan.loss == "fused":
        fused_loss.use(model, plan.attention)
    recorder.trainer = trainer
    if objectives.facts(run.train.objective).prompts:
        kind = Distillation if run.train.teacher else Rollouts
        trainer.rollouts = kind(opened, arrangement, model, tokenizer, *answering)
    trainer.reference = {name: table.to(arguments.device) for name, table in opened.reference.items()}
    trainer.passed_over = frozenset(past.passed_over)
    trainer.heartbeat = guard.Heartbeat(opened.run_dir.heartbeat_file if opened.ranks.first else None)
    if trainer.rollouts:
        trainer.rollouts.beat = trainer.heartbeat.beat
    trainer.pulse = opened.pulse

    def begin() -> None:
        heed_stop(opened.ranks, lambda: stop.requested)
        rehearsal.rehearse(opened, trainer, saver, first=found is None)
        heed_stop(opened.ranks, lambda: stop.requested)
        if found is None:
            _check_disk(opened, saver)
        # The evaluation a stop postponed. If it is interrupted again the run ends here: no step goes before it.
        if found and "eval" in found.commit.due and not trainer.evaluate():
            raise Interrupted

    trainer.add_callback(callbacks.Rehearsal(begin))
    return trainer


def _arguments(opened: Opened) -> TrainingArguments:
    # Copied: transformers fills in values of its own.
    deepspeed = {"deepspeed": copy.deepcopy(opened.plan.native.deepspeed)} if opened.plan.native.deepspeed else {}
    kind = UnplacedArguments if opened.plan.strategy == "fsdp2" else TrainingArguments
    try:
        return kind(output_dir=str(opened.run_dir.logs), **opened.plan.native.trainer, **deepspeed)
    except (TypeError, ValueError) as error:
        raise StokerError("STK412", option="native.trainer", engine="transformers", reason=error) from error


# ---- save


def _saver(opened: Opened, found: Checkpoint | None) -> Saver:
    """The writer of checkpoints; `writers.of` says which ranks' write."""
    folder, plan = opened.run_dir.checkpoints, opened.plan
    saver = Saver(
        folder,
        opened.events,
        keep=opened.run.save.keep,
        background=plan.intervals.background,
        between_failures_seconds=plan.intervals.between_failures_seconds,
        shares_cores=plan.device == "cpu",
        committed=found.step if found else -1,
    )
    if opened.ranks.first:
        folder.mkdir(exist_ok=True)
        _recall(opened, saver)
    if opened.ranks.first_here and files.folder_bytes(opened.run_dir.data) > READ_AT_START_BYTES:
        saver.require(lambda: prepared.check_digests(opened.run_dir.data, opened.report))
    return saver


def _try_disk(opened: Opened, saver: Saver) -> None:
    """Find out how checkpoints are committed on this disk."""
    if opened.ranks.first:
        disk = filesystem.probe(saver.folder)
        opened.events.write("filesystem", type=disk.kind, renames=disk.renames, reason=disk.reason)
        saver.renames = disk.renames


def _check_disk(opened: Opened, saver: Saver) -> None:
    """Require disk space for what is still to be written: the checkpoints kept, one more, and the result."""
    if not opened.ranks.first:
        return
    present = checkpoints.committed(saver.folder)
    if present or saver.size_bytes:
        one = saver.size_bytes or present[-1].commit.total_bytes
        save = opened.run.save
        kept = save.keep + bool(save.best) + bool(save.store)
        needed = max(1, kept + 1 - len(present)) * one
    else:
        needed = opened.plan.disk_bytes - files.folder_bytes(opened.run_dir.data)
    files.require_room(saver.folder, needed)


def _recall(opened: Opened, saver: Saver) -> None:
    """Start from what the last save of an earlier attempt cost."""
    saves = [event for event in events.skim(opened.run_dir.events_file) if event["event"] == "checkpoint"]
    if saves:
        last = saves[-1]
        saver.measure(last["stall_seconds"], last["seconds"] - last["stall_seconds"], last["bytes"])


def _commit(opened: Opened, trainer: ExactTrainer, saver: Saver) -> None:
    """Copy the step's state to the host and start writing it; a run that ends waits for it."""
    started = time.perf_counter()
    opened.pulse.mark = "save"
    saver.wait()
    # No rank may time out in a collective while the first one still writes, and every machine's data is verified.
    opened.ranks.meet()
    copied = trainer.copied(saver.writers)
    if saver.writers.writes:
        job = SaveJob(
            step=trainer.state.global_step,
            copied=copied,
            facts=opened.commit_facts(trainer.tokens, trainer.seen.tokens, trainer.due),
            best=trainer.state.best_global_step if opened.run.save.best else None,
            stall_seconds=time.perf_counter() - started,
        )
        saver.begin(job)
        if trainer.control.should_training_stop:
            saver.settle(job)
    if trainer.control.should_training_stop or not saver.background:
        opened.ranks.wait()


def _finished(opened: Opened, best: int | None) -> bool:
    """Whether the finished model was written; on a full disk the next attempt does it."""
    try:
        _finish(opened, best)
    except files.Unreadable:
        raise
    except OSError as error:
        needed = checkpoints.committed(opened.run_dir.checkpoints)[-1].commit.total_bytes
        wrong = StokerError("STK422", folder=opened.run_dir.artifacts, reason=error.strerror, needed=f"{needed:,}")
        opened.events.error(wrong, "train")
        return False
    return True


def _finish(opened: Opened, best: int | None) -> None:
    """The finished model: the weights of the last (or best) committed checkpoint, without training state."""
    chosen = _result(opened, best)
    wanted = {name: entry for name, entry in chosen.commit.files.items() if name not in checkpoints.TRAINING_FILES}
    if artifacts.entries_of(opened.run_dir.final) == wanted:
        return  # what was made of it since is of this very model, and not older
    aside = artifacts.begin(opened.run_dir, "final")
    for name in wanted:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(chosen.path / name, aside / name)
    artifacts.accept(opened.run_dir, "final")


def _result(opened: Opened, best: int | None) -> Checkpoint:
    """The best checkpoint, if asked for and intact; else the last one."""
    folder, total = opened.run_dir.checkpoints, opened.plan.steps.total
    for step in [best, total] if opened.run.save.best and best else [total]:
        one = checkpoints.examined(folder / checkpoints.folder_name(step))
        if one.commit is not None and not one.reason:
            return Checkpoint(one.path, one.commit)
        opened.events.write("rejected", path=one.path.name, reason=one.reason)
        if step != total:
            opened.events.write("not_best", best=step, step=total, reason=one.reason)
        with suppress(OSError):  # gone, or on a disk that cannot be written to
            checkpoints.quarantine(one.path, one.reason)
    raise StokerError("STK403", folder=folder)


if __name__ == "__main__":
    early_trainer.await_order()
    sys.exit(program.run(main))
