"""What the seam relies on in the installed transformers. A failure here names what an upgrade changed."""

import inspect

import pytest

pytestmark = pytest.mark.filterwarnings("default")

SIGNATURES = {
    "_build_accelerator_args": ["self", "kwargs"],
    "get_train_dataloader": ["self"],
    "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    "floating_point_ops": ["self", "inputs"],
    "_clip_grad_norm": ["self", "model"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_prepare_for_training": ["self", "max_steps", "train_dataloader", "resume_from_checkpoint"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "_load_scaler": ["self", "checkpoint"],
    "_load_rng_state": ["self", "checkpoint"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_overridden_method_has_the_expected_signature(name: str) -> None:
    from transformers import Trainer

    assert list(inspect.signature(getattr(Trainer, name)).parameters) == SIGNATURES[name]


def test_every_override_of_the_trainer_is_listed() -> None:
    from transformers import Trainer

    from stoker.engine.trainer import ExactSteps

    ours = {name for name in vars(ExactSteps) if callable(getattr(ExactSteps, name)) and hasattr(Trainer, name)}
    assert ours - {"__init__", "__init_subclass__"} == {*SIGNATURES, "evaluate", "log"}


@pytest.mark.parametrize(
    ("method", "needle"),
    [
        ("_run_epoch", "self.get_batch_samples("),
        ("_run_epoch", "self.training_step(model, inputs, num_items_in_batch)"),
        ("_run_epoch", "self._clip_grad_norm(model)"),
        ("_run_epoch", "grad_norm = self._get_grad_norm(model, grad_norm=grad_norm)"),
        ("_maybe_log_save_evaluate", "self._save_checkpoint(model, trial)"),
        ("_prepare_for_training", "self._load_optimizer_and_scheduler(resume_from_checkpoint)"),
        ("_prepare_for_training", "self._load_scaler(resume_from_checkpoint)"),
        # Sharding stands between loading the weights and making the optimizer, and nothing wraps the model again.
        ("train", "self._load_from_checkpoint(resume_from_checkpoint)"),
        ("_prepare_for_training", "self.create_optimizer()"),
        ("_prepare_for_training", "if self.is_distributed_loading_by_transformers:"),
        ("_prepare_for_training", "device_placement=False, evaluation_mode=True"),
        ("__init__", "args.place_model_on_device is not None"),
        ("_build_accelerator_args", 'args["kwargs_handlers"] = ['),
        ("create_accelerator_and_postprocess", "args = self._build_accelerator_args("),
        ("_inner_training_loop", "self.get_train_dataloader()"),
        ("compute_loss", 'kwargs["num_items_in_batch"] = num_items_in_batch'),
    ],
)
def test_the_loop_still_calls_the_seam(method: str, needle: str) -> None:
    from transformers import Trainer

    assert needle in inspect.getsource(getattr(Trainer, method))


@pytest.mark.parametrize("name", ["SFTTrainer", "DPOTrainer", "RewardTrainer"])
def test_the_seam_methods_that_trl_overrides_are_these(name: str) -> None:
    """Not that they work together: mixed in before these trainers, the seam would hide exactly these methods."""
    trl = pytest.importorskip("trl")
    from transformers import Trainer

    trainer = getattr(trl, name)
    assert issubclass(trainer, Trainer)
    changed = {
        method for method in (*SIGNATURES, "evaluate") if getattr(trainer, method) is not getattr(Trainer, method)
    }
    assert changed == {"training_step", "evaluate", "_save_checkpoint"}


def test_without_gradients_in_sync_the_optimizer_does_no_update() -> None:
    """A step that is passed over, and DeepSpeed's micro batches but the last, rely on it."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=1.0))
    weight.grad = torch.ones(2)
    accelerator.sync_gradients = False
    optimizer.step()
    optimizer.zero_grad()
    assert (weight.tolist(), weight.grad.tolist()) == ([1, 1], [1, 1])
    accelerator.sync_gradients = True
    optimizer.step()
    assert weight.tolist() == [0, 0]


def test_the_trainer_and_deepspeed_read_the_accelerator_s_flag() -> None:
    from accelerate import Accelerator

    assert "sync_gradients=self.sync_gradients" in inspect.getsource(Accelerator.backward)
    assert isinstance(inspect.getattr_static(Accelerator, "sync_gradients"), property)
