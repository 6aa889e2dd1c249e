"""Four processes give the bits of one, with every objective."""

import shutil
from pathlib import Path
from typing import Any

import asked_run
import paired_run
import pytest
import taught_run
import tiny_run

from stoker.engine import rollout_files
from stoker.rundir import events

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("objective", ["dpo", "simpo", "orpo", "kto", "reward"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_one_sha_on_one_and_four_ranks_with_ddp_and_fsdp2(tmp_path: Path, objective: str, method: str) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    rows, held = (paired_run.rows_of(objective, count, seed) for count, seed in ((40, 2), (11, 3)))
    more = ", exact: true, eval_every: 5 steps"
    shas = set()
    for name, where in (
        ("1", ""),
        ("ddp", ", processes: 4, strategy: ddp"),
        ("fsdp2", ", processes: 4, strategy: fsdp2"),
    ):
        text = paired_run.text(base, steps=10, objective=objective, method=method, more=more, where=where)
        run_dir = tiny_run.make_run(tmp_path / name, text.replace("micro: 4", "micro: 2"), rows, held)
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        shas.add(tiny_run.weights_sha(run_dir.final))
    assert len(shas) == 1


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("objective", ["grpo", "distill"])
def test_four_ranks_give_the_bits_of_one_on_the_same_committed_answers(
    tmp_path: Path, objective: str, method: str
) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    rows, first, shas = asked_run.prompts(22, seed=2), None, set()
    for name, where in (
        ("1", ""),
        ("ddp", ", processes: 4, strategy: ddp"),
        ("fsdp2", ", processes: 4, strategy: fsdp2"),
    ):
        given: dict[str, Any] = {
            "steps": 8,
            "method": method,
            "more": ", exact: true",
            "where": where,
            "save": "100 steps",
        }
        if objective == "grpo":
            text = asked_run.text(base, **given)
        else:
            text = taught_run.text(base, taught_run.teacher(tmp_path / "teacher"), **given)
        run_dir = asked_run.made(tmp_path / name, text.replace("micro: 4", "micro: 2"), rows)
        if first:
            shutil.copytree(rollout_files.folder(first), rollout_files.folder(run_dir))
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        made = {one["step"] for one in events.read(run_dir.events_file) if one["event"] == "rollout"}
        assert made == (set() if first else {*range(1, 9)})
        first = first or run_dir
        shas.add(tiny_run.weights_sha(run_dir.final))
    assert len(shas) == 1
