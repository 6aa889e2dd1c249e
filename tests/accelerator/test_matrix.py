"""The accelerator matrix in short: a few cells, every kind of refusal, and the planted faults that cells must find.

All cells: tests/nightly/accelerator, and `just accelerator`, which writes them down.
"""

from pathlib import Path
from typing import Any

import matrix_cells
import pretended_devices
import pytest
import recipe_settings
from matrix_cells import FAULTY_SETTING
from pretended_devices import DEVICES

from stoker.config import load
from stoker.errors import StokerError

pytestmark = pytest.mark.filterwarnings("default")

SETTINGS = recipe_settings.distinct()

HERE = [("lora_qwen3_4b", "T4"), ("full_smollm3_3b", "2x4090-fsdp2"), ("scratch_wikitext2", "M4")]
"""Cells of CI: the scaler and a merge, shards, and a device that is not NVIDIA's."""

FOUND = {
    "wrong device": ("4090", "train: ", "Expected all tensors to be on the same device"),
    "host tensor": ("4090", "train: ", "Expected all tensors to be on the same device"),
    "wrong type": ("4090", "train: types of products", "float16"),
    "lost scaler": ("T4", "resume: bits", "differ"),
}
"""For each planted fault, where it is planted, and the words with which a cell must fail."""

IMPOSSIBLE = {
    "a second card": ("lora_qwen3_4b", "4090", {"gpus": 2}, "STK208"),
    "a second Apple chip": ("lora_qwen3_4b", "M4", {"gpus": 2}, "STK208"),
    "bf16 on Turing": ("lora_qwen3_4b", "T4", {"precision": "bf16"}, "STK210"),
    "FlashAttention on Turing": ("lora_qwen3_4b", "T4", {"attention": "flash_attention_2"}, "STK212"),
    "shards in fp16": ("lora_qwen3_4b", "2xT4-ddp", {"strategy": "fsdp2"}, "STK216"),
    "shards on an Apple chip": ("lora_qwen3_4b", "M4", {"strategy": "fsdp2"}, "STK216"),
    "several processes on an Apple chip": ("lora_qwen3_4b", "M4", {"strategy": "ddp"}, "STK216"),
    "shards of muon": ("full_qwen3_0.6b_muon", "4xA100-fsdp2", {"strategy": "fsdp2"}, "STK216"),
    "4-bit weights by ZeRO": ("qlora_qwen2.5_7b", "2x4090-fsdp2", {"strategy": "zero3"}, "STK216"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return matrix_cells.make_base(tmp_path_factory.mktemp("models") / "base")


def test_every_recipe_and_method_is_in_the_matrix() -> None:
    assert sorted(name for one in SETTINGS.values() for name in one.recipes) == load.recipe_names()
    assert {one.method for one in SETTINGS.values()} == {"full", "lora", "qlora", "pretrain"}


@pytest.mark.parametrize(("setting", "device"), HERE)
def test_a_cell_trains_survives_and_saves(tmp_path: Path, base: Path, setting: str, device: str) -> None:
    cell = matrix_cells.run(tmp_path / "cell", base, SETTINGS[setting], device)
    assert cell.outcome == "passes", cell.why
    assert cell.passed == tuple(part for part in matrix_cells.PARTS if part != "merge" or SETTINGS[setting].adapts)


@pytest.mark.parametrize("fault", matrix_cells.FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, base: Path, fault: str) -> None:
    device, part, words = FOUND[fault]
    cell = matrix_cells.run(tmp_path / "cell", base, SETTINGS[FAULTY_SETTING], device, fault)
    assert cell.outcome == "fails"
    assert cell.why.startswith(part)
    assert words in cell.why


@pytest.mark.parametrize(("setting", "device", "where", "code"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_exist_is_refused_when_it_is_planned(
    tmp_path: Path,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    device: str,
    where: dict[str, Any],
    code: str,
) -> None:
    pretended_devices.use(monkeypatch, DEVICES[device])
    with pytest.raises(StokerError) as caught:
        matrix_cells.planned(tmp_path / "run", base, SETTINGS[setting], where)
    assert caught.value.code == code
    assert caught.value.hint
