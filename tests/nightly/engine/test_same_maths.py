"""What tests/invariant leaves to the night of the same maths: each method with the other kind of rows."""

from pathlib import Path

import pytest
import tiny_run
from beside_bare import require_identical_losses
from split_run import require_rounding_only

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.mark.parametrize(("method", "segments"), [("full", 3), ("lora", 1), ("qlora", 1)])
def test_losses_are_those_of_the_bare_engine(tmp_path: Path, base: Path, method: str, segments: int) -> None:
    require_identical_losses(tmp_path, base, method, segments)


def test_micro_batch_and_arrangement_change_rounding_only(tmp_path: Path, base: Path) -> None:
    require_rounding_only(tmp_path, base, "full", 1)
