"""Decides how Stoker is installed on a box: beside the image's torch, in an environment of its own, or not at all.

Pure: from the facts of a probe to a decision with its reason. `places/box.py` carries it out.
"""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stoker import env, messages
from stoker.errors import StokerError
from stoker.facts import mirrors, platforms, tested
from stoker.facts.tested import Table, TorchWheel, version_key
from stoker.hosts.box_facts import OLDEST_PYTHON, BoxFacts, Interpreter

EXTRAS = ("train", "data", "store")
"""Of Stoker, that every box gets."""
OWN_PYTHON = "3.12"
"""The Python that uv installs where the image has none that is new enough."""
_ARCHITECTURE = "x86_64"
"""Of which the sizes and builds of wheels are known."""
_UV_PYTHON = (3, 8)
"""The oldest Python whose pip installs uv."""
_BYTES_PER_SECOND = 20e6
"""The line that minutes are said for."""
_UNPACKED_PER_SECOND = 100e6
_VENV_BYTES = 50_000_000
"""Stoker itself and an environment around the image's packages."""
_ADVICE = {
    "box_env.driver": "box_env.choose_driver",
    "box_env.card": "box_env.choose_card",
    "box_env.no_card": "box_env.switch_on",
}
"""What to do where another image does not help."""
_FLOOR = re.compile(r"([A-Za-z0-9][\w.-]*)[^;>=]*(?:>=([\d.]+))?")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")


class BoxEnvironment(BaseModel):
    """The decision for one box."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["image", "own", "refused"]
    key: str
    """The sentence that says it and why."""
    fields: dict[str, Any] = {}
    python: str = ""
    """The image's Python it is made with; empty where uv installs one."""
    pip: str = ""
    """A Python of the image whose pip installs uv; empty where uv is there or is downloaded."""
    torch: str = ""
    """The PyTorch that is installed; empty where the image's is kept."""
    download_bytes: int = 0
    disk_bytes: int = 0

    @property
    def text(self) -> str:
        """The decision in the user's language."""
        return messages.text(self.key, **self.fields)

    def require(self, host: str) -> None:
        """Raise where nothing can train there."""
        if self.kind == "refused":
            advice = messages.text(_ADVICE.get(self.key, "box_env.choose_image"), **self.fields)
            raise StokerError("STK712", host=host, reason=self.text, advice=advice)


@functools.cache
def requirements() -> dict[str, str]:
    """What Stoker requires on a box: packages, each with its oldest version."""
    found = {}
    for line in metadata.requires("stoker") or ():
        extra, named = _EXTRA.search(line), _FLOOR.match(line)
        if named and (extra is None or extra[1] in EXTRAS):
            found[named[1]] = named[2] or ""
    return found


def decide(facts: BoxFacts, chosen: str = "") -> BoxEnvironment:
    """How Stoker is installed on a machine.

    Args:
        facts: The machine as it trains: with its card.
        chosen: The Python of the host's record, preferred where it will do.
    """
    candidates = sorted(facts.pythons, key=lambda one: one.path != chosen)
    fitting = [one for one in candidates if one.fits]
    for python in fitting:
        if python.has_pip and _keeps_torch(python, facts) and (not _missing(python) or _has_index(facts)):
            return _image(python)
    return _own(facts, fitting[0] if fitting else None)


def _image(python: Interpreter) -> BoxEnvironment:
    rest = tested.table().rest if _missing(python) else None
    return BoxEnvironment(
        kind="image",
        key="box_env.keeps",
        fields={"torch": python.torch, "path": python.path},
        python=python.path,
        download_bytes=rest.download_bytes if rest else 0,
        disk_bytes=_VENV_BYTES + (rest.disk_bytes if rest else 0),
    )


def _keeps_torch(python: Interpreter, facts: BoxFacts) -> bool:
    """Whether its torch is new enough and computes on the card."""
    table = tested.table()
    if version_key(python.torch) < version_key(table.floors["torch"]) or python.usable is False:
        return False
    if not facts.devices or python.usable:
        return True
    return bool(python.cuda) and (not facts.driver or _runs_cuda(table, facts.driver, python.cuda))


def _runs_cuda(table: Table, driver: str, cuda: str) -> bool:
    return version_key(driver) >= (table.oldest_driver(cuda),)


def _missing(python: Interpreter) -> list[str]:
    """Packages that Stoker requires and this Python has not, or too old."""
    there = {name.lower().replace("_", "-"): version for name, version in python.packages.items()}
    return [
        name
        for name, floor in requirements().items()
        if version_key(there.get(name.lower().replace("_", "-"), "")) < (version_key(floor) or (0,))
    ]


