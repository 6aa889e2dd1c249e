"""Cards, drivers and builds that were never in this machine: made up, as nvidia-smi and torch would report them."""

import pytest

from stoker.doctor import hardware, torch_build
from stoker.doctor.activity import GpuLoad
from stoker.doctor.torch_build import TorchBuild
from stoker.facts import cards
from stoker.facts.machine import Machine
from stoker.facts.tested import table


def machine_with(card: str, driver: str = "580.82.07", **changes: object) -> Machine:
    return Machine.of_card(cards.find(card)).model_copy(update={"driver": driver, "processor": "cpu", **changes})


CPU_ONLY = machine_with("RTX4090").model_copy(update={"kind": "cpu", "devices": (), "driver": ""})


def test_version_file_of_torch_is_read_without_importing_it() -> None:
    text = (
        "from typing import Optional\n__version__ = '2.13.0+cu130'\ndebug = False\n"
        "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    assert torch_build.parse(text) == TorchBuild("2.13.0+cu130", "13.0", rocm=False)
    assert torch_build.parse("__version__ = '2.10.0+cpu'\ncuda = None\nhip = None\n").cuda is None
    assert torch_build.parse("__version__ = '2.10.0'\ncuda = None\nhip = '7.1'\n").rocm


@pytest.mark.parametrize(
    ("card", "driver", "build", "key"),
    [
        ("RTX4090", "580.82.07", TorchBuild("2.13.0+cu130", "13.0"), "doctor.build"),
        ("RTX5090", "580.82.07", TorchBuild("2.13.0+cu130", "13.0"), "doctor.build"),
        ("T4", "535.104.05", TorchBuild("2.13.0+cu126", "12.6"), "doctor.build"),
        ("RTX5090", "580.82.07", TorchBuild("2.13.0+cu126", "12.6"), "doctor.build.wrong_card"),
        ("V100-16-SXM2", "580.82.07", TorchBuild("2.13.0+cu130", "13.0"), "doctor.build.wrong_card"),
        ("V100-16-SXM2", "535.104.05", TorchBuild("2.13.0+cu126", "12.6"), "doctor.build"),
        ("V100-16-SXM2", "535.104.05", TorchBuild("2.10.0+cu128", "12.8"), "doctor.build"),
        ("V100-16-SXM2", "535.104.05", TorchBuild("2.11.0+cu128", "12.8"), "doctor.build.wrong_card"),
        ("RTX4090", "535.104.05", TorchBuild("2.13.0+cu130", "13.0"), "doctor.build.driver"),
        ("RTX4090", "580.82.07", TorchBuild("2.13.0+cpu", None), "doctor.build.no_cuda"),
        ("RTX4090", "580.82.07", TorchBuild("2.13.0+rocm7.2", None, rocm=True), "doctor.build.no_cuda"),
    ],
)
def test_build_is_compared_with_card_and_driver(card: str, driver: str, build: TorchBuild, key: str) -> None:
    found = hardware.torch_build(machine_with(card, driver), build)
    assert found.key == key
    assert found.status == ("ok" if key == "doctor.build" else "fail")
    assert bool(found.hint) == (found.status == "fail")


@pytest.mark.parametrize(
    ("card", "driver", "tag"),
    [("RTX4090", "580.82.07", "cu130"), ("RTX4090", "535.104.05", "cu126"), ("V100-16-SXM2", "580.82.07", "cu126")],
)
def test_hint_names_a_build_that_fits_card_and_driver(card: str, driver: str, tag: str) -> None:
    found = hardware.torch_build(machine_with(card, driver), TorchBuild("2.13.0+cpu", None))
    assert found.hint.endswith(f"torch==2.13.0 --index-url https://download.pytorch.org/whl/{tag}")


def test_hint_names_the_driver_where_no_build_fits() -> None:
    found = hardware.torch_build(machine_with("RTX5090", "570.86.10"), TorchBuild("2.13.0+cpu", None))
    assert "cu130" in found.hint
    assert "580" in found.hint


def test_without_a_gpu_a_cpu_build_is_well() -> None:
    assert hardware.torch_build(CPU_ONLY, TorchBuild("2.13.0+cpu", None)).status == "ok"


@pytest.mark.parametrize(("card", "status"), [("V100-16-SXM2", "warn"), ("P100-16", "warn"), ("T4", "ok")])
def test_card_older_than_turing_is_named(card: str, status: str) -> None:
    driver, gpu = hardware.gpus(machine_with(card))
    assert driver.status == "ok"
    assert gpu.status == status
    assert cards.find(card).device_names[0] in gpu.what


@pytest.mark.parametrize(("card", "status"), [("T4", "warn"), ("A100-40-SXM4", "ok"), ("RTX4090", "ok")])
def test_bf16_starts_at_ampere(card: str, status: str) -> None:
    assert hardware.bf16(machine_with(card)).status == status


def test_missing_driver_silent_driver_and_hidden_cards_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("shutil.which", lambda program: None)
    assert [f.key for f in hardware.gpus(CPU_ONLY)] == ["doctor.gpu.none"]
    monkeypatch.setattr("shutil.which", lambda program: "/usr/bin/nvidia-smi")
    assert [(f.key, f.status) for f in hardware.gpus(CPU_ONLY)] == [("doctor.gpu.silent", "fail")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert [f.key for f in hardware.gpus(CPU_ONLY)] == ["doctor.gpu.hidden"]


def test_memory_of_others_on_a_card_is_reported() -> None:
    loads = [GpuLoad(0, 0, 300 << 20, 24 << 30), GpuLoad(1, 99, 20 << 30, 24 << 30)]
    assert [f.name for f in hardware.busy(loads)] == ["gpu.1.memory"]


def test_main_memory_below_the_cards_is_a_warning() -> None:
    roomy, small = machine_with("T4"), machine_with("T4", memory_bytes=12 << 30)
    assert [hardware.memory(m).status for m in (roomy, small, CPU_ONLY)] == ["ok", "warn", "ok"]


def test_processors_of_the_container_are_told_from_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert hardware.cpu(machine_with("T4", cpu_count=8), 64).key == "doctor.cpu.limited"
    assert hardware.cpu(machine_with("T4", cpu_count=8), 8).key == "doctor.cpu"
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert hardware.cpu(machine_with("T4", cpu_count=8), 64).status == "warn"


@pytest.mark.parametrize(("version", "status"), [("3.10.4", "ok"), ("3.15.0", "ok"), ("3.16.1", "warn")])
def test_python_outside_what_torch_is_built_for_is_a_warning(version: str, status: str) -> None:
    assert hardware.python(version).status == status


def test_every_installable_build_is_known_with_its_driver() -> None:
    for cuda in table().indexes:
        assert table().build(cuda, table().combinations[-1].packages["torch"])
        assert table().oldest_driver(cuda)
