"""Facts of another machine: filled in by `probe.py`, kept with the host by `known.py`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

OLDEST_PYTHON = (3, 10)
Kept = Literal["release", "stop", "hours", "nothing", "unknown"]


class _BoxFact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FoundCard(_BoxFact):
    """One GPU."""

    index: int
    name: str
    """The driver's name."""
    card: str | None = None
    """Its name in the catalogue; None where no card there matches."""
    memory_bytes: int
    compute_capability: float
    sm_count: int | None = None
    """None where no Python could query the driver."""
    uuid: str = ""


class Disk(_BoxFact):
    """A folder that can hold runs."""

    path: str
    free_bytes: int
    total_bytes: int
    survives: Kept
    """What it survives by the platform's profile: a release of the machine, a stop, some hours, or nothing."""
    slow: bool = False
    """Whether it is a network disk, by the platform's profile."""


class Interpreter(_BoxFact):
    """One Python of the machine."""

    path: str
    version: str
    packages: dict[str, str] = {}
    """Versions of packages that a plan or an installation needs to know."""
    has_pip: bool = True
    """Whether pip is there, or can be put into an environment by Python itself."""
    cuda: str = ""
    """CUDA version of its torch; empty for none."""
    usable: bool | None = None
    """Whether its torch computes on the card; None where that was not tried."""

    @property
    def torch(self) -> str:
        """Version of its torch; empty without."""
        return self.packages.get("torch", "")

    @property
    def fits(self) -> bool:
        """Whether Stoker runs on it."""
        return tuple(int(part) for part in self.version.split(".")[:2]) >= OLDEST_PYTHON


class BoxFacts(_BoxFact):
    """All facts of one machine."""

    system: str = ""
    hostname: str = ""
    architecture: str = ""
    """As `uname -m` calls it."""
    libc: str = ""
    """Version of glibc; empty where there is another one."""
    user: str = ""
    home: str = ""
    processor: str = ""
    cpu_count: int = 1
    """CPUs that may be used."""
    host_cpu_count: int = 1
    """CPUs of the physical machine."""
    memory_bytes: int = 0
    """Main memory that may be used."""
    devices: tuple[FoundCard, ...] = ()
    driver: str = ""
    disks: tuple[Disk, ...] = ()
    pythons: tuple[Interpreter, ...] = ()
    """The best one first."""
    tools: tuple[str, ...] = ()
    """Installed programs, of those Stoker can use."""
    platform: str = ""
    """Name of the platform's profile; empty for none."""
    instance: str = ""
    """The platform's id of it."""
    reachable: dict[str, int] = {}
    """Addresses reachable from there, with milliseconds."""
    given: dict[str, str] = {}
    """Variables that already set a hub or an index there."""
    has_token: bool = False
    """Hugging Face's client has a token there, by its environment or its login."""
