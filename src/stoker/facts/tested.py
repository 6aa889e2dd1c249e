"""The table of what was run together (`data/tested.json`): versions, floors, PyTorch builds and drivers."""

import functools
import json
from collections.abc import Sequence
from importlib import resources

from stoker.facts.fact import Fact


class Combination(Fact):
    """Versions that were run together."""

    date: str
    packages: dict[str, str]

    def equal(self, installed: dict[str, str]) -> int:
        """How many packages are installed in just this version."""
        return sum(release(installed.get(name, "")) == version for name, version in self.packages.items())


class Build(Fact):
    """Cards that a PyTorch build carries code for, by compute capability."""

    cuda: str
    torch: str | None = None
    """Only builds of this minor version; None for all others."""
    lowest: float
    highest: float

    def runs_on(self, capability: float) -> bool:
        """Code for a capability also runs on later ones of the same major version."""
        return self.lowest <= capability and int(capability) <= int(self.highest)


class PackageSizes(Fact):
    """What packages take."""

    download_bytes: int
    disk_bytes: int
    """Unpacked."""


class TorchWheel(PackageSizes):
    """A PyTorch of pip's default index, with the CUDA packages it requires."""

    torch: str
    cuda: str


class Table(Fact):
    """The whole table."""

    about: dict[str, object]
    combinations: tuple[Combination, ...]
    floors: dict[str, str]
    """The oldest version that is accepted."""
    optional: tuple[str, ...]
    """Packages that only some runs need."""
    builds: tuple[Build, ...]
    indexes: tuple[str, ...]
    """CUDA versions for which the newest tested PyTorch can be installed, oldest first."""
    drivers: dict[str, int]
    """The oldest driver for each major version of CUDA."""
    pythons: tuple[str, str]
    """The oldest and the newest Python the newest tested PyTorch is built for."""

    wheels: tuple[TorchWheel, ...]
    """The newest first."""
    rest: PackageSizes
    """What Stoker installs besides PyTorch."""
    oldest_libc: str
    """The oldest glibc that PyTorch's wheels accept (`manylinux_2_28`)."""

    def nearest(self, installed: dict[str, str]) -> Combination:
        """The combination that shares most versions with what is installed; of equals, the newest."""
        return max(reversed(self.combinations), key=lambda combination: combination.equal(installed))

    def build(self, cuda: str, torch: str) -> Build | None:
        """What is known of a build."""
        minor = ".".join(torch.split(".")[:2])
        return next((b for b in self.builds if b.cuda == cuda and b.torch in (minor, None)), None)

    def oldest_driver(self, cuda: str) -> int:
        """The oldest driver a CUDA version runs on; 0 where that is not known."""
        return self.drivers.get(cuda.split(".")[0], 0)

    def index_for(self, capability: float, driver: str) -> str | None:
        """The newest CUDA version whose build runs on this card and driver."""
        torch = self.combinations[-1].packages["torch"]
        for cuda in reversed(self.indexes):
            build = self.build(cuda, torch)
            if build and build.runs_on(capability) and version_key(driver) >= (self.oldest_driver(cuda),):
                return cuda
        return None

    def wheel_for(self, capabilities: Sequence[float], driver: str) -> TorchWheel | None:
        """The newest PyTorch of the default index that runs on these cards with this driver."""
        for wheel in self.wheels:
            build = self.build(wheel.cuda, wheel.torch)
            fits_driver = version_key(driver) >= (self.oldest_driver(wheel.cuda),)
            if build and fits_driver and all(map(build.runs_on, capabilities)):
                return wheel
        return None


@functools.cache
def table() -> Table:
    """The table."""
    text = resources.files("stoker.facts").joinpath("data/tested.json").read_text(encoding="utf-8")
    return Table.model_validate(json.loads(text))


def release(version: str) -> str:
    """`2.13.0+cpu` as `2.13.0`."""
    return version.partition("+")[0]


def version_key(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare by: `580.82.07` as (580, 82, 7)."""
    numbers = []
    for part in release(version).split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
