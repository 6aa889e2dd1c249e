"""Everything Stoker overrides of `transformers.Trainer`, in one file (ADR 0006; tested floor: transformers 5.22).

The Trainer's loop is kept. It sees one item per optimizer step, so its own accumulation and skipping are idle:
    get_train_dataloader            steps from where the run goes on (O(1) seek)
    get_batch_samples               one step at a time, and how long the loop waited for it
    training_step                   the step's micro batches: keyed RNG, canonical gradient sum, full-precision loss
    _clip_grad_norm                 one norm in the order of the parameters
    evaluate                        loss = mean over trained tokens of the whole split
    _save_checkpoint                committed checkpoints in our format
    _load_optimizer_and_scheduler   the same back; scaler and RNG come with it
`tests/engine/test_trainer_contract.py` holds these names and signatures to the installed version. `ExactSteps` is a
mixin: TRL's trainers are subclasses of `Trainer` and can take it too.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer

from stoker.engine import checkpoint, exact, models
from stoker.engine.dataset import FromStep, MicroBatch, StepItem, Steps, single
from stoker.engine.evaluate import mean_loss

SaveHook = Callable[[Path], None]


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
        exact_sum: bool,
        eval_items: Sequence[StepItem],
        commit: Callable[[SaveHook], None],
        **kwargs: Any,
    ) -> None:
        """Wrap the Trainer's own arguments with what it must not decide itself.

        Args:
            args: The Trainer's.
            steps: All steps of the run.
            start_step: The step to go on from.
            exact_sum: Combine gradients in the canonical order.
            eval_items: The eval split, whole items in order; empty without one.
            commit: Runs a writer on a fresh folder and commits what it wrote.
            kwargs: The Trainer's.
        """
        super().__init__(*args, train_dataset=steps, data_collator=single, **kwargs)
        self._steps = steps
        self._start_step = start_step
        self._exact_sum = exact_sum
        self._eval_items = eval_items
        self._commit = commit
        self.last_item: StepItem | None = None
        self.last_losses: list[torch.Tensor] = []
        self.last_norm: torch.Tensor | None = None
        self.wait_seconds = 0.0

    # ---- data

    def get_train_dataloader(self) -> Any:
        """Whole steps, from the one to go on with. Not prepared by accelerate: nothing is to be split or skipped."""
        workers = self.args.dataloader_num_workers
        return DataLoader(
            self._steps,
            batch_size=1,
            sampler=FromStep(self._start_step, len(self._steps)),
            collate_fn=single,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory,
            prefetch_factor=self.args.dataloader_prefetch_factor if workers else None,
        )

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """The next step, and how long the loop waited for it. Its trained tokens are counted in the item."""
        started = time.perf_counter()
        item = next(epoch_iterator)
        self.wait_seconds = time.perf_counter() - started
        return [item], None

    # ---- the step

    def training_step(self, model: Any, inputs: StepItem, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of all micro batches. Returns the mean loss over the step's trained tokens."""
        model.train()
        parameters = self._trainable
        tree = exact.GradientTree() if self._exact_sum and len(inputs.micro_batches) > 1 else None
        losses = []
        for number, micro in enumerate(inputs.micro_batches):
            exact.seed_stream(self.args.seed, inputs.step, number)
            losses.append(self.forward_backward(model, micro, inputs.trained_tokens))
            if tree is not None:
                tree.add(exact.take_gradients(parameters))
        if tree is not None:
            exact.give_gradients(parameters, tree.total())
        self.last_item = inputs
        self.last_losses = losses
        return torch.stack(losses).sum()

    def forward_backward(self, model: Any, micro: MicroBatch, trained_tokens: int) -> torch.Tensor:
        """One micro batch's share of the step's loss, and its gradients."""
        loss = self._loss(model, micro, trained_tokens)
        self.accelerator.backward(loss)
        return loss.detach()

    def _loss(self, model: Any, micro: MicroBatch, trained_tokens: int) -> torch.Tensor:
        """Sum of a micro batch's token losses over `trained_tokens`."""
        items = torch.tensor(trained_tokens, device=self.args.device)
        with self.compute_loss_context_manager():
            return self.compute_loss(model, self._prepare_inputs(dict(micro)), num_items_in_batch=items)

    @functools.cached_property
    def _trainable(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted here: the plan knows the model's arithmetic."""
        return 0

    def _clip_grad_norm(self, model: Any) -> torch.Tensor:
        """Clip by a norm summed in the order of the parameters, whoever computed the gradients."""
        if self.accelerator.scaler is not None:
            self.accelerator.unscale_gradients()
        gradients = [parameter.grad for parameter in self._trainable if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        torch.nn.utils.clip_grads_with_norm_(self._trainable, self.args.max_grad_norm, norm)
        self.last_norm = norm
        return norm

    # ---- evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Mean loss over the trained tokens of the eval split; resumes and device counts do not change it."""
        started = time.perf_counter()
        loss = self.token_loss(self._eval_items)
        metrics = {
            "eval_loss": loss,
            "eval_perplexity": math.exp(min(loss, 700)),
            "eval_seconds": time.perf_counter() - started,
        }
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def token_loss(self, items: Sequence[StepItem]) -> float:
        """Mean loss over all trained tokens of some items, without gradients."""
        with models.evaluating(self.model):
            return mean_loss(items, lambda micro: self._loss(self.model_wrapped, micro, 1))

    # ---- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Commit a checkpoint of this step."""
        self._commit(self.write_checkpoint)

    def write_checkpoint(self, folder: Path) -> None:
        """Weights and tokenizer in the Hugging Face layout, the rest in ours."""
        save_weights(self.model, folder)
        self.processing_class.save_pretrained(folder)
        checkpoint.save_state(folder, self.model, self.optimizer.optimizer, self.lr_scheduler, self.accelerator.scaler)
        self.state.save_to_json(str(folder / "trainer_state.json"))

    def _load_optimizer_and_scheduler(self, checkpoint_path: str | None) -> None:
        """Put back what `write_checkpoint` wrote beside the weights."""
        if checkpoint_path is not None:
            checkpoint.load_state(
                Path(checkpoint_path),
                self.model,
                self.optimizer.optimizer,
                self.lr_scheduler,
                self.accelerator.scaler,
            )

    def _load_scaler(self, checkpoint_path: str | None) -> None:
        """Loaded with the optimizer."""

    def _load_rng_state(self, checkpoint_path: str | None) -> None:
        """Loaded with the optimizer; every micro batch seeds its own stream."""


class ExactTrainer(ExactSteps, Trainer):
    """The Trainer that Stoker runs for `pretrain` and `sft`."""


def save_weights(model: Any, folder: Path) -> None:
    """Weights or adapter, as transformers and PEFT write them: safetensors, training precision."""
    # PEFT would ask the hub whether the vocabulary grew; an adapter here never owns the embedding.
    options = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(folder, **options)
