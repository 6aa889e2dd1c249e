"""A trainer that is started before its plan: it imports its libraries while the data is prepared, then waits.

The launcher tells the supervisor first what the plan will probably start, and to go on once there is a plan; that one
tells the trainer. Both read what they are told from a pipe: where it closes they end, so that nothing is left of a
launch that was refused or killed.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stoker import env
from stoker.errors import EXIT_STOPPED
from stoker.supervise import processes

ENVIRONMENT = {env.EARLY.name: "1"}
"""By which a supervisor and a trainer know that they were started early."""
_LOG = "early.log"


class EarlyTrainer:
    """The trainer, as the supervisor has it until it begins the first attempt."""

    def __init__(self, run_dir: Path, argv: list[str], environment: dict[str, str]) -> None:
        """Start it; raises OSError where the system refuses.

        Args:
            run_dir: The run directory.
            argv: What the plan will probably start.
            environment: With which variables.
        """
        self._made_for = (argv, environment)
        self._log = run_dir / "logs" / _LOG
        self._log.unlink(missing_ok=True)
        self._trainer: subprocess.Popen[bytes] | None = processes.start_early(
            run_dir, [*argv, run_dir], {**environment, **ENVIRONMENT}, self._log
        )

    def take(self, run_dir: Path, plan: dict[str, Any], attempt: int) -> "subprocess.Popen[bytes] | None":
        """Let it train, as this attempt; None, and it is ended, where the plan starts something else."""
        trainer = self._trainer
        if trainer is None:
            return None
        is_same = (plan["argv"], plan["env"]) == self._made_for and not plan.get("nodes")
        if is_same and trainer.poll() is None:
            with contextlib.suppress(OSError):  # it ended meanwhile, or the disk takes no new name
                self._log.replace(processes.log_file(run_dir, attempt))
                go_on(trainer)
                self._trainer = None
                return trainer
        self.close()
        return None

    def close(self) -> None:
        """End it, unless it was taken."""
        trainer, self._trainer = self._trainer, None
        if trainer is None:
            return
        trainer.kill()
        trainer.wait()
        hang_up(trainer)
        with contextlib.suppress(OSError):
            self._log.unlink()


def tell(program: "subprocess.Popen[bytes]", words: str = "") -> None:
    """Write a line to a program that waits."""
    assert program.stdin is not None
    program.stdin.write(words.encode() + b"\n")
    program.stdin.flush()


def go_on(program: "subprocess.Popen[bytes]") -> None:
    """Tell it to go on; there is nothing to tell it after that."""
    tell(program)
    hang_up(program)


def hang_up(program: "subprocess.Popen[bytes]") -> None:
    """Close its pipe: one that still waits ends."""
    assert program.stdin is not None
    with contextlib.suppress(OSError):  # what was not read is lost
        program.stdin.close()


def await_plan() -> EarlyTrainer | None:
    """In a supervisor that was started early: its trainer, once there is a plan. Ends where there will be none."""
    if not _take_mark():
        return None
    told = json.loads(sys.stdin.readline() or "null")
    if told is None:
        sys.exit(EXIT_STOPPED)
    trainer = None
    with contextlib.suppress(OSError):  # no room for a log, or no new process: it is started when there is a plan
        trainer = EarlyTrainer(Path(sys.argv[1]), told["argv"], told["env"])
    if not sys.stdin.readline():
        if trainer is not None:
            trainer.close()
        sys.exit(EXIT_STOPPED)
    return trainer


def await_order() -> None:
    """In a trainer that was started early: return when it is told to go on, end where nobody is left to do so."""
    if _take_mark() and not sys.stdin.readline():
        sys.exit(EXIT_STOPPED)


def _take_mark() -> bool:
    """Whether this program was started early; what it starts was not."""
    is_early = bool(env.read(env.EARLY))
    env.put(env.EARLY, "")
    return is_early
