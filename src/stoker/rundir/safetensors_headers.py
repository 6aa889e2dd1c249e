"""What safetensors files say of themselves: which tensors, of which type and shape, and whether every byte is there.

Reads headers only, without torch. The tensors themselves are read in the engine.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.errors import StokerError
from stoker.rundir import digests, file_check, files

INDEX_NAME = "model.safetensors.index.json"

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Torch's names of the types weights come in, and those of safetensors."""

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LONGEST_HEADER_BYTES = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True)
class HeaderEntry:
    """One tensor on disk."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def content_digest(folder: Path) -> str:
    """What a model folder is loaded as: its weights, and what its configuration says however it is written."""
    parts = digests.of_all(_loaded(folder))
    said = json.dumps(_config(folder), sort_keys=True)
    return hashlib.sha256("".join([*parts.values(), said]).encode()).hexdigest()


def has_content(folder: Path, digest: str) -> bool:
    """Whether a model folder is what a digest says; one of an older Stoker counted every byte of the configuration.

    Such a digest also counted every safetensors file; files that were added since and are not loaded do not matter.
    """
    if digest == content_digest(folder):
        return True
    config = [*folder.glob("config.json")]
    older = (sorted([*weights, *config]) for weights in (_loaded(folder), folder.glob("*.safetensors")))
    return any(digest == _of_bytes(paths) for paths in older)


def digested(folder: Path) -> list[Path]:
    """The files of a model folder that its digest is made of."""
    return sorted([*_loaded(folder), *folder.glob("config.json")])


def _loaded(folder: Path) -> list[Path]:
    """The weights that transformers may load: `model*.safetensors`, what an index lists; all if others are named.

    Other files may hold the same weights once more, such as `consolidated.safetensors`.
    """
    every = sorted(folder.glob("*.safetensors"))
    index = folder / INDEX_NAME
    shards = {folder / name for name in listed(index).values()} if index.is_file() else set()
    known = {*folder.glob("model*.safetensors"), *(path for path in shards if path.is_file())}
    return every if "transformers_weights" in _config(folder) or not known else sorted(known)


def _config(folder: Path) -> dict[str, Any]:
    """What a configuration says; of a damaged one, its bytes: loading it says what is wrong."""
    path = folder / "config.json"
    try:
        return files.read_object(path) if path.is_file() else {}
    except StokerError:
        return {"sha256": files.sha256(path)}


def _of_bytes(paths: list[Path]) -> str:
    return hashlib.sha256("".join(digests.of_all(paths).values()).encode()).hexdigest()


def read(folder: Path) -> dict[str, HeaderEntry]:
    """Every tensor of a model folder by name; a file that is missing, cut short or no safetensors is an error."""
    index = folder / INDEX_NAME
    if not index.is_file():
        return {name: entry for path in sorted(folder.glob("*.safetensors")) for name, entry in _entries(path).items()}
    promised = listed(index)
    found = {name: entry for file in sorted(set(promised.values())) for name, entry in _entries(folder / file).items()}
    for name, file in promised.items():
        if name not in found:
            raise _broken(folder / file, messages.text("weights.absent", tensor=name))
    return found


def listed(index: Path) -> dict[str, str]:
    """The file of each tensor, as an index says it; only safetensors files beside it."""
    promised = files.read_object(index).get("weight_map")
    if not isinstance(promised, dict):
        raise _broken(index, messages.text("weights.header"))
    if not all(isinstance(name, str) and file_check.is_inside(name) for name in promised.values()):
        raise _broken(index, messages.text("weights.outside"))
    if not all(name.endswith(".safetensors") for name in promised.values()):  # transformers would unpickle others
        raise _broken(index, messages.text("weights.pickles"))
    return promised


def _entries(path: Path) -> dict[str, HeaderEntry]:
    header, data_bytes = _header(path)
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if end != data_bytes:
        raise _broken(path, messages.text("weights.cut", expected=f"{end:,}", found=f"{data_bytes:,}"))
    for name, entry in header.items():
        start, behind = entry["data_offsets"]
        width = _BYTES.get(entry["dtype"])
        if width is not None and math.prod(entry["shape"]) * width != behind - start:
            raise _broken(path, messages.text("weights.size", tensor=name))
    return {name: HeaderEntry(path, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file, and how many bytes follow it."""
    if not path.is_file():
        raise _broken(path, messages.text("weights.missing"))
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LONGEST_HEADER_BYTES):
            raise _broken(path, messages.text("weights.header"))
        try:
            header = files.parse_json(file.read(length))
        except ValueError as error:
            raise _broken(path, messages.text("weights.header")) from error
    return header, size - 8 - length


def _broken(path: Path, reason: str) -> StokerError:
    return StokerError("STK644", str(path), file=path.name, reason=reason)
