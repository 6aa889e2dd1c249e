"""AutoDL's API against a simulation of it; what is proven here is the contract, not AutoDL."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from autodl_api import HOST, ORDINARY, PASSWORD, PRO, TOKEN, Simulated, simulated

from stoker.errors import StokerError
from stoker.hosts import autodl, known, power
from stoker.hosts.autodl import Api
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host

IRREVERSIBLE = {"create", "release", "save"}


@pytest.fixture
def server() -> Iterator[Simulated]:
    with simulated() as running:
        yield running
        assert not IRREVERSIBLE & {word for word, _ in running.asked}


@pytest.fixture
def waited() -> list[float]:
    return []


@pytest.fixture
def api(server: Simulated, waited: list[float]) -> Api:
    return Api(TOKEN, server.base, waited.append)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.delenv("STOKER_AUTODL_TOKEN", raising=False)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often ssh still finds nobody, at the end of the list; the instance's address is nobody's."""
    times = [0]

    def run(line: Any, script: str, **_: Any) -> str:
        if times[0]:
            times[0] -= 1
            raise StokerError("STK701", host=line.name, reason="Connection refused")
        return ""

    monkeypatch.setattr(autodl.Ssh, "run", run)
    monkeypatch.setattr(autodl.Ssh, "close", lambda line: None)
    return times


@pytest.fixture
def host() -> Host:
    made = Host(name="autodl-1", host=HOST, port=34221, user="root", platform="autodl", instance=PRO)
    known.save(made)
    return made


def code(error: pytest.ExceptionInfo[StokerError]) -> str:
    return error.value.code


# ---- the questions


def test_balance_price_and_stock_are_read_in_yuan(api: Api, server: Simulated) -> None:
    assert api.balance() == 17.34
    assert api.snapshot(PRO).yuan_per_hour == 1.97
    assert api.gpu_stock("westDC2")["RTX 4090"].idle_gpu_num == 215
    assert server.named("gpu_stock") == [{"region_sign": "westDC2"}]


def test_all_pages_of_instances_are_read(api: Api) -> None:
    assert [one.uuid for one in api.instances()] == ["pro-000000000000", PRO]


def test_neither_password_nor_token_is_kept(api: Api, host: Host, home: Path) -> None:
    autodl.power_on(host, api=api)
    assert PASSWORD not in repr(api.snapshot(PRO)) + repr(api.instances())
    for path in home.rglob("*"):
        text = path.read_text() if path.is_file() else ""
        assert PASSWORD not in text
        assert TOKEN not in text


def test_a_token_that_is_not_accepted_is_said_without_it(server: Simulated) -> None:
    with pytest.raises(StokerError) as error:
        Api(f"Bearer {TOKEN}", server.base).balance()
    assert code(error) == "STK761"
    assert TOKEN not in str(error.value)


def test_a_redirect_is_not_followed_with_the_token(api: Api, server: Simulated) -> None:
    with simulated() as elsewhere:
        server.moved = elsewhere.base
        with pytest.raises(StokerError) as error:
            api.balance()
        assert elsewhere.asked == []
    assert (code(error), error.value.fields["reason"]) == ("STK765", "HTTP 302")


def test_an_ordinary_instance_is_said_in_words(api: Api) -> None:
    with pytest.raises(StokerError) as error:
        api.status(ORDINARY)
    assert code(error) == "STK762"
    assert "not ordinary instances" in error.value.what


