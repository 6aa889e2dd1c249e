"""Trackers before a training: known, installed, logged in, as far as this machine can tell."""

from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import trackers

TEXT = "model: m\ndata: {train: a.jsonl}\n"
KEY = "0123456789abcdef0123456789abcdef01234567"


def refused(report_to: str | None) -> str:
    """The code with which a run is refused; empty where it is not."""
    extra = "" if report_to is None else f"native:\n  trainer: {{report_to: {report_to}}}\n"
    try:
        trackers.check(load.parse(TEXT + extra, "run.yaml"))
    except StokerError as error:
        return error.code
    return ""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a login, on a machine that has every tracker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: object())
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SWANLAB_API_KEY", "SWANLAB_MODE", "SWANLAB_SAVE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("asked", [None, "none", "all", "[]", "tensorboard", "mlflow", "trackio", "[mlflow, trackio]"])
def test_what_needs_no_account_is_let_through(asked: str | None) -> None:
    assert refused(asked) == ""


@pytest.mark.parametrize(
    ("asked", "code"), [("wandbb", "STK526"), ("wandb", "STK527"), ("[mlflow, swanlab]", "STK527")]
)
def test_a_name_nobody_has_and_an_account_nobody_gave_are_refused(asked: str, code: str) -> None:
    assert refused(asked) == code


def test_a_package_that_is_missing_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StokerError) as caught:
        trackers.check(load.parse(TEXT + "native: {trainer: {report_to: comet_ml}}\n", "run.yaml"))
    assert caught.value.code == "STK215"
    assert "pip install comet-ml" in caught.value.hint


@pytest.mark.parametrize(("installed", "code"), [("tensorboard", ""), ("tensorboardX", ""), ("wandb", "STK215")])
def test_either_package_writes_the_files_of_tensorboard(
    monkeypatch: pytest.MonkeyPatch, installed: str, code: str
) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: object() if name == installed else None)
    assert refused(None) == refused("tensorboard") == code


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("wandb", "WANDB_API_KEY", KEY),
        ("wandb", "WANDB_MODE", "offline"),
        ("swanlab", "SWANLAB_API_KEY", KEY),
        ("swanlab", "SWANLAB_MODE", "local"),
    ],
)
def test_a_key_or_a_mode_without_an_account_is_enough(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert refused(name) == ""
    monkeypatch.setenv(variable, "online" if "MODE" in variable else "")
    assert refused(name) == "STK527"


def _netrc(path: Path, host: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    path.chmod(0o600)


def test_a_stored_login_is_found_where_the_tracker_keeps_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _netrc(home / ".netrc", "github.com")
    assert refused("wandb") == "STK527"
    _netrc(home / ".netrc", "api.wandb.ai")
    assert refused("wandb") == ""
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert refused("wandb") == "STK527"
    _netrc(home / "elsewhere", "wandb.example.org")
    monkeypatch.setenv("NETRC", str(home / "elsewhere"))
    assert refused("wandb") == ""


@pytest.mark.parametrize("folder", [".swanlab", "own"])
def test_swanlab_keeps_its_login_in_its_own_folder(home: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    if folder == "own":
        monkeypatch.setenv("SWANLAB_SAVE_DIR", str(home / "own"))
    assert refused("swanlab") == "STK527"
    _netrc(home / folder / ".netrc", "api.swanlab.cn")
    assert refused("swanlab") == ""


def test_a_folder_set_to_offline_needs_no_login(home: Path) -> None:
    (home / "wandb").mkdir()
    (home / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert refused("wandb") == ""


def test_a_broken_netrc_is_no_login_and_no_surprise(home: Path) -> None:
    (home / ".netrc").write_text("machine\n\x00")
    assert refused("wandb") == "STK527"


def test_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    _netrc(home / ".netrc", "api.example.org")
    with pytest.raises(StokerError) as caught:
        trackers.check(load.parse(TEXT + "native: {trainer: {report_to: wandb}}\n", "run.yaml"))
    shown: Any = caught.value.as_dict()
    assert KEY not in str(shown)
