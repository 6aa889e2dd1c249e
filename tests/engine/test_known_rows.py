"""What a model is told of its rows: the bits stay, and nothing is read back from the card."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import simulated_flash
import tiny_families
import torch
from simulated_flash import SimulatedFlash
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.engine import models
from stoker.engine.dataset import DOCUMENT_ENDS, Arrangement, PreparedSplit, Segment, document_ends, make_item
from stoker.engine.known_rows import KnownRows
from stoker.engine.parallel import ALONE

pytestmark = pytest.mark.filterwarnings("default")

LENGTHS = ((13, 17, 10), (21, 4, 15))
"""Of the documents in each row."""


class Reads(TorchDispatchMode):
    """Counts the operators that give the host a number, or a result of a size that only the card knows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Rows(PreparedSplit):
    """A prepared split of two rows."""

    def __init__(self) -> None:
        """Of no files."""

    def row(self, index: int) -> list[Segment]:
        rng = np.random.default_rng(index)
        return [rng.integers(4, 390, length).astype(np.int32) for length in LENGTHS[index]]

    def trained_tokens(self, index: int) -> int:
        return sum(LENGTHS[index])


def micro_batch(kind: Any, *, flatten: bool = False) -> dict[str, Any]:
    """Both rows as one micro batch."""
    arrangement = Arrangement(kind, 2, 40, flatten=flatten, pad=2)
    return make_item(Rows(), [0, 1], arrangement, 0, ALONE).micro_batches[0]


def small(family: str, attention: str) -> Any:
    torch.manual_seed(3)
    sizes = tiny_families.config(family)
    sizes._attn_implementation = attention
    model = models.auto_class(sizes).from_config(sizes)
    model.config.use_cache = False
    return model


def gradients(model: Any, given: dict[str, Any]) -> tuple[list[torch.Tensor], Counter[str]]:
    """Those of the weights, and what was read on the way."""
    model.zero_grad()
    with Reads() as reads:
        model(**given).loss.backward()
    return [one.grad for one in model.parameters() if one.grad is not None], reads.found


@pytest.mark.parametrize("kind", ["grouped", "rows"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi3", "glm4", "deepseek_v3", "granite", "olmo2"])
def test_a_model_that_is_told_of_its_rows_reads_nothing_and_has_the_same_gradients(family: str, kind: str) -> None:
    model, micro = small(family, "sdpa"), micro_batch(kind)
    plain, read = gradients(model, micro)
    told, still_read = gradients(model, KnownRows(model, "sdpa").told(micro))
    assert read["_local_scalar_dense"] > 0, "transformers no longer reads positions: KnownRows can go"
    assert not still_read
    assert len(told) == len(plain) > 0
    assert all(torch.equal(one, other) for one, other in zip(told, plain, strict=True))


def test_blocks_computed_again_have_the_same_gradients() -> None:
    model, micro = small("llama", "sdpa"), micro_batch("grouped")
    plain, _ = gradients(model, micro)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    told, read = gradients(model, KnownRows(model, "sdpa").told(micro))
    assert not read
    assert all(torch.equal(one, other) for one, other in zip(told, plain, strict=True))


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1", "jamba", "lfm2"])
def test_a_model_with_a_state_is_told_nothing(family: str) -> None:
    micro = micro_batch("grouped")
    ends = document_ends(torch.tensor([0, 8]), 8)
    told = KnownRows(small(family, "sdpa"), "flash_attention_2").told({**micro, **ends})
    assert told.keys() == micro.keys()
    assert all(told[name] is micro[name] for name in micro)


def test_windows_keep_their_own_masks_in_packed_rows() -> None:
    """A mask that is given would be every layer's."""
    model = small("olmo3", "sdpa")
    packed = micro_batch("rows")
    assert KnownRows(model, "sdpa").told(packed).keys() == packed.keys()
    assert "past_key_values" in KnownRows(model, "sdpa").told(micro_batch("grouped"))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedFlash:
    return simulated_flash.use(monkeypatch)


@pytest.mark.parametrize("kind", ["grouped", "rows"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "glm4", "mixtral", "olmo3", "granite"])
def test_flash_attention_is_told_what_transformers_would_read(
    family: str, kind: str, simulated: SimulatedFlash
) -> None:
    model = simulated_flash.on(small(family, "eager"))
    micro = micro_batch(kind, flatten=True)
    if kind == "grouped":  # groups of several rows have no ends to tell
        micro = make_item(Rows(), [0], Arrangement("grouped", 1, 13, flatten=True, pad=2), 0, ALONE).micro_batches[0]  # type: ignore[arg-type]
    assert len(micro["input_ids"]) == 1
    own = {name: micro[name] for name in micro if name not in DOCUMENT_ENDS}
    plain, _ = gradients(model, own)
    derived, simulated.given = simulated.given, []
    told, read = gradients(model, KnownRows(model, "flash_attention_2").told(micro))
    assert len(simulated.given) == model.config.num_hidden_layers
    if kind == "rows":
        assert simulated.given == derived
    else:
        assert derived == [], "transformers takes a row of one document as a fixed length"
        assert simulated.given[0]["max_seqlen"] == (micro["input_ids"].shape[1],) * 2
    assert not read
    assert all(torch.equal(one, other) for one, other in zip(told, plain, strict=True))
