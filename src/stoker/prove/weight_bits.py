"""How far the weights of two trainings are apart: digests first, then elements and bits. Reads without torch."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.rundir import files

_WIDTHS: dict[str, Literal["Q", "I", "H", "B"]] = {
    "F64": "Q",
    "F32": "I",
    "F16": "H",
    "BF16": "H",
    "I64": "Q",
    "I32": "I",
    "I16": "H",
    "I8": "B",
    "U8": "B",
}
"""The whole number that is as wide as an element."""


@dataclass(frozen=True)
class BitDifference:
    """Between two sets of weights of one shape."""

    elements: int
    """Of these..."""
    differing: int
    """... so many differ..."""
    bits: int
    """... in so many bits."""


def digest(folder: Path) -> str:
    """SHA-256 over the tensors of a model folder, by name; of the tensors only, not of the files that hold them."""
    found = hashlib.sha256()
    for name, _, raw in sorted(_tensors(folder)):
        found.update(f"{name}\n".encode() + raw)
    return found.hexdigest()


def difference(one: Path, other: Path) -> BitDifference:
    """Elements and bits that differ between the weights of two model folders."""
    left = {name: (dtype, raw) for name, dtype, raw in _tensors(one)}
    right = {name: (dtype, raw) for name, dtype, raw in _tensors(other)}
    assert left.keys() == right.keys()
    elements = differing = bits = 0
    for name, (dtype, raw) in left.items():
        kind, twin = _WIDTHS[dtype], right[name][1]
        elements += len(memoryview(raw).cast(kind))
        if raw != twin:
            apart = [a ^ b for a, b in zip(memoryview(raw).cast(kind), memoryview(twin).cast(kind), strict=True)]
            differing += sum(map(bool, apart))
            bits += sum(number.bit_count() for number in apart)
    return BitDifference(elements, differing, bits)


def _tensors(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """Name, type and bytes of every tensor."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = files.parse_json(file.read(int.from_bytes(file.read(8), "little")))
            start = file.tell()
            for name, entry in header.items():
                if name != "__metadata__":
                    first, behind = entry["data_offsets"]
                    file.seek(start + first)
                    yield name, entry["dtype"], file.read(behind - first)
