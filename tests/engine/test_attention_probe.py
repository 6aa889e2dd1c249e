"""A flash_attn that is installed and does not run is not planned with: its wheel may be built for another torch."""

import json
from pathlib import Path

import pytest

from stoker.errors import StokerError
from stoker.facts import cards
from stoker.facts.machine import Machine
from stoker.launch import attention_probe, programs
from stoker.plan import choices

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of an RTX 4090 (pretended) with a flash_attn whose library lacks a symbol."""
    package = tmp_path / "packages" / "flash_attn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda')\n")
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")
    packages = {"torch": "2.13.0", "flash_attn": "2.8.3"}
    return Machine.of_card(cards.find("4090")).model_copy(update={"packages": packages, "examined": True})


def test_a_wheel_with_a_broken_library_is_passed_over_with_its_reason(
    here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = attention_probe.tried(here)
    assert "flash_attn" not in found.packages
    assert "undefined symbol" in found.broken["flash_attn"]
    asked: list[str] = []
    monkeypatch.setattr(programs, "run_on_folder", lambda program, _: asked.append(program))
    assert attention_probe.tried(here) == found
    assert asked == [], "asked again of the same versions"
    newer = here.model_copy(update={"packages": {**here.packages, "flash_attn": "2.9.0"}})
    monkeypatch.setattr(programs, "run_on_folder", _runs)
    assert attention_probe.tried(newer) == newer


def _runs(program: str, folder: Path) -> None:
    (folder / f"{program}.json").write_text(json.dumps({"flash_attn": ""}))


def test_a_kernel_that_ends_its_process_is_passed_over_too(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(program: str, _: Path) -> None:
        raise StokerError("STK222", program=program, exit_code=-11, reason="Segmentation fault")

    monkeypatch.setattr(programs, "run_on_folder", dies)
    assert attention_probe.tried(here).broken == {"flash_attn": "Segmentation fault"}


def test_a_card_that_is_busy_is_asked_again(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(program: str, _: Path) -> None:
        raise StokerError("STK222", program=program, exit_code=1, reason="CUDA error: out of memory")

    monkeypatch.setattr(programs, "run_on_folder", full)
    assert "flash_attn" not in attention_probe.tried(here).packages
    monkeypatch.setattr(programs, "run_on_folder", _runs)
    assert attention_probe.tried(here) == here


def test_the_plan_says_why_and_refuses_what_was_asked_for(here: Machine, tmp_path: Path) -> None:
    from stoker.config import load
    from stoker.facts import shapes

    shape = shapes.resolve("Qwen/Qwen2.5-0.5B", tmp_path).shape
    broken = here.model_copy(update={"packages": {"torch": "2.13.0"}, "broken": {"flash_attn": "no symbol"}})
    text = "model: Qwen/Qwen2.5-0.5B\ndata: {train: rows.jsonl}\nwhere: {attention: %s}\n"
    chosen = choices.attention(load.parse(text % "auto", "run.yaml"), broken, "bf16", shape)
    assert (chosen.value, chosen.reason.key) == ("sdpa", "why.attention.broken")
    with pytest.raises(StokerError, match="no symbol") as caught:
        choices.attention(load.parse(text % "flash_attention_2", "run.yaml"), broken, "bf16", shape)
    assert caught.value.code == "STK213"
