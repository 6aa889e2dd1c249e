"""The accelerator matrix: the settings of every shipped recipe on every pretended device, and planted faults.

`just accelerator` runs the same cells and writes them down.
"""

from pathlib import Path

import matrix_cells
import pytest
import recipe_settings
from matrix_cells import FAULTY_SETTING
from pretended_devices import DEVICES

pytestmark = pytest.mark.filterwarnings("default")

SETTINGS = recipe_settings.distinct()
FAULTS = [(fault, device) for device, one in DEVICES.items() for fault in matrix_cells.faults(one)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return matrix_cells.make_base(tmp_path_factory.mktemp("models") / "base")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_cell_passes_or_is_refused_when_it_is_planned(tmp_path: Path, base: Path, setting: str, device: str) -> None:
    cell = matrix_cells.run(tmp_path / "cell", base, SETTINGS[setting], device)
    assert cell.outcome != "fails", cell.why
    assert cell.code == matrix_cells.refusal(SETTINGS[setting], DEVICES[device])


@pytest.mark.parametrize(("fault", "device"), FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, base: Path, fault: str, device: str) -> None:
    assert matrix_cells.run(tmp_path / "cell", base, SETTINGS[FAULTY_SETTING], device, fault).outcome == "fails"
