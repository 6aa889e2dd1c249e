"""A committed checkpoint in a run directory and a store in a folder, for tests of the store."""

import json
from pathlib import Path
from typing import Any

from stoker.rundir import checkpoints
from stoker.rundir.checkpoints import Checkpoint
from stoker.rundir.layout import RunDir
from stoker.store.directory import DirectoryStore
from stoker.store.lease import Lease
from stoker.store.store_protocol import Bandwidth, Patience, Patient

HASTY = Patience(stall_seconds=60, tries=2, first_pause_seconds=0.0, part_bytes=1000)
FACTS: dict[str, Any] = {"data_digest": "d1", "order_version": 1, "world": 1, "fingerprint": {}}
FILES = {"model.safetensors": b"m" * 3500, "state.safetensors": b"s" * 1200, "config.json": b"{}"}
RUN_YAML = """model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
data: {train: text.txt}
train: {objective: pretrain, batch: 4}
save: {store: STORE, keep: 2}
"""


def open_folder(folder: Path) -> Patient:
    return Patient(DirectoryStore(folder, HASTY, Bandwidth()), HASTY)


def make_run(folder: Path, store: Path, name: str = "tiny", **changes: str) -> RunDir:
    """A run directory with its records, as `stoker train` leaves them."""
    run_dir = RunDir(folder / name)
    run_dir.path.mkdir(parents=True)
    text = RUN_YAML.replace("STORE", str(store))
    for before, after in changes.items():
        text = text.replace(before, after)
    run_dir.run_file.write_text(text, encoding="utf-8")
    manifest = {
        "name": name,
        "created": "2026-01-01T00:00:00+00:00",
        "stoker_version": "0",
        "run_file": "tiny.yaml",
        "overrides": [],
        "folder": str(folder),
    }
    run_dir.manifest_file.write_text(json.dumps(manifest), encoding="utf-8")
    run_dir.plan_file.write_text("{}", encoding="utf-8")
    return run_dir


def commit(run_dir: RunDir, step: int, salt: bytes = b"", **facts: Any) -> Checkpoint:
    with checkpoints.writing(run_dir.checkpoints, step, **{**FACTS, **facts}) as aside:
        for name, content in FILES.items():
            (aside / name).write_bytes(content + str(step).encode() + salt)
        (aside / "trainer_state.json").write_text(json.dumps({"best_global_step": 10}), encoding="utf-8")
    return next(one for one in checkpoints.committed(run_dir.checkpoints) if one.step == step)


def lease_of(store: Patient, name: str = "tiny", token: str = "me", seconds: float = 120) -> Lease:
    return Lease(store, name, token, seconds)


def shown(folder: Path) -> list[str]:
    """Files of a folder by name; what is on its way is not one."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(path.relative_to(folder).as_posix() for path in found)
