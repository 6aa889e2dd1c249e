"""The checks of `stoker prove`, one by one, on a real card. No GPU has run these tests yet."""

import functools

import pytest

from stoker.facts import machine
from stoker.launch import attention_probe
from stoker.prove import kernels, measurements, resuming, sequence, trials
from stoker.prove.check import Check
from stoker.prove.measurements import CARD_POINTS, Point
from stoker.prove.trials import Trials

HERE = machine.examine()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(HERE.kind != "cuda", reason="there is no NVIDIA GPU"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("card"), attention_probe.tried(HERE))


@functools.cache
def seen(on: Trials, name: str) -> Check:
    """A check, made once for all tests that look at it."""
    return sequence.WHOLE[name](on)


@pytest.mark.parametrize("name", [name for name in sequence.WHOLE if name != "memory"])
def test_a_check_passes_or_cannot_be_tried(on: Trials, name: str) -> None:
    found = seen(on, name)
    assert found.outcome != "failed", (found.reason, found.figures)


@pytest.mark.parametrize("point", CARD_POINTS, ids=lambda point: f"{point.micro}x{point.length}")
def test_memory_stays_within_the_plans_interval(on: Trials, point: Point) -> None:
    found = measurements.measured_memory(on, [point])
    assert found.outcome == "passed", found.figures
    (figures,) = found.figures["points"]
    assert 0 < figures["allocated_bytes"] <= figures["reserved_bytes"]
    assert figures["driver_bytes"] is not None


def test_a_fast_attention_kernel_runs(on: Trials) -> None:
    ran = {name for name, one in seen(on, "attention").figures.items() if isinstance(one, dict) and one["ran"]}
    assert ran & {"sdpa_flash", "sdpa_efficient", "flash_attention_2"}


def test_a_kernel_that_is_off_is_failed() -> None:
    off = {"ran": True, "dtype": "bfloat16", "error": 1.0, "epsilon": 2**-7}
    assert kernels.judged({"sdpa_flash": off}).outcome == "failed"


def test_a_deterministic_resume_is_claimed_and_proven_exact(on: Trials) -> None:
    figures = seen(on, "resume_exact").figures
    assert (figures["tier"], figures["bits_differing"]) == ("EXACT", 0)


def test_without_it_exact_is_not_claimed(on: Trials) -> None:
    assert seen(on, "resume_default").figures["tier"] == "SAMPLE-EXACT"


def test_a_planted_bit_is_found(on: Trials) -> None:
    whole = on.trained("whole", resuming.DETERMINISTIC)
    spoilt = on.killed("killed", trials.kill_trainer, resuming.DETERMINISTIC)
    path = spoilt.final / "model.safetensors"
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        assert resuming.compared("resume_exact", whole, spoilt).outcome == "failed"
    finally:
        path.write_bytes(before)
