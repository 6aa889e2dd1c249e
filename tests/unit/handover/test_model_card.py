"""What a card says of the data: public names whole, of everything else the last part."""

from pathlib import Path

import pytest
from made_runs import make_run

from stoker.config import load
from stoker.handover import model_card
from stoker.rundir.layout import RunDir


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (r"D:\clients\acme\rows.jsonl", "rows.jsonl"),
        (r"clients\acme\rows.jsonl", "rows.jsonl"),
        ("D:/clients/acme/rows.jsonl", "rows.jsonl"),
        ("/data/acme/rows.jsonl", "rows.jsonl"),
        ("~/acme/rows.jsonl", "rows.jsonl"),
        ("clients/acme/rows.jsonl", "rows.jsonl"),
        ("clients/acme/", "acme"),
        ("rows.jsonl", "rows.jsonl"),
        ("hub:acme/rows", "hub:acme/rows"),
        ("modelscope:acme/rows", "modelscope:acme/rows"),
    ],
)
def test_no_folder_of_the_data_is_published(tmp_path: Path, path: str, shown: str) -> None:
    run_dir = RunDir(make_run(tmp_path / "runs", "done"))
    run = load.parse(f"model: acme/base\ndata:\n  train: '{path}'\n  length: 64\n", "run.yaml", [])
    assert model_card._data(run_dir, run)["sources"] == [f"`{shown}`"]
