"""bitsandbytes' paged optimizers: states in memory that the driver moves between host and GPU.

Their own `load_state_dict` puts every state on the GPU for good, so that a run that fits could not be resumed.
Not yet run on a GPU; remove when bitsandbytes pages what it loads.
"""

from typing import Any

import torch

from stoker.engine.checkpoint import States, TrainingState

_PAGED = ("state1", "state2")
"""Fields that the optimizer keeps in buffers of its own making."""


class PagedState(TrainingState):
    """The training state with a paged optimizer."""

    def put(self, groups: list[dict[str, Any]], states: States) -> None:
        """Let the optimizer make its buffers, paged where it pages, and copy the saved states into them."""
        optimizer: Any = self.optimizer
        optimizer.load_state_dict({"state": {}, "param_groups": groups})
        for parameter, fields in states.items():
            optimizer.state[parameter] = {
                field: _placed(optimizer, parameter, field, value) for field, value in fields.items()
            }


def _placed(optimizer: Any, parameter: torch.Tensor, field: str, value: Any) -> Any:
    if field in _PAGED:
        return optimizer.get_state_buffer(parameter, dtype=value.dtype).copy_(value)
    return value.to(parameter.device) if isinstance(value, torch.Tensor) else value
