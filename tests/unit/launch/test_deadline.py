"""When a machine is taken away: told, by the queue, or by the platform's session."""

import datetime

import pytest

from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.launch import deadline


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOKER_DEADLINE", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platforms, "detect", lambda *_: None)


def test_a_machine_of_ones_own_has_no_end() -> None:
    assert deadline.deadline() is None


def test_what_was_told_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_DEADLINE", "2026-11-15T20:00:00+08:00")
    assert deadline.deadline() == "2026-11-15T12:00:00+00:00"


def test_what_is_no_time_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_DEADLINE", "tonight")
    with pytest.raises(StokerError) as caught:
        deadline.deadline()
    assert caught.value.code == "STK676"


def test_the_queue_says_when_a_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1794758400")
    assert deadline.deadline() == datetime.datetime.fromtimestamp(1794758400, datetime.timezone.utc).isoformat()


def test_a_session_ends_its_hours_after_the_machine_began(monkeypatch: pytest.MonkeyPatch) -> None:
    kaggle = next(one for one in platforms.platforms() if one.name == "kaggle")
    monkeypatch.setattr(platforms, "detect", lambda *_: kaggle)
    monkeypatch.setattr(deadline, "_machine_began", lambda: 1794758400.0)
    end = datetime.datetime.fromtimestamp(1794758400 + 12 * 3600, datetime.timezone.utc)
    assert deadline.deadline() == end.isoformat()


def test_the_earliest_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1794758400")
    monkeypatch.setenv("STOKER_DEADLINE", "2026-01-01T00:00:00+00:00")
    assert deadline.deadline() == "2026-01-01T00:00:00+00:00"


def test_this_machine_began_some_time_ago() -> None:
    began = deadline._machine_began()
    assert began is None or began < datetime.datetime.now(datetime.timezone.utc).timestamp()
