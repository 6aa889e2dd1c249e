"""The probe: its script runs in a plain shell, and its answers are read without believing a name.

Answers of GPUs and containers here are simulated: written after the form real ones have, not taken from a machine.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import messages
from stoker.facts import cards, platforms
from stoker.hosts import probe, probe_python
from stoker.hosts.box_facts import BoxFacts

GIB = 1 << 30
SIMULATED = {
    "system": "Linux",
    "hostname": "box",
    "user": "root",
    "home": "/root",
    "processor": "AMD EPYC 7763 64-Core Processor",
    "cpus": "128",
    "host_cpus": "128",
    "memory_kib": "528000000",
}


def _python(path: str = "/root/miniconda3/bin/python", **changed: Any) -> str:
    found = {"prefix": path, "executable": path, "version": "3.12.3", "packages": {"torch": "2.5.1+cu124"}}
    return f"python\t{path}\t" + json.dumps({**found, "cuda": "12.4", "usable": True, "cards": [], **changed})


def _said(*lines: str, **changed: str) -> BoxFacts:
    words = [f"{word}\t{text}" for word, text in {**SIMULATED, **changed}.items()]
    return probe.read("\n".join(["+-- a banner --+", *words, *lines, ""]))


def _card(name: str, mebibytes: int, capability: str, sm_count: int | None) -> BoxFacts:
    row = f"gpu\t0, {name}, {mebibytes}, GPU-1111, 550.54.14, {capability}"
    figures = {"index": 0, "name": name, "uuid": "GPU-1111", "memory_bytes": mebibytes << 20}
    own = [{**figures, "sm_count": sm_count, "compute_capability": float(capability)}] if sm_count else []
    return _said(row, _python(cards=own))


# ---- cards


@pytest.mark.parametrize(
    ("name", "mebibytes", "capability", "sm_count", "card"),
    [
        ("NVIDIA vGPU-48GB", 49140, "8.9", 128, "vGPU-48GB"),
        ("NVIDIA Graphics Device", 49140, "8.9", 128, "RTX4090-48G"),
        ("NVIDIA GeForce RTX 4090", 49140, "8.9", 128, "RTX4090-48G"),
        ("NVIDIA GeForce RTX 4090", 24564, "8.9", 128, "RTX4090"),
        ("NVIDIA GeForce RTX 4090", 24564, "8.9", 114, "RTX4090D"),
        ("NVIDIA vGPU-48GB-350W", 49140, "8.6", 82, "RTX3090-48G"),
        ("NVIDIA vGPU-32GB", 32760, "8.9", 80, "vGPU-32GB"),
        ("Tesla T4", 15360, "7.5", 40, "T4"),
        ("NVIDIA A100-SXM4-80GB", 81920, "8.0", 108, "A100-80-SXM4"),
        ("NVIDIA A100 80GB PCIe", 81920, "8.0", 108, "A100-80-PCIe"),
        ("Tesla T4", 15360, "7.5", None, "T4"),
        ("NVIDIA A100-SXM4-40GB", 4864, "8.0", 14, None),
        ("NVIDIA A100-SXM4-40GB", 40960, "8.0", 14, None),
        ("NVIDIA GeForce RTX 4090", 81920, "9.0", 132, "H100-SXM"),
        ("A card nobody knows", 49140, "8.9", None, None),
    ],
)
def test_a_card_is_told_by_its_figures(
    name: str, mebibytes: int, capability: str, sm_count: int | None, card: str | None
) -> None:
    (device,) = _card(name, mebibytes, capability, sm_count).devices
    assert device.card == card
    assert device.sm_count == sm_count


def test_every_card_of_the_catalogue_is_recognised_by_its_own_figures() -> None:
    for card in cards.cards():
        if card.compute_capability and card.sm_count:
            for name in card.device_names:
                found = cards.recognise(name, card.memory_bytes, card.compute_capability, card.sm_count)
                assert found is not None
                same = (found.compute_capability, found.sm_count) == (card.compute_capability, card.sm_count)
                assert same, (card.name, found.name)


def test_a_driver_too_old_to_say_its_capability_is_asked_through_python() -> None:
    own = {"index": 0, "name": "Tesla T4", "uuid": "GPU-1", "memory_bytes": 15 * GIB, "sm_count": 40}
    row = "gpu\t0, Tesla T4, 15109, GPU-1, 418.87"
    facts = _said(row, _python(cards=[{**own, "compute_capability": 7.5}]))
    assert [device.card for device in facts.devices] == ["T4"]
    assert facts.driver == "418.87"
    assert _said(row).devices == ()


def test_without_nvidia_smi_the_driver_itself_is_believed() -> None:
    own = {"index": 0, "name": "Tesla T4", "uuid": "GPU-1", "memory_bytes": 15 * GIB, "sm_count": 40}
    facts = _said(_python(cards=[{**own, "compute_capability": 7.5}]))
    assert [device.card for device in facts.devices] == ["T4"]


# ---- limits


def test_a_containers_processors_and_memory_are_its_own_not_the_hosts() -> None:
    facts = _said(
        "cpu_quota\tmax 100000", "cpu_quota\t1600000 100000", "memory_limit\tmax", f"memory_limit\t{60 * GIB}"
    )
    assert (facts.cpu_count, facts.host_cpu_count, facts.memory_bytes) == (16, 128, 60 * GIB)


def test_no_limit_is_no_limit() -> None:
    facts = _said("cpu_quota\t-1 100000", "memory_limit\t9223372036854771712")
    assert (facts.cpu_count, facts.memory_bytes) == (128, 528000000 << 10)


# ---- platforms and disks

DF = "overlay 31457280 10485760 {free} 34% {mount}"


def _disk(path: str, free_gib: int, mount: str, writable: str = "yes") -> str:
    return f"disk\t{path}\t{writable}\t" + DF.format(free=free_gib << 20, mount=mount)


def test_autodl_is_recognised_and_its_data_disk_is_taken() -> None:
    facts = _said(
        "variable\tAutoDLRegion",
        "instance\tAutoDLContainerUUID\ta1b2c3",
        _disk("/root/autodl-tmp", 47, "/root/autodl-tmp"),
        _disk("/root/autodl-fs", 200, "/root/autodl-fs"),
        _disk("/root", 20, "/"),
        _disk("/", 20, "/"),
        _disk("/usr/lib/firmware/nvidia", 900, "/usr/lib/firmware/nvidia"),
    )
    assert facts.platform == "autodl"
    assert facts.instance == "a1b2c3"
    assert {disk.path: disk.survives for disk in facts.disks} == {
        "/root/autodl-tmp": "stop",
        "/root/autodl-fs": "release",
        "/root": "stop",
        "/": "stop",
        "/usr/lib/firmware/nvidia": "unknown",
    }
    assert probe.base(facts) == "/root/autodl-tmp/stoker"


def test_a_machine_of_ones_own_keeps_our_folder_at_home() -> None:
    facts = _said(_disk("/data", 900, "/data"), _disk("/srv/me", 20, "/"), _disk("/mnt", 20, "/"), home="/srv/me")
    assert facts.platform == ""
    assert [disk.path for disk in facts.disks] == ["/data", "/srv/me"]
    assert probe.base(facts) == "/srv/me/stoker"


def test_a_disk_that_may_not_be_written_to_does_not_count() -> None:
    assert _said(_disk("/root/autodl-tmp", 47, "/root/autodl-tmp", "no"), "variable\tAutoDLRegion").disks == ()


def test_where_a_stop_resets_the_system_our_folder_is_on_the_volume() -> None:
    facts = _said(
        "variable\tRUNPOD_POD_ID", _disk("/", 300, "/"), _disk("/root", 300, "/"), _disk("/workspace", 90, "/w")
    )
    assert facts.platform == "runpod"
    assert probe.base(facts).split("/")[1:] == ["workspace", "stoker"]


def test_the_login_node_of_a_queue_is_told_by_its_program() -> None:
    facts = _said("tool\tsbatch", _disk("/srv/me", 20, "/srv"), home="/srv/me")
    assert facts.platform == "slurm"
    assert [(disk.path, disk.survives) for disk in facts.disks] == [("/srv/me", "release")]


# ---- Pythons


def test_the_python_whose_torch_computes_on_the_card_comes_first() -> None:
    facts = _said(
        _python("/usr/bin/python3", packages={}, cuda="", usable=None),
        _python("/opt/broken/bin/python", usable=False),
        _python("/opt/old/bin/python", version="3.8.10"),
        _python("/opt/conda/bin/python"),
    )
    assert [python.path for python in facts.pythons] == [
        "/opt/conda/bin/python",
        "/opt/broken/bin/python",
        "/usr/bin/python3",
        "/opt/old/bin/python",
    ]
    assert not facts.pythons[-1].fits


def test_an_environment_reached_by_two_paths_is_one() -> None:
    same = {"prefix": "/opt/conda", "executable": "/opt/conda/bin/python3"}
    facts = _said(_python("/opt/conda/bin/python", **same), _python("/opt/link/bin/python", **same))
    assert [python.path for python in facts.pythons] == ["/opt/conda/bin/python3"]


def test_nonsense_between_the_lines_is_passed_over() -> None:
    facts = _said(
        "python\t/usr/bin/python3\tTraceback (most recent call last):", "gpu\tNo devices were found", "disk\t/x"
    )
    assert (facts.pythons, facts.devices, facts.disks) == ((), (), ())
    assert probe.read("").cpu_count == 1


def test_a_plan_sees_the_machine_that_was_found() -> None:
    machine = probe.to_machine(_card("NVIDIA vGPU-48GB", 49140, "8.9", 128))
    assert machine.kind == "cuda"
    assert machine.card is not None
    assert machine.card.name == "vGPU-48GB"
    assert machine.memory_per_device == 49140 << 20
    assert (machine.cpu_count, machine.threads) == (128, 128)


def test_a_plan_sees_the_packages_it_will_train_with() -> None:
    row = "gpu\t0, NVIDIA GeForce RTX 4090, 24564, GPU-1111, 550.54.14, 8.9"
    line = "reachable pip 12"
    kept = _said(row, _python(packages={"torch": "2.11.0+cu128", "flash_attn": "2.8"}), line)
    assert probe.to_machine(kept).packages == {"torch": "2.11.0+cu128", "flash_attn": "2.8"}
    built = _said(row, _python(packages={"torch": "2.5.1+cu124", "flash_attn": "2.8"}), line)
    assert probe.to_machine(built).packages == {"torch": "2.10.0"}, "the image's packages are not used"


# ---- the script itself, in a plain shell


def _run(folder: Path, *programs: tuple[str, str], shell: str = "sh", **variables: str) -> BoxFacts:
    """The script on this machine, with a root and programs of the test's own before it."""
    root, tools = folder / "root", folder / "tools"
    tools.mkdir()
    for name, text in programs:
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    settings = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    done = subprocess.run(
        [shell], input=f"set -e\n{probe.script(str(root))}", env=settings, capture_output=True, text=True, check=True
    )
    return probe.read(done.stdout)


