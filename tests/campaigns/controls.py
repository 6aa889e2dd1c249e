"""Safeguards taken away, one at a time, in the children of a campaign only. What is left must be noticed."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stoker.rundir import checkpoints, files


def final_name_from_the_first_byte() -> None:
    """As the plain Trainer saves and looks for its checkpoints."""

    @contextlib.contextmanager
    def writing(folder: Path, step: int, *, renames: bool = True, **facts: Any) -> Iterator[Path]:
        final = folder / checkpoints.folder_name(step)
        shutil.rmtree(final, ignore_errors=True)
        final.mkdir(parents=True)
        commit = checkpoints.sealed(checkpoints.Commit(step=step, created="", files={}, **facts).model_dump())
        (final / checkpoints.COMMIT_NAME).write_text(files.json_text(commit))
        yield final

    checkpoints.writing = writing  # type: ignore[assignment]


def no_optimizer() -> None:
    """The optimizer's state is not put back."""
    from stoker.engine import checkpoint

    checkpoint.TrainingState.load_optimizer = lambda *_: None  # type: ignore[method-assign]


def no_scheduler() -> None:
    """The scheduler's state is not put back."""
    import torch

    torch.optim.lr_scheduler.LambdaLR.load_state_dict = lambda *_: None  # type: ignore[method-assign]


def no_random_streams() -> None:
    """Random streams are neither keyed by the step nor put back."""
    from stoker.engine import checkpoint, exact

    exact.seed_stream = lambda *_: None  # type: ignore[assignment]
    checkpoint._load_rng = lambda *_: None  # type: ignore[assignment]


class _OwnMind:
    """Stands for the ranks: each flag as this rank sees it."""

    def __getattr__(self, name: str) -> Callable[[Sequence[bool]], list[bool]]:
        return list


def ranks_have_other_clocks() -> None:
    """No safeguard away: saves are due by the clock, and those of the ranks do not run alike."""
    from stoker import env
    from stoker.config import values

    plain, own = values.every, values.Every("seconds", 0.1 + 0.15 * int(env.read(env.RANK, "0")))
    values.every = lambda text: own if text == "2 steps" else plain(text)


def ranks_save_by_their_own_clocks() -> None:
    """The same, and at a step boundary nobody is told what the first rank decided; all other agreements stay."""
    from stoker.engine import callbacks

    ranks_have_other_clocks()
    plain = callbacks.Schedule.__init__

    def init(self: Any, plan: Any, stop: Any, ranks: Any, saver: Any) -> None:
        plain(self, plan, stop, _OwnMind(), saver)  # type: ignore[arg-type]

    callbacks.Schedule.__init__ = init  # type: ignore[method-assign]
