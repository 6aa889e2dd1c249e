"""What a plan says of a resume before the start is what the trainer finds, over a matrix of changes on a CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_run

from stoker.engine import opened as engine_opened
from stoker.engine import resume
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, events, files, prepared, training_words
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

ROWS = tiny_run.random_rows(9, seed=3, longest=32)
AUTO = "gpus: 0"
CHANGES = [
    ("lora", AUTO, "1", "EXACT"),
    ("lora", f"{AUTO}, processes: 2", "1", "EXACT"),
    ("lora", f"{AUTO}, processes: 4", "1", "EXACT"),
    ("lora", f"{AUTO}, processes: 2, strategy: fsdp2", "1", "SAMPLE-EXACT"),
    ("lora", f"{AUTO}, processes: 1, strategy: fsdp2", "1", "SAMPLE-EXACT"),
    ("lora", f"{AUTO}, micro: 1", "1", "SAMPLE-EXACT"),
    ("lora", f"{AUTO}, processes: 8", "1", "SAMPLE-EXACT"),
    ("lora", f"{AUTO}, precision: bf16", "1", "SAMPLE-EXACT"),
    ("lora", f"{AUTO}, attention: eager", "1", "SAMPLE-EXACT"),
    ("lora", f"{AUTO}, arrange: rows", "1", "SAMPLE-EXACT"),
    ("lora", f"{AUTO}, gradient_checkpointing: true", "1", "SAMPLE-EXACT"),
    ("lora", AUTO, "2", "SAMPLE-EXACT"),
    ("full", AUTO, "1", "EXACT"),
    ("full", f"{AUTO}, processes: 2", "1", "SAMPLE-EXACT"),
    ("full", f"{AUTO}, processes: 2, strategy: zero2", "1", "SAMPLE-EXACT"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, base: Path) -> dict[str, Path]:
    """Runs with a checkpoint of their second step, micro batch 2."""
    folders = {}
    for method in ("lora", "full"):
        folders[method] = tmp_path_factory.mktemp(method)
        run_dir = make(folders[method], base, method, f"{AUTO}, micro: 2")
        assert tiny_run.train(run_dir, stop_after=2) == 75
    return folders


def make(folder: Path, base: Path, method: str, where: str) -> RunDir:
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 32, pack: false}}
tune: {{method: {method}}}
train: {{batch: 8, steps: 5}}
where: {{{where}}}
"""
    return tiny_run.make_run(folder, text, ROWS)


@pytest.mark.parametrize(("method", "where", "threads", "tier"), CHANGES)
def test_the_plan_says_what_the_trainer_finds(
    begun: dict[str, Path],
    base: Path,
    method: str,
    where: str,
    threads: str,
    tier: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    run_dir = make(begun[method], base, method, where)
    plan = files.read_record(run_dir.plan_file, Plan)
    used = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    fingerprint = engine_opened._fingerprint(
        run_dir, run_dir.run(), plan, {"base": "", "teacher": "", "rewards": "", "reward_packages": ""}
    )
    torch.set_num_threads(used)
    report = prepared.read_report(run_dir.data)
    words = training_words.of(run_dir.run(), run_dir.manifest().forked_from)
    opened: Any = SimpleNamespace(run=run_dir.run(), plan=plan, report=report, fingerprint=fingerprint, words=words)
    found, _ = checkpoints.newest_verified(run_dir.checkpoints)
    assert plan.resume is not None
    assert (plan.resume.tier, plan.resume.step) == (resume.tier(opened, found), 2)
    assert plan.resume.tier == tier
    assert plan.resume.changed == resume.changed(opened, found)
    assert set(plan.resume.unseen) == {"instructions", "driver", "cuda", "base"}


def test_a_real_attempt_says_the_same_as_its_plan(begun: dict[str, Path], base: Path) -> None:
    run_dir = make(begun["lora"], base, "lora", f"{AUTO}, processes: 2, strategy: fsdp2")
    plan = files.read_record(run_dir.plan_file, Plan)
    assert tiny_run.train(run_dir) == 0
    attempt = [event for event in events.read(run_dir.events_file) if event["event"] == "attempt"][-1]
    assert plan.resume is not None
    assert attempt["tier"] == plan.resume.tier == "SAMPLE-EXACT"
    assert attempt["changed"] == plan.resume.changed
    assert attempt["resumed_step"] == plan.resume.step


@pytest.mark.parametrize(("devices", "exact", "there"), [(2, False, True), (2, True, False), (1, False, False)])
def test_nccl_s_version_is_in_the_fingerprint_where_it_adds_gradients_stand_in(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, devices: int, exact: bool, there: bool
) -> None:
    """Not run on a GPU. In the canonical order a run has the same bits on one card and on several."""
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    run_dir = make(tmp_path, base, "full", AUTO)
    plan = files.read_record(run_dir.plan_file, Plan)
    split = plan.batch.model_copy(update={"devices": devices})
    plan = plan.model_copy(update={"device": "cuda", "exact": exact, "batch": split})
    fingerprint = engine_opened._fingerprint(
        run_dir, run_dir.run(), plan, {"base": "", "teacher": "", "rewards": "", "reward_packages": ""}
    )
    assert fingerprint.get("nccl") == ("2.28.9" if there else None)