def _root(folder: Path, files: dict[str, str]) -> None:
    cpuinfo = "".join(f"processor\t: {index}\nmodel name\t: Simulated\n" for index in range(64))
    meminfo = "MemTotal:       528000000 kB\nMemFree:        1 kB\n"
    for name, text in {"proc/cpuinfo": cpuinfo, "proc/meminfo": meminfo, **files}.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


TREES = {
    "version 2": {"sys/fs/cgroup/cpu.max": "100000 100000\n", "sys/fs/cgroup/memory.max": f"{6 * GIB}\n"},
    "version 2, a group above": {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/memory.max": f"{6 * GIB}\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
    },
    "version 1": {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n3:pids:/y\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": f"{6 * GIB}\n",
    },
}


@pytest.mark.skipif(sys.platform != "linux", reason="the script is for Linux boxes")
@pytest.mark.parametrize("tree", TREES)
def test_the_script_finds_a_containers_limits(tmp_path: Path, tree: str) -> None:
    _root(tmp_path, TREES[tree])
    facts = _run(tmp_path, ("nproc", "echo 64"))
    assert (facts.cpu_count, facts.host_cpu_count, facts.memory_bytes) == (1, 64, 6 * GIB)


@pytest.mark.skipif(sys.platform != "linux", reason="the script is for Linux boxes")
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_script_finds_platform_disks_tools_and_this_python(tmp_path: Path, shell: str) -> None:
    canary = "canary-51d0"
    _root(tmp_path, {"root/autodl-tmp/x": "", "proc/1/environ": f"MATCLOUD_CANCELTOKEN={canary}\0AutoDLRegion=west\0"})
    facts = _run(tmp_path, shell=shell, VIRTUAL_ENV=sys.prefix, CONTAINER_API_KEY=canary, AutoDLContainerUUID="a1b2")
    assert facts.platform == "autodl"
    assert facts.instance == "a1b2"
    assert "/root/autodl-tmp" in {disk.path for disk in facts.disks}
    assert "tar" in facts.tools
    assert sys.prefix in {str(Path(python.path).parents[1]) for python in facts.pythons}
    assert canary not in facts.model_dump_json()
    assert facts.devices == ()


