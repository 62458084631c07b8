"""Markers stand between messages: one of each meaning, in order, seen by nobody who consumes."""

from __future__ import annotations

from raftkv_subscriptions import markers, views
from raftkv_subscriptions.commands import SnapshotAnswer
from raftkv_subscriptions.rows import Advance, Answer, Request
from tests.plugins.raftkv_subscriptions.snapshot_logs import SnapshotRegions, marker_of


def answered_twice() -> SnapshotRegions:
    """b has answers for a (after two messages) and for c (after three)."""
    regions = SnapshotRegions("a", "b", "c")
    b = regions["b"]
    b.publish("t", "b1", "b2")
    b.anywhere(SnapshotAnswer("t", "a", 7, 1))
    b.publish("t", "b3")
    b.anywhere(SnapshotAnswer("t", "c", 9, 1))
    return regions


def numbered(regions: SnapshotRegions, region: str, after: int = 0) -> list[tuple[int, int]]:
    """(n, position) of the markers there."""
    log = regions[region]
    rows = markers.markers_after(log.view(), log.topic().id, after)
    return [(n, marker.position) for n, marker in rows]


def test_they_stand_after_the_message_that_was_last() -> None:
    regions = answered_twice()
    assert numbered(regions, "b") == [(1, 2), (2, 3)]
    what = marker_of(regions["b"], markers.answer_to("a")).what  # type: ignore[union-attr]
    assert what == Answer(7, "a", 1, "b", 2, (("b", 2),))


def test_a_newer_one_of_the_same_meaning_goes_to_the_end() -> None:
    regions = answered_twice()
    regions["b"].publish("t", "b4")
    regions["b"].anywhere(SnapshotAnswer("t", "a", 8, 1))
    assert numbered(regions, "b") == [(2, 3), (3, 4)]
    assert numbered(regions, "b", after=2) == [(3, 4)]
    assert numbered(regions, "b", after=3) == []
    assert len(regions["b"].table("marked")) == 2


def test_nobody_who_reads_sees_them() -> None:
    regions = answered_twice()
    b = regions["b"]
    b.subscribe(initial="earliest")
    assert b.bodies() == ["b1", "b2", "b3"]
    assert views.head_of(b.view(), "t") == 3
    assert views.backlog_of(b.view(), "t", "s") == 3
    assert b.ack_to(3).mark == 3
    assert views.kept_of(b.topic()) == 3


def test_topics_do_not_meet() -> None:
    regions = SnapshotRegions("a", "b", topics=("t", "u"))
    b = regions["b"]
    b.anywhere(SnapshotAnswer("u", "a", 7, 1))
    assert numbered(regions, "b") == []
    assert marker_of(b, markers.answer_to("a"), "u") is not None
    assert marker_of(b, markers.answer_to("a"), "t") is None


def test_meanings_do_not_meet() -> None:
    # A subscription may be named like anything.
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    a.subscribe(sub="request", replicate=True, initial="earliest")
    a.publish("t", "a1")
    regions.start()
    regions.round("a", "b")
    a.ack_to(1, sub="request")
    a.publish("t", "a2")
    regions.start()
    kinds = {type(marker.what) for _, marker in views.markers_of(a.view(), a.topic().id)}
    assert kinds == {Advance, Request}
