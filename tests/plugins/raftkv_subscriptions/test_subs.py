"""Subscriptions: made, deleted, replicated or not, sought there and back."""

from __future__ import annotations

import pytest

from raftkv_subscriptions import views
from raftkv_subscriptions.commands import Subscribed
from raftkv_subscriptions.refusals import (
    BadName,
    KindDiffers,
    ReplicationDisabled,
    SubscriptionInUse,
    TooManySubscriptions,
    UnknownPosition,
    UnknownSubscription,
    UnknownTopic,
)
from raftkv_subscriptions.rows import Hole

from .pure import RegionLog, copies


def test_earliest_and_latest() -> None:
    log = RegionLog("a", others=("b",))
    log.publish("t", "x", "y")
    log.deliver("t", "b", *copies("b", 1, 2), Hole("b", 3, 4))
    assert log.subscribe(initial="earliest") == Subscribed(1, True, 0)
    assert log.subscribe(sub="late") == Subscribed(2, True, 4)
    log.deliver("t", "b", *copies("b", 5, 5))
    assert log.wanted() == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 5)]
    assert log.wanted("late") == [("b", 5)]
    # An existing one is left as it is.
    assert log.subscribe(initial="latest") == Subscribed(1, False, 0)


def test_earliest_of_a_topic_that_was_trimmed() -> None:
    log = RegionLog("a")
    log.publish("t", *("x" * 5))
    log.declare("t", retention_bytes=1)
    log.sweep_all("t")
    first = log.topic().first
    assert first > 1
    assert log.subscribe(initial="earliest").mark == first - 1


def test_names_and_limits() -> None:
    log = RegionLog("a")
    log.set("subs_max", 2)
    with pytest.raises(UnknownTopic):
        log.subscribe("other")
    with pytest.raises(BadName):
        log.subscribe(sub="not a name")
    log.subscribe()
    log.subscribe(sub="u")
    with pytest.raises(TooManySubscriptions):
        log.subscribe(sub="v")
    log.unsubscribe()
    log.subscribe(sub="v")


def test_replicate() -> None:
    log = RegionLog("a")
    log.subscribe()
    assert not log.sub().replicate
    log.set_replicate(True)
    changed = log.sub().changed
    log.set_replicate(True)
    log.subscribe(replicate=None)
    assert (log.sub().replicate, log.sub().changed) == (True, changed)
    log.set("enabled", False)
    log.subscribe(replicate=True)
    log.subscribe(replicate=False)
    with pytest.raises(ReplicationDisabled):
        log.set_replicate(True)
    with pytest.raises(ReplicationDisabled):
        log.subscribe(sub="new", replicate=True)
    with pytest.raises(UnknownSubscription):
        log.sub("new")


def test_unsubscribe() -> None:
    log = RegionLog("a")
    log.subscribe(initial="earliest", replicate=True)
    one = log.attach("n2").consumer
    with pytest.raises(SubscriptionInUse):
        log.unsubscribe()
    log.publish("t", "x", "y", "z")
    log.ack(3)
    log.unsubscribe(force=True)
    with pytest.raises(UnknownSubscription):
        log.unsubscribe()
    assert not views.consumer_live(log.view(), log.table("consumers")[one])
    again = log.subscribe(initial="earliest")
    assert (again.id, again.mark) == (2, 0)
    assert len(log.wanted()) == 3
    log.sweep_all()
    for name in ("floors", "acks", "attached", "owners", "consumers", "dropped_subs"):
        assert log.table(name) == {}, name
    assert log.meta().consumers == 0


def test_one_whose_node_ended_is_not_in_use() -> None:
    log = RegionLog("a")
    log.subscribe()
    log.attach("n2")
    log.node_down("n2")
    log.unsubscribe()


def test_the_kind_changes_without_consumers() -> None:
    log = RegionLog("a")
    log.subscribe(kind="shared", initial="earliest")
    log.publish("t", "x", "y", "z")
    one = log.attach("n2").consumer
    assert log.take(one, 2).positions == (1, 2)
    with pytest.raises(KindDiffers):
        log.subscribe(kind="exclusive")
    log.node_down("n2")
    # What it holds belongs to the kind that was.
    log.subscribe(kind="exclusive")
    log.subscribe(kind="shared")
    two = log.attach("n1").consumer
    log.sweep_all()
    taken = log.take(two, 9)
    assert (taken.positions, taken.deliveries) == ((1, 2, 3), (1, 1, 1))


# --- seek -----------------------------------------------------------------------------------------


def test_seek_back_and_forth() -> None:
    log = RegionLog("a", others=("b",))
    log.subscribe(initial="earliest")
    log.publish("t", "1", "2", "3")
    log.deliver("t", "b", *copies("b", 1, 3))
    log.ack(1, 2, 5)
    sought = log.seek(1)
    assert (sought.mark, sought.epoch) == (1, 1)
    assert log.wanted() == [("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]
    # What it does not want is no acknowledgement, and nothing of before is told any more.
    state = views.state_of(log.view(), "t", "s")
    assert (state.base, state.ranges) == ((("a", 1),), ())
    assert log.seek(6).mark == 6
    assert log.wanted() == []
    assert log.seek(0).epoch == 3
    assert len(log.wanted()) == 6
    log.ack_to(6)
    assert views.state_of(log.view(), "t", "s").ranges == (("a", 1, 3), ("b", 1, 3))
    with pytest.raises(UnknownPosition):
        log.seek(7)


def test_seek_below_the_first() -> None:
    log = RegionLog("a")
    log.subscribe(initial="earliest")
    log.publish("t", *("x" * 6))
    log.ack_to(4)
    log.declare("t", retention_bytes=1)
    log.sweep_all("t")
    assert log.seek(1).mark == log.topic().first - 1 == 4


def test_seek_removes_many_ranges() -> None:
    log = RegionLog("a", checks=False)
    log.subscribe(initial="earliest")
    for _ in range(6):
        log.publish("t", *("x" * 1_000))
    for start in range(2, 6_000, 2_000):
        log.ack(*range(start, start + 2_000, 2))
    log.checks = True
    assert log.sub().ranges == 3_000
    log.seek(5)
    assert (log.sub().ranges, log.table("acks")) == (0, {})
    assert views.backlog_of(log.view(), "t", "s") == 5_995


def test_what_is_in_hands_means_nothing_after_a_seek() -> None:
    log = RegionLog("a")
    log.subscribe(kind="shared", initial="earliest")
    log.publish("t", *("x" * 6))
    one, two = log.attach("n1").consumer, log.attach("n2").consumer
    log.take(one, 4)
    log.release(one, 2, 4)
    log.seek(0)
    assert log.sub().locked == 0
    # Released now, it does not come back a second time.
    assert log.release(one, 1).done == 1
    taken = log.take(two, 9)
    assert (taken.positions, taken.deliveries) == ((1, 2, 3, 4, 5, 6), (1,) * 6)
    assert log.take(one, 9).positions == ()
    log.detach(one)
    assert log.take(two, 9).positions == ()
    log.release(two, 3)
    taken = log.take(two)
    assert (taken.positions, taken.deliveries) == ((3,), (2,))
