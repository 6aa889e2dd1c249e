"""Every family of `tiny_families`, weighed and really loaded."""

from pathlib import Path

import pytest
import tiny_families
from weighed_family import RANK, counted, stable

from stoker.engine import weigh
from stoker.estimate import memory
from stoker.estimate.step import Adapter
from stoker.facts import shapes
from stoker.launch import weighing

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("family", [name for name in tiny_families.FAMILIES if name not in tiny_families.REFUSED])
def test_the_record_equals_the_loaded_model(family: str, tmp_path: Path) -> None:
    parts = weigh.weigh(tiny_families.config(family))
    loaded = counted(family, tmp_path)
    adapted = stable(parts.no_adapter) or parts.adapter_parameters(RANK)
    made = (parts.parameters, adapted, adapted, parts.quantised_parameters)
    assert made == (loaded.full, loaded.lora, loaded.qlora, loaded.quantised)
    assert parts.parameters - parts.quantised_parameters == loaded.unquantised
    assert bool(parts.experts) == bool(parts.experts_per_token)
    assert shapes.from_parts(parts).parameters() == loaded.full


@pytest.mark.parametrize("family", tiny_families.REFUSED)
def test_what_this_environment_cannot_build_is_named(family: str) -> None:
    with pytest.raises(ImportError, match=tiny_families.REFUSED[family]):
        weigh.weigh(tiny_families.config(family))


def test_the_light_world_weighs_by_a_program_once_and_plans_with_the_loaded_model_s_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    loaded = counted("mixtral", tmp_path / "model")
    shape = weighing.resolve("model", tmp_path).shape
    assert shape.parameters() == loaded.full
    assert memory.trainable_parameters(shape, Adapter(rank=RANK)) == loaded.lora
    assert shapes.resolve("model", tmp_path).shape == shape
