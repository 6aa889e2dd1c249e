"""A rank's share of a checkpoint: its rows of every tensor, at their place in files that all ranks write.

Shards of the first dimension are contiguous in a safetensors file. The first rank lays a file out, which is its header
and its size; then every rank writes its own bytes. The result is what safetensors writes of whole tensors, to the byte.
"""

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from stoker.engine import checkpoint, host_copies, weights
from stoker.engine.weights import TensorEntry
from stoker.rundir import in_place

_ORDER = (
    *(torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.float16),
    *(torch.int16, torch.int8, torch.uint8, torch.bool),
)
"""The order of types in a file, as safetensors has it."""
_MODEL_FILES = "model{suffix}.safetensors"
_LARGEST_FILE = "50GB"
"""As `save_pretrained` splits weights."""
_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class Part:
    """What a rank copied of a tensor."""

    whole: torch.Tensor
    """Type and shape of all of it, on the meta device."""
    start: int
    """Where this rank's part begins, in elements."""
    own: torch.Tensor
    """On the host, contiguous."""


def part(tensor: torch.Tensor, copy: host_copies.Copy, *, first: bool) -> Part:
    """A copy of this rank's rows of a sharded tensor; what every rank has whole is the first one's to write."""
    tensor = tensor.detach()
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if not isinstance(tensor, DTensor):
        return Part(whole, 0, copy(tensor if first else tensor.new_empty(0)))
    assert tensor.placements == (Shard(0),), tensor.placements
    _, starts = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Part(whole, starts[0] * math.prod(tensor.shape[1:]), copy(tensor.to_local()))


def _tensor(raw: bytearray) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=torch.uint8)


def _difference(found: torch.Tensor, expected: torch.Tensor, at: int) -> str:
    """What a disk gives back instead of what was written."""
    wrong = (found != expected).nonzero().reshape(-1)
    first, last = int(wrong[0]), int(wrong[-1])
    zeros = int((found[wrong] == 0).sum())
    return f"{os.strerror(errno.EIO)}: {len(wrong)} bytes from {at + first} to {at + last} differ, {zeros} read as zero"


