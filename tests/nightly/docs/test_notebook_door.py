"""The Python how-to as a notebook: plan, compare, train, figures, stop, resume; the light part without torch."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/python.md"
CELL = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
NO_TORCH = """
import sys
for name in ("torch", "transformers", "tokenizers", "peft"):
    sys.modules[name] = None
"""
CHECKS = """
import json
from pathlib import Path
written = [json.loads(line) for line in Path(trained.path, "events.jsonl").read_text("utf-8").splitlines()]
attempts = [one for one in written if one["event"] == "attempt"]
assert [one["status"] for one in written if one["event"] == "end"] == ["stopped", "done"]
assert attempts[1]["resumed_step"] >= 5 and attempts[1]["tier"] == "EXACT"
assert list(trained.losses) == list(range(1, attempts[0]["total_steps"] + 1))
assert trained.eval_losses and trained.figures["step"] == attempts[0]["total_steps"]
assert not trained.is_running and trained.error is None
assert [one["event"] for one in handle.events()].count("attempt") == 1
"""


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.filterwarnings("default")
def test_the_how_to_works_as_a_notebook(tmp_path: Path) -> None:
    cells = CELL.findall(PAGE.read_text(encoding="utf-8"))
    outputs = executed([*cells, CHECKS], tmp_path)
    tables = [one["data"]["text/html"] for one in outputs if "text/html" in one.get("data", {})]
    assert [table.count("<table>") for table in tables] == [1, 1], "a plan and a comparison"
    assert "'stopped'" in [one.get("data", {}).get("text/plain") for one in outputs]
    assert "'done'" in [one.get("data", {}).get("text/plain") for one in outputs]


@pytest.mark.filterwarnings("default")
def test_planning_and_comparing_in_a_notebook_need_no_torch(tmp_path: Path) -> None:
    light = PAGE.read_text(encoding="utf-8").partition("## Train")[0]
    outputs = executed([NO_TORCH, *CELL.findall(light)], tmp_path)
    assert sum("text/html" in one.get("data", {}) for one in outputs) == 2


def executed(cells: list[str], folder: Path) -> list[dict[str, Any]]:
    """The outputs of all cells, one after the other; an error in one of them is raised."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return [output for cell in notebook.cells for output in cell.outputs]
