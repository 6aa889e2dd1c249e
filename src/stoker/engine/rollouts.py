"""The answers that a model is trained on: generated, scored, committed, and made into the micro batches of a step.

For each step, in this order: take what is committed; else generate with the weights as they are, score, and commit.
Then all ranks train on the same answers. Advantages, figures and micro batches follow from what is committed.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.config.run import Distill, Grpo
from stoker.engine import answer_figures, arranged, generate, models, rollout_files, sampler, streaming
from stoker.engine.dataset import ROWS, Arrangement, PreparedSplit, Segment, StepItem, make_item, token_ids
from stoker.engine.objective import ADVANTAGES, ANSWER_TOKENS, SAMPLED
from stoker.engine.opened import Opened
from stoker.engine.rollout_files import Rollout
from stoker.engine.sampler import Generated, Settings
from stoker.engine.vllm_sampler import VllmSampler
from stoker.errors import StokerError
from stoker.rewards import scorer
from stoker.rundir import checkpoints, events

Scorer = Callable[..., list[scorer.Score]]
"""Of `rewards.scorer`: samples and the number of a step in, scores out."""
MeanLoss = Callable[[Iterable[StepItem]], dict[str, float]]
"""The Trainer's own: of items the mean loss and figures."""
_BEAT_SECONDS = 30.0
_LARGEST_GAP = {"fp32": 0.01, "half": 0.1}
"""Mean difference between log-probabilities of the sampler and of training, from which on they are of two models."""


