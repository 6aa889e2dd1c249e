"""Conversation shapes by real chat templates: which trained spans are right, which rows refused and why, none wrong.

Writes docs/evidence/rows.json. The templates are those of the installed `trl`.
Usage: python benchmarks/rows.py [--template NAME ...] [--out FILE]
"""

import argparse
import datetime
import json
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/engine"), str(ROOT / "tests/campaigns")]

import campaign  # noqa: E402
import row_shapes  # noqa: E402
from prepare_case import Case  # noqa: E402
from row_shapes import Cell  # noqa: E402


def main() -> int:
    """Prepare every shape with every template and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--template", action="append", help="only these")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/rows.json")
    asked = parser.parse_args()
    code = campaign.code()
    templates = row_shapes.templates()
    chosen = {name: text for name, text in templates.items() if name in (asked.template or templates)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        case = Case(Path(folder), patch)
        cells = [cell for name, text in chosen.items() for cell in row_shapes.cells(case, name, text)]
    report = reported(cells, code)
    asked.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(report["cells"]))
    return 0 if report["cells"]["wrong"] == 0 else 1


def reported(cells: list[Cell], code: dict[str, Any]) -> dict[str, Any]:
    """Counts, and every cell that is not right with its reason."""
    templates, shapes = (
        list(dict.fromkeys(names)) for names in zip(*((c.template, c.shape) for c in cells), strict=True)
    )
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "code": code,
        "versions": {**campaign.versions(), "trl": version("trl")},
        "command": " ".join(["python", "benchmarks/rows.py", *sys.argv[1:]]),
        "templates": len(templates),
        "shapes": len(shapes),
        "cells": row_shapes.counted(cells),
        "by_shape": {shape: row_shapes.counted([c for c in cells if c.shape == shape]) for shape in shapes},
        "reasons": dict(Counter(cell.reason for cell in cells if cell.verdict == "refused").most_common()),
        "refused": {
            name: {c.shape: c.reason for c in cells if c.template == name and c.verdict == "refused"}
            for name in templates
        },
        "wrong": [[c.template, c.shape, c.reason] for c in cells if c.verdict == "wrong"],
    }


if __name__ == "__main__":
    sys.exit(main())
