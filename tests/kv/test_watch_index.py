"""The index of watches against a list that is searched from end to end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.kv import watch_index
from raftkv.kv.commands import FROM_KEY
from raftkv.kv.watch import Watch
from raftkv.kv.watch_index import Place, WatchIndex

KEYS = st.binary(min_size=1, max_size=3).map(lambda b: bytes(c % 4 + 97 for c in b))


def make(key: bytes, range_end: bytes) -> Watch:
    nobody: Any = None
    return Watch(nobody, key, range_end, 0)


def found(index: WatchIndex, key: bytes) -> list[Watch]:
    watches: list[Watch] = []
    for place in index.places(key):
        watches += place.watches if isinstance(place, Place) else [place]
    return watches


def covers(watch: Watch, key: bytes) -> bool:
    if not watch.range_end:
        return key == watch.key
    return watch.key <= key and (watch.range_end == FROM_KEY or key < watch.range_end)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[bytes, bytes]:
    key = draw(KEYS)
    kind = draw(st.sampled_from(["key", "from", "range", "range", "range"]))
    if kind == "range":
        low, high = sorted((key, draw(KEYS)))
        if low < high:
            return low, high
    return key, FROM_KEY if kind == "from" else b""


@settings(max_examples=150)
@given(
    st.lists(st.one_of(ranges(), st.integers(0, 30)), max_size=60),
    st.lists(KEYS, min_size=5, max_size=20),
    st.sampled_from([(64, 32), (3, 2), (1, 1)]),
)
def test_it_finds_what_a_search_finds(
    steps: list[Any], keys: list[bytes], limits: tuple[int, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_index, "SEGMENTS_MAX", limits[0])
        patch.setattr(watch_index, "DEPTH_MAX", limits[1])
        index, there = WatchIndex(), list[Watch]()
        for step in steps:
            if isinstance(step, tuple):
                there.append(make(*step))
                index.add(there[-1])
            elif there:
                index.remove(there.pop(step % len(there)))
            key = keys[len(there) % len(keys)]
            watches = found(index, key)
            assert len(set(watches)) == len(watches)
            assert set(watches) == {watch for watch in there if covers(watch, key)}
        for watch in there:
            index.remove(watch)
    assert (index._exact, index._ranges, index._ends, index._wide) == ({}, {}, {}, {})
    assert (index._bounds, index._segments) == ([], [()])


def test_ranges_that_overlap_do_not_take_memory_in_the_square() -> None:
    index = WatchIndex()
    count = 600
    for number in range(count):
        index.add(make(b"%04d" % number, b"%04d" % (number + count)))  # each over all the others
        index.add(make(b"%04d" % number, FROM_KEY))
        index.add(make(b"5%03d" % (number // 2), b"5%03d" % (999 - number // 2)))  # in each other
    places = sum(map(len, index._segments))
    assert places < 3 * count * 2 * watch_index.DEPTH_MAX
    assert len(found(index, b"0300")) == 301 + 301


def test_watches_of_disjoint_prefixes_are_found_by_one_bisection() -> None:
    index = WatchIndex()
    for number in range(1000):
        index.add(make(b"user/%04d/" % number, b"user/%04d0" % number))
    index.add(make(b"\0", FROM_KEY))
    assert len(index._wide) == 1
    assert max(map(len, index._segments)) == 1
    assert len(found(index, b"user/0500/x")) == 2


def test_the_order_is_that_of_coming() -> None:
    index = WatchIndex()
    watches = [make(b"a", b"z") for _ in range(20)] + [make(b"k", b"") for _ in range(20)]
    for watch in watches:
        index.add(watch)
    assert found(index, b"k") == watches[20:] + watches[:20]
