"""Data order: a pure function of (digest, seed, step), the same for ever."""

import itertools
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.rows import order
from stoker.rows.order import Order


def epoch(one: Order, number: int = 0) -> list[int]:
    steps = range(number * one.steps_per_epoch, (number + 1) * one.steps_per_epoch)
    return [index for step in steps for index in one.sequences(step)]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.integers(1, 5000), batch=st.integers(1, 300), seed=st.integers(0, 2**32 - 1), number=st.integers(0, 10**6)
)
def test_an_epoch_reads_every_sequence_exactly_once(size: int, batch: int, seed: int, number: int) -> None:
    assert sorted(epoch(Order("digest", seed, size, batch), number)) == list(range(size))


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1023, 1024, 1025])
def test_small_and_round_sizes_are_permuted_too(size: int) -> None:
    assert sorted(epoch(Order("digest", 1, size, 7))) == list(range(size))


@settings(deadline=None)
@given(size=st.integers(1, 10**12), batch=st.integers(1, 10**6))
def test_the_last_step_of_an_epoch_is_short_never_dropped_or_padded(size: int, batch: int) -> None:
    one = Order("digest", 0, size, batch)
    assert (one.steps_per_epoch - 1) * batch < size <= one.steps_per_epoch * batch
    if batch <= 100:
        last = one.sequences(one.steps_per_epoch - 1)
        assert len(last) == size - (one.steps_per_epoch - 1) * batch
        assert len(one.sequences(one.steps_per_epoch)) == min(batch, size)


def test_2500_rows_at_batch_64_are_40_steps_and_the_last_has_4() -> None:
    one = Order("digest", 42, 2500, 64)
    assert one.steps_per_epoch == 40
    assert [len(one.sequences(step)) for step in (0, 38, 39, 40, 79)] == [64, 64, 4, 64, 4]


def test_the_order_differs_by_epoch_seed_and_digest_and_by_nothing_else() -> None:
    plain = epoch(Order("digest", 42, 100, 8))
    assert epoch(Order("digest", 42, 100, 8)) == plain
    others = [
        epoch(Order("digest", 42, 100, 8), 1),
        epoch(Order("digest", 42, 100, 8), 2),
        epoch(Order("digest", 43, 100, 8)),
        epoch(Order("other", 42, 100, 8)),
        list(range(100)),
    ]
    assert all(one != another for one, another in itertools.combinations([plain, *others], 2))


def test_the_batch_cuts_the_order_and_does_not_change_it() -> None:
    assert (
        epoch(Order("digest", 42, 100, 8)) == epoch(Order("digest", 42, 100, 64)) == epoch(Order("digest", 42, 100, 1))
    )


def test_every_place_is_as_likely_for_every_sequence() -> None:
    """Chi-squared over 3,000 seeds; 5 sigma above its mean would be an order that is no shuffle."""
    size, trials = 17, 3000
    for place in (0, 8, 16):
        counts = Counter(epoch(Order("digest", seed, size, size))[place] for seed in range(trials))
        expected = trials / size
        chi_squared = sum((counts[index] - expected) ** 2 / expected for index in range(size))
        assert chi_squared < (size - 1) + 5 * (2 * (size - 1)) ** 0.5


def test_neighbours_do_not_stay_neighbours() -> None:
    read = epoch(Order("digest", 42, 5000, 64))
    kept = sum(abs(a - b) == 1 for a, b in itertools.pairwise(read))
    assert kept < 15, "2 of 5,000 are expected by chance"


def test_a_seek_into_100_million_sequences_is_immediate() -> None:
    one = Order("digest", 42, 10**8, 64)
    start = time.process_time()
    for step in (0, one.steps_per_epoch - 1, 7 * one.steps_per_epoch + 123_456):
        found = one.sequences(step)
        assert len(set(found)) == len(found)
        assert all(0 <= index < 10**8 for index in found)
    assert time.process_time() - start < 1


def test_the_order_is_frozen() -> None:
    """These values may change only together with `order.VERSION`: every run's data order depends on them."""
    assert order.VERSION == 1
    golden = Order("golden", 42, 10, 4)
    assert [golden.sequences(step) for step in range(6)] == [
        [6, 1, 9, 4],
        [7, 3, 2, 0],
        [5, 8],
        [6, 5, 0, 8],
        [2, 9, 4, 3],
        [1, 7],
    ]
    thousand = Order("0" * 64, 0, 1000, 8)
    assert thousand.sequences(0) == [653, 946, 235, 595, 769, 277, 491, 775]
    assert thousand.sequences(125) == [62, 512, 610, 948, 441, 28, 645, 442]
    large = Order("golden", 42, 10**8, 64)
    assert large.sequences(large.steps_per_epoch - 1)[:4] == [3059430, 90665930, 48126582, 77717349]


def test_the_random_streams_are_frozen_and_belong_to_seed_step_and_micro_batch() -> None:
    streams = [order.stream_seed(42, step, micro) for step, micro in ((0, 0), (0, 1), (1, 0))]
    assert streams == [4508372680694514792, 322292096278701847, 356602073934956716]
    many = {order.stream_seed(seed, step, micro) for seed in range(3) for step in range(30) for micro in range(30)}
    assert len(many) == 2700
    assert all(0 <= one < 2**63 for one in many), "torch takes no larger seed"
