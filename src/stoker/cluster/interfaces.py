"""Network interfaces of machines, and which of them several machines use to reach each other.

One script lists them on this machine and on others: by `ip` where it is installed, else from the kernel. IPv4 only.
Does not test whether a network lets anything through (`preflight.py` does).
"""

import ipaddress
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from stoker import env
from stoker.errors import StokerError

_KERNEL = """
import fcntl, json, socket, struct, sys
requests = (0xC0206921, 0xC0206925) if sys.platform == "darwin" else (0x8915, 0x891B)  # SIOCGIFADDR, SIOCGIFNETMASK
asked, found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), []
for _, name in socket.if_nameindex():
    try:
        address, mask = (fcntl.ioctl(asked, one, struct.pack("256s", name.encode()))[20:24] for one in requests)
    except OSError:
        continue  # it has no address
    prefix = bin(int.from_bytes(mask, "big")).count("1")
    found.append({"ifname": name, "addr_info": [{"local": socket.inet_ntoa(address), "prefixlen": prefix}]})
print(json.dumps(found))
"""
SCRIPT = f'ip -j -4 addr show up 2>/dev/null || "${{PYTHON:-python3}}" -c {shlex.quote(_KERNEL)}\n'
"""For a POSIX shell; PYTHON is the interpreter where none is on the PATH."""
_SECONDS = 20


@dataclass(frozen=True)
class Interface:
    """One address of a machine."""

    name: str
    address: str
    prefix: int

    def __str__(self) -> str:
        return f"{self.name} {self.address}/{self.prefix}"

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The network it is in."""
        return ipaddress.IPv4Network((self.address, self.prefix), strict=False)

    @property
    def is_loopback(self) -> bool:
        """Whether it reaches this machine only."""
        return self.network.is_loopback

    def has(self, address: str) -> bool:
        """Whether this address is its own; every address of the loopback's network is."""
        return address == self.address or (self.is_loopback and ipaddress.IPv4Address(address) in self.network)


def here() -> list[Interface]:
    """The interfaces of this machine."""
    done = subprocess.run(  # noqa: S603  # a script of ours
        ["sh", "-c", SCRIPT],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env=env.child_environment({"PYTHON": sys.executable}),
    )
    return parse(done.stdout)


def parse(text: str) -> list[Interface]:
    """Parse the output of `SCRIPT`; empty where there is none."""
    try:
        return [
            Interface(one["ifname"], address["local"], address["prefixlen"])
            for one in json.loads(text)
            for address in one.get("addr_info", [])
        ]
    except ValueError:
        return []


def common(machines: Mapping[str, list[Interface]], wanted: str | None) -> dict[str, Interface]:
    """An interface of every machine by which all reach each other.

    Args:
        machines: Interfaces by machine, the head first.
        wanted: Name of the interface to use; it may reach the others through a router. Without it, one in a network
            that all share: a private one first, never the loopback of several machines.
    """
    if wanted is not None:
        machines = {name: _named(name, found, wanted) for name, found in machines.items()}
        if _is_own_loopback(machines):
            return {name: found[0] for name, found in machines.items()}
    shared = [_in(network, machines) for network in _networks(machines)]
    for chosen in shared:
        if len(chosen) == len(machines):
            return chosen
    for one, other in itertools.combinations(machines, 2):
        if _outward(machines[one]) and machines[one] == machines[other]:
            raise StokerError("STK793", node=other, other=one, addresses=_shown(machines[other]))
    if wanted is not None and all(_outward(found) for found in machines.values()):
        return {name: found[0] for name, found in machines.items()}
    first, *others = machines
    most = max(shared, key=len, default={})
    alone = next((name for name in others if name not in most), others[0])
    raise StokerError("STK781", node=alone, head=first, there=_shown(machines[alone]), here=_shown(machines[first]))


def _named(machine: str, found: list[Interface], wanted: str) -> list[Interface]:
    named = [one for one in found if one.name == wanted]
    if not named:
        raise StokerError("STK780", node=machine, wanted=f"`{wanted}`", found=_shown(found))
    return named


def _is_own_loopback(machines: Mapping[str, list[Interface]]) -> bool:
    """Whether all are one machine and its loopback was asked for, as in a test."""
    return len(set(map(tuple, machines.values()))) == 1 and not any(map(_outward, machines.values()))


def _outward(found: list[Interface]) -> list[Interface]:
    return [one for one in found if not one.is_loopback and not one.network.is_link_local]


def _networks(machines: Mapping[str, list[Interface]]) -> list[ipaddress.IPv4Network]:
    """Networks of the first machine, private ones first."""
    first = next(iter(machines.values()))
    return sorted((one.network for one in _outward(first)), key=lambda network: not network.is_private)


def _in(network: ipaddress.IPv4Network, machines: Mapping[str, list[Interface]]) -> dict[str, Interface]:
    """Members of a network, each with an address of its own: Docker gives containers of many machines the same one."""
    chosen: dict[str, Interface] = {}
    for name, found in machines.items():
        taken = {one.address for one in chosen.values()}
        own = [one for one in found if one.network == network and one.address not in taken]
        if own:
            chosen[name] = own[0]
    return chosen


def _shown(found: list[Interface]) -> list[str]:
    return [str(one) for one in found] or ["-"]
