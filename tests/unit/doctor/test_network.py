"""The hub, its mirrors and pip's indices are played by servers on this machine; no other address may be reached."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_page import server

from stoker.doctor import network
from stoker.facts import answers, mirrors
from stoker.facts.answers import Answer
from stoker.facts.mirrors import MirrorRoute

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@pytest.fixture
def closed() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "PIP_INDEX_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


Table = dict[str, str]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, closed: str) -> Table:
    """Addresses by name, closed until a test opens them."""
    addresses = {way.name: f"{closed}/{way.name}" for way in mirrors.ways() if not way.file}
    ways = mirrors.ways()

    def named() -> tuple[MirrorRoute, ...]:
        return tuple(way.model_copy(update={"address": addresses.get(way.name, way.address)}) for way in ways)

    monkeypatch.setattr(mirrors, "ways", named)
    return addresses


def keys(name: str = "") -> list[str]:
    return [found.key for found in network.findings() if found.name.startswith(name)]


def test_hub_that_answers_is_timed(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    with server() as hub, server(404) as other:
        monkeypatch.setenv("HF_ENDPOINT", hub + "/")
        table["modelscope.cn"] = other
        found = network.findings()
    assert [(f.key, f.status) for f in found[:3]] == [
        ("doctor.hub", "ok"),
        ("doctor.mirror.not_needed", "ok"),
        ("doctor.mirror", "ok"),
    ]
    assert found[0].fields["milliseconds"] < 3000


def test_mirror_that_answers_is_proposed(table: Table) -> None:
    with server(503) as hub, server() as mirror:
        table |= {"huggingface.co": hub, "hf-mirror.com": mirror}
        found = network.findings()
    assert [(f.key, f.status) for f in found[:2]] == [("doctor.hub.mirror_answers", "warn"), ("doctor.mirror", "ok")]
    assert "HTTP 503" in found[0].what
    assert f"HF_ENDPOINT={mirror}" in found[0].hint


def test_other_hub_is_proposed_where_the_mirror_is_silent(table: Table) -> None:
    with server(500) as mirror, server() as other:
        table |= {"hf-mirror.com": mirror, "modelscope.cn": other}
        found = network.findings()
    assert [f.key for f in found[:2]] == ["doctor.hub.other_answers", "doctor.mirror"]
    assert "modelscope:" in found[0].hint


def test_silence_everywhere_is_a_warning_with_the_reason(table: Table) -> None:
    found = network.findings()
    assert [(f.key, f.status) for f in found] == [
        ("doctor.hub.none_answers", "warn"),
        ("doctor.pip.none_answers", "warn"),
    ]
    assert all("refused" in f.what for f in found)


def test_with_a_mirror_set_the_hub_itself_is_told_where_it_answers(
    monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    with server() as hub, server() as mirror:
        table |= {"huggingface.co": hub, "hf-mirror.com": mirror}
        monkeypatch.setenv("HF_ENDPOINT", mirror)
        found = network.findings()
    assert [f.fields["url"] for f in found[:2]] == [mirror, hub]


def test_an_index_that_is_shut_or_slow_has_a_mirror_proposed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as tuna:
        table["pypi.tuna.tsinghua.edu.cn"] = tuna
        (shut,) = (found for found in network.findings() if found.name == "pip")
    assert (shut.key, shut.status) == ("doctor.pip.shut", "warn")
    assert "PIP_INDEX_URL=https://pypi.tuna.tsinghua.edu.cn/simple/" in shut.hint
    slow = {table["PyPI"]: Answer(2500), table["mirrors.aliyun.com"]: Answer(30)}
    monkeypatch.setattr(answers, "ask", lambda urls: {url: slow.get(url, Answer(problem="shut")) for url in urls})
    assert keys("pip") == ["doctor.pip.slow"]


def test_an_index_that_is_set_and_answers_is_left_alone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as own, server() as pypi:
        monkeypatch.setenv("PIP_INDEX_URL", own)
        assert keys("pip") == ["doctor.pip"]
        table["PyPI"] = pypi
        monkeypatch.setenv("PIP_INDEX_URL", table["mirrors.aliyun.com"])
        (found,) = (found for found in network.findings() if found.name == "pip")
    assert (found.key, found.advice) == ("doctor.pip.shut", "doctor.advice.pip_unset")


def test_the_platform_s_proxy_is_explained_where_it_is(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "network_turbo"
    file.write_text("")
    turbo = next(way for way in mirrors.ways() if way.file).model_copy(update={"file": str(file)})
    without = tuple(way for way in mirrors.ways() if not way.file)
    monkeypatch.setattr(mirrors, "ways", lambda: (*without, turbo))
    assert keys("proxy") == ["doctor.proxy"]


def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(answers, "ask", lambda urls: pytest.fail("asked"))
    assert [f.key for f in network.findings()] == ["doctor.hub.offline"]


def test_address_without_http_is_not_opened() -> None:
    answer = answers.ask(["file:///etc/passwd"])["file:///etc/passwd"]
    assert "file:" in answer.problem


def test_name_server_that_hangs_does_not_hold_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(answers, "_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(answers, "_ask", lambda url: release.wait(30) and Answer())
    assert answers.ask(["http://hangs"])["http://hangs"].problem == "no response within 0.1 s"
    release.set()
