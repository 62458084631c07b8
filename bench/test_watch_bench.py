"""Watches: what an idle one costs in memory, an event in time, and coming back all at once.

The hub alone, on a keyspace without a node. Memory is printed with `-s`.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from raftkv.kv.watch import Watch
from tests.kv.watch_fakes import FakeNode

Benchmark = Any

WATCHES = 10_000
EVENTS = 1_000
# What an idle watch may take, with its key: a gigabyte then serves 700,000.
IDLE_BYTES_MAX = 1_536


def key(number: int) -> bytes:
    return b"user/%08d/cart" % number


def watch_all(node: FakeNode, kind: str, **options: Any) -> list[Watch]:
    if kind == "key":
        return [node.watch(key(number), **options) for number in range(WATCHES)]
    if kind == "prefix":
        bounds = ((key(number) + b"/", key(number) + b"0") for number in range(WATCHES))
        return [node.watch(low, high, **options) for low, high in bounds]
    return [node.watch(**options) for _ in range(WATCHES)]


@pytest.mark.parametrize("kind", ["key", "prefix", "same range"])
def test_memory_of_an_idle_watch(kind: str) -> None:
    node = FakeNode()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    watches = watch_all(node, kind)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    each = (after - before) / len(watches)
    print(f"\n{each:.0f} bytes for an idle watch of a {kind}")
    assert each < IDLE_BYTES_MAX


@pytest.mark.parametrize("kind", ["key", "prefix"])
def test_1_000_events_beside_10_000_watches(benchmark: Benchmark, kind: str) -> None:
    node = FakeNode()
    watch_all(node, kind)

    def write() -> tuple[Any, ...]:
        for number in range(EVENTS):
            node.put(key(number * 7) + b"/x", told=False)
        return (), {}

    def hand_out() -> None:
        node.hub.progressed()
        node.run()

    benchmark.pedantic(hand_out, setup=write, rounds=5)


def test_one_event_for_10_000_watches(benchmark: Benchmark) -> None:
    node = FakeNode()
    watches = watch_all(node, "same range")

    def write() -> tuple[Any, ...]:
        for watch in watches:
            while watch.take() is not None:
                pass
        node.put(b"k", told=False)
        return (), {}

    def hand_out() -> None:
        node.hub.progressed()
        node.run()

    benchmark.pedantic(hand_out, setup=write, rounds=5)


def test_10_000_watches_come_back_through_100_000_revisions(benchmark: Benchmark) -> None:
    node = FakeNode()
    for number in range(100_000):
        node.put(key(number % WATCHES), told=False)
    node.hub.progressed()

    def come_back() -> None:
        watches = watch_all(node, "key", start_revision=2)
        node.run()
        assert node.hub.behind_count == 0
        for watch in watches:
            watch.close()

    benchmark.pedantic(come_back, rounds=2)
