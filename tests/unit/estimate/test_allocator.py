"""The replay of CUDA's caching allocator, on cases that can be worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.estimate.allocator import Allocator, Entry, MiB, Peaks, replay


def test_requests_are_rounded_to_512_bytes() -> None:
    sizes = (1, 512, 513, 1024, 2 * MiB + 1)
    assert [Allocator().malloc(1, size) for size in sizes] == [512, 512, 1024, 1024, 2 * MiB + 512]


def test_small_requests_share_a_segment_of_2_mib() -> None:
    log: list[Entry] = [(number, 100_000, 0) for number in range(1, 21)]
    # 100,352 bytes each; 20 of them take 2,007,040 of 2,097,152 bytes.
    assert replay(log) == Peaks(allocated=20 * 100_352, reserved=2 * MiB)
    assert replay([*log, (21, 100_000, 0)]).reserved == 4 * MiB


def test_one_mib_is_small_and_a_byte_more_is_large() -> None:
    assert replay([(1, MiB, 0)]).reserved == 2 * MiB
    assert replay([(1, MiB + 1, 0)]).reserved == 20 * MiB


def test_middle_sizes_share_a_segment_of_20_mib() -> None:
    assert replay([(1, 9 * MiB, 0), (2, 9 * MiB, 0)]).reserved == 20 * MiB
    assert replay([(1, 9 * MiB, 0), (2, 9 * MiB, 0), (3, 9 * MiB, 0)]).reserved == 40 * MiB


def test_large_requests_get_a_segment_rounded_to_2_mib() -> None:
    assert replay([(1, 10 * MiB, 0)]).reserved == 10 * MiB
    assert replay([(1, 33 * MiB + 1, 0)]).reserved == 34 * MiB


def test_a_large_rest_of_up_to_1_mib_stays_with_its_block() -> None:
    # 19 of 20 MiB: the rest of 1 MiB is not split off, and counts as allocated.
    log: list[Entry] = [(1, 5 * MiB, 0), (-1,), (2, 19 * MiB, 0)]
    assert replay(log) == Peaks(allocated=20 * MiB, reserved=20 * MiB)
    assert replay([(1, 5 * MiB, 0), (-1,), (2, 19 * MiB - 512, 0)]).allocated == 19 * MiB - 512


def test_a_freed_block_is_used_again() -> None:
    assert replay([(1, 64 * MiB, 0), (-1,), (2, 48 * MiB, 0), (3, 16 * MiB, 0)]) == Peaks(64 * MiB, 64 * MiB)


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    for number, size in ((1, 100 * MiB), (2, 40 * MiB)):
        allocator.malloc(number, size)
    allocator.free(1)
    allocator.free(2)
    allocator.malloc(3, 40 * MiB)
    allocator.malloc(4, 100 * MiB)
    assert allocator.reserved == 140 * MiB


def test_free_neighbours_are_joined() -> None:
    parts: list[Entry] = [(1, 90 * MiB, 0), (-1,), (2, 30 * MiB, 0), (3, 30 * MiB, 0), (4, 30 * MiB, 0)]
    # Freed from both sides and then in the middle: one block of 90 MiB again.
    assert replay([*parts, (-2,), (-4,), (-3,), (5, 90 * MiB, 0)]).reserved == 90 * MiB
    # With the middle one still in use there is no place for 60 MiB.
    assert replay([*parts, (-2,), (-4,), (5, 60 * MiB, 0)]).reserved == 150 * MiB


def test_segments_are_never_joined() -> None:
    assert replay([(1, 30 * MiB, 0), (2, 30 * MiB, 0), (-1,), (-2,), (3, 60 * MiB, 0)]).reserved == 120 * MiB


def test_streams_do_not_share_memory() -> None:
    log: list[Entry] = [(1, 50 * MiB, 0), (-1,), (2, 50 * MiB, 1)]
    assert replay(log) == Peaks(allocated=50 * MiB, reserved=100 * MiB)


def test_small_and_large_pools_do_not_share_memory() -> None:
    assert replay([(1, 50 * MiB, 0), (-1,), (2, 1000, 0)]).reserved == 52 * MiB


def test_an_expandable_segment_grows_at_its_end() -> None:
    log: list[Entry] = [(1, 30 * MiB, 0), (2, 30 * MiB, 0), (-1,), (-2,), (3, 60 * MiB, 0)]
    # 30 MiB take two pages of 20 MiB, the next 30 MiB one more; all of it is one piece afterwards.
    assert replay(log, expandable=True) == Peaks(allocated=60 * MiB, reserved=60 * MiB)


def test_an_empty_request_takes_nothing() -> None:
    assert replay([(1, 0, 0), (-1,)]) == Peaks(0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 60 * MiB), st.integers(0, 2), st.integers(0, 30)), max_size=60),
    st.booleans(),
)
def test_nothing_is_lost_and_everything_can_be_freed(requests: list[tuple[int, int, int]], expandable: bool) -> None:
    allocator = Allocator(expandable=expandable)
    for number, (size, stream, freed) in enumerate(requests, start=1):
        block = allocator.malloc(number, size, stream)
        assert block >= size
        assert allocator.allocated == sum(allocator.sizes().values()) <= allocator.reserved
        allocator.free(freed)
    for number in range(1, len(requests) + 1):
        allocator.free(number)
    assert allocator.allocated == 0
    assert sum(size for pool in allocator._pools.values() for size, _, _ in pool.free) == allocator.reserved