@pytest.mark.skipif(sys.platform != "linux", reason="the script is for Linux boxes")
def test_the_script_says_no_value_of_a_secret(tmp_path: Path) -> None:
    _root(tmp_path, {"proc/1/environ": "CONTAINER_API_KEY=canary-51d0\nRUNPOD_POD_ID=canary-51d0\0"})
    settings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VAST_CONTAINERLABEL": "canary-51d0"}
    script = probe.script(str(tmp_path / "root"))
    done = subprocess.run(["sh"], input=script, env=settings, capture_output=True, text=True, check=True)
    assert "variable\tCONTAINER_API_KEY" in done.stdout
    assert "variable\tVAST_CONTAINERLABEL" in done.stdout
    assert done.stdout.count("canary-51d0") == done.stdout.count("instance\tRUNPOD_POD_ID\tcanary-51d0")


@pytest.mark.skipif(sys.platform != "linux", reason="the script is for Linux boxes")
def test_the_script_asks_nvidia_smi(tmp_path: Path) -> None:
    _root(tmp_path, {})
    simulated = """case $1 in
*compute_cap*) echo "0, NVIDIA H800, 81559, GPU-a, 550.54, 9.0"; echo "1, NVIDIA H800, 81559, GPU-b, 550.54, 9.0" ;;
*) exit 1 ;;
esac"""
    facts = _run(tmp_path, ("nvidia-smi", simulated))
    assert [(device.index, device.card) for device in facts.devices] == [(0, "H800-SXM"), (1, "H800-SXM")]
    assert facts.driver == "550.54"


