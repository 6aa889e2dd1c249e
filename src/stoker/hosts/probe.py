"""Probes another machine: one shell script that runs there, and the parsing of its output.

Trusts neither names nor `cpu_count`: cards are recognised by capability, SM count and memory; limits are the cgroup's.
"""

import csv
import functools
import json
import shlex
from collections.abc import Iterator
from importlib import resources
from typing import Any

from stoker.facts import cards, platforms
from stoker.facts.machine import PACKAGES, Device, Machine
from stoker.facts.platforms import Platform
from stoker.hosts import box_environment, mirror_probe
from stoker.hosts.box_facts import BoxFacts, Disk, FoundCard, Interpreter, Kept
from stoker.hosts.shell import Shell

_SECONDS = 300.0
_UNLIMITED_BYTES = 1 << 60
"""cgroups v1 has a huge number for no limit."""
Said = dict[str, list[str]]


def look(shell: Shell, python: str = "") -> BoxFacts:
    """Probe a machine; `python` is one more interpreter to try there."""
    return read(shell.run(f"{script(python=python)}\n{mirror_probe.script()}\n", seconds=_SECONDS))


def script(root: str = "", python: str = "") -> str:
    """The probe as a script for a POSIX shell. Its lists come from the platform profiles."""
    known = platforms.platforms()
    paths = [*(path for one in known for path in one.detect.paths), *(s.path for one in known for s in one.storage)]
    lists = {
        "root": root,
        "probe_python": _source("probe_python.py"),
        "packages": " ".join(dict.fromkeys([*PACKAGES, *box_environment.requirements()])),
        "places": "\n".join(dict.fromkeys(paths)),
        "signs": " ".join(dict.fromkeys(name for one in known for name in one.detect.env)),
        "instances": " ".join(one.instance for one in known if one.instance),
        "interpreters": "\n".join([python, *(path for one in known for path in one.pythons)]),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in lists.items()) + _source("probe.sh")


def read(answer: str) -> BoxFacts:
    """Parse the output of `script` and of the mirror probe; unknown lines are ignored."""
    said: Said = {}
    for line in answer.splitlines():
        word, tab, rest = line.partition("\t")
        if tab:
            said.setdefault(word, []).append(rest.strip())
    pythons = [(path, _object(text)) for path, _, text in (each.partition("\t") for each in said.get("python", []))]
    devices, driver = _devices(said.get("gpu", []), next((one["cards"] for _, one in pythons if one.get("cards")), []))
    platform = _platform(said)
    reachable, given = mirror_probe.read(answer)
    return BoxFacts(
        **{
            name: _first(said, name)
            for name in ("system", "hostname", "architecture", "libc", "user", "home", "processor")
        },
        cpu_count=_cpu_count(said),
        host_cpu_count=_number(said, "host_cpus") or 1,
        memory_bytes=_memory_bytes(said),
        devices=tuple(devices),
        driver=driver,
        disks=tuple(_disks(said, platform)),
        pythons=tuple(_pythons(pythons)),
        tools=tuple(said.get("tool", [])),
        platform=platform.name if platform else "",
        instance=_instance(said, platform),
        reachable=reachable,
        given=given,
        has_token=mirror_probe.has_token(answer),
    )


def base(facts: BoxFacts) -> str:
    """Stoker's folder on that machine: on the largest disk that survives a stop and is not slow."""
    lasting = [disk for disk in facts.disks if disk.survives in ("stop", "release") and not disk.slow]
    largest = max(lasting, key=lambda disk: (disk.free_bytes, len(disk.path)), default=None)
    folder = facts.home if largest is None or largest.path == "/" else largest.path
    return f"{folder.rstrip('/')}/stoker"


