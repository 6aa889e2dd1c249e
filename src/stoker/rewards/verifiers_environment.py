"""An environment of `verifiers`, as a reward. The worker loads this file in that package's own environment.

What `vf-replay` does with the records of a run: a task from the columns of a row, a trace from a completion, and the
task's own `score`. There is no client, no runtime and no harness, so an environment that needs one is refused.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.state import state_cls
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.loaders import taskset_class

Need = tuple[str, list[str]]
"""The key of the sentence that says what an environment needs, and the names in it."""
_NO_HARNESS = "bash"
"""What verifiers runs where a package brings no harness."""


class NeedsMoreError(Exception):
    """An environment that cannot score an answer by itself."""

    def __init__(self, needs: list[Need]) -> None:
        super().__init__(str(needs))
        self.needs = needs


class Environment:
    """Scores one completion after the other."""

    def __init__(self, environment: str, args: dict[str, Any]) -> None:
        try:
            self._config = vf.taskset_config_type(environment).model_validate({**args, "id": environment})
        except ValidationError as error:
            raise _short(error) from None
        self._task_class = taskset_class(environment).task_type()
        needs = list(_needs(environment, self._config, self._task_class))
        if needs:
            raise NeedsMoreError(needs)

    def __call__(self, sample: dict[str, Any]) -> float:
        """The weighted sum of the task's rewards, as verifiers adds them."""
        task = self._task_class(self._data(sample), self._config.task)
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            nodes=_nodes(sample),
            is_completed=True,
            ok=True,
        )
        asyncio.run(task.score(trace))
        reward: float = trace.reward
        return reward

    def _data(self, sample: dict[str, Any]) -> Any:
        """The row's columns by their names, and what was asked; `system` is Stoker's name of `system_prompt`."""
        row = {name: value for name, value in sample["row"].items() if value is not None}
        given = {"system_prompt": row.pop("system", None), **row, "prompt": sample["prompt"]}
        try:
            return self._task_class.data_type().model_validate(given)
        except ValidationError as error:
            raise _short(error) from None


def _nodes(sample: dict[str, Any]) -> list[Any]:
    """What the model was given and what it said, as a chain of messages."""
    prompt, system = sample["prompt"], sample["row"].get("system")
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    messages = [*messages, {"role": "assistant", "content": sample["completion"]}]
    last = len(messages) - 1
    return [
        vf.MessageNode(parent=place - 1 if place else None, message=message, sampled=place == last)
        for place, message in enumerate(messages)
    ]


def _needs(environment: str, config: Any, task_class: Any) -> Iterator[Need]:
    """What one answer to one prompt does not give."""
    episodes = vf.environment_class(environment)
    if episodes is not vf.SingleAgentEnv:
        yield "episode", [episodes.__name__]
    if vf.default_harness_id(environment) != _NO_HARNESS:
        yield "harness", []
    tools = [*taskset_class(environment).toolsets(config), *task_class.toolsets(config.task)]
    if tools:
        yield "tools", [type(one).__name__ for one in tools]
    task = task_class(task_class.data_type().model_construct(), config.task)
    signals = [*task.hooks("metric"), *task.hooks("reward")]
    own = [name for name in ("setup", "finalize") if getattr(task_class, name) is not getattr(vf.Task, name)]
    runtime = [one.__name__ for one in signals if _needs_runtime(one)] + own
    if runtime or task_class.NEEDS_CONTAINER:
        yield "runtime", runtime or [task_class.__name__]
    if config.task.judges:
        yield "judges", [one.id for one in config.task.judges]
    turns = [*task.hooks("stop"), *discover_decorated(task, "intercept")]
    if turns:
        yield "turns", [one.__name__ for one in turns]
    if not task.hooks("reward"):
        yield "reward", [task_class.__name__]


def _needs_runtime(signal: Callable[..., Any]) -> bool:
    """Whether `score` leaves it out where there is no runtime."""
    asked = inspect.signature(signal).parameters.get("runtime")
    return asked is not None and asked.default is inspect.Parameter.empty


def _short(error: ValidationError) -> ValueError:
    """What is wrong, in one line."""
    wrong = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return ValueError(f"{error.title}: {'; '.join(wrong)}")
