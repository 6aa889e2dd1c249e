"""Where a model's `config.json` is found: a local folder, the Hugging Face cache, the hub or its mirror.

From the hub come some kB: the configuration and the index of its files. Both are kept under Stoker's own folder.
"""

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker import env
from stoker.errors import StokerError

_HUB_TIMEOUT_SECONDS = 5
_LARGEST_CONFIG_BYTES = 4 << 20
_LARGEST_INDEX_BYTES = 64 << 20
_INDEX = "model.safetensors.index.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ERROR_HEADER, _GATED = "X-Error-Code", "GatedRepo"
"""How Hugging Face's hub tells a model that wants an account from one that does not exist; both are 401."""
_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class FoundConfig:
    """A `config.json`, and where it was read."""

    config: dict[str, Any]
    origin: Literal["local", "cache", "hub"]
    stored_parameters: int | None = None
    """Weights in the model's files, by the index's `total_size` and the configuration's type."""
    folder: Path | None = None
    """Where its other files are; None where only the configuration was fetched."""

    @property
    def quantised(self) -> str:
        """How its files hold the weights in fewer bits, by transformers' name of it; empty where they do not."""
        stated = self.config.get("quantization_config") or {}
        return str(stated.get("quant_method", "?")) if stated else ""


def hub_home() -> Path:
    """The folder of Hugging Face's client: its cache and its login."""
    caches = env.read(env.XDG_CACHE_HOME, "~/.cache")
    home = Path(env.read(env.HF_HOME, f"{caches}/huggingface")).expanduser()
    return Path(os.path.expandvars(home))


def is_hub_name(model: str) -> bool:
    """Whether a hub may have a model of this name: `owner/name`, or a single word."""
    return _HUB_ID.fullmatch(model) is not None


def here(model: str, folder: Path) -> FoundConfig | None:
    """The configuration of a local folder, else of the snapshot that `main` points to in the cache, else of any."""
    cached = hub_home() / "hub" / f"models--{model.replace('/', '--')}"
    main = cached / "refs" / "main"
    names = [main.read_text(encoding="utf-8").strip()] if main.is_file() else []
    snapshots = [cached / "snapshots" / name for name in names]
    snapshots += [path.parent for path in sorted(cached.glob("snapshots/*/config.json"))]
    found = (_read(path, "cache") for path in snapshots)
    return _read(folder / model, "local") or next((one for one in found if one), None)


def hub(model: str) -> FoundConfig | None:
    """The configuration on the hub, or as it was fetched before where the hub is not reached."""
    if not is_hub_name(model):
        return None
    kept = env.home() / "models" / model.replace("/", "--")
    try:
        content = _fetched(model, "config.json", _LARGEST_CONFIG_BYTES)
    except PermissionError as error:
        if not (kept / "config.json").is_file():
            raise StokerError("STK188", model=model) from error
        content = None
    if content and _parsed(content):
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "config.json").write_bytes(content)
        total = _total(_fetched(model, _INDEX, _LARGEST_INDEX_BYTES))
        (kept / _INDEX).write_text(json.dumps({"metadata": {"total_size": total}}), encoding="utf-8")
    return _read(kept, "hub")


def looks_ahead(config: dict[str, Any]) -> str:
    """The setting by which a decoder's positions see those after them; empty where none does."""
    text = {**config, **(config.get("text_config") or {})}
    if text.get("is_causal") is False:
        return "is_causal: false"
    both = text.get("use_bidirectional_attention")
    # Gemma 4 says `vision` where only the parts of an image see each other.
    return f"use_bidirectional_attention: {json.dumps(both)}" if both in (True, "all") else ""


def _fetched(model: str, name: str, largest: int) -> bytes | None:
    """A file of a model; None where the hub does not give it, a PermissionError where it wants an account for it.

    No token is sent: a hub may redirect to another host.
    """
    endpoint = env.read(env.HF_ENDPOINT, "https://huggingface.co").rstrip("/")
    offline = env.read(env.HF_HUB_OFFLINE, "0").upper() in ("1", "ON", "YES", "TRUE")
    if offline or not endpoint.startswith(("https://", "http://")):
        return None
    url = f"{endpoint}/{model}/resolve/main/{name}"
    try:
        with urllib.request.urlopen(url, timeout=_HUB_TIMEOUT_SECONDS) as answer:  # noqa: S310  # scheme checked above
            content: bytes = answer.read(largest)
    except urllib.error.HTTPError as error:
        error.close()
        if error.headers.get(_ERROR_HEADER) == _GATED:
            raise PermissionError(url) from error
        return None
    except (OSError, http.client.HTTPException):
        return None
    return content


def _read(folder: Path, origin: Literal["local", "cache", "hub"]) -> FoundConfig | None:
    config = _parsed(_content(folder / "config.json"))
    if config is None:
        return None
    total, size = _total(_content(folder / _INDEX)), _ELEMENT_BYTES.get(_dtype(config))
    stored = total // size if total and size else None
    return FoundConfig(config, origin, stored, folder if origin != "hub" else None)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _parsed(content: bytes | None) -> dict[str, Any] | None:
    try:
        config = json.loads(content or b"")
    except ValueError:
        return None
    return config if isinstance(config, dict) and config.get("model_type") else None


def _total(content: bytes | None) -> int | None:
    try:
        index = json.loads(content or b"")
        total = index["metadata"]["total_size"]
    except (ValueError, TypeError, KeyError):
        return None
    return int(total) if isinstance(total, int | float) else None


def _dtype(config: dict[str, Any]) -> str:
    """The type the weights are stored in; none that says it where they are quantised."""
    text = config.get("text_config") or {}
    stated = (one.get(key) for one in (config, text) for key in ("dtype", "torch_dtype"))
    return "" if "quantization_config" in config else next((str(one) for one in stated if one), "")
