"""The file of a reward function: read, and looked at without running anything of it. A plan asks, on any machine."""

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path

from stoker import messages
from stoker.config.rewards import Reward
from stoker.errors import StokerError, closest

PLACE = "train.grpo.rewards"
"""Where rewards are in a run file."""
_BY_OTHER_WAYS = ("globals(", "__getattr__", "setattr(")
"""How a module defines names that its text does not show."""


def check(rewards: Sequence[Reward], folder: Path) -> None:
    """Refuse functions whose file cannot be read or does not define them.

    Args:
        rewards: `train.grpo.rewards` of a run file.
        folder: The run file's folder, where files of functions are.
    """
    for number, one in enumerate(rewards):
        if one.function:
            _check(one, folder, f"{PLACE}[{number}]")


def read(reward: Reward, folder: Path, where: str) -> tuple[Path, str]:
    """The file of a function and its text; `where`: the reward in the run file."""
    file = folder / str(reward.file)
    try:
        return file, file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else messages.text("reward.not_text")
        raise StokerError("STK461", where, function=reward.function, reason=f"{file}: {reason}", nearest="") from error


def _check(reward: Reward, folder: Path, where: str) -> None:
    file, source = read(reward, folder, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in patterns
            module = ast.parse(source)
    except (SyntaxError, ValueError):  # the machine that trains may have a newer Python; it loads the function
        return
    if any(name in source for name in _BY_OTHER_WAYS):
        return
    names = _defined(module)
    if reward.name not in names and "*" not in names:
        there = [f"`{one.name}`" for one in module.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        said = "reward.defines_others" if there else "reward.not_defined"
        reason = messages.text(said, file=file, name=reward.name, there=there)
        near = closest(reward.name, sorted(names))
        raise StokerError("STK461", where, function=reward.function, reason=reason, nearest=near)


def _defined(module: ast.Module) -> set[str]:
    """The names that a module's code gives to something, wherever in it; `*` where it imports all of another's."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found
