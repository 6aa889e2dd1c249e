"""The training loop as Stoker's Trainer runs it, recorded in a ledger: its moments, and the parts of tensors.

Runs whatever `building` made, on fake tensors. Knows nothing of allocators.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from torch.distributed.device_mesh import DeviceMesh

from stoker.engine import exact
from stoker.engine.tracing import building, cuda_kernels, losses, private_names, recompute, rules, sharded
from stoker.engine.tracing.dtypes import DTYPES
from stoker.engine.tracing.ledger import Ledger
from stoker.estimate.step import Step

Kernels = Literal["cuda", "cpu"]
"""Whose kernels run."""


class Loop:
    """One device's training."""

    def __init__(self, step: Step, ledger: Ledger, on: Kernels, mesh: DeviceMesh | None) -> None:
        self.step, self.ledger = step, ledger
        self.model = building.model(step)
        recompute.prepare(step, self.model, keep_random_state=on == "cpu")
        if mesh is not None:
            sharded.shard(self.model, step, mesh)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        ledger.name(building.held(self.model), "weights")
        self._hold(on)
        # On local shards: DTensors only forward each operation to them.
        self.updated = [self._updated(parameter) for parameter in self.trained]
        self.optimizers = self._optimizers()
        self.labels = torch.zeros(step.micro, step.length, dtype=torch.int64)
        ledger.record(self.labels)
        losses.prepare(step, self.model, self.labels)
        self._mix()
        self._mark_moments()

    def run(self) -> None:
        """One optimizer step."""
        if self.step.gradient_sets > 1:
            self._canonical()
        else:
            for _ in range(min(self.step.accumulation, 2)):
                self._micro()
        if self.step.gradient_sets > 0:
            self.ledger.enter("clipping")
            self._clip()
            self.ledger.enter("optimizer")
            self._update(range(len(self.trained)), self.optimizers[0])

    def _updated(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """What the optimizer updates: this rank's shard of a weight, or an fp32 copy of it."""
        part = exact.local(parameter).detach()
        if self.step.foreign.master and part.dtype != torch.float32:
            part = part.float()
            self.ledger.name([part], "optimizer")
        return torch.nn.Parameter(part)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """One for all weights; or one per weight, run as soon as its gradient is ready."""
        tables = {id(module.weight) for module in self.model.modules() if isinstance(module, torch.nn.Embedding)}
        pairs = zip(self.trained, self.updated, strict=True)
        embeddings = {id(updated) for parameter, updated in pairs if id(parameter) in tables}
        if self.step.gradient_sets > 0:
            return [building.optimizer(self.step, self.updated, embeddings)]
        several = [building.optimizer(self.step, [updated], embeddings) for updated in self.updated]
        for place, (parameter, optimizer) in enumerate(zip(self.trained, several, strict=True)):
            parameter.register_post_accumulate_grad_hook(
                lambda _, place=place, optimizer=optimizer: self._update([place], optimizer)
            )
        return several

    def _update(self, places: Sequence[int], optimizer: torch.optim.Optimizer) -> None:
        for place in places:
            parameter, updated = self.trained[place], self.updated[place]
            if parameter.grad is not None:
                self.ledger.name([parameter.grad], "gradients")
                updated.grad = exact.local(parameter.grad).to(updated.dtype)
            parameter.grad = None
        optimizer.step()
        for state in optimizer.state.values():
            self.ledger.name((value for value in state.values() if isinstance(value, torch.Tensor)), "optimizer")
        optimizer.zero_grad()

    def _hold(self, on: Kernels) -> None:
        """Permanent memory beside the model: cuBLAS workspaces, buffers of the strategy."""
        if on == "cuda":
            for _ in ("the forward thread's", "the backward thread's"):
                self.ledger.hold(cuda_kernels.CUBLAS_WORKSPACE, "temporaries")
        for size in rules.buffers(self.step, [exact.local(parameter).nbytes for parameter in self.trained]):
            self.ledger.hold(size, "gradients")
        self.ledger.hold(rules.gathered(self.step), "weights")
        for part, size in rules.unseen(self.step).items():
            self.ledger.hold(size, part)

    def _micro(self) -> None:
        """Forward and backward of one micro batch."""
        self.ledger.enter("forward")
        inputs: dict[str, Any] = {"input_ids": torch.zeros_like(self.labels)}
        if self.step.masked:
            inputs["attention_mask"] = torch.ones(
                self.step.micro, 1, self.step.length, self.step.length, dtype=torch.bool
            )
        with self.outside:
            loss, outputs = losses.loss(self.step, self.model, inputs, self.labels)
        del inputs
        if not self.step.foreign.held_outputs:
            del outputs
        self.ledger.keep()
        self.ledger.enter("loss_backward")
        loss.backward()
        del loss
        self.ledger.name((parameter.grad for parameter in self.trained if parameter.grad is not None), "gradients")

    def _canonical(self) -> None:
        """Gradients are detached after each micro batch and added in tree order.

        Two micro batches are run; the sums that the tree holds at its fullest are allocated beforehand.
        """
        self._micro()
        first = exact.take_gradients(self.trained)
        held = [[torch.zeros_like(exact.local(one)) for one in first] for _ in range(self.step.gradient_sets - 2)]
        self.ledger.name((one for some in held for one in some), "gradients")
        self._micro()
        self.ledger.enter("adding")
        held.append(exact.take_gradients(self.trained))
        while held:
            _add(first, held.pop())
        exact.give_gradients(self.trained, first)

    def _clip(self) -> None:
        """As in the Trainer; only other tools combine sharding with replicas."""
        gradients: list[Any] = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        if self.step.strategy == "fsdp2" and self.step.devices == self.step.shard_devices:
            norm = (exact.whole_norm if self.step.canonical else exact.sharded_norm)(gradients)
            exact.clip_shards(gradients, norm, 1.0)
            return
        parts = [exact.local(gradient) for gradient in gradients]
        norm = torch.nn.utils.get_total_norm(parts, foreach=True)
        private_names.multiply_in_place(parts, torch.clamp(1.0 / (norm + 1e-6), max=1.0))

    def _mix(self) -> None:
        """Autocast: around the model's forward with fp32 outputs, like accelerate; or around a custom loss too."""
        self.outside: Any = nullcontext()
        if not self.step.autocast or self.step.compute == "fp32":
            return
        cached = self.step.foreign.autocast_cache
        context = torch.autocast("cpu", dtype=DTYPES[self.step.compute], cache_enabled=cached)
        if self.step.loss == "logits" or self.step.foreign.shifted_logits:
            self.outside = context
        else:
            self.model.forward = convert_outputs_to_fp32(context(self.model.forward))

    def _mark_moments(self) -> None:
        """The loss begins at the output layer; its backward pass ends when the hidden states' gradient is ready."""

        def begins(_: Any, args: tuple[torch.Tensor, ...]) -> None:
            if self.ledger.moment == "forward":
                self.ledger.enter("loss")
            if args[0].requires_grad:
                args[0].register_hook(lambda _: self.ledger.enter("block_backward"))

        self.model.get_output_embeddings().register_forward_pre_hook(begins)


def _add(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    for one, other in zip(left, right, strict=True):
        exact.local(one).add_(exact.local(other))
