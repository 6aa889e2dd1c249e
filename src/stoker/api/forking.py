"""`stoker train RUN --fork NAME`: a new run that starts from the newest checkpoint of another one."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.config import load, mixing
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.launch import training
from stoker.rows import mixture
from stoker.rundir import checkpoints, files, layout, prepared, training_words
from stoker.rundir.checkpoints import Checkpoint
from stoker.rundir.layout import RunDir

_SHAPED_BY = ("model", "tokenizer", "tune", "native.lora", "native.model", "native.quantization")
"""Words that decide which tensors there are: a fork cannot change them."""
_STATE_BY = ("train.optimizer", "train.precision", "native.trainer.optim", "train.seed", "train.batch", "data")
"""Words that the optimizer's state or the place in the data depends on: only a fork of the weights changes them."""
_STAGED_BY = ("train.steps", "train.epochs")
"""Words that the ends of stages depend on."""

_TRIES = 3


def fork(parent: RunDir, name: str, overrides: Sequence[str], *, weights_only: bool) -> RunFile:
    """The run file of a fork, whose run directory has the checkpoint it starts from. Forked before, it goes on.

    Args:
        parent: The run it starts from.
        name: The new run's name.
        overrides: What is changed, as `--set` takes it.
        weights_only: Start at step 0, with a new optimizer, on any data.
    """
    told = parent.file()
    run_file = load.again(told.text, told.name, told.folder, [*told.overrides, *overrides, f"name={name}"], name)
    if run_file.run.where.place != "local":
        raise StokerError("STK431", place=run_file.run.where.place)
    run_dir = layout.named(name)
    if not _is_fork(run_dir, parent, weights_only=weights_only):
        _require_fitting(parent, run_file, weights_only=weights_only)
        _require_steps(parent, run_file, weights_only=weights_only)  # before anything is made
        with training.claimed(run_dir):
            _make(parent, run_file, run_dir, weights_only=weights_only)
    return run_file


def _is_fork(run_dir: RunDir, parent: RunDir, *, weights_only: bool) -> bool:
    """Whether the run is there already; another run of this name is an error, as is a fork of the other kind."""
    if not run_dir.manifest_file.exists():
        return False
    before = run_dir.manifest().forked_from
    if before is None or before.get("run") != parent.name:
        raise StokerError("STK427", name=run_dir.name, folder=run_dir.path)
    if bool(before.get("weights_only")) != weights_only:
        kinds = {True: messages.text("fork.weights"), False: messages.text("fork.whole")}
        was, asked = kinds[not weights_only], kinds[weights_only]
        raise StokerError("STK438", name=run_dir.name, folder=run_dir.path, was=was, asked=asked)
    return True


def _newest(parent: RunDir) -> Checkpoint:
    found, _ = checkpoints.newest_verified(parent.checkpoints)
    if found is None:
        raise StokerError("STK428", name=parent.name)
    return found


def _make(parent: RunDir, run_file: RunFile, run_dir: RunDir, *, weights_only: bool) -> None:
    for left in reversed(range(_TRIES)):
        if _is_fork(run_dir, parent, weights_only=weights_only):
            return  # another command was faster
        found = _newest(parent)
        origin = {"run": parent.name, "step": found.step, "commit": found.commit.digest, "weights_only": weights_only}
        try:
            _take_data(parent, run_file, run_dir)
            _take_checkpoint(found, run_file, run_dir, origin)
        except FileNotFoundError:  # the parent is being trained, and rotated it away
            shutil.rmtree(run_dir.checkpoints, ignore_errors=True)
            if not left:
                raise
        else:
            layout.write(run_dir, run_file, forked_from=origin)  # last: before this there is no such run
            return


def _require_fitting(parent: RunDir, run_file: RunFile, *, weights_only: bool) -> None:
    changes = training_words.changed(parent.run(), run_file.run)
    stages = _STAGED_BY if len(mixing.stages(run_file.run.data)) > 1 else ()
    fixed = _SHAPED_BY if weights_only else (*_SHAPED_BY, *_STATE_BY, *stages)
    refused = [change for change in changes if _is_in(change.partition(" ")[0], fixed)]
    if refused:
        raise StokerError("STK429", changes=refused)


def _require_steps(parent: RunDir, run_file: RunFile, *, weights_only: bool) -> None:
    """A fork that goes on from a step ends after it; its epochs are as long as its parent's, on the same data."""
    found, train = _newest(parent), run_file.run.train
    if weights_only:
        return
    report, steps = prepared.read_report(parent.data), train.steps
    if steps is None and report is not None:
        steps = mixture.total_steps(run_file.run, report.train)
    if steps is not None and steps <= found.step:
        raise StokerError("STK432", step=found.step, steps=steps)


def _is_in(key: str, blocks: Sequence[str]) -> bool:
    return any(key == block or key.startswith(f"{block}.") for block in blocks)


def _take_data(parent: RunDir, run_file: RunFile, run_dir: RunDir) -> None:
    """The prepared set, where the same words prepared it."""
    same = prepared.words(parent.run()) == prepared.words(run_file.run)
    if same and prepared.read_report(parent.data) is not None:
        shutil.rmtree(run_dir.data, ignore_errors=True)
        shutil.copytree(parent.data, run_dir.data, copy_function=files.link)


def _take_checkpoint(found: Checkpoint, run_file: RunFile, run_dir: RunDir, origin: dict[str, Any]) -> None:
    """Weights, and optimizer state without its options: those of the new run file count, as does its schedule."""
    commit = found.commit
    taken = {"data_digest", "order_version", "world", "fingerprint", "tokens"}
    facts = commit.model_dump(include=taken if origin["weights_only"] else {*taken, "source_tokens"})
    facts |= {"words": training_words.of(run_file.run, origin), "forked_from": origin}
    step = 0 if origin["weights_only"] else found.step
    with checkpoints.writing(run_dir.checkpoints, step, **facts) as folder:
        for name in commit.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            files.link(found.path / name, folder / name)
        _write_state(folder, step)


def _write_state(folder: Path, step: int) -> None:
    state, record = (files.read_object(folder / name) for name in ("state.json", "trainer_state.json"))
    parameters = state["optimizer"]["parameters"] if step else {}
    state |= {"optimizer": {"groups": [], "parameters": parameters}, "scheduler": None}
    record |= {"global_step": step, "best_global_step": None, "best_metric": None, "best_model_checkpoint": None}
    record |= {"log_history": [], "epoch": record["epoch"] if step else 0.0}
    for name, content in (("state.json", state), ("trainer_state.json", record)):
        files.write_json(folder / name, content)
