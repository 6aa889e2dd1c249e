"""What is trained for: which part of the step a micro batch is, and its loss. One class per objective.

Order, micro batches, random streams, the sum of gradients and checkpoints are the same for all (`trainer.py`). What is
made of rows is said in `config/objectives.py`. An entry point of `stoker.objectives` names an object like `Objective`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional

from stoker.config import objectives
from stoker.config.run import Distill, Grpo, Run, Train

REFERENCE = "reference"
"""In the inputs of an objective that needs it: for each row the log-probabilities of its answers before training."""
DESIRED = "desired"
"""In the inputs of an objective over judged answers: for each row, whether its answer is a good one."""
DIVERGENCE = "divergence"
"""In the same inputs: what the rewards of a whole step are measured against (`divergence.py`)."""
ADVANTAGES, SAMPLED, ANSWER_TOKENS = "advantages", "sampled", "answer_tokens"
"""In the inputs of `grpo`: for each row how much better than its group it is, and the log-probabilities that the
sampler gave its tokens; and how many tokens all answers of the step have."""
TEACHER = "teacher"
"""In the inputs of `distill`: the teacher's logits of the trained tokens of all rows, one below the other."""
_IGNORED = -100
_CERTAIN = -1e-6
"""A log-probability above this counts as this: what is certain has no finite odds."""
TokenLoss = Callable[..., torch.Tensor]
"""The Trainer's own: `(model, inputs, num_items_in_batch=N)` is the sum of the losses of trained tokens over N."""


class Loss(NamedTuple):
    """Of one micro batch, over the weight of its step: the sum over a step's micro batches is the step's mean."""

    loss: torch.Tensor
    figures: torch.Tensor | None = None
    """One value for each name in the objective's `figures`."""


class Objective(Protocol):
    """A training objective. The name of an entry point is the name of its objective."""

    trains_all: bool
    pairs: bool
    reference: bool
    labels: bool
    scores: bool
    """As in `config.objectives.ObjectiveFacts`."""
    figures: tuple[str, ...]
    """Names of figures that are recorded at each step and evaluation, besides the loss."""

    def weight(self, rows: int, trained_tokens: int) -> int:
        """What the losses of a step (or of an evaluation) with so many rows and tokens are divided by."""

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:
        """The loss of a micro batch: its share of the step.

        Args:
            model: As it is trained, in any wrapper.
            inputs: The model's arguments, with `labels`: one row of `input_ids` for each segment, those of a pair one
                after the other. With `reference` also that: for each row the values of its segments.
            weight: The step's.
            token_loss: The mean over trained tokens that transformers computes.
        """


class _BuiltIn:
    """What most objectives are not."""

    trains_all = pairs = reference = labels = scores = False
    figures: tuple[str, ...] = ()


class TokenMean(_BuiltIn):
    """`pretrain` and `sft`: the mean loss over trained tokens. They differ in which tokens are."""

    def __init__(self, *, trains_all: bool) -> None:
        self.trains_all = trains_all

    def weight(self, rows: int, trained_tokens: int) -> int:  # noqa: ARG002  # the protocol's
        """Trained tokens."""
        return trained_tokens

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:
        """As transformers computes it: by the model's class, with its fused and smoothed forms."""
        return Loss(token_loss(model, inputs, num_items_in_batch=weight))


