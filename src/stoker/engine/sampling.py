"""Which rows are taken: a pure function of (seed, source, row number), so that any machine takes the same ones."""

from stoker.rows import order

_GOLDEN = 0x9E3779B97F4A7C15
"""SplitMix64's step: 2^64 over the golden ratio."""
_ONE = 1 << 32
"""Shares are counted in 2^-32ths, in whole numbers: no rounding anywhere."""


def mix(*numbers: int) -> int:
    """64 well-mixed bits of some whole numbers (SplitMix64, chained)."""
    state = 0
    for number in numbers:
        state = order.mix(state, number + _GOLDEN)
    return state


def taken(number: int, share: float, *seed: int) -> bool:
    """Whether row `number` (from 0) is in a seeded share of all rows.

    Rows are cut into blocks of 1 / share rows and one is drawn from each: of any n first rows, n x share are taken
    to within one, and rows added at the end change nothing before them.
    """
    if share > 0.5:
        return share >= 1 or not taken(number, 1 - share, *seed)
    part = round(share * _ONE)
    if part <= 0:
        return False
    block = number * part // _ONE
    first, end = (-(-edge * _ONE // part) for edge in (block, block + 1))
    return number == first + mix(*seed, block) % (end - first)


def copies(number: int, weight: float, *seed: int) -> int:
    """How often row `number` (from 0) appears under a weight: 2 is twice, 0.5 a seeded half."""
    return int(weight) + taken(number, weight - int(weight), *seed)
