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
