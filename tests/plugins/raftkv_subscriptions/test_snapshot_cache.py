"""Which snapshots are kept: the figures of the scenarios, the rule, and that it stays even."""

from __future__ import annotations

import itertools
import random

import pytest

from raftkv_subscriptions.snapshot_cache import Spread, crowded


def test_what_leaves_when_it_is_full() -> None:
    spread = Spread(5)
    assert [spread.add(position) for position in (1, 2, 10, 15, 25)] == [None] * 5
    left = [spread.add(position) for position in (100, 110, 112, 113, 200)]
    assert left == [2, 10, 110, 112, 15]
    assert spread.positions() == [1, 25, 100, 113, 200]


def test_the_rule_says_the_same() -> None:
    kept = [1, 2, 10, 15, 25]
    for position, leaves in ((100, 2), (110, 10), (112, 110), (113, 112), (200, 15)):
        kept.append(position)
        assert crowded(kept) == leaves
        kept.remove(leaves)


def test_of_equal_ones_the_first_leaves() -> None:
    assert crowded([1, 2, 3, 4, 5]) == 2
    spread = Spread(4)
    assert [spread.add(position) for position in (1, 2, 3, 4, 5)][-1] == 2


def test_the_first_and_the_last_never_leave() -> None:
    spread = Spread(3)
    for position in range(1, 1_000):
        left = spread.add(position)
        assert left not in (1, position)
    kept = spread.positions()
    assert (kept[0], kept[-1], len(kept), len(spread)) == (1, 999, 3, 3)


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_agree(seed: int) -> None:
    source = random.Random(seed)
    size = source.randrange(3, 40)
    spread, kept, position = Spread(size), [], 0
    for _ in range(500):
        position += source.choice((1, 1, 2, 5, 100, source.randrange(1, 2_000)))
        left = spread.add(position)
        kept.append(position)
        if len(kept) > size:
            expected = crowded(kept)
            kept.remove(expected)
            assert left == expected, f"seed {seed}"
        else:
            assert left is None
        assert spread.positions() == kept


@pytest.mark.parametrize(("adds", "size"), [(1_000, 10), (1_000, 30), (100_000, 1_000)])
def test_all_gaps_stay_within_twice_the_average(adds: int, size: int) -> None:
    # A million into 10,000: see docs/internals/subscriptions.md.
    spread = Spread(size)
    for position in range(1, adds + 1):
        spread.add(position)
    kept = spread.positions()
    gaps = [after - before for before, after in itertools.pairwise(kept)]
    assert len(kept) == size
    assert max(gaps) <= 2 * (kept[-1] - kept[0]) / len(gaps)


def test_positions_only_rise() -> None:
    spread = Spread(3)
    spread.add(5)
    for position in (5, 4, 0):
        with pytest.raises(ValueError, match="is not above 5"):
            spread.add(position)
    assert spread.positions() == [5]


def test_less_than_three_make_no_sense() -> None:
    with pytest.raises(ValueError, match="3 positions"):
        Spread(2)
    with pytest.raises(ValueError, match="3 positions"):
        crowded([1, 2])
