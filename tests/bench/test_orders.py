"""The orders in which benchmarks choose keys: what each promises of its numbers."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from bench.orders import ORDERS, THETA, chooser, zeta


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("keys", [1, 2, 3, 10, 1000, 1_000_000])
def test_numbers_are_in_range(order: str, keys: int) -> None:
    number = chooser(order, keys)()  # type: ignore[arg-type]
    assert all(0 <= number() < keys for _ in range(2000))


@pytest.mark.parametrize("keys", [1, 999, 1000, 1001, 5000, 200_000])
def test_zeta_is_the_sum(keys: int) -> None:
    assert zeta(keys) == pytest.approx(math.fsum(r**-THETA for r in range(1, keys + 1)), rel=1e-9)


@pytest.mark.parametrize("keys", [1000, 100_000])
def test_zipf_gives_each_rank_its_share(keys: int) -> None:
    number, draws = chooser("zipf", keys)(), 100_000
    found = [times for _, times in Counter(number() for _ in range(draws)).most_common()]
    # The method draws the first two ranks exactly, and the others to within a few percent.
    for rank in (1, 2):
        share = rank**-THETA / zeta(keys)
        assert found[rank - 1] / draws == pytest.approx(share, rel=0.1)
    hundred = math.fsum(r**-THETA for r in range(1, 101)) / zeta(keys)
    assert sum(found[:100]) / draws == pytest.approx(hundred, rel=0.1)


def test_zipf_scatters_its_favourites() -> None:
    number = chooser("zipf", 10_000)()
    favourites = [key for key, _ in Counter(number() for _ in range(50_000)).most_common(20)]
    tenths = {key // 1000 for key in favourites}
    assert len(tenths) > 5


def test_sequential_is_shared_by_all_callers_and_comes_round() -> None:
    caller = chooser("sequential", 6)
    one, other = caller(), caller()
    found = [one(), other(), one(), other(), one(), other(), one()]
    assert sorted(found[:6]) == list(range(6))
    assert found[6] == found[0]
    assert [(b - a) % 6 for a, b in pairwise(found)] == [1] * 6


def test_two_turns_do_not_repeat_one_another() -> None:
    for order in ORDERS:
        turns = [chooser(order, 10**9)() for _ in range(2)]  # type: ignore[arg-type]
        first, second = ([number() for _ in range(20)] for number in turns)
        assert first != second, order
