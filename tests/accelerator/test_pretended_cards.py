"""Trainings on pretended cards: fp16 with its scaler, bf16, shards; killed, out of memory; planted faults are found."""

import shutil
from pathlib import Path
from typing import Any

import accelerate
import pretended_devices
import pytest
import tiny_run
import torch
from pretended_devices import DEVICES

from stoker.rundir import checkpoints, events, files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

OVERFLOWING = {"FIRST_SCALE": str(2.0**24)}
"""A loss scale at which the gradients of the first steps are not finite, so that these steps are skipped."""

LENGTH = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", dropout=0.1)


def make(folder: Path, base: Path, device: str, where: str = "micro: 4", method: str = "lora, rank: 4") -> RunDir:
    words = f"""
model: {base}
data: {{train: rows.jsonl, length: {LENGTH}}}
tune: {{method: {method}}}
train: {{batch: 8, steps: 8, epochs: 4, learning_rate: 1e-2}}
save: {{every: 3 steps, keep: 20}}
where: {{{DEVICES[device].where}{where}}}
"""
    return tiny_run.make_run(folder, words, tiny_run.random_rows(30, seed=5, longest=LENGTH, segments=3))


def said(run_dir: RunDir) -> str:
    return "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(run_dir.path.glob("child*.log")))


def noted(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(run_dir.events_file) if event["event"] == kind]


def scales(run_dir: RunDir) -> list[float]:
    """The loss scale of each checkpoint."""
    found = checkpoints.committed(run_dir.checkpoints)
    return [files.read_json(one.path / "state.json")["scaler"]["scale"] for one in found]


def test_a_t4_killed_in_fp16_ends_with_the_bits_of_one_nobody_killed(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one whose scale is lost on the way does not: the planted fault is found."""
    pretended_devices.use(monkeypatch, DEVICES["T4"], **OVERFLOWING)
    whole, killed = (make(tmp_path / name, base, "T4") for name in ("whole", "killed"))
    plan = files.read_json(killed.plan_file)
    assert (plan["device"], plan["precision"], plan["card"]) == ("cuda", "fp16", "T4")

    assert pretended_devices.train(whole) == 0, said(whole)
    assert pretended_devices.types(whole) == {"float16"}
    assert all(event["memory_bytes"] > 0 for event in noted(whole, "step"))
    first, *others = scales(whole)
    assert first < float(OVERFLOWING["FIRST_SCALE"]), "no step was skipped, so this test shows nothing of the scaler"

    assert pretended_devices.train(killed, kill_after=5) == -9
    faulty = RunDir(Path(shutil.copytree(killed.path, killed.path.with_name("faulty"))))
    assert pretended_devices.train(killed) == 0, said(killed)
    assert noted(killed, "attempt")[-1]["resumed_step"] == 3
    assert scales(killed) == [first, *others]
    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)

    monkeypatch.setenv("PRETENDED_FAULT", "lost scaler")
    assert pretended_devices.train(faulty) == 0, said(faulty)
    assert tiny_run.weights_sha(faulty.final) != tiny_run.weights_sha(whole.final)


def test_products_in_another_type_than_planned_are_seen(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended_devices.use(monkeypatch, DEVICES["T4"], FAULT="wrong type")
    run_dir = make(tmp_path, base, "T4")
    assert pretended_devices.train(run_dir) == 0, said(run_dir)
    assert pretended_devices.types(run_dir) != {"float16"}


@pytest.mark.parametrize("fault", ["host tensor", "wrong device"])
def test_a_model_and_rows_at_two_places_are_refused(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    pretended_devices.use(monkeypatch, DEVICES["4090"], FAULT=fault)
    run_dir = make(tmp_path, base, "4090")
    assert pretended_devices.train(run_dir) != 0
    assert "Expected all tensors to be on the same device" in said(run_dir)


def test_shards_of_two_4090_killed_end_with_the_bits_of_those_nobody_killed(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended_devices.use(monkeypatch, DEVICES["2x4090-fsdp2"])
    whole, killed = (make(tmp_path / name, base, "2x4090-fsdp2", method="full") for name in ("whole", "killed"))
    plan = files.read_json(killed.plan_file)
    assert (plan["strategy"], plan["precision"], plan["batch"]["devices"]) == ("fsdp2", "bf16", 2)
    assert pretended_devices.train(whole) == 0, said(whole)
    assert pretended_devices.types(whole) == {"bfloat16"}
    assert pretended_devices.train(killed, kill_after=5) == -9
    assert pretended_devices.train(killed) == 0, said(killed)
    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)


def test_a_card_whose_memory_ends_goes_on_with_smaller_micro_batches(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended_devices.use(monkeypatch, DEVICES["4090"], LARGEST_TOKENS=str(4 * LENGTH), MEMORY_ENDS_AFTER="4")
    run_dir = make(tmp_path, base, "4090", where="arrange: rows")
    before = files.read_json(run_dir.plan_file)["batch"]
    assert before["micro"] == 8
    assert pretended_devices.supervise(run_dir) == 0, pretended_devices.logs(run_dir)
    (wrong,) = noted(run_dir, "error")
    assert wrong["error"]["code"] == "STK408"
    assert wrong["error"]["fields"]["reason"].startswith("CUDA out of memory. Tried to allocate")
    (changed,) = noted(run_dir, "replan")
    assert (changed["before"]["micro"], changed["after"]["micro"]) == (8, 4)
    assert [one["resumed_step"] for one in noted(run_dir, "attempt")] == [0, 3]
    after = files.read_json(run_dir.plan_file)["batch"]
    assert after["effective"] == before["effective"] == after["micro"] * after["accumulation"]
    assert noted(run_dir, "end")[-1]["status"] == "done"


def test_one_of_two_4090_starts_under_an_older_driver(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate refuses to start on a machine with several of them, unless the plan's environment says how."""
    pretended_devices.use(monkeypatch, DEVICES["2x4090-fsdp2"], DRIVER="535.183.01")
    run_dir = make(tmp_path, base, "4090", where="gpus: 1")
    plan = files.read_json(run_dir.plan_file)
    assert (plan["strategy"], plan["batch"]["devices"]) == ("single", 1)

    def start() -> int:
        accelerate.PartialState()
        return torch.cuda.device_count()

    assert pretended_devices.in_child(start, plan["env"]) == 1
    assert pretended_devices.in_child(start, {}) == 70, "accelerate no longer refuses: the variables can go"
