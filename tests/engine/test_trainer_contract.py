"""What the seam relies on in the installed transformers. A failure here names what an upgrade changed."""

import inspect

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

SIGNATURES = {
    "get_train_dataloader": ["self"],
    "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    "floating_point_ops": ["self", "inputs"],
    "_clip_grad_norm": ["self", "model"],
    "_save_checkpoint": ["self", "model", "trial"],
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
    assert ours - {"__init__", "__init_subclass__"} == {*SIGNATURES, "evaluate"}


@pytest.mark.parametrize(
    ("method", "needle"),
    [
        ("_run_epoch", "self.get_batch_samples("),
        ("_run_epoch", "self.training_step(model, inputs, num_items_in_batch)"),
        ("_run_epoch", "self._clip_grad_norm(model)"),
        ("_maybe_log_save_evaluate", "self._save_checkpoint(model, trial)"),
        ("_prepare_for_training", "self._load_optimizer_and_scheduler(resume_from_checkpoint)"),
        ("_prepare_for_training", "self._load_scaler(resume_from_checkpoint)"),
        ("_inner_training_loop", "self.get_train_dataloader()"),
        ("compute_loss", 'kwargs["num_items_in_batch"] = num_items_in_batch'),
    ],
)
def test_the_loop_still_calls_the_seam(method: str, needle: str) -> None:
    from transformers import Trainer

    assert needle in inspect.getsource(getattr(Trainer, method))


def test_trl_trainers_can_take_the_seam() -> None:
    """The mixin fits every subclass of Trainer; TRL's do not override the methods the step is built on."""
    trl = pytest.importorskip("trl")
    from transformers import Trainer

    for trainer in (trl.SFTTrainer, trl.DPOTrainer, trl.RewardTrainer):
        assert issubclass(trainer, Trainer)
        changed = {name for name in SIGNATURES if getattr(trainer, name) is not getattr(Trainer, name)}
        assert changed <= {"training_step", "get_batch_samples", "_save_checkpoint", "get_train_dataloader"}, changed
