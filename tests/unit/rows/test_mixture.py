"""How many sequences of each source: exact, monotone, within its share, and the same wherever one looks first."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_case import any_case, run_of, split_of

from stoker.errors import StokerError
from stoker.rows import mixture

PARTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=12).filter(any)


@settings(deadline=None, max_examples=300)
@given(parts=PARTS, total=st.integers(0, 10**12))
def test_counts_add_up_and_none_falls(parts: list[int], total: int) -> None:
    before, after = mixture.divided(total, parts), mixture.divided(total + 1, parts)
    assert sum(before) == total
    assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0] * (len(parts) - 1) + [1]
    assert all(count == 0 for count, part in zip(before, parts, strict=True) if part == 0)


@settings(deadline=None, max_examples=300)
@given(parts=PARTS, total=st.integers(0, 10**12))
def test_a_count_is_within_half_of_one_for_each_halving(parts: list[int], total: int) -> None:
    halvings = (len(parts) - 1).bit_length()
    for count, part in zip(mixture.divided(total, parts), parts, strict=True):
        assert abs(2 * (count * sum(parts) - total * part)) <= halvings * sum(parts)


def test_largest_remainders_would_take_a_sequence_back() -> None:
    """Why the list is halved instead."""

    def by_remainder(total: int) -> list[int]:
        parts = [43, 43, 14]
        counts = [total * part // 100 for part in parts]
        for _ in range(total - sum(counts)):
            rest = [total * part - 100 * count for part, count in zip(parts, counts, strict=True)]
            counts[rest.index(max(rest))] += 1
        return counts

    found = [by_remainder(total) for total in range(60)]
    assert any(b < a for one, two in itertools.pairwise(found) for a, b in zip(one, two, strict=True))


def test_shares_of_tokens_become_sequences_by_the_mean_of_each_source() -> None:
    run = run_of("[{mix: {wiki: 50%, code: 50%}}]", "steps: 100, batch: 8", ("wiki", "code"))
    mixed = mixture.of(run, split_of([100, 100], [30, 10]))
    assert mixed is not None
    assert mixed.seen(800) == [200, 600], "a quarter of the sequences has half of the tokens"
    assert mixed.tokens == {"wiki": 6000, "code": 6000}


def test_stages_follow_each_other_and_cut_a_step() -> None:
    stages = "[{share: 25%, mix: {wiki: 100%}}, {share: 75%, mix: {code: 100%}}]"
    mixed = mixture.of(run_of(stages, "steps: 3, batch: 6", ("wiki", "code")), split_of([10, 10], [5, 5]))
    assert mixed is not None
    assert [mixed.seen(count) for count in (0, 3, 4, 5, 18)] == [[0, 0], [3, 0], [4, 0], [4, 1], [4, 14]]


def test_stages_by_tokens_decide_the_steps() -> None:
    stages = "[{tokens: 1k, mix: {wiki: 100%}}, {tokens: 500, mix: {wiki: 20%, code: 80%}}]"
    run = run_of(stages, "batch: 8", ("wiki", "code"))
    split = split_of([100, 100], [10, 5])
    mixed = mixture.of(run, split)
    assert mixed is not None
    assert [stage.sequences for stage in mixed.stages] == [100, 90]
    assert mixture.total_steps(run, split) == 24
    assert mixed.tokens == {"wiki": 1100, "code": 400}


def test_epochs_of_each_source_are_exact() -> None:
    sources = "{path: wiki.txt, epochs: 1}, {path: code.txt, epochs: 3}, {path: qa.txt, epochs: 0.5}"
    run = run_of("", "batch: 7", ("wiki", "code", "qa"), sources)
    split = split_of([101, 17, 40], [9, 8, 7])
    mixed = mixture.of(run, split)
    assert mixed is not None
    assert mixed.seen(mixed.sequences) == [101, 51, 20]
    assert mixture.total_steps(run, split) == -(-172 // 7)
    assert [one["epochs"] for one in mixture.whole(run, split)] == [1, 3, 0.5]


def test_no_mixture_counts_steps_as_before() -> None:
    plain = run_of("", "epochs: 3, batch: 64", sources="{path: a.txt, weight: 2}, {path: b.txt}")
    assert mixture.of(plain, split_of([1500, 1000], [9, 9])) is None
    assert mixture.total_steps(plain, split_of([1500, 1000], [9, 9])) == 120


def test_before_prepare_sources_are_alike_and_steps_known() -> None:
    split = split_of([100, 60], [10, 10]).model_copy(update={"sources": []})
    shares = run_of("[{mix: {wiki: 60%, code: 40%}}]", "epochs: 2, batch: 8", ("wiki", "code"))
    assert mixture.total_steps(shares, split) == 40
    assert mixture.whole(shares, split) == []


def test_a_source_in_the_mixture_without_a_sequence_is_refused() -> None:
    run = run_of("[{mix: {wiki: 60%, code: 40%}}]", names=("wiki", "code"))
    with pytest.raises(StokerError) as caught:
        mixture.of(run, split_of([100, 0], [10, 10]))
    assert (caught.value.code, caught.value.fields["name"]) == ("STK330", "code")
    unused = run_of("[{mix: {wiki: 100%}}]", names=("wiki", "code"))
    assert mixture.of(unused, split_of([100, 0], [10, 10])) is not None


def test_every_count_follows_from_one_sequence_after_the_other() -> None:
    generator = random.Random(1)
    for _ in range(60):
        run, split = any_case(generator)
        mixed = mixture.of(run, split)
        assert mixed is not None
        last = [0] * len(mixed.sources)
        for total in range(1, mixed.sequences + 1):
            now = mixed.seen(total)
            assert sum(now) == total
            assert all(a <= b for a, b in zip(last, now, strict=True))
            last = now


def test_a_count_a_billion_steps_on_is_immediate() -> None:
    stages = "[{tokens: 900T, mix: {wiki: 60%, code: 40%}}, {tokens: 90T, mix: {wiki: 1.5%, code: 98.5%}}]"
    mixed = mixture.of(run_of(stages, "batch: 64", ("wiki", "code")), split_of([10**9, 10**8], [1999.5, 1234.5]))
    assert mixed is not None
    start = time.process_time()
    assert sum(mixed.seen(64 * 10**9)) == 64 * 10**9
    assert time.process_time() - start < 0.1
