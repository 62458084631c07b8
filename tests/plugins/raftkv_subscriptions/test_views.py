"""Questions to the tables."""

from __future__ import annotations

import random

import pytest

from raftkv_subscriptions import views
from raftkv_subscriptions.refusals import UnknownSubscription, UnknownTopic
from raftkv_subscriptions.rows import MESSAGE_OVERHEAD, Hole
from tests.plugins.raftkv_subscriptions.pure import RegionLog, copies, copy

# --- topics and messages --------------------------------------------------------------------------


def positions(log: RegionLog, first: int, limit: int = 100, bytes_max: int = 0) -> list[int]:
    return [one.position for one in views.read(log.view(), "t", first, limit, bytes_max)]


def test_reading_in_pieces() -> None:
    log = RegionLog(topics=("t", "u"))
    log.publish("t", *["x"] * 5)
    log.publish("u", "other")
    assert positions(log, 1, 2) == [1, 2]
    assert positions(log, 3) == [3, 4, 5]
    assert positions(log, 6) == []
    assert positions(log, 0, 1) == [1]
    size = MESSAGE_OVERHEAD + 1
    assert positions(log, 1, 5, 2 * size) == [1, 2]
    assert positions(log, 1, 5, 1) == [1]


def test_reading_begins_at_what_is_kept() -> None:
    log = RegionLog()
    log.publish("t", *["x"] * 5)
    log.declare("t", retention_bytes=2 * (MESSAGE_OVERHEAD + 1))
    log.sweep_all("t")
    assert positions(log, 1) == [4, 5]
    assert views.message_at(log.view(), 1, 3) is None
    assert views.message_at(log.view(), 1, 4) is not None
    assert views.vector_before_first(log.view(), log.topic()) == (("a", 3),)
    assert (views.kept_of(log.topic()), views.head_of(log.view(), "t")) == (2, 5)


def test_names_that_are_not_there() -> None:
    log = RegionLog()
    view = log.view()
    for ask in (views.topic_of, views.head_of, views.vector_of, views.subs_of):
        with pytest.raises(UnknownTopic):
            ask(view, "u")
    with pytest.raises(UnknownSubscription):
        views.sub_of(view, "t", "s")
    with pytest.raises(UnknownTopic):
        views.backlog_of(view, "u", "s")
    with pytest.raises(UnknownTopic):
        views.read(view, "u", 1, 1)
    assert views.sub_with(view, 7) is None
    assert views.topic_with(view, 7) is None


def test_topics_in_order() -> None:
    log = RegionLog(topics=("t", "b", "u"))
    assert [name for name, _ in views.topics_of(log.view())] == ["b", "t", "u"]


# --- subscriptions --------------------------------------------------------------------------------


def test_a_subscription_as_a_set() -> None:
    log = RegionLog(others=("b",))
    log.publish("t", "before")
    log.subscribe(initial="latest", kind="shared", replicate=True)
    log.deliver("t", "b", *copies("b", 1, 6))
    log.ack(2, 3, 5, 7)
    state = views.state_of(log.view(), "t", "s")
    assert state.base == (("a", 1),)
    assert state.ranges == (("b", 1, 2), ("b", 4, 4), ("b", 6, 6))
    assert log.wanted() == [("b", 3), ("b", 5)]
    assert views.backlog_of(log.view(), "t", "s") == 2
    assert [name for name, _ in views.subs_of(log.view(), "t")] == ["s"]
    found = views.sub_with(log.view(), log.sub().id)
    assert found == (1, "s", log.sub())


def test_a_deleted_topic_has_no_subscription() -> None:
    log = RegionLog()
    log.subscribe()
    id = log.sub().id
    log.delete("t")
    log.declare("t")
    assert views.sub_with(log.view(), id) is None
    assert views.subs_of(log.view(), "t") == ()


def test_the_backlog_with_holes_and_acknowledgements_of_others() -> None:
    log = RegionLog(others=("b", "c"))
    log.subscribe(initial="earliest", kind="shared", replicate=True)
    log.deliver("t", "b", *copies("b", 1, 3), Hole("b", 4, 8), *copies("b", 9, 12))
    assert views.backlog_of(log.view(), "t", "s") == 7
    # over the hole, and beyond what is here
    log.merge(("b", 3, 5), ("b", 7, 10), ("b", 12, 20), ("c", 1, 5), kind="shared")
    assert views.backlog_of(log.view(), "t", "s") == 3
    assert log.wanted() == [("b", 1), ("b", 2), ("b", 11)]
    log.deliver("t", "c", *copies("c", 1, 6), copy("b", 13))
    assert views.backlog_of(log.view(), "t", "s") == 4


def test_what_was_trimmed_is_no_backlog() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", *copies("b", 1, 5))
    log.declare("t", retention_bytes=2 * (MESSAGE_OVERHEAD + 2))
    log.report("b", t=())
    log.sweep_all("t")
    log.merge(("b", 2, 2), sub="late", base=())
    assert log.sub("late").mark == 3
    assert views.backlog_of(log.view(), "t", "late") == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_backlog_is_what_is_wanted(seed: int) -> None:
    chance = random.Random(seed)
    log = RegionLog(others=("b",))
    log.declare("t", retention_ms=500, replicated=False)
    log.subscribe(initial=chance.choice(("earliest", "latest")), kind="shared", replicate=True)
    for _ in range(60):
        what = chance.random()
        origin = chance.choice("bc")
        known = log.vector().get(origin, 0)
        first = max(1, known + chance.randint(-8, 4))
        if what < 0.2:
            log.publish("t", *["x"] * chance.randint(1, 4))
        elif what < 0.45:
            log.deliver("t", "b", *copies(origin, known + 1, known + chance.randint(1, 4)))
        elif what < 0.55:
            log.deliver("t", "b", Hole(origin, known + 1, known + chance.randint(1, 3)))
        elif what < 0.75:
            log.merge((origin, first, first + chance.randint(0, 5)), kind="shared")
        elif what < 0.95 and log.topic().next > 1:
            log.ack(chance.randint(1, log.topic().next - 1))
        else:
            log.now += 1_000
            log.sweep_all("t")
        backlog = views.backlog_of(log.view(), "t", "s")
        assert backlog == len(log.wanted()), f"seed {seed}"


# --- consumers ------------------------------------------------------------------------------------


def test_who_is_attached_and_alive() -> None:
    log = RegionLog()
    log.subscribe(kind="failover")
    first = log.attach("n1").consumer
    second = log.attach("n2").consumer
    rows = views.attached_of(log.view(), log.sub().id)
    assert [id for id, _ in rows] == [first, second]
    assert [views.consumer_live(log.view(), row) for _, row in rows] == [True, True]
    consumer = rows[0][1]
    log.node_down("n1")
    assert not views.consumer_live(log.view(), consumer)
    assert not views.consumer_live(log.view(), None)
    log.node_up("n1")
    assert not views.consumer_live(log.view(), consumer)
    log.unsubscribe(force=True)
    assert not views.consumer_live(log.view(), rows[1][1])