class Rollouts:
    """What generates, scores and commits the answers of a run."""

    def __init__(
        self,
        opened: Opened,
        arrangement: Arrangement,
        model: Any,
        tokenizer: Any,
        score: Scorer | None,
        vllm: VllmSampler | None,
    ) -> None:
        """Prepare for training.

        Args:
            opened: The run.
            arrangement: How answers form micro batches.
            model: As it is trained, not wrapped.
            tokenizer: The run's.
            score: What scores answers; only the first rank has it.
            vllm: What generates them; transformers where it is None.
        """
        self._opened, self._arrangement = opened, arrangement
        self._model, self._tokenizer, self._score, self._vllm = model, tokenizer, score, vllm
        self._options, self._folder = opened.run.train.answers, rollout_files.folder(opened.run_dir)
        self._committed: dict[int, str] = {}
        if opened.ranks.first:
            self._committed = _committed(opened)
            rollout_files.sweep(self._folder)
        self._split = streaming.open_split(opened.run_dir, "train", opened.report.train)
        self._known: dict[str, torch.Tensor] = {}
        self.figures: dict[str, float] = {}
        """Of the newest step's answers."""
        self.beat: Callable[[], None] = lambda: None
        """Called while answers are generated."""
        self._reason = ""
        """Why a reward could not be computed, where one could not."""
        self._scoring_seconds = 0.0
        """Of the newest answers."""
        self._alike = answer_figures.AlikeSteps()

    # ---- a step

    def step(self, item: StepItem) -> StepItem:
        """The answers to a step's prompts, as its micro batches."""
        started = time.perf_counter()
        rollout = self._taken(item)
        made = rollout is None
        if rollout is None:
            rollout = self._generated(item)
        self.figures = self._shown(rollout)
        if made:
            self._commit(item, rollout, time.perf_counter() - started)
        if (said := self._alike.take(self.figures)) and self._opened.ranks.first:
            self._opened.events.write("alike", step=item.step + 1, **said)
        return self._item(item, rollout)

    def told(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a micro batch with what the loss must know of its answers; in a rehearsal nothing is."""
        if ROWS not in inputs:
            return {**inputs, **self._unknown(inputs["labels"])}
        rows = inputs[ROWS][:, 0]
        rest = {name: value for name, value in inputs.items() if name != ROWS}
        return {**rest, **{name: value[rows] if value.dim() else value for name, value in self._known.items()}}

    def _shown(self, rollout: Rollout) -> dict[str, float]:
        """Figures of a step's answers."""
        return answer_figures.of(rollout, self._options.group)

    def _learned(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """What the loss must know of the answers."""
        scale = self._opened.run.train.grpo.scale_rewards
        return {
            ADVANTAGES: answer_figures.advantages(rollout.rewards, self._options.group, scale),
            SAMPLED: side_by_side(rollout.sampled),
            ANSWER_TOKENS: torch.tensor(rollout.tokens),
        }

    def _unknown(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """What stands for it in a rehearsal."""
        zeros = torch.zeros_like(labels, dtype=torch.float32)
        return {ADVANTAGES: zeros[:, 0], SAMPLED: zeros, ANSWER_TOKENS: labels.new_ones(())}

    def _taken(self, item: StepItem) -> Rollout | None:
        """What is committed of a step, on every rank."""
        found = self._read(item) if self._opened.ranks.first else None
        if not any(self._opened.ranks.follow([found is not None])):
            return None
        return self._shared(found, len(item.sequences))

    def _read(self, item: StepItem) -> Rollout | None:
        """The first rank's: what does not verify is put aside."""
        path = rollout_files.find(self._folder, item.step + 1)
        if path is None:
            return None
        found = rollout_files.read(path, self._about(item), self._committed.get(item.step + 1))
        if found is None:
            self._opened.events.write("refused", step=item.step + 1, file=path.name)
            rollout_files.put_aside(path)
        return found

    def _generated(self, item: StepItem) -> Rollout:
        """New answers, scored."""
        seed, group, longest = self._opened.run.train.seed, self._options.group, self._options.max_new_tokens
        self._opened.pulse.mark = "rollout"
        asked = [(row, answer) for row in item.sequences for answer in range(group)]
        drawn = [sampler.draws(seed, item.step, *one, longest) for one in asked]
        prompts = [prompt(self._split, row) for row, _ in asked]
        answers = self._sampled(prompts, np.stack(drawn))
        self._opened.pulse.mark = "reward"
        started = time.perf_counter()
        scores = self._scored(self._split, [row for row, _ in asked], answers, item.step + 1)
        self._scoring_seconds = time.perf_counter() - started
        parts = {name: [one.parts.get(name, math.nan) for one in scores] for name in _names(scores)}
        failed = [one.error is not None for one in scores]
        return rollout_of(item.sequences, answers, [one.value for one in scores], parts, failed)

    def _commit(self, item: StepItem, rollout: Rollout, seconds: float) -> None:
        ranks = self._opened.ranks
        if ranks.first:
            path, digest = rollout_files.write(self._folder, item.step + 1, rollout, self._about(item))
            self._opened.events.write(
                "rollout",
                step=item.step + 1,
                file=path.name,
                digest=digest,
                answers=len(rollout.answers),
                tokens=rollout.tokens,
                seconds=round(seconds, 3),
                **({"scoring_seconds": round(self._scoring_seconds, 3)} if rollout.rewards else {}),
                **({"failed": sum(rollout.failed), "reason": self._reason} if any(rollout.failed) else {}),
            )
            # One that is kept only because it is the best is no place to resume from.
            kept = [one.step for one in checkpoints.committed(self._opened.run_dir.checkpoints)]
            rollout_files.thin_out(self._folder, min(kept[-self._opened.run.save.keep :], default=0))
        ranks.wait()  # nobody trains on what is not committed

    def _item(self, item: StepItem, rollout: Rollout, split: PreparedSplit | None = None) -> StepItem:
        """The step's micro batches: each answer is a row, with its prompt before it; `split`: if not of training."""
        group = self._options.group
        prompts = [prompt(split or self._split, row) for row in rollout.prompts for _ in range(group)]
        rows = _Answers([np.concatenate([~one, answer]) for one, answer in zip(prompts, rollout.answers, strict=True)])
        made = make_item(rows, list(range(len(rows))), self._arrangement, item.step, self._opened.ranks)
        device = next(self._model.parameters()).device
        self._known = {name: value.to(device) for name, value in self._learned(rollout).items()}
        return replace(made, sequences=item.sequences, lengths=[len(row) for row in rows.segments])

    # ---- evaluation

    def evaluate(self, items: Iterable[StepItem], mean_loss: MeanLoss) -> dict[str, float]:  # noqa: ARG002
        """Mean reward of the likeliest answers to held-out prompts; its negative is the loss: less is better."""
        report = self._opened.report.eval
        assert report is not None
        split = streaming.open_split(self._opened.run_dir, "eval", report)
        return _mean_reward(
            ((item.sequences, answers) for item, answers in self._likeliest(split, items)),
            lambda rows, answers: self._scored(split, rows, answers),
        )

    def _likeliest(self, split: PreparedSplit, items: Iterable[StepItem]) -> Iterator[tuple[StepItem, list[Generated]]]:
        """Items and the likeliest answers to them; vLLM is given the weights once, and all prompts together."""
        if self._vllm is None:
            for item in items:
                yield item, self._sampled([prompt(split, row) for row in item.sequences], None)
            return
        known = list(items)
        answers = iter(self._sampled([prompt(split, row) for item in known for row in item.sequences], None))
        for item in known:
            yield item, list(itertools.islice(answers, len(item.sequences)))

    def rehearse(self) -> None:
        """Answers to some prompts, scored: on a card of the longest length and as many at once as there ever are."""
        on_card, batch = self._opened.plan.device == "cuda", self._opened.run.train.batch
        if on_card and self._vllm is None:
            batch = min(
                batch, self._opened.ranks.world * self._at_once(arranged.longest_prompt(self._opened.report), batch)
            )
        rows = list(range(min(len(self._split), batch)))
        settings = replace(self._settings, longest=self._settings.longest if on_card else 1, stops=[])
        prompts = [prompt(self._split, row) for row in rows]
        if on_card:
            prompts = [np.resize(one, arranged.longest_prompt(self._opened.report)) for one in prompts]
        drawn = np.stack([sampler.draws(0, 0, 0, number, settings.longest) for number in range(batch)])
        answers = self._sampled([prompts[number % len(rows)] for number in range(batch)], drawn, settings)
        scores = self._scored(self._split, rows, answers[: len(rows)])
        if all(one.error for one in scores):
            raise StokerError("STK447", reason=self._reason)

    def check(self, step: int, gap: float) -> None:
        """Refuse answers of another model than the one that is trained, such as one with older weights.

        They are put aside with what was generated after they were trained on: the next start makes others.
        """
        limit = _LARGEST_GAP["fp32" if self._opened.plan.precision == "fp32" else "half"]
        if not gap <= limit:  # nor NaN
            if self._opened.ranks.first:
                rollout_files.put_aside_from(self._folder, step)
            raise StokerError("STK448", step=step, gap=f"{gap:.3f}", limit=limit)

    # ---- over ranks

    def _sampled(
        self, prompts: list[np.ndarray], drawn: np.ndarray | None, settings: Settings | None = None
    ) -> list[Generated]:
        """An answer to each prompt, on every rank; each generates its share of them."""
        settings = settings or self._settings
        if self._vllm is not None:
            made = self._vllm.answers(self._model, prompts, drawn, settings, self.beat)
            return self._everyones(made, range(len(made)), len(prompts))
        ranks, plan = self._opened.ranks, self._opened.plan
        own = ranks.ranges(len(prompts))[ranks.rank]
        together = plan.strategy == "fsdp2"
        most = max(map(len, ranks.ranges(len(prompts)))) if together else len(own)
        at_once = self._at_once(max(map(len, prompts)), len(prompts))
        found: list[Generated] = []
        for first in range(0, most, at_once):
            numbers = list(own)[first : first + at_once] or [0]  # all ranks run equally often
            taken = None if drawn is None else drawn[numbers]
            found += self._batch([prompts[n] for n in numbers], taken, settings, together=together)
        return self._everyones(found[: len(own)], own, len(prompts))

    def _batch(
        self, prompts: list[np.ndarray], drawn: np.ndarray | None, settings: Settings, *, together: bool
    ) -> list[Generated]:
        with self._opened.autocast():
            return sampler.generate(self._model, prompts, drawn, settings, self.beat, together=together)

    def _at_once(self, longest: int, count: int) -> int:
        """Answers that a rank generates together, of so many in all, to prompts of at most this length."""
        planned = self._opened.plan.generating
        if planned is None:  # by an older version, which counted no room
            return 1
        most = max(map(len, self._opened.ranks.ranges(count)))
        return max(1, min(most, planned.room_bytes // planned.answer.at_most(longest, self._options.max_new_tokens)))

    @functools.cached_property
    def _settings(self) -> Settings:
        return settings(self._options, self._model, self._tokenizer)

    def _everyones(self, own: list[Generated], places: range, count: int) -> list[Generated]:
        ranks, longest = self._opened.ranks, self._options.max_new_tokens
        tokens = torch.zeros(count, longest + 2, dtype=torch.int64)
        log_probs = torch.zeros(count, longest)
        for place, one in zip(places, own, strict=True):
            tokens[place, : len(one.tokens)] = torch.from_numpy(one.tokens.astype(np.int64))
            tokens[place, -2:] = torch.tensor([len(one.tokens), int(one.ended)])
            log_probs[place, : len(one.tokens)] = torch.from_numpy(one.log_probs)
        tokens, log_probs = ranks.gather(tokens), ranks.gather(log_probs)
        rows = zip(tokens.numpy(), log_probs.numpy(), strict=True)
        return [
            Generated(row[: row[-2]].astype(np.int32), values[: row[-2]].copy(), ended=bool(row[-1]))
            for row, values in rows
        ]

    def _scored(
        self, split: PreparedSplit, rows: list[int], answers: list[Generated], step: int = 0
    ) -> list[scorer.Score]:
        """What the answers are worth, on every rank; the first one scores."""
        scores: list[scorer.Score] = []
        if self._score is not None:
            with _beating(self.beat):
                scores = self._score(_samples(split, rows, answers, self._tokenizer), step)
        said = self._opened.ranks.hear(json.dumps([[one.value, one.parts, one.error] for one in scores]))
        found = [scorer.Score(*one) for one in json.loads(said)]
        self._reason = next((one.error for one in found if one.error), "")
        return found

    def _shared(self, rollout: Rollout | None, prompts: int) -> Rollout:
        """The first rank's answers on every rank."""
        ranks = self._opened.ranks
        count = prompts * self._options.group
        own = (
            [Generated(*one) for one in zip(rollout.answers, rollout.sampled, rollout.ended, strict=True)]
            if rollout
            else []
        )
        answers = self._everyones(own, range(len(own)), count)
        told = [rollout.prompts, rollout.rewards, rollout.parts, rollout.failed] if rollout else []
        said = json.loads(ranks.hear(json.dumps(told)))
        return rollout_of(said[0], answers, *said[1:])

    def _about(self, item: StepItem) -> dict[str, Any]:
        """What the answers of a step and their rewards follow from, but for the weights and rounding."""
        return {**self._origin, "step": item.step + 1, "rows": item.sequences}

    @functools.cached_property
    def _origin(self) -> dict[str, Any]:
        """The same for every step."""
        words, known = self._opened.words, self._opened.fingerprint
        return {
            "format": rollout_files.FORMAT,
            "data": self._opened.report.digest,
            "words": hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest(),
            **{name: known.get(name, "") for name in ("base", "teacher", "rewards")},
        }


@contextlib.contextmanager
def scoring(opened: Opened) -> Iterator[Scorer | None]:
    """What scores answers, on the first rank."""
    rewards = opened.run.train.grpo.rewards
    if not opened.ranks.first or rewards is None:
        yield None
        return
    with scorer.opened(rewards, opened.run_dir.folder()) as score:
        opened.events.write("rewards", rewards=score.to_json(), digest=opened.fingerprint.get("rewards", ""))
        yield score


def measure(
    options: Grpo, folder: Path, model: Any, tokenizer: Any, split: PreparedSplit, at_once: int
) -> dict[str, float]:
    """The same as `Rollouts.evaluate`, of a finished model."""
    how = settings(options, model, tokenizer)

    def answered() -> Iterator[tuple[list[int], list[Generated]]]:
        for first in range(0, len(split), at_once):
            rows = list(range(len(split))[first : first + at_once])
            prompts = [prompt(split, row) for row in rows]
            yield rows, sampler.generate(model, prompts, None, how, lambda: None, together=False)

    with scorer.opened(options.rewards or [], folder) as score:
        return _mean_reward(answered(), lambda rows, answers: score(_samples(split, rows, answers, tokenizer)))


def settings(options: Grpo | Distill, model: Any, tokenizer: Any) -> Settings:
    """How answers are generated: ended by the stop tokens that the finished model will have."""
    stops = generate.end_ids(models.without_adapter(model).generation_config, tokenizer)
    pad = tokenizer.pad_token_id
    return Settings(
        longest=options.max_new_tokens,
        temperature=options.temperature,
        stops=stops,
        pad=(stops or [0])[0] if pad is None else pad,
    )


def _mean_reward(
    answered: Iterable[tuple[list[int], list[Generated]]],
    scored: Callable[[list[int], list[Generated]], list[scorer.Score]],
) -> dict[str, float]:
    """Of rows and the answers to them, batch by batch; where a reward failed its fallback counts, as in training.

    Raises:
        StokerError: not one could be computed: fallbacks alone are no measure of a model.
    """
    scores: list[scorer.Score] = []
    answers: list[Generated] = []
    for rows, made in answered:
        scores += scored(rows, made)
        answers += made
    errors = [one.error for one in scores if one.error]
    if errors and len(errors) == len(scores):
        raise StokerError("STK447", reason=errors[0])
    reward = float(np.mean([one.value for one in scores]))
    return {
        "loss": -reward,
        "reward": reward,
        **({"failed": len(errors) / len(scores)} if errors else {}),
        **answer_figures.lengths([one.tokens for one in answers], [one.ended for one in answers]),
    }


def rollout_of(
    prompts: list[int],
    answers: list[Generated],
    rewards: Sequence[float] = (),
    parts: Mapping[str, list[float]] | None = None,
    failed: Sequence[bool] = (),
) -> Rollout:
    """Answers as they are committed."""
    return Rollout(
        prompts=list(prompts),
        answers=[one.tokens for one in answers],
        sampled=[one.log_probs for one in answers],
        ended=[one.ended for one in answers],
        rewards=list(rewards),
        parts=dict(parts or {}),
        failed=list(failed),
    )


def _samples(split: PreparedSplit, rows: list[int], answers: list[Generated], tokenizer: Any) -> list[scorer.Sample]:
    """Answers as text, with what their rows have."""
    texts = tokenizer.batch_decode([one.tokens for one in answers], skip_special_tokens=True)
    known = [split.columns(row) for row in rows]
    return [
        scorer.Sample(one["prompt"], text, one["row"], answer.tokens.tolist())
        for one, text, answer in zip(known, texts, answers, strict=True)
    ]


@contextlib.contextmanager
def _beating(beat: Callable[[], None]) -> Iterator[None]:
    """A reward has a time limit of its own, which may be longer than a training may be silent."""
    done = threading.Event()

    def go_on() -> None:
        while not done.wait(_BEAT_SECONDS):
            beat()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _committed(opened: Opened) -> dict[int, str]:
    """The digest of each step's answers by the events; the newest counts."""
    found = (event for event in events.skim(opened.run_dir.events_file) if event["event"] == "rollout")
    return {event["step"]: event["digest"] for event in found}


def prompt(split: PreparedSplit, row: int) -> np.ndarray:
    """The tokens of a row that asks."""
    return token_ids(split.row(row)[0])


class _Answers(PreparedSplit):
    """Answers as the rows of a split."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = [segment.astype(np.int32) for segment in segments]

    def __len__(self) -> int:
        return len(self.segments)

    def row(self, index: int) -> list[Segment]:
        return [self.segments[index]]

    def trained_tokens(self, index: int) -> int:
        return int((self.segments[index] >= 0).sum())


def side_by_side(values: list[np.ndarray]) -> torch.Tensor:
    """Values of each answer's tokens, one answer below the other."""
    table = torch.zeros(len(values), max(map(len, values)))
    for row, one in zip(table, values, strict=True):
        row[: len(one)] = torch.from_numpy(np.array(one))
    return table


def _names(scores: list[scorer.Score]) -> list[str]:
    """Of all parts, in order."""
    return list(dict.fromkeys(name for one in scores for name in one.parts))
