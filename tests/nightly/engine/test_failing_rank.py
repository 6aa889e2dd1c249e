"""What one of several processes fails with is what the terminal says."""

from pathlib import Path

from test_several import COMMAND, stoker


def test_a_rank_that_fails_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    """Only the second process fails; its reason reaches the terminal in words, not the first one's complaint."""
    plant = tmp_path / "plant"
    plant.mkdir()
    (plant / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import torch\n"
        "    def fails(*args, **kwargs):\n"
        "        raise torch.OutOfMemoryError('planted in one rank')\n"
        "    torch.nn.functional.cross_entropy = fails\n"
    )
    alone = ("--set", "where.micro=4", "--set", "where.gradient_checkpointing=false")  # nothing smaller to try
    with stoker(tmp_path, *COMMAND, *alone, PYTHONPATH=str(plant)) as done:
        said, _ = done.communicate(timeout=300)
    assert done.returncode == 1, said
    assert "STK675" in said
    (events,) = tmp_path.rglob("events.jsonl")
    assert "planted in one rank" in events.read_text()
    assert "Traceback" not in said
