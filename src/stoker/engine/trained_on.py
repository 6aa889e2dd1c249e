"""The base weights a run was trained on: how the run knows them, and where they are; refused if they are others.

Knows digests and folders; what is loaded, and how, is in `models`.
"""

from pathlib import Path

from stoker.config.run import Run
from stoker.engine import models
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, inputs
from stoker.rundir.layout import RunDir

_BASE_FILES = ("*config.json", "model*.safetensors", "model.safetensors.index.json", "README.md")


def recorded(run_dir: RunDir) -> str:
    """How the run knows its base; empty if nothing says so."""
    return _fingerprint(run_dir).get("base", "")


def checked(run_dir: RunDir, run: Run) -> str:
    """The base as the run knows it, or as it is now if nothing says so; refused if its weights are others."""
    fingerprint = _fingerprint(run_dir)
    known = fingerprint.get("base", "")
    if known and models.is_other_base(fingerprint, run, run_dir.folder()):
        raise StokerError("STK611", model=run.model, trained=known[:12])
    return models.base_digest(run, run_dir.folder(), known)


def folder(run_dir: RunDir, run: Run) -> Path:
    """The base model's folder; refused if its weights are not those the run was trained on."""
    assert isinstance(run.model, str)
    base, path = checked(run_dir, run), Path(inputs.model_path(run.model, run_dir.folder()))
    return path if path.is_dir() else _from_hub(run.model, base)


def _fingerprint(run_dir: RunDir) -> dict[str, str]:
    """Of the newest checkpoint; without one, the base by the last attempt's event; else empty."""
    if found := checkpoints.next_found(run_dir.checkpoints):
        return found.commit.fingerprint
    attempts = [event for event in events.skim(run_dir.events_file) if event["event"] == "attempt"]
    # An event that has the base is of a Stoker that notes its code, too.
    return {"base": attempts[-1]["base"], "code": ""} if attempts and "base" in attempts[-1] else {}


def _from_hub(name: str, commit: str) -> Path:
    """The files of a hub model at a commit: cached, else downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=list(_BASE_FILES)))
    except (OSError, HfHubHTTPError) as error:
        raise StokerError("STK413", model=f"{name}@{commit}", reason=str(error).splitlines()[0]) from error
