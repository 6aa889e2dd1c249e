"""A reward that a worker computes: a built-in one, a function of the user's, or an environment of `verifiers`.

A worker that failed is ended with all it started; the next batch has a new one.
"""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker import env, messages, tools
from stoker.config.rewards import OWN_CODE, Reward
from stoker.errors import StokerError, closest
from stoker.rewards import function_file, sandbox, verifiers_package
from stoker.rewards.outcomes import Outcome, Sample
from stoker.rewards.worker_process import WorkerError, WorkerProcess

_PROGRAM = Path(__file__).with_name("worker_main.py")
_ENVIRONMENT = Path(__file__).with_name("verifiers_environment.py")
_LOAD_SECONDS = 120.0
"""For what the user's file imports."""
_SPARE_SECONDS = 5.0
_LONGEST = 300


class WorkerReward:
    """One reward and its worker."""

    def __init__(self, reward: Reward, folder: Path, where: str) -> None:
        self._reward = reward
        self._setup = _setup(reward, folder, where)
        self._isolated = reward.kind in OWN_CODE and reward.isolation == "sandbox"
        self._python = tools.require(tools.VERIFIERS, where) if reward.verifiers else Path(sys.executable)
        self._asked = 0
        self._last_words = ""
        self._worker: WorkerProcess | None = None
        try:
            self._worker = self._start()
        except WorkerError as error:
            raise _not_loaded(reward, error, where) from None
        if reward.verifiers and verifiers_package.is_elsewhere(reward.verifiers.environment):
            self.close()
            reason = messages.text("reward.no_files")
            raise _environment_error(reward.verifiers.environment, reason, None, where)

    def outcomes(self, batch: Sequence[Sample], step: int) -> list[Outcome]:
        """The reward of each sample."""
        self._asked += 1
        message = {"id": self._asked, "step": step, "samples": [self._sent(one) for one in batch]}
        try:
            if self._worker is None:
                self._worker = self._start()
            reply = self._worker.ask(message, self._seconds(len(batch)), len(batch))
            found = _read(reply, self._asked, len(batch))
        except WorkerError as error:
            self.close()
            found = [Outcome.failed(error.key, **error.fields)] * len(batch)
        return found

    @property
    def printed(self) -> str:
        """The end of what the function printed."""
        return (self._worker.printed if self._worker else "") or self._last_words

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()
            self._last_words = self._worker.printed
            self._worker = None

    def _start(self) -> WorkerProcess:
        limits = sandbox.ProcessLimits(self._reward.memory_bytes)
        words = [str(self._python), "-I", "-X", "utf8", str(_PROGRAM)]
        if self._isolated:
            files = (_PROGRAM, *(tools.installation(self._python) if self._reward.verifiers else ()))
            worker = WorkerProcess(sandbox.command(words, limits, files), sandbox.variables())
        else:
            worker = WorkerProcess(sandbox.plain_command(words, limits), env.child_environment({}))
        try:
            reply = worker.ask(self._setup, _LOAD_SECONDS)
            if "failed" in reply:
                said = {name: reply.get(name) for name in ("names", "needs")}
                raise WorkerError("load", reason=str(reply["failed"])[:_LONGEST], **said)
        except WorkerError:
            worker.end()
            raise
        return worker

    def _seconds(self, count: int) -> float:
        each = self._reward.timeout_seconds
        return each if self._reward.kind == "function" else each * count + _SPARE_SECONDS

    def _sent(self, sample: Sample) -> dict[str, Any]:
        """All of it for what is not ours; of a built-in's row the one column it needs."""
        if self._reward.kind in OWN_CODE:
            return vars(sample)
        column = self._reward.column
        return {"completion": sample.completion, "row": {column: sample.row.get(column)} if column else {}}


def _setup(reward: Reward, folder: Path, where: str) -> dict[str, Any]:
    if reward.function:
        file, source = function_file.read(reward, folder, where)
        return {"kind": "function", "options": {}, "file": str(file), "source": source, "name": reward.name}
    options = reward.options(reward.kind).model_dump()
    found = {"kind": reward.kind, "options": options, "seconds": reward.timeout_seconds}
    if reward.verifiers:
        source = _ENVIRONMENT.read_text(encoding="utf-8")
        return {**found, "program": _ENVIRONMENT.name, "source": source, "name": "Environment"}
    schema = options.get("fits") is not None or (reward.kind == "valid_json" and options["column"])
    if schema and importlib.util.find_spec("jsonschema") is None:
        raise StokerError("STK463", where)
    return found


def _not_loaded(reward: Reward, error: WorkerError, where: str) -> StokerError:
    """The error of a worker that could not begin."""
    reason = error.fields["reason"] if error.key == "load" else Outcome.failed(error.key, **error.fields).error
    if reward.verifiers:
        return _environment_error(reward.verifiers.environment, str(reason), error.fields.get("needs"), where)
    if reward.function is None:
        return StokerError("STK464", where, kind=reward.kind, reason=reason)
    there = [str(one) for one in error.fields.get("names") or []]
    near = "" if reward.name in there else closest(reward.name, there)
    return StokerError("STK461", where, function=reward.function, reason=reason, nearest=near)


def _environment_error(environment: str, reason: str, needs: Any, where: str) -> StokerError:
    """The error of an environment that cannot be loaded, or that needs what one answer does not give."""
    try:
        reasons = [messages.text(f"reward.needs.{key}", names=[f"`{one}`" for one in names]) for key, names in needs]
        return StokerError("STK476", where, environment=environment, reasons=reasons)
    except (LookupError, TypeError, ValueError):  # there are none, or an environment says what it likes
        python = tools.find(tools.VERIFIERS)
        return StokerError("STK477", where, environment=environment, reason=reason, python=python)


def _problem(sent: Any) -> WorkerError:
    """Why a function as a whole gave nothing, as the worker says it."""
    try:
        Outcome.of({"problem": sent})  # it is a sentence of ours with all its fields
        return WorkerError(**sent)
    except (LookupError, TypeError, ValueError, AttributeError):
        return WorkerError("nonsense")


def _read(reply: dict[str, Any], asked: int, count: int) -> list[Outcome]:
    """The worker's answer, which may be anything."""
    if reply.get("id") != asked:
        raise WorkerError("nonsense")
    if "problem" in reply:
        raise _problem(reply["problem"])
    try:
        found = [Outcome.of(one) for one in reply["outcomes"]]
    except (LookupError, TypeError, ValueError, AttributeError):
        raise WorkerError("nonsense") from None
    if len(found) != count:
        raise WorkerError("nonsense")
    return found