class _Pairwise(_BuiltIn):
    """Of two answers to a prompt, the better one shall become the likelier one. A pair counts as one, however long."""

    pairs = True
    figures: tuple[str, ...] = ("accuracy", "margin", "chosen_reward", "rejected_reward")

    def weight(self, rows: int, trained_tokens: int) -> int:  # noqa: ARG002  # the protocol's
        """Pairs."""
        return rows

    @staticmethod
    @torch.no_grad()
    def shown(rewards: torch.Tensor, weight: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """The figures of pairs, from the rewards of both answers of each."""
        margins = rewards[:, 0] - rewards[:, 1]
        return torch.stack([(margins > 0).float(), margins, *rewards.unbind(1), *more]).sum(1) / weight


class DirectPreference(_Pairwise):
    """`dpo`: -log sigmoid of the difference of rewards, which are beta x what an answer's log-probability gained."""

    reference = True
    figures: tuple[str, ...] = (*_Pairwise.figures, "divergence")

    def __init__(self, beta: float) -> None:
        self._beta = beta

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:  # noqa: ARG002
        """Held to `trl.DPOTrainer`, as all of these to TRL's trainers, by `tests/invariant/test_as_trl.py`."""
        known = inputs.pop(REFERENCE)
        log_probs, tokens = answer_log_probs(model, inputs)
        gained = log_probs.view(-1, 2) - known
        rewards = self._beta * gained
        moved = gained.detach().abs().sum(1) / tokens.view(-1, 2).sum(1)
        losses = -functional.logsigmoid(rewards[:, 0] - rewards[:, 1])
        return Loss(losses.sum() / weight, self.shown(rewards, weight, moved))


class SimplePreference(_Pairwise):
    """`simpo`: the same without a reference. A reward is beta x the mean log-probability of an answer's tokens."""

    def __init__(self, beta: float, gamma: float) -> None:
        self._beta, self._gamma = beta, gamma

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:  # noqa: ARG002
        """The better answer's reward shall be larger by gamma."""
        log_probs, tokens = answer_log_probs(model, inputs)
        rewards = self._beta * (log_probs / tokens).view(-1, 2)
        losses = -functional.logsigmoid(rewards[:, 0] - rewards[:, 1] - self._gamma)
        return Loss(losses.sum() / weight, self.shown(rewards, weight))


class OddsRatio(_Pairwise):
    """`orpo`: the loss of the better answer, and that its odds shall exceed the other's; no reference.

    Both parts are means over pairs of means over an answer's tokens, as the paper has them, so that a pair counts as
    one. TRL's `ORPOTrainer` takes the first part over all tokens of a micro batch, prompts included: there a loss
    depends on how a step is cut.
    """

    figures: tuple[str, ...] = (*_Pairwise.figures, "answer_loss")

    def __init__(self, beta: float) -> None:
        self._beta = beta

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:  # noqa: ARG002
        """Odds are p / (1 - p), of the mean log-probability of an answer's tokens."""
        log_probs, tokens = answer_log_probs(model, inputs)
        means = (log_probs / tokens).view(-1, 2)
        certain = means.clamp(max=_CERTAIN)
        odds = certain - torch.log(-torch.expm1(certain))
        losses = -means[:, 0] - self._beta * functional.logsigmoid(odds[:, 0] - odds[:, 1])
        return Loss(losses.sum() / weight, self.shown(self._beta * means, weight, -means[:, 0]))


class RewardModel(_Pairwise):
    """`reward`: a model with one output, which shall be larger for the better answer (Bradley and Terry)."""

    scores = True

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:  # noqa: ARG002
        """The output is the model's own: at the last token that does not pad."""
        rewards = model(**_without_labels(inputs)).logits.float().view(-1, 2)
        losses = -functional.logsigmoid(rewards[:, 0] - rewards[:, 1])
        return Loss(losses.sum() / weight, self.shown(rewards, weight))


class JudgedAnswers(_BuiltIn):
    """`kto`: good answers shall gain more than the divergence of the step, bad ones less; a row is one answer.

    The divergence is what answers gain that belong to other prompts, at least 0. In TRL's `KTOTrainer` it is that of a
    micro batch; here it is that of a step, however that is cut.
    """

    reference = labels = True
    figures: tuple[str, ...] = ("accuracy", "margin", "divergence")

    def __init__(self, beta: float, desirable: float, undesirable: float) -> None:
        self._beta, self._desirable, self._undesirable = beta, desirable, undesirable

    def weight(self, rows: int, trained_tokens: int) -> int:  # noqa: ARG002  # the protocol's
        """Answers."""
        return rows

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:  # noqa: ARG002
        """1 - sigmoid of beta x the distance on the right side of the divergence."""
        known, desired, divergence = (inputs.pop(name) for name in (REFERENCE, DESIRED, DIVERGENCE))
        gained = answer_log_probs(model, inputs)[0] - known[:, 0]
        good = desired[:, 0] > 0
        margins = self._beta * torch.where(good, gained - divergence, divergence - gained)
        losses = torch.where(good, self._desirable, self._undesirable) * (1 - margins.sigmoid())
        with torch.no_grad():
            figures = torch.stack([(margins > 0).float(), margins, divergence.expand_as(margins)]).sum(1) / weight
        return Loss(losses.sum() / weight, figures)


class GroupRelative(_BuiltIn):
    """`grpo`: an answer becomes likelier the more its reward exceeds that of the other answers to its prompt."""

    def __init__(self, options: Grpo) -> None:
        self._options = options
        self.figures = ("gap", *(("divergence",) if options.beta else ()))

    def weight(self, rows: int, trained_tokens: int) -> int:
        """`grpo`: answers. `dapo`: tokens. `dr_grpo`: tokens of as many answers of the longest length."""
        return {"grpo": rows, "dapo": trained_tokens, "dr_grpo": rows * self._options.max_new_tokens}[
            self._options.loss
        ]

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:  # noqa: ARG002
        """Held to `trl.GRPOTrainer` by `tests/invariant/test_grpo.py`."""
        advantages_B, tokens = inputs.pop(ADVANTAGES)[:, None], inputs.pop(ANSWER_TOKENS)  # noqa: N806  # shape suffix
        sampled = inputs.pop(SAMPLED)
        log_probs_BL, is_answer_BL = token_log_probs(model, inputs, self._options.temperature)  # noqa: N806
        sampled_BL = sampled.gather(1, (is_answer_BL.cumsum(1) - 1).clamp(min=0))  # noqa: N806
        # One update for each rollout: the ratio is 1, of which nothing is clipped, and has the gradient.
        before_BL = log_probs_BL.detach()  # noqa: N806
        ratio_BL = torch.exp(log_probs_BL - before_BL)  # noqa: N806
        losses_BL = -ratio_BL * advantages_B  # noqa: N806
        # Where the sampler rounds otherwise than the trainer does, its answers are those of another model.
        losses_BL = losses_BL * torch.exp(before_BL - sampled_BL).clamp(max=self._options.truncate)  # noqa: N806
        shown = [(before_BL - sampled_BL).abs()]
        if self._options.beta:
            away_BL = self._base_log_probs(model, inputs) - log_probs_BL  # noqa: N806
            divergence_BL = (torch.exp(away_BL) - away_BL - 1) * ratio_BL  # noqa: N806
            losses_BL = losses_BL + self._options.beta * divergence_BL  # noqa: N806
            shown.append(divergence_BL.detach())
        summed = (losses_BL * is_answer_BL).sum(1)
        if self._options.loss == "grpo":
            summed = summed / is_answer_BL.sum(1).clamp(min=1)
        with torch.no_grad():
            figures = torch.stack([(one * is_answer_BL).sum() for one in shown]) / tokens
        return Loss(summed.sum() / weight, figures)

    def _base_log_probs(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """What the model without its adapter thinks of the answers."""
        bare = getattr(model, "module", model)
        with torch.no_grad(), bare.disable_adapter():
            return token_log_probs(bare, inputs, self._options.temperature)[0]


class TeacherDivergence(_BuiltIn):
    """`distill`: at each token of its own answers, the student finds likely what its teacher finds likely.

    Shapes: N trained tokens of a micro batch, V words of the vocabulary.
    """

    figures: tuple[str, ...] = ("divergence", "gap")

    def __init__(self, options: Distill) -> None:
        self._options = options

    def weight(self, rows: int, trained_tokens: int) -> int:  # noqa: ARG002  # the protocol's
        """Tokens of answers."""
        return trained_tokens

    def loss(self, model: Any, inputs: dict[str, Any], weight: torch.Tensor, token_loss: TokenLoss) -> Loss:  # noqa: ARG002
        """Held to `trl.DistillationTrainer` by `tests/invariant/test_distill.py`."""
        sampled, teacher, temperature = inputs.pop(SAMPLED), inputs.pop(TEACHER), self._options.temperature
        next_BL = following(inputs["labels"])  # noqa: N806  # shape suffix
        picked_BL = next_BL != _IGNORED  # noqa: N806
        logits = model(**_without_labels(inputs)).logits
        student_NV = (logits[picked_BL].float() / temperature).log_softmax(-1)  # noqa: N806
        teacher_NV = (teacher.float() / temperature).log_softmax(-1)  # noqa: N806
        losses = generalised_divergence(student_NV, teacher_NV, self._options.beta).sum()
        with torch.no_grad():
            known_N = sampled.gather(1, (picked_BL.cumsum(1) - 1).clamp(min=0))[picked_BL]  # noqa: N806
            gap = (student_NV.gather(1, next_BL[picked_BL][:, None])[:, 0] - known_N).abs().sum()
            reverse = losses if self._options.beta == 1 else generalised_divergence(student_NV, teacher_NV, 1).sum()
            figures = torch.stack([reverse, gap]) / weight
        return Loss(losses / weight, figures)


def generalised_divergence(student_NV: torch.Tensor, teacher_NV: torch.Tensor, beta: float) -> torch.Tensor:  # noqa: N803
    """The generalised Jensen-Shannon divergence of each token, of two log-probabilities (arXiv 2306.13649, eq. 1).

    At its ends it is a KL divergence: 0 the forward one, from the teacher; 1 the reverse one, from the student.
    """
    if beta == 0:
        return _from(teacher_NV, student_NV)
    if beta == 1:
        return _from(student_NV, teacher_NV)
    mixed_NV = torch.logaddexp(student_NV + math.log1p(-beta), teacher_NV + math.log(beta))  # noqa: N806
    return beta * _from(teacher_NV, mixed_NV) + (1 - beta) * _from(student_NV, mixed_NV)


def _from(one_NV: torch.Tensor, other_NV: torch.Tensor) -> torch.Tensor:  # noqa: N803  # shape suffix
    """KL(one, other): how many nats more each token costs who expects the other."""
    return functional.kl_div(other_NV, one_NV, reduction="none", log_target=True).sum(-1)


def following(labels_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803  # shape suffix
    """For each position the token that is trained there; so no logit has to be copied."""
    return functional.pad(labels_BL, (0, 1), value=_IGNORED)[:, 1:]


def is_trained(labels_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803  # shape suffix
    """For each position whether the token after it is trained."""
    return following(labels_BL) != _IGNORED


def token_log_probs(model: Any, inputs: dict[str, Any], temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each position: the log-probability of the token that follows it, in fp32, and whether that one is trained."""
    logits = model(**_without_labels(inputs)).logits.float().flatten(0, 1)
    if temperature != 1:
        logits = logits / temperature
    next_BL = following(inputs["labels"])  # noqa: N806  # shape suffix
    losses = functional.cross_entropy(logits, next_BL.flatten(), ignore_index=_IGNORED, reduction="none")
    return -losses.view_as(next_BL), next_BL != _IGNORED


def answer_log_probs(model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row: the log-probability of its trained tokens together, in fp32, and their number."""
    log_probs_BL, is_answer_BL = token_log_probs(model, inputs)  # noqa: N806  # shape suffix
    return log_probs_BL.sum(1), is_answer_BL.sum(1)


def _without_labels(inputs: dict[str, Any]) -> dict[str, Any]:
    """What is given to a model that shall compute no loss."""
    return {name: value for name, value in inputs.items() if name != "labels"}


SFT = TokenMean(trains_all=False)
_NEEDED = (*objectives.DECLARED, "figures", "weight", "loss")
_MADE: dict[str, Callable[[Train], Objective]] = {
    "pretrain": lambda _: TokenMean(trains_all=True),
    "sft": lambda _: SFT,
    "dpo": lambda train: DirectPreference(train.dpo.beta),
    "simpo": lambda train: SimplePreference(train.simpo.beta, train.simpo.gamma),
    "orpo": lambda train: OddsRatio(train.orpo.beta),
    "kto": lambda train: JudgedAnswers(train.kto.beta, train.kto.desirable_weight, train.kto.undesirable_weight),
    "reward": lambda _: RewardModel(),
    "grpo": lambda train: GroupRelative(train.grpo),
    "distill": lambda train: TeacherDivergence(train.distill),
}


def of(run: Run) -> Objective:
    """The objective of a run, with the run file's options."""
    name = run.train.objective
    if name in _MADE:
        return _MADE[name](run.train)
    found: Objective = objectives.load(name, _NEEDED)
    return found
