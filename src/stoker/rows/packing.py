"""Packs segments into rows of at most `length` tokens by best fit, longest first. Pure arithmetic on lengths."""

from bisect import bisect_left, insort
from collections.abc import Sequence


def best_fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Best-fit-decreasing: each segment goes to the row it fills best; the segments of every row.

    Equal lengths keep their order, so the result depends on nothing but `lengths`.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    """Distinct amounts of free space in rows, sorted."""
    rows_with: dict[int, list[int]] = {}
    """Rows by their free space."""
    for segment in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        size = lengths[segment]
        at = bisect_left(free, size)
        if at == len(free):
            row, room = len(rows), length
            rows.append([])
        else:
            room = free[at]
            row = rows_with[room].pop()
            if not rows_with[room]:
                del rows_with[room], free[at]
        rows[row].append(segment)
        left = room - size
        if left in rows_with:
            rows_with[left].append(row)
        elif left:
            rows_with[left] = [row]
            insort(free, left)
    return rows
