"""A check's result names no path, host or user; an error is a result."""

import getpass
import socket

import pytest

from stoker.errors import StokerError
from stoker.prove import check


@pytest.mark.parametrize(
    "text",
    ["/srv/data/runs/whole/logs/train.log is gone", "see D:\\data\\ann\\proof", "`/tmp/x y` and /opt/z:"],
)
def test_paths_are_hidden(text: str) -> None:
    hidden = check.anonymous(text)
    assert "…" in hidden
    assert not any(word in hidden for word in ("srv", "ann", "tmp", "opt"))


def test_names_of_the_machine_and_its_user_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "rented-7")
    monkeypatch.setattr(getpass, "getuser", lambda: "mallory")
    assert (
        check.anonymous("mallory at rented-7: 3/4 of steps, a ratio of 1 / 2")
        == "… at …: 3/4 of steps, a ratio of 1 / 2"
    )


def test_an_error_is_a_failed_check_with_its_code() -> None:
    found = check.broken("saves", StokerError("STK517", name="whole", seconds=900))
    assert (found.outcome, found.to_json()["reason"][:6]) == ("failed", "STK517")
    other = check.broken("saves", ZeroDivisionError("division by zero"))
    assert other.to_json()["reason"] == "ZeroDivisionError: division by zero"


def test_the_report_is_in_english_and_the_page_in_the_users_language(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check.absent("vllm", "prove.reason.no_vllm")
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert found.reason == "没有安装 vLLM"
    assert found.to_json()["reason"] == "vLLM is not installed"
