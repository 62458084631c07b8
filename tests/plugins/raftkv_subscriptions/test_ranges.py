"""Set arithmetic: ranges as values, and as rows, against plain sets of numbers."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from raftkv_subscriptions.ranges import (
    add,
    clear,
    covers,
    grows,
    highest,
    normal,
    runs_of,
    span_over,
    without,
)
from raftkv_subscriptions.rows import Floor, Ranges

SUB = 7


class FakeTable(dict[Any, Any]):
    """A table in memory, with the part of the contract that sets of rows use."""

    def put(self, key: Any, value: Any) -> None:
        self[key] = value

    def delete(self, key: Any) -> bool:
        return self.pop(key, None) is not None

    def scan(self, first: Any, last: Any, *, reverse: bool = False, limit: int = 0) -> Any:
        keys = sorted((key for key in self if first <= key < last), reverse=reverse)
        return iter([(key, self[key]) for key in (keys[:limit] if limit else keys)])


class FakeContext:
    def __init__(self) -> None:
        self.floors, self.acks = FakeTable(), FakeTable()

    def table(self, name: str) -> FakeTable:
        return {"floors": self.floors, "acks": self.acks}[name]


def ids(ranges: Ranges) -> set[tuple[str, int]]:
    return {(origin, seq) for origin, first, last in ranges for seq in range(first, last + 1)}


def drawn(chance: random.Random) -> Ranges:
    spans = []
    for _ in range(chance.randint(0, 6)):
        first = chance.randint(1, 30)
        spans.append((chance.choice("ab"), first, first + chance.randint(-1, 8)))
    return tuple(spans)


def test_normal_form() -> None:
    assert normal((("b", 3, 4), ("a", 5, 6), ("a", 1, 4), ("a", 9, 8))) == (
        ("a", 1, 6),
        ("b", 3, 4),
    )
    assert normal((("a", 1, 9), ("a", 2, 3))) == (("a", 1, 9),)
    assert runs_of((("a", 3), ("a", 1), ("a", 2), ("b", 2))) == (("a", 1, 3), ("b", 2, 2))


@pytest.mark.parametrize("seed", range(20))
def test_values_are_sets(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        one, two = normal(drawn(chance)), normal(drawn(chance))
        assert ids(normal((*one, *two))) == ids(one) | ids(two), seed
        left = without(one, two)
        assert ids(left) == ids(one) - ids(two), seed
        assert left == normal(left), seed


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_sets(seed: int) -> None:
    """Every question and every row, after every addition."""
    chance = random.Random(seed)
    ctx: Any = FakeContext()
    base = chance.choice((0, 0, 5))
    ctx.floors.put((SUB, "a"), Floor(base, base, 3))
    # Neighbours, whose rows are never touched.
    for key in ((SUB - 1, "a", 9), (SUB, "A", 9), (SUB, "a0", 9), (SUB + 1, "a", 9)):
        ctx.acks.put(key, 12)
    others = set(ctx.acks)
    have = set(range(1, base + 1))
    for _ in range(60):
        first = chance.randint(1, 60)
        last = first + chance.choice((0, 0, 1, 3, 10))
        more = set(range(first, last + 1))
        before = len(ctx.acks)
        touches = any(seq in have for seq in range(first - 1, last + 2)) or first == 1
        assert grows(ctx, SUB, "a", first, last) == (not touches), seed
        done, rows = add(ctx, SUB, "a", first, last)
        assert (done, rows) == (len(more - have), len(ctx.acks) - before), seed
        have |= more
        for seq in range(1, 75):
            assert covers(ctx, SUB, "a", seq) == (seq in have), seed
            span = span_over(ctx, SUB, "a", seq)
            assert span is None or set(range(span[0], span[1] + 1)) <= have, seed
        assert highest(ctx, SUB, "a") == max(have)
        own = sorted((key[2], last) for key, last in ctx.acks.items() if key not in others)
        floor = ctx.floors[SUB, "a"]
        assert (floor.base, floor.mask) == (base, 3)
        ends = [(0, floor.floor), *own]
        assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ends)), seed
    removed = clear(ctx, SUB)
    assert removed == len(own) + 2  # with those of its other origins
    assert set(ctx.acks) == {(SUB - 1, "a", 9), (SUB + 1, "a", 9)}
