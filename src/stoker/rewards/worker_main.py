"""The worker: a program that computes one reward for batches of completions, in a process of its own.

Lines of JSON come by its standard input and go by its standard output, which are moved out of the way first: what a
function prints goes to stderr. Standard library only, in one file, so that a sandbox needs nothing else of ours.
"""

import asyncio
import contextlib
import ctypes
import functools
import importlib
import inspect
import json
import linecache
import math
import os
import re
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Sample = dict[str, Any]
"""`prompt`, `completion` and `row`; of some `completion_ids`."""
Problem = dict[str, Any]
"""Why there is no value: `key` of the sentence that says so, and its fields."""
Outcome = dict[str, Any]
"""`value`: a number, or None where the reward does not apply; or `problem`."""

_LONGEST_REASON = 300
_LONGEST_VALUE = 60
LARGEST = 1e15
"""Rewards are compared by their standard deviation in fp32."""
_SET_DEATH_SIGNAL = 1
"""Linux' `prctl`: the signal when the parent ends."""


class BadResultError(Exception):
    """What came back is no list of so many values."""

    def __init__(self, key: str, **fields: Any) -> None:
        super().__init__(key)
        self.problem: Problem = {"key": key, **fields}


class TookTooLongError(BaseException):
    """One completion took longer than it may; no `Exception`, which an environment's library would make its own."""


# ---- built-in rewards: a completion and what the row says about it


def exact(options: dict[str, Any], completion: str, wanted: Any) -> float:
    """Whether the answer equals the column's value."""
    answer = completion
    if options["pattern"]:
        found = None
        for found in re.finditer(options["pattern"], completion):  # noqa: B007  # the last one
            pass
        if found is None:
            return 0.0
        answer = (found[1] if found.re.groups else found[0]) or ""
    return float(answer.strip() == _text(wanted).strip())


def regex(options: dict[str, Any], completion: str, _: Any) -> float:
    """Whether the pattern is found."""
    return float(re.search(options["pattern"], completion) is not None)


def valid_json(options: dict[str, Any], completion: str, wanted: Any) -> float:
    """Whether the completion, or the last block of code in it, is JSON that fits the schema."""
    try:
        value = json.loads(last_block(completion))
    except (ValueError, RecursionError):
        return 0.0
    schema = options["fits"] if options["column"] is None else wanted
    if schema is None:
        return 1.0
    fits: bool = _validator(json.loads(schema) if isinstance(schema, str) else schema).is_valid(value)
    return float(fits)


def length(options: dict[str, Any], completion: str, _: Any) -> float:
    """1 at the target, falling evenly to 0 at none and at twice as much."""
    beyond = max(0, abs(len(completion) - options["target"]) - options["within"])
    slope = options["target"] - options["within"]
    return max(0.0, 1.0 - float(beyond) / float(slope if slope > 0 else options["target"]))


BUILT_IN: dict[str, Callable[[dict[str, Any], str, Any], float]] = {
    "exact": exact,
    "regex": regex,
    "valid_json": valid_json,
    "length": length,
}


def last_block(completion: str) -> str:
    """What stands in the last fenced block of a text; the whole text where there is none."""
    blocks = re.findall(r"^```[^\n`]*\n(.*?)^```", completion, re.M | re.S)
    return blocks[-1] if blocks else completion


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _validator(schema: Any) -> Any:
    """Of jsonschema; nothing is fetched that a schema refers to."""
    jsonschema, referencing = importlib.import_module("jsonschema"), importlib.import_module("referencing")
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema, registry=referencing.Registry())


def score_each(setup: dict[str, Any], samples: list[Sample]) -> Iterator[Outcome]:
    """A built-in reward, completion by completion, each within the time it may take."""
    kind, options = BUILT_IN[setup["kind"]], setup["options"]
    column, seconds = options.get("column"), setup["seconds"]
    for sample in samples:
        wanted = sample["row"].get(column) if column is not None else None
        if column is not None and wanted is None:
            yield {"problem": {"key": "column", "column": column}}
            continue
        yield timed(functools.partial(kind, options, sample["completion"], wanted), seconds)