DRIVER = r"""
#include <string.h>
int cuInit(unsigned f) { return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strcpy(s, "NVIDIA vGPU-48GB"); return 0; }
int cuDeviceGetUuid(char *u, int d) { memset(u, 0x10 + d, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *m, int d) { *m = 50962169856ul; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 16 ? 128 : a == 75 ? 8 : 9; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler")
def test_the_driver_is_asked_for_processors_through_its_own_library(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(f"#include <stddef.h>\n{DRIVER}")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(tmp_path / "driver.c")], check=True)
    done = subprocess.run(
        [sys.executable, str(Path(probe_python.__file__)), "", "pydantic"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert [card["sm_count"] for card in said["cards"]] == [128, 128]
    assert said["cards"][1]["uuid"] == "GPU-11111111-1111-1111-1111-111111111111"
    assert said["cards"][0]["compute_capability"] == 8.9
    assert "pydantic" in said["packages"]
    facts = _said(_python(cards=said["cards"]))
    assert [device.card for device in facts.devices] == ["vGPU-48GB", "vGPU-48GB"]


def test_every_trap_of_a_platform_is_said_in_words() -> None:
    for platform in platforms.platforms():
        for trap in platform.traps:
            assert messages.known(trap), trap


def test_a_new_platform_is_a_data_file(tmp_path: Path) -> None:
    """What a profile must name, tried with one that does not exist."""
    profile = {
        "name": "new",
        "title": "New",
        "kind": "ssh",
        "detect": {"env": ["NEW_ID"], "paths": ["/new"]},
        "storage": [{"path": "/new", "survives_stop": True, "survives_release": False, "confidence": "P"}],
        "meter": {"stops_on": "stop", "reversible": {"words": ["newctl", "stop", "$NEW_ID"]}, "confidence": "P"},
        "limits": {},
        "sources": ["its own documentation"],
    }
    platform = platforms.Platform.model_validate(profile)
    assert platform.meter.reversible is not None
    assert platform.meter.reversible.variables == ("NEW_ID",)
