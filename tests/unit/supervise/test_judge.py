"""How an attempt ended, and what follows from it."""

import pytest

from stoker.supervise import judge as judging
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
        (Ended(1, tail="step 3\nError out of memory at line 254 in file ops.cu\n"), "replan", "memory"),
        (Ended(1, codes=["STK423"], tail="Error out of memory at line 254 in file ops.cu"), "replan", "memory"),
        (Ended(1, codes=["STK410"], tail="Error out of memory at line 254 in file ops.cu"), "fail", "STK410"),
        (Ended(1, tail="Error invalid argument at line 254 in file ops.cu"), "retry", "surprise"),
        (Ended(0), "retry", "surprise"),
    ],
)
def test_what_will_repeat_is_told_from_what_may_pass(ended: Ended, act: str, reason: str) -> None:
    assert judge(ended, skip=False, trained=True) == Ruling(act, reason)


def test_a_bad_step_is_passed_over_only_where_it_is_known_and_wanted() -> None:
    assert judge(Ended(1, codes=["STK416"], bad_step=3), skip=True, trained=True).act == "pass_over"
    assert judge(Ended(1, codes=["STK416"]), skip=True, trained=True).act == "fail"


@pytest.mark.parametrize("code", ["STK407", "STK413", "STK421"])
def test_disk_and_hub_may_pass_once_a_step_was_done(code: str) -> None:
    acts = [judge(Ended(1, codes=[code]), skip=False, trained=trained).act for trained in (False, True)]
    assert acts == ["fail", "retry"]


def test_only_a_fault_of_the_program_repeats_at_the_same_step() -> None:
    faults = [Ruling("retry", reason).is_fault for reason in ("surprise", "device", "SIGSEGV", "SIGKILL", "hang")]
    assert faults == [True, True, True, False, False]
    assert not Ruling("fail", "surprise").is_fault


def test_a_report_names_the_first_rank_that_failed_and_its_signal() -> None:
    tail = "Root Cause (first observed failure):\n[0]:\n  rank : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 17)"
    said = judging.report(1, tail, 2, [])
    assert (said["rank"], said["signal"]) == (3, "SIGKILL")
    assert judging.report(1, "", 2, [])["rank"] is None
    assert judging.report(-200, "", 0, [])["signal"] == "signal 200"


@pytest.mark.parametrize(
    ("code", "codes", "tail", "asked", "reason"),
    [
        (0, [], "", False, ""),
        (75, [], "", False, ""),
        (-9, [], "", True, ""),
        (-9, [], "", False, "SIGKILL"),
        (-11, [], "", True, "SIGSEGV"),
        (1, ["STK423"], "", False, "lost"),
        (1, ["STK402", "STK408"], "", False, "STK408"),
        (1, ["STK423"], "  exitcode  : 2 (pid: 17)", False, "surprise"),
        (2, [], "KeyError", False, "surprise"),
    ],
)
def test_a_node_that_we_killed_has_not_failed(code: int, codes: list[str], tail: str, asked: bool, reason: str) -> None:
    assert judging.reported_reason({**judging.report(code, tail, 0, codes), "asked": asked}) == reason


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("Traceback (most recent call last):\n  File x\nValueError: no column `a`\n", "ValueError: no column `a`"),
        (
            "KeyError: 1\nTraceback\n  raise\nRuntimeError: second\nerror: unexpected error  [STK900]\n",
            "RuntimeError: second",
        ),
        ("[rank1]: torch.cuda.OutOfMemoryError: 2 GiB\n", "torch.cuda.OutOfMemoryError: 2 GiB"),
        (
            "ImportError: libfoo\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nRoot Cause\n",
            "ImportError: libfoo",
        ),
        ("AssertionError\n", "AssertionError"),
        ("loss 2.1\nan Error: in the middle of a line\n", ""),
        ("", ""),
    ],
)
def test_the_cause_is_the_last_line_of_the_newest_traceback(log: str, cause: str) -> None:
    assert judging.cause(log) == cause


def test_a_cause_is_no_page() -> None:
    assert len(judging.cause("ValueError: " + "x" * 10_000)) < 1_000
