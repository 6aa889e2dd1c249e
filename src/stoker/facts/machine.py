"""What this machine is, found without torch: processors, memory, cards and installed packages.

Containers are asked for their own limits (cgroup), not the host's. Decides nothing; `plan` does.
"""

import csv
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

import stoker
from stoker import env
from stoker.facts import cards
from stoker.facts.cards import Card

TENSORBOARD = ("tensorboard", "tensorboardX")
"""transformers writes TensorBoard's files with either package."""
PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "flash_attn",
    "deepspeed",
    "liger_kernel",
    "torchao",
    "datasets",
    *TENSORBOARD,
)
_PROBE_SECONDS = 20
_QUERY = "index,name,memory.total,memory.used,compute_cap,uuid,driver_version"
_IDLE_BYTES = 1 << 30
"""What the driver and a desktop may hold of an idle card; plans leave room for that anyway."""
_DIVISIBLE = (8.0, 9.0, 10.0, 10.3)
"""Compute capabilities of cards that can be divided into slices (MIG)."""
_WHOLE = re.compile(r"^GPU \d+: .*\(UUID: (GPU-[\w-]+)\)")
_SLICE = re.compile(r"^\s+MIG ((\d+)g\.(\d+)gb\S*)\s.*\(UUID: (MIG-[\w-]+)\)")
_SLICES = 7
"""A whole card has so many slices of computation."""
_SLICE_MEMORY = 0.95 * (1 << 30)
"""Bytes per gigabyte of a slice's name: 4,864 MiB of `1g.5gb`, 9,728 of `1g.10gb` (NVIDIA's MIG guide)."""
_ASSUMED_CPUS_PER_DEVICE = 8
"""For a machine that is not here: three in four of the offers behind `prices.csv` bring at least as many per card."""
_ASSUMED_MEMORY_BYTES_PER_DEVICE = 32 << 30
"""Likewise; the median of those offers is 80 GiB."""


class Device(BaseModel):
    """One GPU."""

    model_config = ConfigDict(frozen=True)

    name: str
    """As the driver says it."""
    card: str | None
    """Its name in the catalogue; None where it is not there."""
    memory_bytes: int
    compute_capability: float | None
    """None for Apple."""
    index: int
    uuid: str
    held_bytes: int = 0
    """Memory that other programs held when it was looked at."""
    share: float = 1.0
    """Of its card's speed: less for a slice (MIG)."""


class Machine(BaseModel):
    """A machine as far as a plan needs it."""

    model_config = ConfigDict(frozen=True)

    system: str
    """`Linux`, `Darwin` or `Windows`."""
    processor: str
    kind: Literal["cuda", "mps", "cpu"]
    """What trains here."""
    cpu_count: int
    """Processors this process may use."""
    threads: int
    """CPU threads of one training process."""
    memory_bytes: int
    """Main memory this process may use."""
    devices: tuple[Device, ...]
    driver: str
    """Version of the GPU driver; empty without one."""
    packages: dict[str, str]
    """Installed packages of those a plan asks for, with versions."""
    broken: dict[str, str] = {}
    """Packages that are installed and do not run on these cards, each with the reason."""
    python: str
    nodes: int = 1
    """How many such machines train together. Devices, processors and memory are those of one."""
    shares_memory: bool = True
    """Whether processes here can map each other's memory; looked at where there are several GPUs."""
    examined: bool
    """False for a machine made up from the catalogue: processors, memory and packages are assumed there."""

    def has(self, package: str) -> bool:
        """Whether a package is installed, or one that serves as well."""
        return any(one in self.packages for one in (TENSORBOARD if package in TENSORBOARD else (package,)))

    @classmethod
    def of_card(cls, card: Card, count: int = 1, memory_gb: float | None = None, nodes: int = 1) -> "Machine":
        """A machine with `count` of a card, to plan before there is one.

        Args:
            card: A card of the catalogue.
            count: How many of them.
            memory_gb: Memory of each, where the card is sold with several; else the smallest.
            nodes: How many such machines train together.
        """
        memory_bytes = int(memory_gb * 2**30) if memory_gb else card.memory_bytes
        device = {
            "name": card.device_names[0],
            "card": card.name,
            "memory_bytes": memory_bytes,
            "compute_capability": card.compute_capability,
            "uuid": "",
        }
        return cls(
            system="Darwin" if card.kind == "mps" else "Linux",
            processor="",
            kind="mps" if card.kind == "mps" else "cuda",
            cpu_count=_ASSUMED_CPUS_PER_DEVICE * count,
            threads=_ASSUMED_CPUS_PER_DEVICE,
            memory_bytes=memory_bytes if card.kind == "mps" else _ASSUMED_MEMORY_BYTES_PER_DEVICE * count,
            devices=tuple(Device.model_validate({**device, "index": index}) for index in range(count)),
            driver="",
            packages={},
            python=platform.python_version(),
            nodes=nodes,
            examined=False,
        )

    @property
    def name(self) -> str:
        """The card, or the processor where there is none."""
        first = self.devices[0] if self.devices else None
        return (first.card or first.name) if first else self.processor

    @property
    def compute_capability(self) -> float:
        """The lowest of the GPUs; 0 without an NVIDIA one."""
        return min((device.compute_capability or 0.0 for device in self.devices), default=0.0)

    @property
    def memory_per_device(self) -> int:
        """Memory that a training can have of each GPU, or main memory where the processor trains."""
        return min((device.memory_bytes - device.held_bytes for device in self.devices), default=self.memory_bytes)

    @property
    def card(self) -> Card | None:
        """The slowest card, or slice of one; None where the processor trains."""
        kinds = {(device.card, device.compute_capability, device.share) for device in self.devices}
        return min((_card(*kind) for kind in kinds), key=_tflops, default=None)


