"""Packs segments into rows of at most `length` tokens by best fit, longest first. Pure arithmetic on lengths."""

from bisect import bisect_left, insort

import numpy as np


def one_per_row(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One row per segment, in order; in the form `best_fit` returns."""
    return np.arange(len(lengths)), np.arange(len(lengths) + 1)


def best_fit(lengths: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit-decreasing: each segment goes to the row it fills best.

    Equal lengths keep their order, so the result depends on nothing but `lengths`.

    Returns:
        The segments in row order, and the offsets of rows in that list, one more than rows.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    """Distinct amounts of free space in rows, sorted."""
    rows_with: dict[int, list[int]] = {}
    """Rows by their free space."""
    for segment in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[segment])
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
    order = np.fromiter((segment for row in rows for segment in row), dtype=np.int64, count=len(lengths))
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return order, offsets
