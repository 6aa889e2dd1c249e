"""Tells a model how its rows are packed, which transformers would otherwise read from their positions on the card.

Reading one number makes the processor wait until the card has done everything it was given: one wait per micro batch,
or per layer with FlashAttention. The collator knows the answer. Layers that carry a state (linear attention, Mamba)
take a cache for an earlier part of the row, and where documents end for an order to keep them apart, which their plain
kernels refuse; so a model with any is told nothing.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from stoker.engine import models
from stoker.engine.dataset import DOCUMENT_ENDS, MicroBatch

_FULL = "full_attention"
_WITHOUT_STATE = {_FULL, "sliding_attention", "chunked_attention"}


class NothingKept(Cache):
    """A cache that keeps nothing: given one, transformers looks for no packed documents."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """What was given."""
        return key_states, value_states

    def get_query_offset(self, layer_idx: int | None = None) -> int:  # noqa: ARG002  # the interface's
        """Rows begin at their first token."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int | None = None) -> tuple[int, int]:  # noqa: ARG002
        """Every token of a row, from the first on."""
        return query_length, 0


class KnownRows:
    """What a model takes besides the tensors of a micro batch."""

    def __init__(self, model: Any, attention: str, *, compiled: bool = False) -> None:
        language = models.without_adapter(model)
        stated = language.config.get_text_config(decoder=True).to_dict()
        kinds = set(stated.get("layer_types") or [_FULL])
        # A compiled model reads nothing; an object that stands for a cache could only make it compile more.
        self._told = kinds <= _WITHOUT_STATE and not language._is_stateful and not compiled
        self._one_mask = kinds == {_FULL} and not stated.get("sliding_window") and attention == "sdpa"
        for module in model.modules():
            if self._told and isinstance(module, GradientCheckpointingLayer):
                module._can_checkpoint_with_cache = True  # nothing is kept, so nothing is kept twice

    def told(self, micro: MicroBatch) -> dict[str, Any]:
        """The model's arguments for these rows."""
        if not self._told:
            return {name: one for name, one in micro.items() if name not in DOCUMENT_ENDS}
        if "position_ids" not in micro or not micro.keys().isdisjoint(DOCUMENT_ENDS):
            return {**micro, "past_key_values": NothingKept()}
        return {**micro, "attention_mask": _mask(micro["position_ids"])} if self._one_mask else dict(micro)


def _mask(positions_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803  # shape suffix
    """The mask that the model would make of positions, which start anew at each document."""
    documents_BL = (positions_BL == 0).cumsum(1)  # noqa: N806
    same_BLL = documents_BL[:, :, None] == documents_BL[:, None, :]  # noqa: N806
    return same_BLL.tril()[:, None]