# ---- an environment of its own


def _own(facts: BoxFacts, python: Interpreter | None) -> BoxEnvironment:
    """Built by uv with the PyTorch that fits the driver, or the reason why that is not possible."""
    wheel = _wheel(facts)
    obstacle = next(_obstacles(facts, python, wheel), None)
    if obstacle is not None or wheel is None:
        assert obstacle is not None
        return BoxEnvironment(kind="refused", key=obstacle[0], fields={**_found(facts), **obstacle[1]})
    rest = tested.table().rest
    download, disk = wheel.download_bytes + rest.download_bytes, wheel.disk_bytes + rest.disk_bytes
    minutes = math.ceil((download / _BYTES_PER_SECOND + disk / _UNPACKED_PER_SECOND) / 60)
    sizes = {"download": f"{download / 1e9:.1f}", "disk": f"{disk / 1e9:.1f}", "minutes": minutes}
    version = python.version if python else OWN_PYTHON
    return BoxEnvironment(
        kind="own",
        key="box_env.own" if facts.devices else "box_env.own_without_card",
        fields={**_found(facts), **sizes, "wheel": wheel.torch, "cuda": wheel.cuda, "version": version},
        python=python.path if python else "",
        pip=next((one.path for one in facts.pythons if _installs_uv(one)), ""),
        torch=wheel.torch,
        download_bytes=download,
        disk_bytes=disk,
    )


def _wheel(facts: BoxFacts) -> TorchWheel | None:
    """The newest that fits; where the cards are those of other machines, the one for the oldest driver."""
    wheels = tested.table().wheels
    if facts.devices:
        return tested.table().wheel_for([card.compute_capability for card in facts.devices], facts.driver)
    return wheels[-1] if "sbatch" in facts.tools else wheels[0]


def _obstacles(
    facts: BoxFacts, python: Interpreter | None, wheel: TorchWheel | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Reasons against it, the first one to solve first."""
    table = tested.table()
    platform = platforms.find(facts.platform)
    if wheel is None:
        oldest = min(table.oldest_driver(one.cuda) for one in table.wheels)
        old_driver = version_key(facts.driver) < (oldest,)
        yield ("box_env.driver" if old_driver else "box_env.card"), {"oldest": oldest}
    if facts.architecture not in ("", _ARCHITECTURE):
        yield "box_env.architecture", {"architecture": facts.architecture}
    if facts.libc and version_key(facts.libc) < version_key(table.oldest_libc):
        yield "box_env.libc", {"libc": facts.libc, "oldest": table.oldest_libc}
    if not _has_index(facts):
        yield "box_env.network", {}
    if not _has_uv(facts):
        yield "box_env.uv", {}
    if python is None and mirrors.nearest("python", facts.reachable) is None:
        yield "box_env.python", {}
    if not facts.devices and platform is not None and platform.runs_without_card:
        yield "box_env.no_card", {}


def _has_index(facts: BoxFacts) -> bool:
    return mirrors.nearest("pip", facts.reachable) is not None or env.PIP_INDEX_URL.name in facts.given


def _has_uv(facts: BoxFacts) -> bool:
    """Whether uv is there or can be had: by pip, or from its own downloads."""
    if "uv" in facts.tools or any(map(_installs_uv, facts.pythons)):
        return True
    way = mirrors.nearest("python", facts.reachable)
    return way is not None and way.origin and "tar" in facts.tools and not {"curl", "wget"}.isdisjoint(facts.tools)


def _installs_uv(python: Interpreter) -> bool:
    return python.has_pip and version_key(python.version) >= _UV_PYTHON


def _found(facts: BoxFacts) -> dict[str, Any]:
    """What the image has, for the sentences."""
    best: Sequence[Interpreter] = [one for one in facts.pythons if one.torch] or facts.pythons
    return {
        "found": _words(best[0] if best else None),
        "floor": tested.table().floors["torch"],
        "oldest_python": ".".join(map(str, OLDEST_PYTHON)),
        "driver": facts.driver or "?",
        "card": facts.devices[0].name if facts.devices else "-",
    }


def _words(python: Interpreter | None) -> str:
    """The image's Python and torch by name and number: the same in every language."""
    if python is None:
        return "Python -, torch -"
    return f"Python {python.version}, torch {python.torch or '-'}"
