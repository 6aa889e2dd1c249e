"""Everything Stoker overrides of `transformers.Trainer`, in one file (ADR 0006; tested floor: transformers 5.22).

The Trainer's loop is kept. It sees one item per optimizer step, so its own accumulation and skipping do nothing:
    _build_accelerator_args         autocast without its cache, which holds all weights in 16 bits
    get_train_dataloader            steps from the resumed one on (O(1) seek)
    get_batch_samples               one step at a time, and how long the loop waited for it
    training_step                   the step's micro batches: keyed RNG, canonical gradient sum, full-precision loss
    _prepare_for_training           sharding after the weights are loaded; the planned strategy is required
    _clip_grad_norm                 one norm in the order of the parameters
    _get_grad_norm                  the same norm where nothing is clipped
    evaluate                        mean loss of the whole split; interrupted by a stop
    log                             a logger's full disk does not end the training; log history is cleared
    _save_checkpoint                committed checkpoints in our format, without callback states: ours have none
    _load_optimizer_and_scheduler   loads them, with scaler and RNG
`tests/engine/test_trainer_contract.py` checks these names and signatures against the installed version. What is trained
for is `objective.py`'s: TRL's trainers bring loaders and steps of their own, and do not take this seam.
"""

import copy
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import AutocastKwargs
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState, TrainingArguments

from stoker.engine import (
    checkpoint,
    divergence,
    exact,
    fsdp,
    guard,
    models,
    paged,
    parallel,
    read_ahead,
    reading,
    reference,
    shares,
    tokenizer,
    zero,
)
from stoker.engine.dataset import FromStep, MicroBatch, StepItem, Steps, single
from stoker.engine.evaluate import Means, means
from stoker.engine.known_rows import KnownRows
from stoker.engine.mixed_order import Seen
from stoker.engine.objective import Loss
from stoker.engine.parallel import Ranks
from stoker.engine.pulse import Pulse
from stoker.engine.rollouts import Rollouts
from stoker.engine.saving import Copied
from stoker.engine.writers import Writers
from stoker.plan.plan import Plan


class Interrupted(Exception):
    """A stop came before the first step, or in an evaluation, which is repeated after the resume."""


def heed_stop(ranks: Ranks, asked_to_stop: Callable[[], bool]) -> None:
    """Raise `Interrupted` if any rank is asked to stop; for where no step is on its way."""
    if any(ranks.anyone([asked_to_stop()])):
        raise Interrupted


if TYPE_CHECKING:
    _Seam = Trainer
else:
    _Seam = object


