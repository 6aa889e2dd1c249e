"""By which interface several machines talk: in a network all share, or the one that was asked for."""

import json
import subprocess
import sys

import pytest

from stoker.cluster import interfaces
from stoker.cluster.interfaces import Interface
from stoker.errors import StokerError

LO = Interface("lo", "127.0.0.1", 8)
DOCKER = Interface("docker0", "172.17.0.1", 16)


def public(number: int) -> Interface:
    return Interface("eth0", f"203.0.113.{number}", 24)


def private(number: int, name: str = "eth1") -> Interface:
    return Interface(name, f"198.18.0.{number}", 24)


@pytest.fixture(autouse=True)
def _public_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses for documentation count as private in Python; here they stand for public ones."""
    of = interfaces.ipaddress.IPv4Network.is_private.fget
    assert of
    monkeypatch.setattr(
        interfaces.ipaddress.IPv4Network, "is_private", property(lambda one: "203.0.113" not in str(one) and of(one))
    )


def test_a_private_network_is_taken_before_a_public_one() -> None:
    machines = {"a": [LO, public(1), private(1)], "b": [LO, private(2, "ib0"), public(2)]}
    assert interfaces.common(machines, None) == {"a": private(1), "b": private(2, "ib0")}


def test_a_public_network_is_taken_where_all_share_no_other() -> None:
    machines = {"a": [LO, public(1), private(1)], "b": [LO, public(2)]}
    assert interfaces.common(machines, None) == {"a": public(1), "b": public(2)}


def test_a_network_in_which_two_have_the_same_address_is_none() -> None:
    machines = {"a": [LO, DOCKER, public(1)], "b": [LO, DOCKER, public(2)]}
    assert interfaces.common(machines, None) == {"a": public(1), "b": public(2)}


def test_machines_without_a_common_network_are_named() -> None:
    machines = {"a": [LO, public(1)], "b": [LO, public(2)], "c": [LO, private(3)]}
    with pytest.raises(StokerError, match=r"c and a share no network.*eth1 198.18.0.3/24") as caught:
        interfaces.common(machines, None)
    assert caught.value.code == "STK781"


def test_a_machine_without_the_interface_that_is_asked_for_is_named() -> None:
    machines = {"a": [LO, private(1)], "b": [LO, private(2, "ens5")]}
    with pytest.raises(
        StokerError, match=r"b has no network interface `eth1`; it has lo .*ens5 198.18.0.2/24"
    ) as caught:
        interfaces.common(machines, "eth1")
    assert caught.value.code == "STK780"


def test_the_interface_that_is_asked_for_may_lead_through_a_router() -> None:
    machines = {"a": [LO, private(1)], "b": [LO, Interface("eth1", "198.18.7.2", 24)]}
    assert interfaces.common(machines, "eth1") == {"a": machines["a"][1], "b": machines["b"][1]}


def test_one_machine_by_two_names_is_named() -> None:
    machines = {"a": [LO, private(1)], "b": [LO, private(1)]}
    with pytest.raises(StokerError, match="b and a are the same machine") as caught:
        interfaces.common(machines, None)
    assert caught.value.code == "STK793"


def test_loopback_is_for_one_machine_that_asks_for_it() -> None:
    one = [LO, private(1)]
    assert interfaces.common({"a": one, "b": one}, "lo") == {"a": LO, "b": LO}
    with pytest.raises(StokerError) as caught:
        interfaces.common({"a": [LO], "b": [LO]}, None)
    assert caught.value.code == "STK781"


def test_the_kernel_and_ip_say_the_same() -> None:
    """The control: where there is no `ip`, the script asks the kernel."""
    without = f"ip() {{ return 1; }}\nPYTHON={sys.executable}\n{interfaces.SCRIPT}"
    asked = subprocess.run(["sh", "-c", without], capture_output=True, text=True, check=True).stdout
    assert LO in interfaces.parse(asked)
    assert set(interfaces.parse(asked)) <= set(interfaces.here())


def test_an_answer_of_ip_is_read() -> None:
    said = [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {},
        {"ifname": "eth1", "addr_info": [{"family": "inet", "local": "198.18.0.1", "prefixlen": 24}]},
    ]
    assert interfaces.parse(json.dumps(said)) == [LO, private(1)]
    assert interfaces.parse("sh: python3: not found") == []
