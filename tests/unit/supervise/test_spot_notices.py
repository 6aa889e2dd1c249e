"""Spot notices, against a simulation of each cloud's metadata service; no cloud was asked."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from metadata_server import MACHINE, azure_event, simulated

from stoker.supervise import spot_notices

CLOUDS = ("aws", "google", "azure")


@pytest.fixture
def asking() -> Iterator[Callable[[str], "subprocess.Popen[bytes]"]]:
    """The program, as the supervisor starts it; asks often."""
    with ExitStack() as started:

        def start(address: str) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-I", str(Path(spot_notices.__file__)), address, "0.02"]
            program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            started.enter_context(program)
            started.callback(program.kill)
            return program

        yield start


def said(program: "subprocess.Popen[bytes]") -> str:
    """What it says; its input stays open, as a living supervisor keeps it."""
    assert program.stdout is not None
    words = program.stdout.read().decode()
    assert program.wait(20) == 0
    return words


@pytest.mark.parametrize("cloud", CLOUDS)
def test_it_asks_until_there_is_a_notice_and_then_says_when_the_machine_ends(
    cloud: str, asking: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    with simulated(cloud) as server:
        program = asking(server.address)
        server.wait_until_asked(8)
        assert program.poll() is None  # no notice, no end
        marked = time.time()
        end = server.mark()
        found = float(said(program))
    if cloud == "google":  # names no time: half a minute is what there is
        assert marked + 29 < found < time.time() + 31
    else:
        assert found == end


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_machine_that_is_marked_already_is_noticed_at_once(
    cloud: str, asking: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    with simulated(cloud) as server:
        server.mark()
        assert float(said(asking(server.address))) > time.time()
        assert len(server.asked) < 8


def test_where_nothing_listens_it_gives_up_at_once(asking: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
    with simulated("aws") as server:
        address = server.address
    assert said(asking(address)) == ""


def test_where_no_cloud_answers_it_asks_each_question_once(
    asking: Callable[[str], "subprocess.Popen[bytes]"],
) -> None:
    with simulated("moved") as server:
        server.notice = server.address
        assert said(asking(server.address)) == ""
        assert len(server.asked) == 3


def test_a_service_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_notices, "_ANSWER_SECONDS", 0.1)
    with simulated("hanging") as server:
        started = time.monotonic()
        assert spot_notices.find(server.address) is None
        assert time.monotonic() - started < 5


def test_it_does_not_outlive_the_supervisor(asking: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
    with simulated("google") as server:
        program = asking(server.address)
        server.wait_until_asked(3)
        assert program.stdin is not None
        program.stdin.close()
        assert program.wait(20) == 0


def test_a_redirect_is_not_followed(asking: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
    with simulated("google") as other, simulated("moved") as server:
        other.mark()
        server.notice = other.address
        assert said(asking(server.address)) == ""
        assert other.asked == []


def test_no_proxy_is_used(asking: Callable[[str], "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy that answers for everybody, this machine is still asked itself."""
    with simulated("google") as proxy, simulated("google") as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        monkeypatch.delenv("no_proxy", raising=False)
        server.mark()
        assert said(asking(server.address))
        assert proxy.asked == []


def test_an_answer_is_read_up_to_a_size() -> None:
    with simulated("elsewhere") as server:
        assert len(spot_notices.ask(server.address, "/", {})) <= spot_notices._LARGEST_BYTES


def test_a_page_of_something_else_is_no_notice(asking: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
    """Such as the sign-in page of a network that answers 200 to whatever is asked."""
    with simulated("elsewhere") as server:
        program = asking(server.address)
        server.wait_until_asked(8)
        assert program.poll() is None
        for notice in (spot_notices.amazon, spot_notices.google, spot_notices.azure):
            with pytest.raises(spot_notices._NO_ANSWER):
                notice(server.address)


@pytest.mark.parametrize(
    ("kind", "machine", "noticed"),
    [("Preempt", MACHINE.upper(), True), ("Preempt", "gpu-8", False), ("Freeze", MACHINE, False)],
)
def test_azure_tells_a_set_of_machines_and_only_those_that_are_named_are_meant(
    kind: str, machine: str, noticed: bool
) -> None:
    with simulated("azure") as server:
        server.notice = [azure_event(kind, machine, time.time() + 30)]
        assert (spot_notices.azure(server.address) is not None) == noticed


def test_google_answers_are_read_with_their_own_header_only() -> None:
    """The simulation refuses what the real service refuses; else the tests above would show nothing."""
    with simulated("google") as server:
        for headers in ({}, {"Metadata": "true"}):
            with pytest.raises(spot_notices.HTTPException):
                spot_notices.ask(server.address, "/computeMetadata/v1/instance/preempted", headers)


@pytest.mark.parametrize("named", ["", "soon", "2016-09-18T08:22:00Z", "Mon, 19 Sep 2016 18:29:47 GMT", "1, 2, 3"])
def test_a_time_that_is_unknown_or_past_leaves_half_a_minute(named: str) -> None:
    assert spot_notices.ends(named, now=1.8e9) == 1.8e9 + 30


@pytest.mark.parametrize("named", ["2027-01-15T08:01:00Z", "Fri, 15 Jan 2027 08:01:00 GMT"])
def test_both_ways_to_write_a_time_are_read(named: str) -> None:
    assert spot_notices.ends(named, now=1.8e9) == 1.8e9 + 60


def test_the_simulation_is_one_cloud_at_a_time() -> None:
    found = {}
    for cloud in CLOUDS:
        with simulated(cloud) as server:
            found[cloud] = spot_notices.find(server.address)
    assert found == {"aws": spot_notices.amazon, "google": spot_notices.google, "azure": spot_notices.azure}