@dataclass(frozen=True)
class SharedFile:
    """A safetensors file that several ranks write."""

    name: str
    parts: Mapping[str, Part]
    metadata: dict[str, str]

    @cached_property
    def header(self) -> bytes:
        """What the file begins with."""
        return weights.header(self._entries, self.metadata)

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return len(self.header) + sum(entry.num_bytes for entry in self._entries)

    def lay_out(self, folder: Path) -> None:
        """Make the file: its header, and room for every rank's bytes."""
        with (folder / self.name).open("wb") as file:
            file.write(self.header)
            file.truncate(self.size)

    def write(self, folder: Path) -> int:
        """Write this rank's bytes and sync them; their number.

        Not opened for reading: a client of NFS would write whole pages, and with them old bytes of other ranks.
        """
        written = 0
        with os.fdopen(in_place.descriptor(folder / self.name, os.O_WRONLY), "wb") as file:
            for place, own in self._own():
                file.seek(place)
                written += file.write(own.numpy().data)
            file.flush()
            os.fsync(file.fileno())
        return written

    def read_back(self, folder: Path) -> int:
        """Compare this rank's bytes with the file's; an error of the disk if they differ."""
        with (folder / self.name).open("rb") as file:
            for place, own in self._own():
                file.seek(place)
                for expected in own.split(_CHUNK_BYTES):
                    found = bytearray(expected.numel())
                    at = file.tell()
                    if file.readinto(found) != len(found) or not torch.equal(_tensor(found), expected):
                        raise OSError(errno.EIO, _difference(_tensor(found), expected, at), self.name)
        return 0

    def _own(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Where this rank's bytes are in the file."""
        begin = len(self.header)
        for entry in self._entries:
            one = self.parts[entry.name]
            if one.own.numel():
                yield begin + one.start * entry.dtype.itemsize, one.own.reshape(-1).view(torch.uint8)
            begin += entry.num_bytes

    @cached_property
    def _entries(self) -> list[TensorEntry]:
        found = [TensorEntry(name, one.whole.dtype, tuple(one.whole.shape)) for name, one in self.parts.items()]
        return sorted(found, key=lambda entry: (_ORDER.index(entry.dtype), entry.name))


@dataclass(frozen=True)
class Share:
    """What this rank copied of a checkpoint, and the files it belongs to."""

    files: list[SharedFile]
    index: dict[str, Any]
    """Which of several files has a weight, as `save_pretrained` says it; empty if there is one file."""

    @property
    def layout(self) -> str:
        """The same on all ranks, or they would write over each other."""
        return hashlib.sha256(b"".join(file.header for file in self.files)).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def data_bytes(self) -> int:
        """Bytes that all ranks write together."""
        return self.size - sum(len(file.header) for file in self.files)

    def lay_out(self, folder: Path) -> None:
        """Make the files, which the ranks then fill."""
        for file in self.files:
            file.lay_out(folder)
        if self.index:
            text = json.dumps(self.index, indent=2, sort_keys=True) + "\n"
            (folder / weights.INDEX_NAME).write_text(text, encoding="utf-8", newline="\n")

    def write(self, folder: Path) -> int:
        """Write this rank's bytes into all files; their number."""
        return sum(file.write(folder) for file in self.files)

    def read_back(self, folder: Path) -> int:
        """Compare this rank's bytes with all files, once every rank has written."""
        return sum(file.read_back(folder) for file in self.files)


def of(model: Any, copied: Mapping[str, Part], state: Mapping[str, Part]) -> Share:
    """This rank's share of weights (or of an adapter) and of the tensors of the training state."""
    parts = {id(one.whole): one for one in copied.values()}
    stored = _as_stored(model, {name: one.whole for name, one in copied.items()})
    files = [
        SharedFile(file, {name: parts[id(tensors[name])] for name in tensors}, {"format": "pt"})
        for file, tensors in stored.items()
    ]
    index = _index(model, files) if len(files) > 1 else {}
    return Share([*files, SharedFile(checkpoint.TENSORS_NAME, state, {})], index)


def _index(model: Any, files: list[SharedFile]) -> dict[str, Any]:
    total_bytes = sum(file.size - len(file.header) for file in files)
    metadata = {"total_parameters": model.num_parameters(), "total_size": total_bytes}
    return {"metadata": metadata, "weight_map": {name: file.name for file in files for name in file.parts}}


# ---- weights


def are_stored_as_held(model: Any) -> bool:
    """Whether a model's files hold the tensors that it has: some classes join the experts of their files.

    Asked of the whole model, before it is sharded.
    """
    if hasattr(model, "peft_config"):
        return True
    metas = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    known = {id(one) for one in metas.values()}
    return all(id(one) in known for tensors in _as_stored(model, metas).values() for one in tensors.values())


def _as_stored(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """By file and name there: what `save_pretrained` does to tensors before it writes them."""
    if hasattr(model, "peft_config"):
        return {weights.ADAPTER_FILE: checkpoint.as_adapter(model, tensors)}
    kept = {name: one for name, one in tensors.items() if name not in (model._keys_to_ignore_on_save or ())}
    stored = revert_weight_conversion(model, remove_tied_weights_from_state_dict(kept, model))
    split = split_torch_state_dict_into_shards(stored, filename_pattern=_MODEL_FILES, max_shard_size=_LARGEST_FILE)
    return {file: {name: stored[name] for name in names} for file, names in split.filename_to_tensors.items()}


def stand_ins(model: Any, parts: Mapping[str, Part]) -> dict[str, torch.Tensor]:
    """Weights for `save_pretrained` that let it write everything else: PEFT wants each name."""
    return {name: torch.empty(0) for name in parts} if hasattr(model, "peft_config") else {}
