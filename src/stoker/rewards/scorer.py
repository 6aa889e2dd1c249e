"""The rewards of a run file, opened for a training: batches of completions in, one score for each out.

with scorer.opened(rewards, folder) as score:
    scores = score([Sample(prompt, completion, row), ...])
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker import tools
from stoker.config.rewards import OWN_CODE, Reward
from stoker.errors import StokerError
from stoker.rewards import sandbox, verifiers_package
from stoker.rewards.code_reward import CodeReward
from stoker.rewards.function_file import PLACE
from stoker.rewards.outcomes import Outcome, Sample
from stoker.rewards.worker_reward import WorkerReward

__all__ = ["Sample", "Score", "Scorer", "opened"]

FAILURES_IN_A_ROW = 3
"""So many batches without a single value from a reward, and the training stops."""
_SHOWN = 60


@dataclass(frozen=True)
class Score:
    """How good a completion is."""

    value: float
    """The weighted sum of the rewards."""
    parts: dict[str, float]
    """Each reward before its weight; without those that do not apply to the row."""
    error: str | None = None
    """Which reward could not be computed and why; its fallback is in `value` and `parts`. It is the same text on all
    samples of a batch that failed as a whole: say it once."""


class _OpenReward(Protocol):
    def outcomes(self, batch: Sequence[Sample], step: int) -> list[Outcome]: ...

    @property
    def printed(self) -> str: ...

    def close(self) -> None: ...


class Scorer:
    """All rewards of a run, open."""

    def __init__(self, rewards: Sequence[Reward], open_rewards: Sequence[_OpenReward]) -> None:
        self._rewards = dict(zip(names(rewards), zip(rewards, open_rewards, strict=True), strict=True))
        self._failures = dict.fromkeys(self._rewards, 0)

    def __call__(self, batch: Sequence[Sample], step: int = 0) -> list[Score]:
        """Score completions.

        Args:
            batch: The samples, which a function gets all at once.
            step: The training's step, for functions that ask for it.

        Raises:
            StokerError: a reward failed for `FAILURES_IN_A_ROW` batches.
        """
        if not batch:
            return []
        found = {name: self._outcomes(name, batch, step) for name in self._rewards}
        return [self._score({name: one[place] for name, one in found.items()}) for place in range(len(batch))]

    def to_json(self) -> list[dict[str, Any]]:
        """What is computed where, for the events of a run."""
        return [
            {
                "name": name,
                "kind": reward.kind,
                "weight": reward.weight,
                "isolation": reward.isolation if reward.kind in OWN_CODE else None,
            }
            for name, (reward, _) in self._rewards.items()
        ]

    @property
    def printed(self) -> dict[str, str]:
        """The end of what functions printed, by name, where there is any."""
        said = {name: one.printed for name, (_, one) in self._rewards.items()}
        return {name: text for name, text in said.items() if text}

    def _outcomes(self, name: str, batch: Sequence[Sample], step: int) -> list[Outcome]:
        _, computed = self._rewards[name]
        found = computed.outcomes(batch, step)
        self._failures[name] = self._failures[name] + 1 if all(one.error for one in found) else 0
        if self._failures[name] >= FAILURES_IN_A_ROW:
            row, reason = _first_failure(computed, batch, found, step)
            raise StokerError("STK462", PLACE, reward=name, count=self._failures[name], row=row, reason=reason)
        return found

    def _score(self, outcomes: dict[str, Outcome]) -> Score:
        parts: dict[str, float] = {}
        for name, one in outcomes.items():
            value = self._rewards[name][0].fallback if one.error else one.value
            if value is not None:
                parts[name] = value
        total = sum(self._rewards[name][0].weight * value for name, value in parts.items())
        errors = [f"{name}: {one.error}" for name, one in outcomes.items() if one.error]
        return Score(float(total), parts, "; ".join(errors) or None)


@contextmanager
def opened(rewards: Sequence[Reward], folder: Path) -> Iterator[Scorer]:
    """Start what computes the rewards; it has ended when this does.

    To be opened by a thread that lives as long: the sandbox ends with the thread that started it.

    Args:
        rewards: `train.grpo.rewards` of a run file.
        folder: The run file's folder, where files of functions are.

    Raises:
        StokerError: no sandbox on this machine for a reward that needs one, or a function that cannot be loaded.
    """
    places = [f"{PLACE}[{number}]" for number in range(len(rewards))]
    isolated = [where for one, where in zip(rewards, places, strict=True) if _is_isolated(one)]
    if isolated and (why := sandbox.trial()):
        raise StokerError("STK460", isolated[0], reason=why)
    with ExitStack() as stack:
        started: list[_OpenReward] = []
        for one, where in zip(rewards, places, strict=True):
            started.append(CodeReward(one) if one.kind == "code" else WorkerReward(one, folder, where))
            stack.callback(started[-1].close)
        yield Scorer(rewards, started)


def _is_isolated(reward: Reward) -> bool:
    return reward.kind in OWN_CODE and reward.isolation == "sandbox"


def files_digest(rewards: Sequence[Reward], folder: Path) -> str:
    """Of files of functions and environments, for a fingerprint: another text is another reward. Empty without any.

    Raises:
        StokerError: the tool that an environment needs is not installed: what it has is not known.
    """
    found = sorted({one.file for one in rewards if one.file})
    texts = [path.read_bytes() for name in found if (path := folder / name).is_file()]
    for place, one in enumerate(rewards):
        if one.verifiers:
            tools.require(tools.VERIFIERS, f"{PLACE}[{place}]")
    for environment in sorted({one.verifiers.environment for one in rewards if one.verifiers}):
        texts += [b"", *verifiers_package.contents(environment)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest() if texts else ""


def packages_digest(rewards: Sequence[Reward]) -> str:
    """Of the versions beside the environments; empty without any."""
    found = verifiers_package.versions() if any(one.verifiers for one in rewards) else []
    return hashlib.sha256("\0".join(found).encode()).hexdigest() if found else ""


def names(rewards: Sequence[Reward]) -> list[str]:
    """What each is called: a function by its name, the others by their kind; the second of a name has a number."""
    found: list[str] = []
    for one in rewards:
        numbered = (f"{one.name}_{number}" for number in itertools.count(2))
        found.append(next(name for name in itertools.chain([one.name], numbered) if name not in found))
    return found


def _first_failure(
    computed: _OpenReward, batch: Sequence[Sample], found: Sequence[Outcome], step: int
) -> tuple[str, str]:
    """The first sample that fails by itself; where none does, the first of the batch that failed together."""
    for sample in batch:
        [alone] = computed.outcomes([sample], step)
        if alone.error:
            return _shown(sample), alone.error
    return _shown(batch[0]), str(found[0].error)


def _shown(sample: Sample) -> str:
    """The beginning of a prompt, by which its row is found."""
    text = sample.prompt if isinstance(sample.prompt, str) else str(sample.prompt[-1].get("content", ""))
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
