"""vLLM as the sampler: where there is none, where it ends or hangs, what it cannot be given. A real one: at night."""

import signal
from pathlib import Path
from types import SimpleNamespace

import asked_run
import pytest
import tiny_run
import vllm_case

from stoker.engine import vllm_sampler
from stoker.errors import StokerError

pytestmark = pytest.mark.filterwarnings("default")


def tool(folder: Path, *lines: str) -> None:
    """A Python of vLLM's environment that does something else."""
    python = folder / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    python.chmod(0o755)


def refused(tmp_path: Path, base: Path, **options: str) -> str:
    run_dir = asked_run.made(tmp_path / "run", vllm_case.text(base, steps=2, **options), asked_run.prompts(8, seed=1))
    assert tiny_run.train(run_dir) not in (0, -signal.SIGKILL)
    return tiny_run.said(run_dir)


def test_without_vllm_the_run_says_how_to_install_it(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "none"))
    said = refused(tmp_path, base_model)
    assert "STK601" in said
    assert f"{tmp_path}/none/vllm/bin/pip install vllm" in said


def test_where_vllm_ends_its_last_lines_are_said(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path / "tools", "echo 'ValueError: No available memory' >&2", "exit 3")
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "tools"))
    said = refused(tmp_path, base_model)
    assert "STK474" in said
    assert "exit code 3" in said
    assert "ValueError: No available memory" in said
    assert "sampler-1.log" in said


def test_where_vllm_says_nothing_it_is_ended(tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path / "tools", "exec sleep 1000")
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "tools"))
    monkeypatch.setattr(vllm_sampler, "_SILENT_SECONDS", 0.5)
    monkeypatch.setattr(vllm_sampler, "_END_SECONDS", 0.5)
    with vllm_case.recorded(tmp_path) as pids:
        said = refused(tmp_path, base_model)
    assert "STK474" in said
    assert "0.5 s" in said
    assert vllm_case.left(pids) == []


@pytest.mark.parametrize(
    ("method", "strategy", "device", "option"),
    [
        ("qlora", "single", "cuda", "tune.method: qlora"),
        ("full", "zero3", "cuda", "where.strategy: zero3"),
        ("lora", "single", "mps", "where: mps"),
        ("lora", "fsdp2", "cuda", ""),
        ("full", "ddp", "cpu", ""),
    ],
)
def test_what_vllm_cannot_be_given_is_refused(method: str, strategy: str, device: str, option: str) -> None:
    run = SimpleNamespace(tune=SimpleNamespace(method=method), train=SimpleNamespace(objective="grpo"))
    plan = SimpleNamespace(strategy=strategy, device=device)
    if not option:
        vllm_sampler._require_supported(run, plan)
        return
    with pytest.raises(StokerError, match="STK475") as raised:
        vllm_sampler._require_supported(run, plan)
    assert option in str(raised.value)


def test_on_a_card_vllm_gets_what_the_training_leaves() -> None:
    def plan(**parts: int) -> SimpleNamespace:
        return SimpleNamespace(memory=SimpleNamespace(available_bytes=100, parts={"activations": 50, **parts}))

    assert vllm_sampler._share(plan(weights=20, optimizer=10)) == pytest.approx(0.6)
    assert vllm_sampler._share(plan(weights=20, optimizer=10, teacher=30)) == pytest.approx(0.3)
    assert vllm_sampler._share(plan(weights=100)) > 0
