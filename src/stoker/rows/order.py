"""Data order as a pure function of (dataset digest, seed, step): law 2.

An epoch is a seeded permutation of [0, n), computed one index at a time by a Feistel network with cycle walking:
O(1) memory, O(1) seek, no shared state. Changing anything here changes every run's data order: `VERSION` names it.
"""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

VERSION = 1
_ROUNDS = 6
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Order:
    """The order in which a run reads its sequences."""

    digest: str
    """Digest of the prepared set."""
    seed: int
    num_sequences: int
    batch: int

    @property
    def steps_per_epoch(self) -> int:
        """ceil(sequences / batch): the last step of an epoch is short, never dropped or padded."""
        return -(-self.num_sequences // self.batch)

    def sequences(self, step: int) -> list[int]:
        """The sequence ids of step number `step` (from 0), in order."""
        epoch, position = divmod(step, self.steps_per_epoch)
        first = position * self.batch
        last = min(first + self.batch, self.num_sequences)
        keys = round_keys(self.digest, self.seed, epoch)
        return [permute(index, self.num_sequences, keys) for index in range(first, last)]


def check(sequences: Sequence[int]) -> str:
    """CRC-32 of a step's sequence ids, for the events: the ids themselves follow from digest, seed and step."""
    return f"{zlib.crc32(','.join(map(str, sequences)).encode()):08x}"


def stream_seed(seed: int, step: int, micro: int) -> int:
    """The seed of all randomness in one logical micro batch: independent of rank, worker and history."""
    text = f"rng/{VERSION}/{seed}/{step}/{micro}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def round_keys(digest: str, seed: int, epoch: int) -> tuple[int, ...]:
    """What chooses the permutation of an epoch."""
    text = f"order/{VERSION}/{digest}/{seed}/{epoch}"
    raw = hashlib.sha512(text.encode()).digest()
    return tuple(int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))


def mix(value: int, key: int) -> int:
    """A 64-bit finaliser (the one of splitmix64) over value and key."""
    value = (value + key) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permute(index: int, size: int, keys: Sequence[int]) -> int:
    """Where `index` goes in the permutation of [0, size) chosen by `keys`."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    half_mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & half_mask
        for key in keys:
            left, right = right, left ^ (mix(right, key) & half_mask)
        index = left << half_bits | right
        if index < size:
            return index
