"""What differs in the programs of one machine of C15: how fast its trainer is, another version, a safeguard away."""

import contextlib
import time
from pathlib import Path
from typing import Any


def pace(file: str) -> None:
    """A trainer takes as many seconds for a step as the file says at that moment."""
    from stoker.engine import callbacks

    plain, path = callbacks.Schedule.on_step_end, Path(file)

    def on_step_end(self: Any, *words: Any, **more: Any) -> Any:
        done = plain(self, *words, **more)
        with contextlib.suppress(OSError, ValueError):
            time.sleep(float(path.read_text()))
        return done

    callbacks.Schedule.on_step_end = on_step_end  # type: ignore[method-assign]


def code(digest: str) -> None:
    """Another version, whose code decides other numbers."""
    from stoker.facts import own_code

    own_code.digest = lambda: digest  # type: ignore[assignment]


def version(number: str) -> None:
    """Another version with the same code where numbers are decided."""
    import stoker

    stoker.__version__ = number


# ---- safeguards taken away


def words_not_compared(_: bool) -> None:
    """Other words of a run file are the same training."""
    from stoker.rundir import training_words

    training_words.differing = lambda *_: []  # type: ignore[assignment]


def moves_bring_nothing(_: bool) -> None:
    """What the last place has is not asked for."""
    from stoker.api import last_place

    last_place.bring = lambda *_: None  # type: ignore[assignment]


def token_not_bound(_: bool) -> None:
    """A copy of a run's folder has its lease."""
    from stoker.rundir import files
    from stoker.store import lease

    def own_token(path: Path) -> str:
        if not path.exists():
            files.write_text(path, "drawn once")
        return path.read_text(encoding="utf-8")

    lease.own_token = own_token  # type: ignore[assignment]


def recorded_before_it_is_sent(_: bool) -> None:
    """The place counts as the run's before anything arrived there, and after it was refused."""
    from stoker.api import last_place
    from stoker.places.box import Box
    from stoker.rundir import last_known, layout

    plain = Box.put

    def put(self: Any, package: Any) -> None:
        last_known.sent(layout.named(package.name), self.name, {}, None)
        plain(self, package)

    Box.put = put  # type: ignore[method-assign]
    last_place.Records.restore = lambda _: None  # type: ignore[method-assign]


def no_optimizer(_: bool) -> None:
    """The optimizer starts anew."""
    import controls

    controls.no_optimizer()
