"""Hours as platforms count them."""

import pytest

from stoker.facts import prices
from stoker.plan import clocks, money
from stoker.plan.clocks import Stay

SMALL = {"data": 10**9, "base": 10**12}


def stay(
    card: str, devices: int, hours: float, most: float | None = None, disk: dict[str, int] = SMALL
) -> dict[str, Stay]:
    seconds = (hours * 3600, hours * 1800, (most or hours) * 3600)
    return {one.platform: one for one in clocks.stays(card, devices, seconds, disk)}


def said(card: str, devices: int, hours: float, disk: dict[str, int] = SMALL) -> list[str]:
    return [reason.text for reason in clocks.reasons(card, devices, (hours * 3600,) * 3, disk)]


def test_a_long_run_is_counted_in_kaggle_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    kaggle = stay("T4", 2, 25)["Kaggle"]
    assert (kaggle.sessions, kaggle.session_hours, kaggle.weeks, kaggle.free) == ((3, 3), 8.5, (1, 1), True)
    assert said("T4", 2, 25)[0] == "3 Kaggle sessions of 8.5 h, within the weekly quota of 30 h"
    assert said("T4", 2, 70)[0] == "9 Kaggle sessions of 8.5 h; the weekly quota is 30 h, so this takes 3 weeks"
    assert said("T4", 2, 2)[0] == "one Kaggle session of 8.5 h, within the weekly quota of 30 h"


def test_sessions_follow_the_whole_interval() -> None:
    assert stay("T4", 2, 8, most=18)["Kaggle"].sessions == (1, 3)


def test_a_platform_counts_only_where_it_has_so_many_of_the_card() -> None:
    assert set(stay("T4", 1, 5)) >= {"Kaggle", "Colab"}
    assert "Colab" not in stay("T4", 2, 5)
    assert stay("T4", 4, 5) == {}
    assert stay("RTX4060Ti-16", 1, 5) == {}


def test_what_is_free_comes_first() -> None:
    found = clocks.stays("T4", 1, (3600.0,) * 3, SMALL)
    assert [one.free for one in found] == sorted((one.free for one in found), reverse=True)
    assert not stay("L4", 1, 5)["Colab"].free


def test_colab_says_when_it_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    assert "3 Colab sessions of 12 h" in said("L4", 1, 30)
    assert "Colab ends a session after 90 min without interaction" in said("L4", 1, 30)


def test_autodl_s_release_clock_and_disk_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    large = {"data": 10 * 10**9, "checkpoints": 60 * 10**9, "base": 10**9}
    words = said("RTX4090", 1, 5, large)
    assert "AutoDL deletes a machine and all its data 15 days after it was stopped" in words
    assert any(
        line.startswith("data, checkpoints and artifacts need 70 GB, AutoDL has 50 GB at /root/autodl-tmp")
        for line in words
    )
    assert not any("autodl-tmp" in line for line in said("RTX4090", 1, 5))
    assert stay("RTX4090", 1, 5)["AutoDL"].session_hours is None


def test_only_the_platform_whose_price_is_taken_is_warned_of_and_those_that_lend() -> None:
    def named(cloud: str, card: str) -> str:
        offer = prices.stated(cloud, 1.0, "CNY")
        return " ".join(one.text for one in clocks.reasons(card, 1, (3600.0,) * 3, SMALL, offer=offer))

    assert "AutoDL" in named("autodl", "RTX4090")
    assert "AutoDL" in named(money.OWN, "RTX4090")
    assert "AutoDL" not in named("matpool", "RTX4090")
    assert "Kaggle" in named("matpool", "T4")


def test_a_base_model_need_not_outlive_a_session() -> None:
    assert clocks.kept_bytes({"data": 1, "checkpoints": 2, "finished": 4, "base": 8, "merged": 16}) == 23
