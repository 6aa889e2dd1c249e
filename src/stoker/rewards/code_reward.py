"""A reward for code: the completion's code with the row's tests, each completion in a process of its own.

That the tests passed is known by a word that only the end of the program prints (`code_main.py`): a program that exits
early with code 0 has not passed. It cannot be hidden from code that searches its whole process; nor are tests safe from
objects that are equal to everything.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stoker.config.rewards import Reward
from stoker.rewards import sandbox
from stoker.rewards.outcomes import Outcome, Sample
from stoker.rewards.worker_main import last_block
from stoker.rewards.worker_process import kill_all

_PROGRAM = Path(__file__).with_name("code_main.py")
_MOST_AT_ONCE = 8
_OUTPUT_BYTES = 1_000_000


class CodeReward:
    """Runs code of completions, several at once."""

    printed = ""
    """What the model's code prints is not kept."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._pool = ThreadPoolExecutor(min(_MOST_AT_ONCE, os.cpu_count() or 1))

    def outcomes(self, batch: Sequence[Sample], step: int) -> list[Outcome]:  # noqa: ARG002  # as other rewards
        """1 for each sample whose code passes."""
        return list(self._pool.map(self._outcome, batch))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _outcome(self, sample: Sample) -> Outcome:
        tests = sample.row.get(self._reward.column or "")
        if not tests:
            return Outcome.failed("column", column=self._reward.column)
        word = secrets.token_hex(16)
        given = json.dumps([last_block(sample.completion), _statements(tests), word])
        return self._passed(given.encode() + b"\n", word.encode())

    def _passed(self, given: bytes, word: bytes) -> Outcome:
        begun, told = os.pipe()
        with (
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
            os.fdopen(begun, "rb") as beginning,
        ):
            process = subprocess.Popen(  # noqa: S603  # in the sandbox, no shell
                self._command(told),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=sandbox.variables(),
                start_new_session=True,
                pass_fds=(told,),
            )
            os.close(told)
            try:
                process.communicate(given, self._reward.timeout_seconds)
            except subprocess.TimeoutExpired:
                return Outcome(0.0)
            finally:
                kill_all(process)
            if not beginning.read():  # the sandbox failed, and not the code
                errors.seek(0)
                said = errors.read(200).decode(errors="replace").strip()
                return Outcome.failed("sandbox", said=said.partition("\n")[0])
            output.seek(0)
            return Outcome(float(word in output.read(_OUTPUT_BYTES + len(word))))

    def _command(self, told: int) -> list[str]:
        words = [sys.executable, "-I", "-X", "utf8", str(_PROGRAM), str(told)]
        limits = sandbox.ProcessLimits(self._reward.memory_bytes, file_bytes=_OUTPUT_BYTES)
        if self._reward.isolation == "sandbox":
            return sandbox.command(words, limits, (_PROGRAM,))
        return sandbox.plain_command(words, limits)


def _statements(tests: Any) -> list[str]:
    return [str(one) for one in tests] if isinstance(tests, list) else [str(tests)]
