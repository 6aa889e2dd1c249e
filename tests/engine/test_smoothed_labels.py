"""`native.trainer.label_smoothing_factor`: all models learn to predict the next token, compiled ones and towers too."""

from pathlib import Path

import pytest
import tiny_families
import tiny_run
import weighed_here

pytestmark = pytest.mark.filterwarnings("default")

WORDS = """
model: {base}
data: {{train: rows.jsonl, length: 32}}
train: {{batch: 4, steps: 2, epochs: 4, learning_rate: 1e-3}}
where: {{micro: 4, loss: plain}}
native: {{trainer: {{{native}}}}}
"""
SLIGHT = "label_smoothing_factor: 1.0e-7"
"""So little that it changes no digit that is compared."""


def losses(folder: Path, base: Path, native: str) -> list[float]:
    rows = tiny_run.random_rows(16, seed=5, longest=32)
    run_dir = tiny_run.make_run(folder, WORDS.format(base=base, native=native), rows)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return [float.fromhex(one) for one in tiny_run.losses(run_dir).values()]


@pytest.mark.parametrize(("family", "native"), [("llama", "torch_compile_backend: eager, "), ("qwen3_vl", "")])
def test_labels_are_shifted(tmp_path: Path, family: str, native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    base = weighed_here.keep(tiny_families.save(tmp_path / "base", family))
    expected = losses(tmp_path / "plain", base, "")
    assert losses(tmp_path / "smoothed", base, native + SLIGHT) == pytest.approx(expected, rel=1e-4)
    more = losses(tmp_path / "more", base, "label_smoothing_factor: 0.5")
    assert more != pytest.approx(expected, rel=1e-4)