def to_machine(facts: BoxFacts) -> Machine:
    """The machine as the planner sees it: with the packages it will train with."""
    decided = box_environment.decide(facts)
    python = next((one for one in facts.pythons if one.path == decided.python), None)
    kept = python.packages if python and decided.kind == "image" else {"torch": decided.torch} if decided.torch else {}
    return Machine(
        system=facts.system,
        processor=facts.processor,
        kind="cuda" if facts.devices else "cpu",
        cpu_count=facts.cpu_count,
        threads=max(1, facts.cpu_count // max(1, len(facts.devices))),
        memory_bytes=facts.memory_bytes,
        devices=tuple(Device.model_validate(one.model_dump(exclude={"sm_count"})) for one in facts.devices),
        driver=facts.driver,
        packages={name: kept[name] for name in PACKAGES if name in kept},
        python=python.version if python else box_environment.OWN_PYTHON,
        examined=True,
    )


# ---- processors and memory


def _cpu_count(said: Said) -> int:
    """By affinity and by the container's quota, whichever is less."""
    usable = _number(said, "cpus") or 1
    quotas = [line.split() for line in said.get("cpu_quota", [])]
    limits = [int(words[0]) / int(words[1]) for words in quotas if len(words) == 2 and words[0].isdecimal()]
    return max(1, min([usable, *(int(limit + 0.5) for limit in limits if limit > 0)]))


def _memory_bytes(said: Said) -> int:
    limits = [int(line) for line in said.get("memory_limit", []) if line.isdecimal()]
    return min([(_number(said, "memory_kib") or 0) << 10, *(limit for limit in limits if limit < _UNLIMITED_BYTES)])


# ---- cards


def _devices(rows: list[str], by_driver: list[dict[str, Any]]) -> tuple[list[FoundCard], str]:
    """Cards by nvidia-smi and by the driver itself, merged; and the driver's version."""
    by_smi = {row[3]: row for row in csv.reader(rows, skipinitialspace=True) if len(row) >= 5}
    by_uuid = {one["uuid"]: one for one in by_driver}
    found = [_from_smi(row, by_uuid.get(uuid, {})) for uuid, row in by_smi.items()]
    found += [_from_driver(one) for one in by_uuid.values() if not by_smi]
    return [one for one in found if one is not None], next(iter(by_smi.values()))[4] if by_smi else ""


def _from_smi(row: list[str], by_driver: dict[str, Any]) -> FoundCard | None:
    capability = row[5] if len(row) > 5 else str(by_driver.get("compute_capability", ""))
    memory = int(row[2]) << 20 if row[2].isdecimal() else by_driver.get("memory_bytes")
    if not capability.replace(".", "", 1).isdecimal() or not memory:
        return None
    return _card(int(row[0]), row[1], memory, float(capability), by_driver.get("sm_count"), row[3])


def _from_driver(one: dict[str, Any]) -> FoundCard:
    figures = one["memory_bytes"], one["compute_capability"], one["sm_count"]
    return _card(one["index"], one["name"], *figures, one["uuid"])


def _card(index: int, name: str, memory: int, capability: float, sm_count: int | None, uuid: str) -> FoundCard:
    known = cards.recognise(name, memory, capability, sm_count)
    return FoundCard(
        index=index,
        name=name,
        card=known.name if known else None,
        memory_bytes=memory,
        compute_capability=capability,
        sm_count=sm_count,
        uuid=uuid,
    )


# ---- platform and disks


def _platform(said: Said) -> Platform | None:
    signs = {name: set(said.get(name, [])) for name in ("variable", "path", "tool")}
    hostname = _first(said, "hostname")
    return platforms.detect(signs["variable"], hostname, signs["path"].__contains__, signs["tool"].__contains__)


def _instance(said: Said, platform: Platform | None) -> str:
    named = dict(line.split("\t", 1) for line in said.get("instance", []) if "\t" in line)
    return named.get(platform.instance, "") if platform else ""


def _disks(said: Said, platform: Platform | None) -> Iterator[Disk]:
    """Writable folders, each once: home, disks, and those of the platform's profile."""
    home = _first(said, "home")
    wanted = {home, "/", *((store.path for store in platform.storage) if platform else ())}
    seen = set()
    for line in said.get("disk", []):
        path, _, rest = line.partition("\t")
        writable, _, figures = rest.partition("\t")
        words = figures.split(None, 5)
        if path in seen or writable != "yes" or len(words) < 6 or not words[3].isdecimal():
            continue
        seen.add(path)
        if path not in wanted and path != words[5]:
            continue
        kept, slow = _survival(platform, path, home, is_mount=path == words[5])
        yield Disk(path=path, free_bytes=int(words[3]) << 10, total_bytes=int(words[1]) << 10, survives=kept, slow=slow)


def _survival(platform: Platform | None, path: str, home: str, *, is_mount: bool) -> tuple[Kept, bool]:
    """What a folder survives, and whether it is slow; a disk mounted below a profile's folder is not that folder."""
    if platform is None:
        return "unknown", False
    at_home = path.replace(home, "$HOME", 1) if home and path.startswith(home) else path
    store = platform.storage_of(at_home) or platform.storage_of(path)
    if store is None or (is_mount and store.path not in (path, at_home)):
        return "unknown", False
    if store.survives_release:
        return "release", store.slow
    if store.survives_stop:
        return "stop", store.slow
    return ("hours" if store.keeps_hours else "nothing"), store.slow


# ---- Pythons


def _pythons(answers: list[tuple[str, dict[str, Any]]]) -> list[Interpreter]:
    """Each environment once, best first: with a torch that computes on the card, with a torch, any."""
    by_prefix: dict[str, Interpreter] = {}
    for path, one in answers:
        if "version" in one:
            there = {**one, "path": one.get("executable") or path}
            by_prefix.setdefault(one.get("prefix", path), Interpreter.model_validate(there))
    return sorted(by_prefix.values(), key=_rank, reverse=True)


def _rank(python: Interpreter) -> tuple[bool, ...]:
    return python.fits, python.usable is True, bool(python.cuda) and python.usable is None, bool(python.torch)


# ---- parsing


def _first(said: Said, word: str) -> str:
    return said.get(word, [""])[0]


def _number(said: Said, word: str) -> int | None:
    text = _first(said, word)
    return int(text) if text.isdecimal() else None


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@functools.cache
def _source(name: str) -> str:
    return resources.files("stoker.hosts").joinpath(name).read_text(encoding="utf-8")
