"""The checker of watches, checked: every way to break a promise has its name."""

from __future__ import annotations

import pytest

from raftkv.kv.commands import Event, KeyValue
from raftkv.kv.watch import WatchBatch
from raftkv.testing.watch_check import Watched, check_watch


def put(key: bytes, revision: int) -> Event:
    return Event(KeyValue(key, b"v", revision, revision, 1), KeyValue(key, b"u", 1, 1, 1))


def delete(key: bytes, revision: int) -> Event:
    return Event(KeyValue(key, b"", 0, revision, 0), KeyValue(key, b"v", 1, 1, 1))


HISTORY = {
    2: (put(b"a", 2),),
    3: (put(b"b", 3), put(b"a", 3), put(b"c", 3)),
    4: (put(b"x", 4),),
    5: (delete(b"a", 5),),
    6: (put(b"b", 6),),
}
WATCHED = Watched(b"a", b"c", 2, prev_kv=True)
A2, B3, A3, A5, B6 = put(b"a", 2), put(b"b", 3), put(b"a", 3), delete(b"a", 5), put(b"b", 6)


def batch(revision: int, *events: Event) -> WatchBatch:
    return WatchBatch(revision, events)


def test_what_is_right_is_right() -> None:
    whole = [batch(2, A2), batch(3, B3, A3), batch(4), batch(5, A5), batch(6, B6), batch(6)]
    assert check_watch(WATCHED, whole, HISTORY) == ""
    assert check_watch(WATCHED, [batch(6, A2, B3, A3, A5, B6)], HISTORY) == ""
    assert check_watch(WATCHED._replace(first=4), [batch(5, A5)], HISTORY) == ""
    assert check_watch(Watched(b"x", b"", 2), [batch(6, Event(put(b"x", 4).kv))], HISTORY) == ""
    assert check_watch(Watched(b"c", b"\0", 4), [batch(4, Event(put(b"x", 4).kv))], HISTORY) == ""
    puts = WATCHED._replace(delete=False, first=4)
    assert check_watch(puts, [batch(6, B6)], HISTORY) == ""
    assert check_watch(WATCHED._replace(put=False), [batch(6, A5)], HISTORY) == ""


@pytest.mark.parametrize(
    ("promise", "batches"),
    [
        ("ordered", [batch(3, B3, A3, A2)]),
        ("ordered", [batch(2, A2), batch(3, A3, B3)]),
        ("unique", [batch(2, A2), batch(3, A2, B3, A3)]),
        ("unique", [batch(2, A2, A2)]),
        ("reliable", [batch(3, B3, A3)]),
        ("reliable", [batch(6, A2, B3, A3, B6)]),
        ("reliable", [batch(2, A2), batch(5)]),
        ("reliable", [batch(2, put(b"b", 2))]),
        ("reliable", [batch(2, Event(A2.kv))]),
        ("reliable", [batch(6, A2, B3, A3, A5, B6), batch(7)]),
        ("atomic", [batch(2, A2), batch(3, B3), batch(3, A3)]),
        ("bookmarkable", [batch(3, A2, B3, A3), batch(2)]),
        ("bookmarkable", [batch(2, A2, B3, A3)]),
        ("resumable", [batch(6, put(b"a", 1), A2, B3, A3, A5, B6)]),
    ],
)
def test_a_broken_promise_is_named(promise: str, batches: list[WatchBatch]) -> None:
    assert check_watch(WATCHED, batches, HISTORY).startswith(f"{promise}: ")
