"""A model's weights as safetensors files, tensor by tensor: memory is bounded by the largest tensor, not by the model.

Knows files, names and bytes, not what a tensor means. The library's own writer needs all tensors of a file at once, so
files are written here: a header, then the bytes in its order.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stoker.rundir import files
from stoker.rundir import safetensors_headers as headers

ADAPTER_FILE = "adapter_model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor's place in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


class ModelFiles:
    """The weights of a model folder. Read, not memory-mapped: mapped pages would count as memory in use."""

    def __init__(self, folder: Path) -> None:
        index = folder / INDEX_NAME
        listed = headers.listed(index).values() if index.is_file() else [SINGLE_NAME]
        self._places = {
            name: place for file_name in sorted(set(listed)) for name, place in _places(folder / file_name).items()
        }

    @property
    def file_names(self) -> list[str]:
        """The files, sorted."""
        return sorted({place.path.name for place in self._places.values()})

    def names(self, file_name: str) -> list[str]:
        """The tensors of one file."""
        return sorted(name for name, place in self._places.items() if place.path.name == file_name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def entry(self, name: str) -> TensorEntry:
        """A tensor's entry in the file's header."""
        return self._places[name].entry

    def read(self, name: str) -> torch.Tensor:
        """One tensor, read into memory."""
        place = self._places[name]
        value = torch.empty(place.entry.shape, dtype=place.entry.dtype)
        with place.path.open("rb") as file:
            file.seek(place.offset)
            found = file.readinto(value.reshape(-1).view(torch.uint8).numpy().data)
        assert found == place.entry.num_bytes, place.path
        return value


@dataclass(frozen=True)
class _Place:
    path: Path
    offset: int
    entry: TensorEntry


def _places(path: Path) -> dict[str, _Place]:
    """Offsets of the tensors of one file, by its header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {
        name: _Place(
            path, 8 + length + said["data_offsets"][0], TensorEntry(name, _DTYPES[said["dtype"]], tuple(said["shape"]))
        )
        for name, said in header.items()
    }


def write(path: Path, entries: list[TensorEntry], tensor: Callable[[str], torch.Tensor]) -> None:
    """Write one file; each tensor is requested when it is written.

    Args:
        path: The file.
        entries: The tensors. Wider types come first, so that every tensor is aligned.
        tensor: Returns a tensor by name, in the entry's dtype and shape.
    """
    ordered = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))
    with path.open("wb") as file:
        file.write(header(ordered, {"format": "pt"}))
        for entry in ordered:
            value = tensor(entry.name)
            assert (value.dtype, tuple(value.shape)) == (entry.dtype, entry.shape), entry.name
            file.write(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def header(entries: list[TensorEntry], metadata: dict[str, str]) -> bytes:
    """What a file with these tensors, in this order, begins with."""
    said: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for entry in entries:
        span = [offset, offset + entry.num_bytes]
        said[entry.name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": span}
        offset = span[1]
    raw = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def write_index(folder: Path, placed: dict[str, list[TensorEntry]]) -> None:
    """The index of several files; a single file of the usual name needs none."""
    if list(placed) == [SINGLE_NAME]:
        return
    index = {
        "metadata": {"total_size": sum(entry.num_bytes for entries in placed.values() for entry in entries)},
        "weight_map": {entry.name: file for file, entries in placed.items() for entry in entries},
    }
    files.write_json(folder / INDEX_NAME, index)
