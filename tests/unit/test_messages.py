"""The language of messages, and how an error is said."""

from typing import Any

import pytest

from stoker import messages
from stoker.api.figures import duration
from stoker.errors import StokerError, StokerErrors


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOKER_LANG", "LC_ALL", "LANG"):
        monkeypatch.delenv(name, raising=False)
    messages._language.cache_clear()
    yield
    messages._language.cache_clear()


@pytest.mark.parametrize(
    ("settings", "language"),
    [
        ({"STOKER_LANG": "zh"}, "zh"),
        ({"STOKER_LANG": "zh-CN"}, "zh"),
        ({"STOKER_LANG": "ZH_cn.UTF-8"}, "zh"),
        ({"STOKER_LANG": "en"}, "en"),
        ({"STOKER_LANG": "fr"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "STOKER_LANG": "en"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "STOKER_LANG": ""}, "zh"),
        ({"LANG": "Chinese (Simplified)_China.936"}, "zh"),
    ],
)
def test_stoker_lang_decides_else_the_locale(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], language: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert messages.language() == language


@pytest.mark.parametrize(("found", "language"), [("Chinese (Simplified)_China", "zh"), ("en_US", "en"), (None, "en")])
def test_without_variables_the_system_is_asked(
    monkeypatch: pytest.MonkeyPatch, found: str | None, language: str
) -> None:
    monkeypatch.setattr(messages.locale, "getlocale", lambda: (found, None))
    assert messages.language() == language


def test_an_error_speaks_the_language_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    error = StokerError("STK201", "run.yaml:7: train.batch", batch=64, devices=3, nearest="63, 66")
    monkeypatch.setenv("STOKER_LANG", "en")
    assert (error.what, error.hint) == (
        "batch 64 cannot be split evenly over 3 devices",
        "closest batches that can: 63, 66",
    )
    assert str(error) == f"run.yaml:7: train.batch: {error.what} [STK201]; {error.hint}"
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert error.what == "有效批次 64 不能被设备数 3 整除"


def test_what_a_field_holds_is_not_read_as_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    assert "{0} {key}" in StokerError("STK301", path="{0} {key}", folder="/").what


def test_an_error_survives_the_events_of_another_process() -> None:
    error = StokerError("STK201", "run.yaml:7", batch=64, devices=3, nearest=["63"])
    again = StokerError.from_json(error.to_json())
    assert (again.code, again.where, again.fields) == (
        "STK201",
        "run.yaml:7",
        {"batch": 64, "devices": 3, "nearest": ["63"]},
    )


def test_a_list_is_joined_as_the_language_does(monkeypatch: pytest.MonkeyPatch) -> None:
    error = StokerError("STK108", given="`x`", choices=["`a`", "`b`"], nearest="")
    for again in (error, StokerError.from_json(error.to_json())):
        monkeypatch.setenv("STOKER_LANG", "en")
        assert again.hint == "choose `a`, `b`"
        monkeypatch.setenv("STOKER_LANG", "zh")
        assert again.hint == "可选：`a`、`b`"


def test_an_item_of_a_list_keeps_no_secret() -> None:
    secret = "hf_" + "a" * 34
    assert secret not in str(StokerError("STK108", choices=[secret]).to_json())


@pytest.mark.parametrize("count", [1, "1", 2, "1,000", 0])
def test_one_of_a_kind_is_no_plural(monkeypatch: pytest.MonkeyPatch, count: int | str) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    said = messages.text("prepare.bad_rows", count=count, path="x")
    one = "1 bad row was skipped; it is listed in x"
    assert said == (one if str(count) == "1" else f"{count} bad rows were skipped; they are listed in x")


def test_a_duration_has_the_units_of_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert [duration(seconds) for seconds in (7500, 200, 12)] == ["2 小时 05 分", "3 分 20 秒", "12 秒"]
    monkeypatch.setenv("STOKER_LANG", "en")
    assert [duration(seconds) for seconds in (7500, 200, 12)] == ["2 h 05 min", "3 min 20 s", "12 s"]


def test_several_errors_are_said_line_by_line() -> None:
    several = StokerErrors([StokerError("STK206"), StokerError("STK304", advice="x")])
    assert [line.split("[")[1][:6] for line in str(several).splitlines()] == ["STK206", "STK304"]


def test_a_sentence_that_is_not_in_the_catalogue_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        messages.text("no.such.sentence")


@pytest.mark.parametrize(
    "said",
    [
        {"code": "STK899", "where": "", "fields": {}},
        {"code": "STK413", "where": "", "fields": {}},
        {"code": "STK413", "where": "", "fields": []},
        {"code": []},
        {},
    ],
    ids=str,
)
def test_an_error_there_is_no_sentence_for_is_shown_as_it_is(said: dict[str, Any]) -> None:
    """Another version, or a stranger, wrote it down."""
    error = StokerError.from_json(said)
    assert error.code == "STK900"
    assert str(said) in error.what
    assert error.hint