def test_a_question_is_asked_again_where_nobody_answers(api: Api, server: Simulated, waited: list[float]) -> None:
    server.broken = 2
    assert api.balance() == 17.34
    assert waited == [1.0, 2.0]
    server.broken = 3
    with pytest.raises(StokerError) as error:
        api.balance()
    assert (code(error), error.value.fields["reason"]) == ("STK765", "HTTP 502")


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b"null"])
def test_another_answer_than_the_documented_one_is_no_answer(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    api = Api(TOKEN, "http://127.0.0.1:9", lambda seconds: None)
    monkeypatch.setattr(api, "_open", lambda request, timeout: io.BytesIO(content))
    with pytest.raises(StokerError) as error:
        api.balance()
    assert code(error) == "STK765"


# ---- power


def test_a_host_that_is_switched_on_is_reached_at_its_new_port(api: Api, server: Simulated, host: Host) -> None:
    reached = autodl.power_on(host, api=api)
    assert (reached.host, reached.port, server.status) == (HOST, 34222, "running")
    assert known.find("autodl-1").port == 34222
    assert server.verbs() == ["gpu"]
    assert autodl.power_on(host, api=api).port == 34222
    assert server.verbs() == ["gpu"]


def test_switching_off_is_over_when_it_is_off(api: Api, server: Simulated, host: Host) -> None:
    server.status = "running"
    autodl.power_off(host, api=api)
    assert server.status == "shutdown"
    autodl.power_off(host, api=api)
    assert server.verbs() == ["power_off"]


def test_an_instance_that_does_not_stop_is_an_error(
    api: Api, server: Simulated, host: Host, waited: list[float]
) -> None:
    server.status, server.stuck = "running", True
    with pytest.raises(StokerError) as error:
        autodl.power_off(host, api=api)
    assert (code(error), error.value.fields["status"]) == ("STK766", "shutting_down")
    assert sum(waited) == 600


def test_we_go_on_asking_for_an_idle_card(api: Api, server: Simulated, host: Host, waited: list[float]) -> None:
    said: list[str] = []
    server.none_idle = 3
    autodl.power_on(host, api=api, tell=lambda key, **_: said.append(key))
    assert said == ["autodl.none_idle"]
    assert waited[:3] == [20.0] * 3
    assert server.status == "running"


def test_where_no_card_gets_idle_it_is_said(api: Api, server: Simulated, host: Host, waited: list[float]) -> None:
    server.none_idle = 1000
    with pytest.raises(StokerError) as error:
        autodl.power_on(host, api=api)
    assert (code(error), error.value.fields["name"], sum(waited)) == ("STK763", "autodl-1", 1800)
    assert server.status == "shutdown"


def test_a_start_whose_answer_was_lost_is_not_asked_for_again(api: Api, server: Simulated, host: Host) -> None:
    server.loses_answers = 1
    assert autodl.power_on(host, api=api).port == 34222
    assert server.verbs() == ["gpu"]


def test_an_instance_that_runs_with_its_card_is_not_switched_to_none(api: Api, server: Simulated, host: Host) -> None:
    server.status = "running"
    with pytest.raises(StokerError) as error:
        autodl.power_on(host, card=False, api=api)
    assert code(error) == "STK766"
    assert server.verbs() == []


def test_a_host_without_a_token_says_which_variable_is_missing(host: Host) -> None:
    with pytest.raises(StokerError) as error:
        autodl.power_on(host)
    assert code(error) == "STK760"
    assert "STOKER_AUTODL_TOKEN" in error.value.hint


# ---- which instance a host is


def test_a_host_is_found_by_its_own_name_or_by_its_address(api: Api, server: Simulated, host: Host) -> None:
    unknown = host.model_copy(update={"instance": ""})
    named = unknown.model_copy(update={"host": "elsewhere", "facts": BoxFacts(hostname=f"autodl-{PRO}")})
    assert autodl.power_on(named, api=api).instance == PRO
    assert server.named("list") == []
    server.port = 34221
    assert autodl.power_on(unknown, api=api).instance == PRO
    assert known.find("autodl-1").instance == PRO


def test_a_host_of_no_pro_instance_is_said(api: Api, host: Host) -> None:
    ordinary = host.model_copy(update={"instance": ORDINARY, "port": 1})
    with pytest.raises(StokerError) as error:
        autodl.power_off(ordinary, api=api)
    assert (code(error), error.value.fields["name"]) == ("STK762", "autodl-1")


# ---- price


def test_the_price_is_an_offer_a_plan_takes(api: Api, host: Host) -> None:
    offer = autodl.price(host, api=api)
    assert offer is not None
    assert (offer.price_per_hour, offer.currency, offer.billed(2), offer.age_days()) == (1.97, "CNY", 2, 0)


def test_where_the_api_cannot_say_there_is_no_price(api: Api, host: Host, server: Simulated) -> None:
    assert autodl.price(host) is None
    assert autodl.price(host.model_copy(update={"instance": ORDINARY, "port": 1}), api=api) is None
    assert autodl.balance(api=api) == 17.34
    server.broken = 10
    assert autodl.price(host, api=api) is None
    assert autodl.balance(api=api) is None


# ---- without a card


def prepared(server: Simulated, host: Host, api: Api) -> list[Any]:
    """What was said, and how the instance ran while it was prepared."""
    said: list[Any] = []
    with autodl.Woken(host, lambda key, **_: said.append(key), api=api) as woken:
        said.append((woken.host.port, server.status, server.mode))
        woken.with_card()
        woken.leave_on()
    return said


def test_installing_and_preparing_happen_before_the_card_is_on(api: Api, server: Simulated, host: Host) -> None:
    assert not autodl.has_card(host, api=api)
    said = prepared(server, host, api)
    assert said == ["autodl.without_card", (34222, "running", "non_gpu"), "autodl.with_card"]
    assert autodl.has_card(host, api=api)
    assert server.verbs() == ["non_gpu", "power_off", "gpu"]
    assert (server.status, server.mode, known.find("autodl-1").port) == ("running", "gpu", 34223)


def test_where_the_api_has_no_such_mode_the_card_is_on_and_the_user_told(
    api: Api, server: Simulated, host: Host
) -> None:
    server.knows_no_card = False
    assert prepared(server, host, api) == ["autodl.no_such_mode", (34222, "running", "gpu")]
    assert server.verbs() == ["non_gpu", "gpu"]


def test_an_instance_that_runs_with_its_card_is_left_alone(api: Api, server: Simulated, host: Host) -> None:
    server.status = "running"
    assert prepared(server, host, api) == [(34221, "running", "gpu")]
    assert server.verbs() == []


def test_what_was_started_without_a_card_by_hand_is_used(api: Api, server: Simulated, host: Host) -> None:
    server.status, server.mode = "running", "non_gpu"
    assert prepared(server, host, api)[1] == (34221, "running", "non_gpu")
    assert server.verbs() == ["power_off", "gpu"]


def test_a_command_is_given_only_when_ssh_answers(
    api: Api, server: Simulated, host: Host, silent: list[int], waited: list[float]
) -> None:
    silent[0] = 4
    autodl.power_on(host, api=api)
    assert silent == [0]
    assert waited[-4:] == [5.0] * 4
    silent[0] = 1000
    with pytest.raises(StokerError) as error:
        autodl.power_on(host, api=api)
    assert (code(error), silent[0]) == ("STK701", 1000 - 180 // 5 - 1)


# ---- off again, where it was off and nothing came of it


class Gone(BaseException):
    """Ctrl-C, in a form that ends no test."""


def nothing(*_: Any, **__: Any) -> None:
    """Says nothing."""


@pytest.mark.parametrize("knows_no_card", [True, False])
@pytest.mark.parametrize("cause", [StokerError("STK700", reason="cut"), Gone(), None])
def test_an_instance_on_which_nothing_was_started_is_off_again(
    api: Api, server: Simulated, host: Host, knows_no_card: bool, cause: BaseException | None
) -> None:
    server.knows_no_card = knows_no_card
    said: list[str] = []
    with contextlib.suppress(StokerError, Gone), autodl.Woken(host, lambda key, **_: said.append(key), api=api):
        if cause:
            raise cause
    assert (server.verbs()[-1], server.status, said[-1]) == ("power_off", "shutdown", "remote.off_again")


def test_an_instance_that_was_on_stays_on(api: Api, server: Simulated, host: Host) -> None:
    for mode in ("gpu", "non_gpu"):
        server.status, server.mode = "running", mode
        with contextlib.suppress(Gone), autodl.Woken(host, nothing, api=api):
            raise Gone
        with autodl.Woken(host, nothing, api=api):
            pass
    assert (server.verbs(), server.status) == ([], "running")


@pytest.mark.parametrize("mode", ["gpu", "non_gpu"])
def test_a_card_on_which_nothing_was_started_is_off_again(api: Api, server: Simulated, host: Host, mode: str) -> None:
    """Also where its owner had switched it on without: we have restarted it, at another price."""
    server.status, server.mode = ("shutdown", mode) if mode == "gpu" else ("running", mode)
    with contextlib.suppress(Gone), autodl.Woken(host, nothing, api=api) as woken:
        woken.with_card()
        raise Gone
    assert (server.verbs()[-2:], server.status) == (["gpu", "power_off"], "shutdown")


def test_an_instance_whose_sshd_never_answers_is_off_again(
    api: Api, server: Simulated, host: Host, silent: list[int]
) -> None:
    silent[0] = 1000
    with pytest.raises(StokerError, match="STK701"), autodl.Woken(host, nothing, api=api):
        pytest.fail("it does not answer")
    assert (server.verbs(), server.status) == (["non_gpu", "power_off"], "shutdown")


def test_an_instance_that_was_coming_up_when_we_were_stopped_is_off_again(server: Simulated, host: Host) -> None:
    """Just starting, it may not be switched off yet; the answer of AutoDL's to the start was never heard."""
    begun: list[float] = []

    def pause(seconds: float) -> None:
        begun.append(seconds)
        if len(begun) == 1:
            server.stuck, server.status = True, "starting"
            raise Gone
        if len(begun) == 4:
            server.stuck = False

    server.refuses_off_while_starting = True
    with contextlib.suppress(Gone), autodl.Woken(host, nothing, api=Api(TOKEN, server.base, pause)):
        pytest.fail("it was stopped before")
    assert (server.verbs()[-1], server.status) == ("power_off", "shutdown")


def test_a_start_that_comes_late_is_undone(server: Simulated, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request was lost on its way, as it seems, and arrived."""
    seen: list[float] = []

    def pause(seconds: float) -> None:
        seen.append(seconds)
        if len(seen) == 3:
            server.status = "running"

    def lost(*_: Any, **__: Any) -> None:
        raise StokerError("STK765", reason="timed out")

    api = Api(TOKEN, server.base, pause)
    monkeypatch.setattr(api, "power_on", lost)
    with pytest.raises(StokerError, match="STK765"), autodl.Woken(host, nothing, api=api):
        pytest.fail("it is not on")
    assert (server.verbs(), server.status) == (["power_off"], "shutdown")


def test_an_instance_that_cannot_be_switched_off_is_said(api: Api, server: Simulated, host: Host) -> None:
    said: list[str] = []
    with contextlib.suppress(Gone), autodl.Woken(host, lambda key, **_: said.append(key), api=api):
        server.stuck = True
        raise Gone
    assert said[-1] == "autodl.left_on"


def test_where_the_api_does_not_help_the_user_is_told_what_to_click_and_it_goes_on(
    api: Api, server: Simulated, host: Host
) -> None:
    """A token is a bonus: a box that is on and answers by ssh is used, whatever the API says."""
    said: list[str] = []
    with autodl.Woken(host, lambda key, **_: said.append(key)) as woken:
        assert woken.with_card() == host
    server.broken = 100
    assert prepared(server, host, api) == ["autodl.by_hand", (34221, "shutdown", "gpu")]
    server.broken = 0
    ordinary = host.model_copy(update={"instance": "", "port": 1})
    assert prepared(server, ordinary, api) == ["autodl.by_hand", (1, "shutdown", "gpu")]
    assert said == ["autodl.by_hand"]


def test_every_question_of_ours_is_documented(api: Api, server: Simulated, host: Host) -> None:
    prepared(server, host, api)
    documented = {"status", "snapshot", "list", "power_on", "power_off"}
    assert {word for word, _ in server.asked} <= documented
    assert json.dumps(server.asked).count(TOKEN) == 0


# ---- the commands


@pytest.fixture
def stoker(server: Simulated, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line, against the simulation; it does not really wait."""
    from typer.testing import CliRunner

    from stoker.cli.main import app

    monkeypatch.setattr(autodl, "BASE", server.base)
    monkeypatch.setattr(autodl.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("STOKER_AUTODL_TOKEN", TOKEN)
    return lambda *words: CliRunner().invoke(app, words)


def test_hosts_on_and_off_switch_the_instance(stoker: Any, server: Simulated, host: Host) -> None:
    done = stoker("hosts", "on", "autodl-1")
    assert (done.exit_code, server.status, server.mode) == (0, "running", "gpu")
    assert f"{HOST}:34222" in done.output.replace("\n", "")
    assert stoker("hosts", "off", "autodl-1", "--yes").exit_code == 0
    assert server.status == "shutdown"
    assert stoker("hosts", "on", "autodl-1", "--no-card").exit_code == 0
    assert (server.mode, known.find("autodl-1").port) == ("non_gpu", 34223)
    assert TOKEN not in done.output


def test_hosts_off_uses_the_box_s_own_command_where_the_api_does_not_know_it(
    stoker: Any, server: Simulated, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(power.Ssh, "run", lambda line, script, **_: asked.append(script) or "")
    monkeypatch.setattr(power, "await_gone", lambda line: None)
    known.save(host.model_copy(update={"instance": ORDINARY, "port": 1}))
    assert stoker("hosts", "off", "autodl-1", "--yes").exit_code == 0
    assert "/usr/bin/shutdown" in asked[-1]
    assert server.verbs() == []