def timed(compute: Callable[[], float], seconds: float) -> Outcome:
    """The reward of one completion, or why there is none."""
    try:
        with within(seconds):
            return outcome(compute())
    except TookTooLongError:
        return {"problem": {"key": "slow", "seconds": seconds}}
    except BaseException as error:  # noqa: BLE001  # also SystemExit, CancelledError: the next completion is scored
        return {"problem": {"key": "raised", "reason": reason(error)}}


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer; a regular expression is interrupted as well. Not on Windows."""

    def stop(*_: Any) -> None:
        raise TookTooLongError

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- the user's own function


def load(file: str, source: str, name: str) -> Callable[..., Any]:
    """The function of this name in the file, whose text is given: the file itself may be out of reach."""
    module = types.ModuleType(Path(file).stem)
    module.__file__ = file
    sys.modules.setdefault(module.__name__, module)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))  # noqa: S102  # the user's own, which is the point
    function: Callable[..., Any] = getattr(module, name)
    return function


def call(function: Callable[..., Any], samples: list[Sample], step: int) -> list[Outcome]:
    """Call a function as TRL calls reward functions: lists by keyword, a list of numbers back."""
    completions = [
        [{"role": "assistant", "content": one["completion"]}] if isinstance(one["prompt"], list) else one["completion"]
        for one in samples
    ]
    given: dict[str, Any] = {"prompts": [one["prompt"] for one in samples], "completions": completions}
    if all(one.get("completion_ids") is not None for one in samples):
        given["completion_ids"] = [one["completion_ids"] for one in samples]
    names = dict.fromkeys(name for one in samples for name in one["row"])
    columns = {name: [one["row"].get(name) for one in samples] for name in names if name not in _NOT_COLUMNS}
    answer = function(
        **given, **columns, trainer_state=types.SimpleNamespace(global_step=step), log_extra=_drop, log_metric=_drop
    )
    values = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    return [outcome(value) for value in listed(values, len(samples))]


_NOT_COLUMNS = {
    "prompt",
    "completion",
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
}


def _drop(*_: Any, **__: Any) -> None:
    """In place of TRL's loggers."""


def listed(values: Any, count: int) -> Sequence[Any]:
    """What a function returned, as so many values."""
    if isinstance(values, str | bytes | dict) or not hasattr(values, "__iter__"):
        raise BadResultError("no_list", given=type(values).__name__)
    found = list(values)
    if len(found) != count:
        raise BadResultError("count", found=len(found), wanted=count)
    return found


def outcome(value: Any) -> Outcome:
    """One value: a number that the square of is one in fp32, or None."""
    if value is None:
        return {"value": None}
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if abs(number) <= LARGEST:
        return {"value": number}
    return {"problem": {"key": "no_number", "given": repr(value)[:_LONGEST_VALUE]}}


def reason(error: BaseException, file: str | None = None) -> str:
    """An exception in one line, with the line of the user's file where it came from."""
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else lines[-1] if lines else None
    said = traceback.format_exception_only(error)[-1].strip()
    place = f"{Path(file).name}:{line}: " if file and line else ""
    return (place + said)[:_LONGEST_REASON]


# ---- the conversation


def main() -> None:
    """Read what the reward is, then batches until the input ends."""
    incoming, outgoing = _own_channel()
    _end_with_parent()
    setup = json.loads(incoming.readline())
    try:
        function = _opened(setup)
    except BaseException as error:  # noqa: BLE001  # also SystemExit: it is the user's file
        needs = getattr(error, "needs", None)
        _answer(outgoing, {"failed": reason(error, setup.get("file")), "names": _names(setup), "needs": needs})
        return
    _answer(outgoing, {"ready": True})
    ours = os.getpid()
    for line in incoming:
        asked = json.loads(line)
        reply = _scored(setup, function, asked)
        if os.getpid() != ours:  # a child that the function forked came back here
            os._exit(0)
        with contextlib.suppress(OSError, ValueError):  # a function may have closed them
            sys.stdout.flush()
            sys.stderr.flush()
        _answer(outgoing, {"id": asked["id"], **reply})


def _opened(setup: dict[str, Any]) -> Callable[..., Any] | None:
    """The user's function, or what an environment scores one completion by; a built-in reward needs none."""
    if setup["kind"] == "verifiers":
        opened: Callable[..., Any] = load(setup["program"], setup["source"], setup["name"])(**setup["options"])
        return opened
    if setup["kind"] == "function":
        return load(setup["file"], setup["source"], setup["name"])
    if setup["options"].get("fits") is not None:
        _validator(setup["options"]["fits"])
    return None


def _scored(setup: dict[str, Any], function: Callable[..., Any] | None, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        if function is None:
            return {"outcomes": list(score_each(setup, asked["samples"]))}
        if setup["kind"] == "verifiers":
            each = (functools.partial(function, sample) for sample in asked["samples"])
            return {"outcomes": [timed(one, setup["seconds"]) for one in each]}
        return {"outcomes": call(function, asked["samples"], asked["step"])}
    except BadResultError as error:
        return {"problem": error.problem}
    except BaseException as error:  # noqa: BLE001  # also SystemExit and KeyboardInterrupt of a function
        return {"problem": {"key": "raised", "reason": reason(error, setup.get("file"))}}


def _names(setup: dict[str, Any]) -> list[str]:
    """What the file defines, where the function itself is not found."""
    return re.findall(r"^(?:async )?def +(\w+)", setup.get("source", ""), re.M)


def _own_channel() -> tuple[Any, Any]:
    """The pipes of the conversation, out of reach of `print` and `input`."""
    incoming = os.fdopen(os.dup(0), "r", encoding="utf-8")
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return incoming, outgoing


def _answer(outgoing: Any, what: dict[str, Any]) -> None:
    outgoing.write(json.dumps(what) + "\n")
    outgoing.flush()


def _end_with_parent() -> None:
    """A function that hangs does not outlive the training; and if memory ends, it is killed before the training."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


if __name__ == "__main__":
    main()
