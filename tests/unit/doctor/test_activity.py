import os
import sys

import pytest

from stoker.doctor import activity
from stoker.doctor.activity import GpuLoad


def test_answer_of_nvidia_smi_is_read() -> None:
    answer = "0, 97, 21817, 24564\n1, 0, 3, 24564\n"
    assert activity.parse(answer) == [GpuLoad(0, 97, 21817 << 20, 24564 << 20), GpuLoad(1, 0, 3 << 20, 24564 << 20)]


def test_card_that_does_not_report_is_left_out() -> None:
    assert activity.parse("0, [N/A], 100, 200\n1, 5, 100, 200\n") == [GpuLoad(1, 5, 100 << 20, 200 << 20)]
    assert activity.parse("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_own_process_has_used_time_and_memory() -> None:
    used, before = activity.cpu_seconds(os.getpid()), os.times()
    assert used == pytest.approx(before.user + before.system, abs=0.1)
    memory = activity.memory_bytes(os.getpid())
    assert memory is not None
    assert 5e6 < memory < 5e9


def test_process_that_is_gone_has_no_load() -> None:
    assert activity.cpu_seconds(2**22 + 1) is None
    assert activity.memory_bytes(2**22 + 1) is None


@pytest.mark.parametrize(("answer", "watts"), [("450.00\n450.00\n", 450.0), ("[N/A]\n", None), ("", None)])
def test_power_limit_is_the_first_cards(monkeypatch: pytest.MonkeyPatch, answer: str, watts: float | None) -> None:
    monkeypatch.setattr(activity, "_asked", lambda query: answer)
    assert activity.power_limit_watts() == watts
