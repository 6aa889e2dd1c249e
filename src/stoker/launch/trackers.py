"""Trackers that `native.trainer.report_to` names: whether each can record here, before anything is trained.

A missing package or login ends a training at its first step, after the data was prepared and the model was loaded.
What only the tracker's server knows (whether a key is valid) is not asked for.
"""

import importlib.util
import netrc
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import env
from stoker.config.run import Run
from stoker.errors import StokerError, closest
from stoker.facts.machine import TENSORBOARD

_WORD = "native.trainer.report_to"
_MODULES = {
    **{name: name for name in ("clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "mlflow", "neptune")},
    **{name: name for name in ("swanlab", "tensorboard", "trackio", "wandb")},
    "azure_ml": "azureml",
    "flyte": "flytekit",
}
"""The names that transformers knows, and what each imports."""
_DISTRIBUTIONS = {"azureml": "azureml-mlflow", "comet_ml": "comet-ml"}
_NOBODY = ("none", "all")
"""No tracker, or whichever is installed: nothing can be missing."""


@dataclass(frozen=True)
class _Login:
    """How a tracker that has accounts is logged in to."""

    command: str
    variable: env.Variable
    mode: env.Variable
    without_account: tuple[str, ...]
    """Values of `mode` that need no account; the first is proposed."""
    is_stored: Callable[[], bool]


def check(run: Run) -> None:
    """Refuse a tracker that is not known, not installed or not logged in to."""
    for name in _named(run.native.trainer.get("report_to", "tensorboard")):
        module = _MODULES.get(name)
        if module is None:
            known = [f"`{one}`" for one in _MODULES]
            raise StokerError("STK526", name=name, nearest=closest(name, list(_MODULES)), known=known)
        if not any(importlib.util.find_spec(one) for one in (TENSORBOARD if module in TENSORBOARD else (module,))):
            package = _DISTRIBUTIONS.get(module, module)
            raise StokerError("STK215", word=_WORD, asked=name, package=package, more="")
        if name in _LOGINS:
            _check_login(name, _LOGINS[name])


def _named(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    return [str(name) for name in names if name not in _NOBODY]


def _check_login(name: str, login: _Login) -> None:
    if env.read(login.variable) or env.read(login.mode) in login.without_account or login.is_stored():
        return
    mode = f"`{login.mode.name}={login.without_account[0]}`"
    raise StokerError("STK527", name=name, command=login.command, variable=f"`{login.variable.name}`", mode=mode)


def _wandb_is_stored() -> bool:
    """`wandb login` writes into netrc; `wandb offline` into the settings of a folder."""
    server = urllib.parse.urlsplit(env.read(env.WANDB_BASE_URL, "https://api.wandb.ai")).hostname
    settings = Path("wandb") / "settings"
    said = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    if "offline" in said or "disabled" in said:
        return True
    files = [Path(env.read(env.NETRC))] if env.read(env.NETRC) else [Path.home() / one for one in (".netrc", "_netrc")]
    return any(_has_entry(file, server or "") for file in files)


def _has_entry(file: Path, server: str) -> bool:
    try:
        return netrc.netrc(file).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _swanlab_is_stored() -> bool:
    """`swanlab login` writes below the user's folder, or with `--local` below the current one."""
    folders = (Path(env.read(env.SWANLAB_SAVE_DIR, str(Path.home() / ".swanlab"))), Path(".swanlab"))
    return any((folder / ".netrc").is_file() for folder in folders)


_LOGINS = {
    "wandb": _Login(
        "wandb login", env.WANDB_API_KEY, env.WANDB_MODE, ("offline", "disabled", "dryrun"), _wandb_is_stored
    ),
    "swanlab": _Login(
        "swanlab login", env.SWANLAB_API_KEY, env.SWANLAB_MODE, ("local", "offline", "disabled"), _swanlab_is_stored
    ),
}
"""MLflow, trackio and TensorBoard write files here unless told otherwise."""