def examine() -> Machine:
    """Look at this machine."""
    devices, driver = _nvidia_devices()
    if not devices:
        devices = _apple_devices()
    cpus = cpu_count()
    stated_threads = env.read(env.OMP_NUM_THREADS)
    return Machine(
        system=platform.system(),
        processor=_processor(),
        kind=_kind(devices),
        cpu_count=cpus,
        threads=int(stated_threads) if stated_threads.isdigit() else max(1, cpus // max(1, len(devices))),
        memory_bytes=memory_bytes(),
        devices=tuple(devices),
        driver=driver,
        packages=installed(PACKAGES),
        python=platform.python_version(),
        shares_memory=len(devices) < 2 or shares_memory(),
        examined=True,
    )


def shares_memory() -> bool:
    """Whether another process of this user reads a file without a name that this one has, as ranks do (ADR 0032)."""
    if sys.platform != "linux":
        return False
    try:
        with os.fdopen(os.memfd_create("stoker-probe"), "wb") as file:
            file.write(b"read")
            file.flush()
            code = f"print(open('/proc/{os.getpid()}/fd/{file.fileno()}').read())"
            return _output(sys.executable, "-IS", "-c", code) == "read\n"
    except OSError:
        return False


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the packages that are installed; nothing is imported."""
    return {name: version for name in names if (version := _version(name))}


@functools.cache
def own_build() -> str:
    """Stoker's version with a digest of its own files, as they are installed here."""
    package = Path(stoker.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            own = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(package).as_posix()} {own}\n".encode())
    return f"{stoker.__version__} {digest.hexdigest()[:12]}"


def cpu_count(root: Path = Path("/")) -> int:
    """Processors this process may use: affinity and the container's quota, not what the host has."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _cpu_quota(root)
    return max(1, min(usable, int(quota + 0.5)) if quota else usable)


def memory_bytes(root: Path = Path("/")) -> int:
    """Main memory this process may use: the machine's, or the container's limit if that is lower."""
    limits = [
        _number(folder / name)
        for folder, name in _cgroup_files(root, "memory", ("memory.max", "memory.limit_in_bytes"))
    ]
    return min([_physical_memory_bytes(), *(limit for limit in limits if limit)])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _card(name: str | None, capability: float | None, share: float) -> Card:
    """A device's card; one without figures in the catalogue is taken for the slowest of its generation."""
    known = [card for card in cards.cards() if card.half_tflops]
    own = [card for card in known if card.name == name]
    generation = [card for card in known if card.compute_capability == capability]
    return min(own or generation or known, key=_tflops).slice(share)


def _tflops(card: Card) -> float:
    assert card.half_tflops is not None
    return card.half_tflops


def _kind(devices: list[Device]) -> Literal["cuda", "mps", "cpu"]:
    if not devices:
        return "cpu"
    return "mps" if devices[0].compute_capability is None else "cuda"


def _nvidia_devices() -> tuple[list[Device], str]:
    """The NVIDIA GPUs this process may use, and the driver's version."""
    answer = _output("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    lines = list(csv.reader(answer.splitlines(), skipinitialspace=True))
    driver = lines[0][-1] if lines else ""
    devices = [_nvidia_device(*line[:-1]) for line in lines]
    return _visible(devices, _slices(devices)), driver


def _nvidia_device(index: str, name: str, mebibytes: str, used: str, capability: str, uuid: str) -> Device:
    # A chip that shares main memory (GB10) reports `[N/A]` of its own.
    memory = int(mebibytes) << 20 if mebibytes.isdigit() else _physical_memory_bytes()
    held = int(used) << 20 if used.isdigit() else 0
    card = cards.identify(name, memory)
    return Device(
        name=name,
        card=card.name if card else None,
        memory_bytes=memory,
        held_bytes=held if held > _IDLE_BYTES else 0,
        compute_capability=float(capability),
        index=int(index),
        uuid=uuid,
    )


def _slices(devices: list[Device]) -> list[Device]:
    """The slices (MIG) of the GPUs that are divided; asked only where a card can be."""
    if not any(device.compute_capability in _DIVISIBLE for device in devices):
        return []
    found: list[Device] = []
    of: Device | None = None
    for line in _output("nvidia-smi", "-L").splitlines():
        whole, slice_ = _WHOLE.search(line), _SLICE.search(line)
        if whole:
            of = next((device for device in devices if device.uuid == whole[1]), None)
        elif slice_ and of is not None:
            name, parts, gigabytes, uuid = slice_.groups()
            size = {"memory_bytes": int(int(gigabytes) * _SLICE_MEMORY), "held_bytes": 0}
            share = int(parts) / _SLICES
            found.append(of.model_copy(update={"name": f"{of.name} MIG {name}", "uuid": uuid, "share": share, **size}))
    return found


def _visible(devices: list[Device], slices: list[Device]) -> list[Device]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; like CUDA, it stops at the first name it does not know.

    Of slices a process gets one: the first that is named, or the first of all.
    """
    setting = env.child_environment({}).get(env.CUDA_VISIBLE_DEVICES.name)
    if setting is None:
        return slices[:1] or devices
    if setting.strip().startswith("MIG-"):
        return [one for one in slices if one.uuid == setting.partition(",")[0].strip()]
    chosen: list[Device] = []
    for word in filter(None, (part.strip() for part in setting.split(","))):
        named = [d for d in devices if str(d.index) == word or (word.startswith("GPU-") and d.uuid.startswith(word))]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def _apple_devices() -> list[Device]:
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    name, memory = _processor(), _physical_memory_bytes()
    card = cards.identify(name, memory)
    known = card.name if card else None
    return [Device(name=name, card=known, memory_bytes=memory, compute_capability=None, index=0, uuid="")]


def _processor() -> str:
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string").strip()
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _physical_memory_bytes() -> int:
    if sys.platform == "win32":
        return _windows_memory_bytes()
    if platform.system() == "Darwin":
        return int(_output("sysctl", "-n", "hw.memsize"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _windows_memory_bytes() -> int:
    import ctypes

    class MemoryStatus(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "total_page", "free_page", "total_virtual")),
            ("free_virtual", ctypes.c_ulonglong),
            ("extended", ctypes.c_ulonglong),
        )

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]  # Windows only
    return int(status.total)


def _cpu_quota(root: Path) -> float | None:
    """Processors the container may keep busy, over all cgroups it is in; None without a limit."""
    quotas = []
    for folder, name in _cgroup_files(root, "cpu", ("cpu.max", "cpu.cfs_quota_us")):
        if name == "cpu.max":
            words = (folder / name).read_text(encoding="utf-8").split()
            quota, period = (int(words[0]), int(words[1])) if words[0] != "max" else (-1, 1)
        else:
            quota, period = _number(folder / name) or -1, _number(folder / "cpu.cfs_period_us") or 1
        if quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _cgroup_files(root: Path, controller: str, names: tuple[str, ...]) -> list[tuple[Path, str]]:
    """Limit files of this process' cgroup and of all above it, in version 2 and version 1 of the tree."""
    base = root / "sys/fs/cgroup"
    folders = [base, base / controller]
    membership = root / "proc/self/cgroup"
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        start = base if not controllers else base / controller
        if controllers and controller not in controllers.split(","):
            continue
        parts = Path(path.strip("/")).parts
        folders += [start.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    return [(folder, name) for folder in folders for name in names if (folder / name).is_file()]


def _number(file: Path) -> int | None:
    """The number in a small file; None for `max`."""
    text = file.read_text(encoding="utf-8").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _output(program: str, *arguments: str) -> str:
    """What a program says; nothing where it is missing, fails or hangs."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603  # a fixed program with fixed arguments
            [path, *arguments], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
