"""A planted bit is found, counted, and makes a check fail where EXACT was claimed."""

import json
import struct
from pathlib import Path

import pytest

from stoker.prove import resuming, weight_bits
from stoker.rundir import events
from stoker.rundir.layout import RunDir

WEIGHTS = {"a": ("F32", [1.0, -2.0, 0.5]), "b": ("F32", [3.0])}


def write(folder: Path, weights: dict[str, tuple[str, list[float]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header, body = {}, b""
    for name, (dtype, numbers) in weights.items():
        raw = struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": dtype, "shape": [len(numbers)], "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)


def flip(folder: Path, *bits: int) -> None:
    """Flip bits, counted from the end of the file."""
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    for bit in bits:
        raw[-1 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def run(folder: Path, name: str, *resumed: int, tier: str = "EXACT") -> RunDir:
    run_dir = RunDir(folder / name)
    write(run_dir.final, WEIGHTS)
    for step in (0, *resumed):
        events.append(run_dir.events_file, "attempt", tier=tier, resumed_step=step, total_steps=20)
    return run_dir


def test_equal_weights_have_one_digest_in_whichever_order_they_are_written(tmp_path: Path) -> None:
    write(tmp_path / "one", WEIGHTS)
    write(tmp_path / "other", dict(reversed(WEIGHTS.items())))
    assert weight_bits.digest(tmp_path / "one") == weight_bits.digest(tmp_path / "other")
    assert weight_bits.difference(tmp_path / "one", tmp_path / "other") == weight_bits.BitDifference(4, 0, 0)


def test_flipped_bits_are_counted_by_element_and_by_bit(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name, WEIGHTS)
    flip(tmp_path / "other", 0, 5, 40)
    assert weight_bits.digest(tmp_path / "one") != weight_bits.digest(tmp_path / "other")
    assert weight_bits.difference(tmp_path / "one", tmp_path / "other") == weight_bits.BitDifference(4, 2, 3)


def test_a_planted_bit_fails_the_check_of_an_exact_resume(tmp_path: Path) -> None:
    whole, killed = run(tmp_path, "whole"), run(tmp_path, "killed", 10)
    assert resuming.compared("resume_exact", whole, killed).outcome == "passed"
    flip(killed.final, 3)
    found = resuming.compared("resume_exact", whole, killed)
    assert (found.outcome, found.figures["elements_differing"], found.figures["bits_differing"]) == ("failed", 1, 1)
    assert "1 of 4" in found.to_json()["reason"]


def test_where_exact_is_not_claimed_the_difference_is_told(tmp_path: Path) -> None:
    whole, killed = run(tmp_path, "whole"), run(tmp_path, "killed", 10, tier="SAMPLE-EXACT")
    flip(killed.final, 3)
    found = resuming.compared("resume_default", whole, killed)
    assert (found.outcome, found.figures["bits_differing"]) == ("passed", 1)


@pytest.mark.parametrize("resumed", [(), (0,)], ids=["never restarted", "started over"])
def test_a_run_that_was_not_resumed_proves_nothing(tmp_path: Path, resumed: tuple[int, ...]) -> None:
    found = resuming.compared("resume_exact", run(tmp_path, "whole"), run(tmp_path, "killed", *resumed))
    assert (found.outcome, found.key) == ("failed", "prove.reason.not_resumed")
