"""Verdicts on what was measured: each has a case that fails."""

from typing import Any

from stoker.prove import kernels, measurements

RAN = {"ran": True, "dtype": "bfloat16", "error": 0.01, "epsilon": 2**-7}


def test_a_kernel_that_computes_something_else_is_named() -> None:
    found = kernels.judged({"eager": RAN, "sdpa_flash": {**RAN, "error": 0.5}})
    assert (found.outcome, "sdpa_flash" in found.reason, "eager" in found.reason) == ("failed", True, False)


def test_a_kernel_that_does_not_run_is_no_failure_and_its_reason_has_no_path() -> None:
    missing = {"ran": False, "dtype": "bfloat16", "reason": "ImportError: /opt/conda/lib/x.so: undefined symbol"}
    found = kernels.judged({"eager": RAN, "flash_attention_2": missing})
    assert found.outcome == "passed"
    assert found.figures["flash_attention_2"]["reason"] == "ImportError: …: undefined symbol"


def point(**seen: Any) -> dict[str, Any]:
    known = {"micro": 4, "length": 512, "planned_device_range": [100, 200], "reserved_bytes": None}
    return {**known, "driver_bytes": None, "allocated_bytes": None, "process_bytes": 10**12, **seen}


def test_memory_beyond_the_interval_fails_and_names_the_point() -> None:
    assert measurements.judged_memory([point(reserved_bytes=200, driver_bytes=190)]).outcome == "passed"
    found = measurements.judged_memory([point(), point(driver_bytes=201, length=1024)])
    assert (found.outcome, "4 x 1024" in found.reason, "4 x 512" in found.reason) == ("failed", True, False)


def test_the_memory_of_a_process_alone_is_told_and_not_judged() -> None:
    assert measurements.judged_memory([point()]).outcome == "passed"


def waits(count: int) -> dict[str, Any]:
    return {"synchronisations": count, "places": {"torch/optim/adamw.py:1": count}}


def test_waiting_once_a_step_passes_and_once_a_micro_batch_fails() -> None:
    fine = measurements.judged_waits(waits(50 + 10), waits(50 + 30), waits(50 + 30))
    assert (fine.outcome, fine.figures["per_step"], fine.figures["per_micro_batch"]) == ("passed", 1.0, 0.0)
    found = measurements.judged_waits(waits(50 + 20), waits(50 + 60), waits(50 + 240))
    assert (found.outcome, found.figures["per_step"], found.figures["per_micro_batch"]) == ("failed", 2.0, 1.0)
