"""What this machine is: limits of containers, the driver's answer, what may be used of it."""

import os
import stat
import sys
from pathlib import Path

import pytest

from stoker.facts import cards, machine
from stoker.facts.machine import Machine

_TWO_4090 = """0, NVIDIA GeForce RTX 4090, 24564, 3, 8.9, GPU-aaaa-1111, 570.124.06
1, NVIDIA GeForce RTX 4090, 49140, 3, 8.9, GPU-bbbb-2222, 570.124.06
"""
_A100 = "0, NVIDIA A100 80GB PCIe, 81920, 4096, 8.0, GPU-aaaa-1111, 570.124.06\n"
_MIG = """GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-aaaa-1111)
  MIG 3g.40gb     Device  0: (UUID: MIG-aaaa-1)
  MIG 1g.10gb     Device  1: (UUID: MIG-bbbb-2)
"""


def _stand_in(folder: Path, name: str, answer: str, code: int = 0, listed: str = "") -> None:
    """A program that writes down how it was called, and answers; with `-L` it lists."""
    file = folder / name
    file.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(folder / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"sys.stdout.write({listed!r} if '-L' in sys.argv else {answer!r})\nsys.exit({code})\n",
        encoding="utf-8",
    )
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH, and no choice of devices."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return folder


def test_nvidia_smi_is_asked_once_for_all_it_must_say(programs: Path) -> None:
    _stand_in(programs, "nvidia-smi", _TWO_4090)
    found = machine.examine()
    assert found.kind == "cuda"
    assert [device.card for device in found.devices] == ["RTX4090", "RTX4090-48G"]
    assert [device.memory_bytes >> 20 for device in found.devices] == [24564, 49140]
    assert found.compute_capability == 8.9
    assert found.driver == "570.124.06"
    assert found.name == "RTX4090"
    assert found.memory_per_device == 24564 << 20
    assert (programs / "calls").read_text().splitlines() == [
        "--query-gpu=index,name,memory.total,memory.used,compute_cap,uuid,driver_version --format=csv,noheader,nounits"
    ]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        ("0,1", [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-bbbb", [1]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
    ],
)
def test_cuda_visible_devices_chooses_as_cuda_does(
    setting: str, indices: list[int], programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand_in(programs, "nvidia-smi", _TWO_4090)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    found = machine.examine()
    assert [device.index for device in found.devices] == indices
    assert found.kind == ("cuda" if indices else "cpu")


def test_memory_that_other_programs_hold_is_not_promised(programs: Path) -> None:
    _stand_in(programs, "nvidia-smi", _TWO_4090.replace("24564, 3,", "24564, 9000,"))
    found = machine.examine()
    assert [device.held_bytes >> 20 for device in found.devices] == [9000, 0]
    assert [device.memory_bytes >> 20 for device in found.devices] == [24564, 49140]
    assert found.memory_per_device == (24564 - 9000) << 20


@pytest.mark.parametrize("setting", ["MIG-bbbb-2", "MIG-bbbb-2,MIG-aaaa-1", None])
def test_a_slice_of_a_card_is_a_gpu_with_its_own_memory_and_speed(
    setting: str | None, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand_in(programs, "nvidia-smi", _A100, listed=_MIG)
    if setting:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    found = machine.examine()
    assert found.kind == "cuda"
    (device,) = found.devices
    uuid, slice_, share, gib = (
        ("MIG-bbbb-2", "1g.10gb", 1 / 7, 9.5) if setting else ("MIG-aaaa-1", "3g.40gb", 3 / 7, 38)
    )
    assert (device.uuid, device.name) == (uuid, f"NVIDIA A100 80GB PCIe MIG {slice_}")
    assert device.memory_bytes == int(gib * 2**30)
    whole = cards.find("A100-80G-PCIe").half_tflops
    assert found.card is not None
    assert whole is not None
    assert found.card.half_tflops == pytest.approx(whole * share)


def test_a_slice_that_is_not_there_leaves_the_processor(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(programs, "nvidia-smi", _A100, listed=_MIG)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cccc-3")
    assert machine.examine().kind == "cpu"


@pytest.mark.parametrize(("answer", "code"), [("", 0), ("NVIDIA-SMI has failed", 9)])
def test_a_driver_that_fails_leaves_the_processor(answer: str, code: int, programs: Path) -> None:
    _stand_in(programs, "nvidia-smi", answer, code)
    found = machine.examine()
    assert (found.kind, found.devices, found.driver) == ("cpu", (), "")
    assert found.memory_per_device == found.memory_bytes > 0
    assert found.name == found.processor != ""
    assert found.card is None


def test_a_card_outside_the_catalogue_promises_no_more_than_its_slowest_kin(programs: Path) -> None:
    _stand_in(programs, "nvidia-smi", "0, NVIDIA GeForce RTX 3080 Ti, 12288, 3, 8.6, GPU-cc, 570.1\n")
    found = machine.examine()
    assert found.devices[0].card is None
    assert found.name == "NVIDIA GeForce RTX 3080 Ti"
    assert found.card is not None
    assert (found.card.compute_capability, found.card.half_tflops) == (8.6, 25.5)


def test_a_chip_that_shares_main_memory_has_all_of_it(programs: Path) -> None:
    _stand_in(programs, "nvidia-smi", "0, NVIDIA GB10, [N/A], [N/A], 12.1, GPU-dd, 580.1\n")
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.examine().devices[0].memory_bytes == pages


def test_an_apple_machine_trains_on_its_chip(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine.platform, "machine", lambda: "arm64")
    _stand_in(programs, "sysctl", "Apple M2 Max\n")
    monkeypatch.setattr(machine, "_physical_memory_bytes", lambda: 96 << 30)
    found = machine.examine()
    assert (found.kind, found.name) == ("mps", "Apple M2 Max")
    assert found.memory_per_device == 96 << 30
    assert found.compute_capability == 0
    assert found.card == cards.find("M2 Max")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is not shared")
def test_processes_share_memory_unless_it_is_forbidden(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at where several GPUs are: a model is built once for all of them, or once for each."""
    _stand_in(programs, "nvidia-smi", _TWO_4090)
    assert machine.examine().shares_memory

    def refused(_name: str) -> int:
        raise PermissionError("by a filter of system calls")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert not machine.examine().shares_memory
    _stand_in(programs, "nvidia-smi", _A100)
    assert machine.examine().shares_memory


def test_packages_are_found_without_importing_them(programs: Path) -> None:
    found = machine.installed(("pydantic", "no-such-package"))
    assert list(found) == ["pydantic"]
    assert found["pydantic"][0].isdigit()


def test_threads_follow_the_environment_and_else_the_devices(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_count", lambda: 16)
    assert machine.examine().threads == 16
    _stand_in(programs, "nvidia-smi", _TWO_4090)
    assert machine.examine().threads == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert machine.examine().threads == 3


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


_TWICE_AS_MANY = f"{200_000 * (os.cpu_count() or 1)} 100000"


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": _TWICE_AS_MANY}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "100000 100000"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n3:memory:/other\n",
                "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        ({}, None),
    ],
)
def test_processors_are_those_of_the_container(files: dict[str, str], count: int | None, tmp_path: Path) -> None:
    expected = count or len(os.sched_getaffinity(0))
    assert machine.cpu_count(_tree(tmp_path, files)) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_processors_are_those_this_process_may_run_on() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.cpu_count() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"sys/fs/cgroup/memory.max": "1073741824"}, 1 << 30),
        ({"sys/fs/cgroup/memory.max": "max"}, None),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824"}, 1 << 30),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1073741824"}, 1 << 30),
    ],
)
def test_memory_is_that_of_the_container(files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.memory_bytes(_tree(tmp_path, files)) == (limit or physical)


def test_a_machine_can_be_made_up_from_the_catalogue() -> None:
    made = Machine.of_card(cards.find("RTX 4090"), 2)
    assert (made.kind, made.name, len(made.devices)) == ("cuda", "RTX4090", 2)
    assert made.memory_per_device == 24564 << 20
    assert made.card == cards.find("RTX 4090")
    assert not made.examined
    assert made.packages == {}


def test_a_made_up_apple_machine_has_the_smallest_memory_unless_told() -> None:
    chip = cards.find("M2 Max")
    assert Machine.of_card(chip).memory_per_device == 32 << 30
    assert Machine.of_card(chip, memory_gb=96).memory_per_device == 96 << 30
    assert Machine.of_card(chip).kind == "mps"


def test_an_apple_chip_without_a_figure_promises_no_more_than_the_slowest() -> None:
    taken = Machine.of_card(cards.find("M3 Ultra")).card
    assert taken is not None
    assert taken.half_tflops == 4.58


def test_a_machine_survives_json() -> None:
    made = Machine.of_card(cards.find("T4"))
    assert Machine.model_validate_json(made.model_dump_json()) == made