class ExactSteps(_Seam):  # type: ignore[valid-type, misc]  # a Trainer to the type checker, a mixin when it runs
    """The seam: mixed in before a `Trainer` class."""

    control: Any

    def __init__(
        self,
        *args: Any,
        steps: Steps,
        start_step: int,
        eval_items: Sequence[StepItem],
        commit: Callable[[], None],
        asked_to_stop: Callable[[], bool],
        plan: Plan,
        ranks: Ranks,
        **kwargs: Any,
    ) -> None:
        """Extend the Trainer's arguments by what it must not decide itself.

        Args:
            args: The Trainer's.
            steps: All steps of the run.
            start_step: The step to resume from.
            eval_items: The eval split, whole items in order; empty without one.
            commit: Commits a checkpoint of the step that ended.
            asked_to_stop: Whether a stop was requested.
            plan: The run's plan.
            ranks: This process among all that train.
            kwargs: The Trainer's.
        """
        super().__init__(*args, train_dataset=steps, data_collator=single, **kwargs)
        if self.label_smoother is not None:  # it would not shift where it does not know the model's class by its name
            self.compute_loss_func = functools.partial(self.label_smoother, shift_labels=True)
        self._pad_id = self.model.config.get_text_config().pad_token_id
        # The Trainer's flag for a model that is sharded already: accelerate must not wrap it.
        self.is_distributed_loading_by_transformers = plan.strategy == "fsdp2"
        self._steps, self._start_step = steps, start_step
        self._plan, self._ranks, self.objective = plan, ranks, steps.objective
        self._rows = KnownRows(self.model, plan.attention, compiled=self.args.torch_compile)
        self._reduction: exact.CanonicalReduceScatter | None = None
        self._eval_items, self._commit, self._asked_to_stop = eval_items, commit, asked_to_stop
        self.reference: dict[str, torch.Tensor] = {}
        """What the objective must know of the rows of each split, where it must."""
        self.divergence = torch.zeros((), device=self.args.device)
        """What it must know of the rows of a step, or of all eval rows."""
        self.rollouts: Rollouts | None = None
        """What generates the answers of a step, where the objective trains on those."""
        self.due: list[str] = []
        """What a stop postponed at this step."""
        self.tokens = 0
        """Tokens seen so far."""
        self.seen = Seen(steps.order)
        self.passed_over: frozenset[int] = frozenset()
        """Steps without an update, by number from 1."""
        self.heartbeat, self.pulse = guard.Heartbeat(None), Pulse()
        self.last_item: StepItem | None = None
        self.last_losses: torch.Tensor | None = None
        self.last_figures: torch.Tensor | None = None
        self.last_norm: torch.Tensor | None = None
        self.wait_seconds = 0.0

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """Autocast keeps no copies of weights: with checkpointing or shards, they would be the whole model."""
        found = super()._build_accelerator_args(**kwargs)
        return {**found, "kwargs_handlers": [*found["kwargs_handlers"], AutocastKwargs(cache_enabled=False)]}

    # ---- data

    def get_train_dataloader(self) -> Any:
        """Whole steps from the resumed one on. Not prepared by accelerate, which would split or skip."""
        return _loader(self._steps, self._start_step, self.args)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """The next step, with the time the loop waited for it. The item has its count of trained tokens."""
        self.pulse.step, self.pulse.mark = self.state.global_step + 1, "data"
        started = time.perf_counter()
        item = read_ahead.next_of(epoch_iterator)
        self.wait_seconds = time.perf_counter() - started
        self.pulse.waited(self.wait_seconds)
        return [item], None

    # ---- the step

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        """Shard the model after loading its weights and before creating the optimizer."""
        if not self.objective.scores:  # which finds the end of a row by it
            # The Trainer put the tokenizer's there. A model that is loaded with it has no gradient for that token's
            # embedding, so a resume would train otherwise where rows have it.
            self.model.config.get_text_config().pad_token_id = self._pad_id
        if self._plan.strategy == "fsdp2":
            self._reduction = fsdp.shard(self.model, self._plan)
        if not (self.is_deepspeed_enabled and resume_from_checkpoint):
            prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        else:
            # Weights before DeepSpeed partitions them, the rest after: DeepSpeed would look for its own files.
            self._load_from_checkpoint(resume_from_checkpoint)
            prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        parallel.require_strategy(self._plan, self.model_wrapped)
        return prepared

    def training_step(self, model: Any, inputs: StepItem, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of this rank's micro batches. Returns the step's mean loss."""
        if inputs.step + 1 in self.passed_over:
            return self._pass_over(inputs)
        inputs = self._ready(inputs)
        micro_batches, divisor = inputs.micro_batches, inputs.divisor
        model.train()
        ranks, tree = self._ranks, exact.gradient_tree() if self._plan.exact else None
        losses = torch.zeros(inputs.leaves, device=self.args.device)
        figures = torch.zeros(inputs.leaves, len(self.objective.figures), device=self.args.device)
        self.pulse.begin()
        for turn, micro in enumerate(micro_batches):
            self.pulse.mark = f"micro {turn + 1}"
            own = turn < len(inputs.numbers)
            number = inputs.numbers[turn] if own else inputs.leaves
            exact.seed_stream(self.args.seed, inputs.step, number)
            if self._reduction is not None:
                self._reduction.leaves = min(ranks.world, inputs.leaves - turn * ranks.world)
            last = turn == len(micro_batches) - 1
            with self._together(model, last=last and tree is None):
                found = self.forward_backward(model, micro, divisor, weight=float(own))
            if own:
                losses[number] = found.loss
                if found.figures is not None:
                    figures[number] = found.figures
            if tree is not None and (own or ranks.interleaved):
                node = (turn * ranks.world, ranks.world.bit_length() - 1) if ranks.interleaved else (number, 0)
                tree.add(*node, exact.take_gradients(self._trainable))
        if tree is not None and not ranks.interleaved:
            self.pulse.computed(len(micro_batches))
        self.pulse.mark = "sum"
        if tree is not None:
            exact.give_gradients(self._trainable, _sum(tree, inputs.leaves, ranks, self._trainable))
        self.last_item = inputs
        self.last_losses = ranks.gather(losses)
        self.last_figures = ranks.gather(figures).sum(0) if self.objective.figures else None
        self.tokens += inputs.tokens
        self.pulse.mark = "update"
        return self.last_losses.sum()

    def _ready(self, inputs: StepItem) -> StepItem:
        """The step on the device, after what its objective must know of all of it: answers, or their divergence."""
        if self.rollouts is not None:
            inputs = self.rollouts.step(inputs)
        inputs = inputs.to(self.args.device)
        if inputs.mismatched is not None:
            self.divergence = self._divergence([inputs], "train")
        return inputs

    def _pass_over(self, inputs: StepItem) -> torch.Tensor:
        """The step keeps its number without an update: accelerate's optimizer skips steps without synced gradients."""
        self.accelerator.sync_gradients = False
        self.last_item, self.last_losses = inputs, None
        return torch.zeros((), device=self.args.device)

    def _together(self, model: Any, *, last: bool) -> Any:
        """The context of one micro batch: without the tree, gradients are reduced with the last one."""
        self.accelerator.sync_gradients = last or not self.is_deepspeed_enabled
        return nullcontext() if last else parallel.unsynchronised(model)

    def forward_backward(self, model: Any, micro: MicroBatch, divisor: torch.Tensor, weight: float = 1.0) -> Loss:
        """One micro batch's share of the step's loss, and its gradients."""
        found = self.loss_of(model, micro, divisor)
        self.accelerator.backward(found.loss * (weight * self._averaged))
        return found._replace(loss=found.loss.detach())

    @functools.cached_property
    def _averaged(self) -> int:
        """The factor that undoes the engine's mean over ranks: we want the sum."""
        return self._ranks.world if self._plan.strategy in ("ddp", "zero2", "zero3") and not self._plan.exact else 1

    def loss_of(self, model: Any, micro: MicroBatch, divisor: torch.Tensor, split: str = "train") -> Loss:
        """Sum of a micro batch's losses over `divisor`, a number on the device: nobody waits for it."""
        self.heartbeat.beat()
        plain, known = self.inputs(micro), self.reference.get(split)
        inputs = self.rollouts.told(plain) if self.rollouts else reference.told(plain, known, self.divergence)
        with self.compute_loss_context_manager():
            return self.objective.loss(model, inputs, divisor, self.compute_loss)

    def _divergence(self, items: Iterable[StepItem], split: str) -> torch.Tensor:
        """How far the model has moved on answers to other prompts, over all rows of these items."""
        table = self.reference[f"{split}{reference.MISMATCHED}"]
        with models.evaluating(self.model), self.compute_loss_context_manager():
            return divergence.of(items, self.model_wrapped, self.inputs, table, self._ranks)

    def inputs(self, micro: MicroBatch) -> dict[str, Any]:
        """The model's arguments for a micro batch, on the device."""
        return self._rows.told(self._prepare_inputs(dict(micro)))

    @functools.cached_property
    def _trainable(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted here: the plan estimates it."""
        return 0

    def _clip_grad_norm(self, model: Any) -> torch.Tensor:
        """Clip by a norm summed in parameter order, independent of ranks; `train.clip: 0` only computes it."""
        if self.last_losses is None:
            return torch.zeros(())
        if self.is_deepspeed_enabled:
            self.last_norm = torch.tensor(super()._clip_grad_norm(model))  # DeepSpeed clips in its own step
            return self.last_norm
        if self.accelerator.scaler is not None:
            self.accelerator.unscale_gradients()
        self.last_norm = _clipped(self._trainable, self._plan, self.args.max_grad_norm)
        return self.last_norm

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The norm for the log. With `train.clip: 0` the Trainer asks for it only here."""
        return super()._get_grad_norm(model, self._clip_grad_norm(model) if grad_norm is None else grad_norm)

    # ---- evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Mean loss of the eval split, independent of resumes and device counts."""
        self.pulse.mark = "eval"
        started = time.perf_counter()
        try:
            if self.objective.labels:
                self.divergence = self._divergence(self._until_stopped(self._eval_items), "eval")
            items = self._until_stopped(self._eval_items)
            found = self.rollouts.evaluate(items, self.mean_loss) if self.rollouts else self.mean_loss(items)
        except Interrupted:
            self.due = ["eval"]
            self.control.should_save = self.control.should_training_stop = True
            return {}
        metrics = {f"eval_{name}": value for name, value in found.items()}
        metrics["eval_seconds"] = time.perf_counter() - started
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _until_stopped(self, items: Sequence[StepItem]) -> Iterator[StepItem]:
        """Eval items until a stop is requested."""
        for item in items:
            heed_stop(self._ranks, self._asked_to_stop)
            yield item

    def mean_loss(self, items: Iterable[StepItem]) -> Means:
        """Mean loss and figures of some items, without gradients."""
        with models.evaluating(self.model):
            one, wrapped = torch.ones((), dtype=torch.int64, device=self.args.device), self.model_wrapped
            there = (item.to(self.args.device) for item in items)
            return means(there, lambda micro: self.loss_of(wrapped, micro, one, "eval"), self.objective, self._ranks)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Pass figures to the loggers; a full disk there does not end the training."""
        if "loss" in logs and self.last_figures is not None:
            logs |= dict(zip(self.objective.figures, self.last_figures.tolist(), strict=True))
        try:
            super().log(logs, *args, **kwargs)
        except OSError as error:
            with suppress(OSError):  # the log may be on the same disk
                sys.stderr.write(f"{error}\n")
        # Log history is cleared: it would be written with every save, and the events have it all.
        self.state.log_history.clear()

    # ---- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Commit a checkpoint of this step."""
        self._commit()

    def copied(self, writers: Writers) -> Copied:
        """This step's state on the host. Of shards each rank keeps its own, or the first one keeps all, gathered."""
        weights = (zero if self._plan.strategy == "zero3" else checkpoint).copied_weights(self.model, writers.take)
        index, tensors = self._training_state.gather(writers.take)
        state = copy.deepcopy(self.state)
        return _copied(self.model, self.processing_class, state, weights, (copy.deepcopy(index), tensors), writers)

    @property
    def _training_state(self) -> checkpoint.TrainingState:
        kind = _state_kind(self.args.optim, deepspeed=self.is_deepspeed_enabled)
        return kind(self.model, self.optimizer.optimizer, self.lr_scheduler, self.accelerator.scaler)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights, from safetensors only."""
        folder = Path(resume_from_checkpoint)
        if Path(self.model.config.name_or_path) == folder:
            return  # the model was built from it
        reading.require_safetensors(folder)
        with reading.named("STK512", path=folder):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint_path: str | None) -> None:
        """Load the training state written beside the weights."""
        if checkpoint_path is not None:
            self._training_state.load(Path(checkpoint_path), self._start_step)

    def _load_scaler(self, checkpoint_path: str | None) -> None:
        """Loaded with the optimizer."""

    def _load_rng_state(self, checkpoint_path: str | None) -> None:
        """Loaded with the optimizer; every micro batch seeds its own stream."""


def _state_kind(optimizer: str, *, deepspeed: bool) -> type[checkpoint.TrainingState]:
    if deepspeed:
        return zero.ZeroState
    return paged.PagedState if optimizer.startswith("paged_") else checkpoint.TrainingState


def _loader(steps: Steps, start: int, arguments: TrainingArguments) -> DataLoader[StepItem]:
    workers = arguments.dataloader_num_workers
    return DataLoader(
        steps,
        batch_size=1,
        sampler=FromStep(start, len(steps)),
        collate_fn=single,
        num_workers=workers,
        # Python 3.14 starts processes by forkserver, which pickles the steps: mapped data would be copied, and a
        # process group cannot be pickled.
        multiprocessing_context="fork" if workers else None,
        pin_memory=arguments.dataloader_pin_memory,
        prefetch_factor=arguments.dataloader_prefetch_factor if workers else None,
    )


class UnplacedArguments(TrainingArguments):
    """For a model that is sharded before it is moved to a device: the whole may not fit on one."""

    @property
    def place_model_on_device(self) -> bool:
        """Sharding moves each part to its device."""
        return False


class ExactTrainer(ExactSteps, Trainer):
    """The Trainer that Stoker runs, whatever the objective."""


def _sum(
    tree: exact.Tree[exact.Gradients], leaves: int, ranks: Ranks, trainable: list[torch.nn.Parameter]
) -> exact.Gradients:
    """The gradients of all ranks, in the order of the tree."""
    if ranks.world == 1 or ranks.interleaved:
        return tree.total()
    return exact.reduce_nodes(tree, ranks.ranges(leaves), [parameter.data for parameter in trainable])


def _clipped(parameters: list[torch.nn.Parameter], plan: Plan, largest: float) -> torch.Tensor:
    """The norm of the gradients, which are scaled down to the largest one; 0 leaves them as they are."""
    gradients: list[Any] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if plan.strategy == "fsdp2":
        norm = (exact.whole_norm if plan.exact else exact.sharded_norm)(gradients)
        if largest:
            exact.clip_shards(gradients, norm, largest)
    else:
        norm = torch.nn.utils.get_total_norm(gradients)
        if largest:
            torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return norm


def _copied(
    model: Any,
    words: Any,
    state: TrainerState,
    weights: dict[str, Any],
    rest: tuple[dict[str, Any], dict[str, Any]],
    writers: Writers,
) -> Copied:
    """What was copied, and how it is written: weights and tokenizer in the Hugging Face layout, the rest in ours.

    Args:
        model: As it is trained.
        words: Its tokenizer.
        state: The Trainer's.
        weights: By name, what was taken of them.
        rest: Index and tensors of the training state.
        writers: Who writes.
    """
    (index, tensors), share = rest, None
    if writers.together:
        share = shares.of(model, weights, tensors)
        weights, tensors = shares.stand_ins(model, weights), {}
    write_weights = checkpoint.weights_writer(model, weights)

    def write(folder: Path) -> None:
        write_weights(folder)
        tokenizer.write(words, folder)
        checkpoint.save_state(folder, index, tensors)
        state.save_to_json(str(folder / "trainer_state.json"))
        if share is not None:
            share.lay_out(folder)

    sizes = {id(one): one.nbytes for one in (*weights.values(), *tensors.values())}  # tied weights are one
    return Copied(write, sum(sizes.values()) if share is None else share.size, share)
