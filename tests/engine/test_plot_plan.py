"""The picture of a comparison: time against money."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")

pytest.importorskip("matplotlib", reason='pip install "stoker[plot]"')


def row(card: str, hours: float, amount: float, currency: str = "USD", **fields: Any) -> dict[str, Any]:
    return {
        "card": card,
        "devices": 2,
        "fits": "yes",
        "time_seconds": hours * 3600,
        "time_seconds_range": (hours * 3000, hours * 4000),
        "cost": {"amount": amount, "amount_range": (amount * 0.9, amount * 1.2), "currency": currency},
        **fields,
    }


ROWS = [
    row("fast", 1, 9),
    row("cheap", 8, 2),
    row("beaten", 8, 9),
    row("maybe", 0.5, 1, fits="tight"),
    row("yuan", 2, 30, "CNY"),
    row("never", 1, 1, fits="no"),
    row("free", 1, 1) | {"cost": None},
]


def test_the_frontier_is_named_and_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    from stoker.engine import plot_plan

    for name in ("a.svg", "b.svg"):
        plot_plan.draw({"name": "night", "rows": ROWS}, tmp_path / name)
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    named = [
        name for name in ("fast", "cheap", "yuan", "beaten", "maybe", "never") if f"<!-- 2 x {name} -->" in picture
    ]
    assert named == ["fast", "cheap", "yuan"]
    assert "<!-- USD -->" in picture
    assert "<!-- CNY -->" in picture
    assert picture == (tmp_path / "b.svg").read_text(encoding="utf-8")


def test_the_program_draws_what_its_folder_says(tmp_path: Path) -> None:
    from stoker.engine import plot_plan

    target = tmp_path / "out.png"
    report = {"name": "night", "rows": ROWS, "target": str(target)}
    (tmp_path / "compare.json").write_text(json.dumps(report), encoding="utf-8")
    assert plot_plan.main(tmp_path) == 0
    assert target.read_bytes().startswith(b"\x89PNG")


def test_a_comparison_without_prices_is_drawn_empty(tmp_path: Path) -> None:
    from stoker.engine import plot_plan

    plot_plan.draw({"name": "night", "rows": []}, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0
