"""The picture of a benchmark."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("default")

pytest.importorskip("matplotlib", reason='pip install "stoker[plot]"')


def test_the_picture_shows_every_way_and_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    from stoker.engine import plot

    times = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
    levels = [
        {"way": way, "clients": n, "tokens_per_second": 10.0 * n, "first_token_ms": times, "latency_ms": times}
        for way in ("transformers", "vllm", "vllm_batched")
        for n in (1, 2, 4)
    ]
    report = {"name": "night", "date": "2026-11-15", "machine": {"name": "a CPU"}, "levels": levels}
    plot.draw(report, tmp_path / "a.svg")
    plot.draw(report, tmp_path / "b.svg")
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert picture.startswith("<?xml")
    assert picture.count("<!-- vLLM, batched -->") == 1
    assert picture == (tmp_path / "b.svg").read_text(encoding="utf-8")
