"""How an attempt ended, and what follows from it."""

import pytest

from stoker.supervise.judge import Ended, Ruling, judge


@pytest.mark.parametrize(
    ("ended", "act", "reason"),
    [
        (Ended(0, status="done"), "done", ""),
        (Ended(75), "stopped", "asked"),
        (Ended(0, status="stopped"), "stopped", "asked"),
        (Ended(-9), "retry", "SIGKILL"),
        (Ended(-9, oom_killed=True), "replan", "memory"),
        (Ended(-9, hung=True), "retry", "hang"),
        (Ended(1, tail="  exitcode  : -9 (pid: 17)"), "retry", "SIGKILL"),
        (Ended(1, codes=["STK402", "STK408"]), "replan", "memory"),
        (Ended(1, codes=["STK402", "STK410"]), "fail", "STK410"),
        (Ended(1, codes=["STK402"]), "fail", "STK402"),
        (Ended(1, codes=["STK402"], tail="  exitcode  : -9 (pid: 17)"), "retry", "SIGKILL"),
        (Ended(1, codes=["STK423", "STK423"]), "retry", "lost"),
        (Ended(1, codes=["STK423", "STK408"]), "replan", "memory"),
        (Ended(1, codes=["STK423", "STK410"]), "fail", "STK410"),
        (Ended(1, codes=["STK423"], tail="  exitcode  : -9 (pid: 17)"), "retry", "SIGKILL"),
        (Ended(1, codes=["STK423"], tail="  exitcode  : 2 (pid: 17)"), "retry", "surprise"),
        (Ended(2, tail="RuntimeError: CUDA error: unspecified launch failure"), "retry", "device"),
        (Ended(2, tail="KeyError"), "retry", "surprise"),
        (Ended(1, codes=["STK416"], bad_step=3), "fail", "bad_step"),
        (Ended(-9, codes=["STK423"], lost="silent"), "retry", "silent"),
        (Ended(-9, codes=["STK423", "STK408"], lost="node"), "replan", "memory"),
        (Ended(1, codes=["STK424", "STK423"]), "retry", "STK424"),
        (Ended(1, codes=["STK425", "STK423"]), "fail", "STK425"),
        (Ended(0), "retry", "surprise"),
    ],
)
def test_what_will_repeat_is_told_from_what_may_pass(ended: Ended, act: str, reason: str) -> None:
    assert judge(ended, skip=False, trained=True) == Ruling(act, reason)
