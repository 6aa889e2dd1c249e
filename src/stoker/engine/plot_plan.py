"""Draws time against money: `python -m stoker.engine.plot_plan FOLDER` reads `compare.json` there.

A panel per currency, because none is turned into another. Needs matplotlib only.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import ticker

from stoker.engine import program
from stoker.errors import EXIT_DONE
from stoker.rundir import files

_COLOURS = {1: "#4c72b0", 2: "#55a868", 4: "#dd8452", 8: "#c44e52"}
_OTHER = "#777777"


def main(path: Path) -> int:
    """Draw the comparison in a folder to where it says."""
    report = files.read_json(path / "compare.json")
    draw(report, Path(report["target"]))
    return EXIT_DONE


def draw(report: dict[str, Any], target: Path) -> None:
    """The picture of one comparison."""
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = str(report["name"])  # the same figures give the same file
    from matplotlib import pyplot

    rows = [row for row in report["rows"] if row["fits"] != "no" and row["cost"]]
    currencies = sorted({row["cost"]["currency"] for row in rows})
    size = (6.4 * max(1, len(currencies)), 5.4)
    figure, panels = pyplot.subplots(1, max(1, len(currencies)), figsize=size, squeeze=False, layout="constrained")
    for panel, currency in zip(panels[0], currencies, strict=False):
        _panel(panel, [row for row in rows if row["cost"]["currency"] == currency], currency)
    figure.suptitle(f"{report['name']}: time against money, the frontier of each currency as a line")
    figure.savefig(target, dpi=120, metadata={"Date": None} if target.suffix == ".svg" else None)
    pyplot.close(figure)


def frontier(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that surely fit and that none of the others beats in both, fastest first."""
    kept: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["time_seconds"], row["cost"]["amount"])):
        if row["fits"] == "yes" and (not kept or row["cost"]["amount"] < kept[-1]["cost"]["amount"]):
            kept.append(row)
    return kept


def _panel(panel: Any, rows: list[dict[str, Any]], currency: str) -> None:
    for count in sorted({row["devices"] for row in rows}):
        colour = _COLOURS.get(count, _OTHER)
        some = [row for row in rows if row["devices"] == count]
        faces = [colour if row["fits"] == "yes" else "white" for row in some]
        panel.scatter(*_points(some), s=26, facecolors=faces, edgecolors=colour, zorder=3)
        panel.scatter([], [], s=26, color=colour, label=f"{count} x")
    panel.scatter([], [], s=26, facecolors="white", edgecolors=_OTHER, label="tight: may not fit")
    best = frontier(rows)
    panel.plot(*_points(best), color="black", linewidth=1, marker="o", markersize=8, fillstyle="none", label="frontier")
    for number, row in enumerate(best):
        _mark(panel, row, above=number % 2 == 0)
    panel.set_xlabel("hours (bars: nine in ten measured runs)")
    panel.set_ylabel(currency)
    for axis, scale in ((panel.xaxis, panel.set_xscale), (panel.yaxis, panel.set_yscale)):
        scale("log")
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    panel.grid(alpha=0.3)
    panel.margins(0.12)
    panel.legend(fontsize=8)


def _mark(panel: Any, row: dict[str, Any], *, above: bool) -> None:
    """A row of the frontier by name, with its intervals."""
    hours, amount = _point(row)
    across = [[abs(edge / 3600 - hours)] for edge in row["time_seconds_range"]]
    along = [[abs(edge - amount)] for edge in row["cost"]["amount_range"]]
    panel.errorbar(hours, amount, xerr=across, yerr=along, color="black", alpha=0.25, linewidth=1, zorder=1)
    name = f"{row['devices']} x {row['card']}"
    offset = (7, 9 if above else -14)
    panel.annotate(name, (hours, amount), xytext=offset, textcoords="offset points", fontsize=8)


def _points(rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    points = [_point(row) for row in rows]
    return [hours for hours, _ in points], [amount for _, amount in points]


def _point(row: dict[str, Any]) -> tuple[float, float]:
    return row["time_seconds"] / 3600, row["cost"]["amount"]


if __name__ == "__main__":
    sys.exit(program.run(main))
