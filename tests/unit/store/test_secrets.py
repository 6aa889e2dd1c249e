"""Keys stay in the environment: no error, event or record repeats them."""

from pathlib import Path

import pytest
from store_case import commit, make_run, open_folder

from stoker import env
from stoker.rundir.layout import RunDir
from stoker.store import opening, push
from stoker.store.store_protocol import Fault

CANARY = "canary-9c1e77aa"


@pytest.mark.parametrize(
    "name",
    [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "STOKER_API_TOKEN",
        "WANDB_API_KEY",
        "MODELSCOPE_API_TOKEN",
        "MLFLOW_TRACKING_PASSWORD",
        "client_secret",
    ],
)
def test_a_fault_does_not_repeat_a_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, CANARY)
    assert CANARY not in str(Fault(f"403 for key {CANARY} at https://me:{CANARY}@host/x"))


def test_a_password_in_a_foreign_address_is_taken_out() -> None:
    assert env.without_secrets("GET http://user:pass@host/x failed") == "GET http://***@host/x failed"


def test_a_failed_push_leaves_no_secret_in_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    run_dir = make_run(tmp_path / "box", tmp_path / "store")
    commit(run_dir, 10)
    opened = open_folder(tmp_path / "store")

    def leaking(*_: object) -> None:
        raise Fault(f"SignatureDoesNotMatch: secret {CANARY}")

    monkeypatch.setattr(opened.inner, "upload", leaking)
    monkeypatch.setattr(opening, "of_run", lambda run, folder: opened)
    assert push.push(run_dir)["copied"] is False
    assert _holding(run_dir, CANARY) == []
    assert _holding(run_dir, "SignatureDoesNotMatch") == ["events.jsonl"]


def _holding(run_dir: RunDir, text: str) -> list[str]:
    inside = (path for path in run_dir.path.rglob("*") if path.is_file())
    return sorted({path.name for path in inside if text.encode() in path.read_bytes()})
