"""Records of a machine elsewhere, as it answered. `probe.py` asks and fills them in; `hosts.py` keeps them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

OLDEST_PYTHON = (3, 10)
Kept = Literal["release", "stop", "hours", "nothing", "unknown"]


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FoundCard(_Fact):
    """One GPU as it answered."""

    index: int
    name: str
    """As the driver says it."""
    card: str | None = None
    """Its name in the catalogue; None where no card there has its figures."""
    memory_bytes: int
    compute_capability: float
    sm_count: int | None = None
    """None where no Python could ask the driver."""
    uuid: str = ""


class Disk(_Fact):
    """A folder runs may stand in."""

    path: str
    free_bytes: int
    total_bytes: int
    survives: Kept
    """What it outlives by the platform's profile: a release of the machine, a stop, some hours, or nothing."""
    slow: bool = False
    """On a network, by the platform's profile."""


class Interpreter(_Fact):
    """One Python that is there."""

    path: str
    version: str
    packages: dict[str, str] = {}
    """Versions of the packages a plan asks for."""
    cuda: str = ""
    """CUDA its torch is built for; empty for none."""
    usable: bool | None = None
    """Whether its torch computes on the card; None where there was nothing to try."""

    @property
    def torch(self) -> str:
        """Version of its torch; empty without."""
        return self.packages.get("torch", "")

    @property
    def fits(self) -> bool:
        """Whether Stoker runs on it."""
        return tuple(int(part) for part in self.version.split(".")[:2]) >= OLDEST_PYTHON


class BoxFacts(_Fact):
    """A machine as it answered."""

    system: str = ""
    hostname: str = ""
    user: str = ""
    home: str = ""
    processor: str = ""
    cpu_count: int = 1
    """Processors we may use there."""
    host_cpu_count: int = 1
    """What the machine below shows."""
    memory_bytes: int = 0
    """Main memory we may use there."""
    devices: tuple[FoundCard, ...] = ()
    driver: str = ""
    disks: tuple[Disk, ...] = ()
    pythons: tuple[Interpreter, ...] = ()
    """The one to use first."""
    tools: tuple[str, ...] = ()
    """Programs of those we may use that are there."""
    platform: str = ""
    """Name of the profile that fits; empty for none."""
    instance: str = ""
    """The platform's own name of it."""
    reachable: dict[str, int] = {}
    """Addresses that answered from there, with milliseconds."""
    given: dict[str, str] = {}
    """Settings there that lead to a hub or an index already."""
