"""What is removed: only what is beyond retention and what nobody waits for."""

from __future__ import annotations

import random

import pytest

from raftkv_subscriptions import views
from raftkv_subscriptions.retention import due_ms, free_to, is_due
from raftkv_subscriptions.rows import BLOCK, MESSAGE_OVERHEAD, Copy, Hole, Snapshot
from tests.plugins.raftkv_subscriptions.pure import RegionLog, Regions, copies, message

SIZE = MESSAGE_OVERHEAD + 1


def old(log: RegionLog, **retention: int) -> None:
    """All that is there now is beyond the retention."""
    log.declare("t", **(retention or {"retention_ms": 100}))
    log.now += 1_000


def due(log: RegionLog) -> bool:
    return is_due(log.view(), "t", log.topic(), log.now)


# --- beyond retention -----------------------------------------------------------------------------


def test_without_retention_everything_stays() -> None:
    log = RegionLog()
    log.publish("t", *"xyz")
    log.now += 10**9
    assert not due(log)
    assert due_ms(log.view(), log.topic()) is None
    log.sweep_all("t")
    assert log.bodies() == ["x", "y", "z"]


def test_by_age() -> None:
    log = RegionLog()
    log.declare("t", retention_ms=100)
    log.publish("t", "x")
    log.now += 60
    log.publish("t", "y")
    assert due_ms(log.view(), log.topic()) == log.now + 40
    log.now += 39
    assert not due(log)
    log.sweep_all("t")
    assert log.bodies() == ["x", "y"]
    log.now += 1
    assert due(log)
    log.sweep_all("t")
    assert log.bodies() == ["y"]
    assert log.meta().trimmed == 1
    log.now += 1_000
    log.sweep_all("t")
    assert log.bodies() == []
    assert log.topic().bytes == 0
    assert not due(log)
    assert due_ms(log.view(), log.topic()) is None
    assert log.publish("t", "z").first == 3


def test_by_size() -> None:
    log = RegionLog()
    log.declare("t", retention_bytes=2 * SIZE)
    log.publish("t", *"xyz")
    assert due(log)
    log.sweep_all("t")
    assert log.bodies() == ["y", "z"]
    log.publish("t", "w")
    log.sweep_all("t")
    assert log.bodies() == ["z", "w"]


def test_a_topic_is_trimmed_in_steps() -> None:
    log = RegionLog()
    for _ in range(3):
        log.publish("t", *["x"] * BLOCK)
    old(log)
    swept = log.sweep("t", rows_max=100)
    assert (swept.rows, swept.more) == (100, True)
    assert log.topic().first == 101
    assert sorted(block for _, block in log.table("blocks")) == [0, 1, 2]
    assert log.table("blocks")[1, 0] == (("a", 100),)
    log.sweep_all("t", rows_max=2 * BLOCK)
    assert log.topic().first == 3 * BLOCK + 1
    assert log.table("blocks") == {}
    log.publish("t", "y")
    assert log.table("blocks") == {(1, 3): (("a", 3 * BLOCK),)}


def test_only_what_was_named_is_trimmed() -> None:
    log = RegionLog(topics=("t", "u"))
    log.publish("t", "x")
    old(log)
    log.sweep_all("u", "missing")
    assert log.bodies() == ["x"]


# --- subscriptions --------------------------------------------------------------------------------


def test_every_subscription_is_waited_for() -> None:
    log = RegionLog()
    log.subscribe(sub="fast", initial="earliest")
    log.subscribe(sub="slow", initial="earliest", kind="shared")
    log.publish("t", *"vwxyz")
    old(log)
    assert not due(log)
    log.ack_to(4, sub="fast")
    log.ack(1, 2, 4, sub="slow")
    assert free_to(log.view(), log.topic()) == 2
    log.sweep_all("t")
    assert log.bodies() == ["x", "y", "z"]
    log.ack(3, sub="slow")
    log.sweep_all("t")
    assert log.bodies() == ["z"]
    log.unsubscribe(sub="fast")
    log.unsubscribe(sub="slow")
    log.sweep_all("t")
    assert log.bodies() == []


def test_a_subscription_that_is_made_later_begins_at_what_is_kept() -> None:
    log = RegionLog()
    log.publish("t", *"xyz")
    log.declare("t", retention_bytes=1 * SIZE)
    log.sweep_all("t")
    assert log.bodies() == ["z"]
    assert log.subscribe(initial="earliest").mark == 2
    assert log.wanted() == [("a", 3)]
    assert views.backlog_of(log.view(), "t", "s") == 1
    log.sweep_all("t")
    assert log.bodies() == ["z"]


# --- regions --------------------------------------------------------------------------------------


def test_every_active_region_that_fetches_is_waited_for() -> None:
    log = RegionLog(others=("b", "c"))
    log.publish("t", *"xyz")
    old(log)
    log.sweep_all("t")
    assert log.bodies() == ["x", "y", "z"]
    log.report("b", t=(("a", 2),))
    assert not due(log)
    log.report("c", t=(("a", 1),))
    assert due(log)
    log.sweep_all("t")
    assert log.bodies() == ["y", "z"]
    log.put_region("c", "excluded")
    log.sweep_all("t")
    assert log.bodies() == ["z"]
    log.put_region("b", fetches=False)
    log.sweep_all("t")
    assert log.bodies() == []


def test_a_region_has_what_came_from_it() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", *copies("b", 1, 2))
    log.publish("t", "x")
    log.deliver("t", "b", *copies("b", 3, 3))
    old(log)
    log.sweep_all("t")
    assert log.seqs_of() == [("a", 1), ("b", 3)]
    log.report("b", t=(("a", 1),))
    log.sweep_all("t")
    assert log.seqs_of() == []


def test_a_topic_that_is_not_replicated_waits_for_no_region() -> None:
    log = RegionLog(others=("b",))
    log.publish("t", "x")
    old(log, retention_ms=100, replicated=False)
    log.sweep_all("t")
    assert log.bodies() == []


def test_holes_are_not_waited_for() -> None:
    log = RegionLog(others=("b", "c"))
    log.deliver("t", "b", Hole("b", 1, 4), *copies("b", 5, 6))
    old(log)
    log.report("c", t=(("b", 5),))
    log.sweep_all("t")
    assert log.seqs_of() == [("b", 6)]
    assert log.table("holes") == {(1, "b", 1): 4}


def test_who_returns_late_gets_a_hole_and_what_is_left() -> None:
    regions = Regions("a", "b", "c")
    for log in regions.logs.values():
        log.declare("t", retention_ms=100)
    regions["a"].publish("t", *"vwx")
    regions.carry("a", "b")
    regions["a"].put_region("c", "excluded")
    regions.report_all_but("c")
    regions["a"].now += 1_000
    regions["a"].publish("t", "y")
    regions["a"].sweep_all("t")
    assert regions["a"].bodies() == ["y"]
    regions["a"].put_region("c")
    regions.carry("a", "c")
    assert regions["c"].bodies() == ["y"]
    assert regions["c"].vector() == {"a": 4}
    assert regions["c"].table("holes") == {(1, "a", 1): 3}


# --- what goes with them --------------------------------------------------------------------------


def test_compacted_topics_keep_the_last_of_every_key() -> None:
    log = RegionLog(topics=())
    log.declare("t", compacted=True, retention_ms=100)
    log.publish("t", message("x1", "x"), message("y1", "y"), message("none"), message("x2", "x"))
    log.now += 1_000
    log.sweep_all("t")
    topic = log.topic()
    assert (topic.first, topic.kept, topic.keys) == (5, 2, 2)
    assert topic.bytes == 2 * (MESSAGE_OVERHEAD + 3)
    assert log.bodies() == []
    assert left(log) == ["y1", "x2"]
    assert log.subscribe(initial="earliest").mark == 4
    log.publish("t", message("x3", "x"))
    assert (log.topic().kept, left(log)) == (1, ["y1", "x3"])
    log.publish("t", message("", "y"))
    assert (log.topic().kept, left(log)) == (0, ["x3"])
    log.ack_to(6)
    log.now += 1_000
    log.sweep_all("t")
    assert (log.topic().kept, left(log)) == (1, ["x3"])
    assert views.kept_of(log.topic()) == 1


def left(log: RegionLog) -> list[str]:
    part = views.read_compacted(log.view(), "t", 1, 100)
    assert not part.more
    return [one.stored.message.body.decode() for one in part.messages]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_snapshots_that_nobody_can_use_any_more_go(count: int) -> None:
    regions = Regions("a", "b")
    log = regions["a"]
    log.set("mode", "snapshot")
    log.subscribe(initial="earliest", replicate=True)
    for n in range(1, 4):
        log.publish("t", "x")
        log.complete_snapshot("b", position=n)
    assert [at for at, _ in views.snapshots_of(log.view(), 1)] == [1, 2, 3]
    log.ack_to(count)
    log.report("b", t=(("a", 3),))
    old(log)
    log.sweep_all("t")
    assert log.topic().first == count + 1
    left = views.snapshots_of(log.view(), 1)
    assert [at for at, _ in left] == [at for at in (1, 2, 3) if at > count]
    assert all(isinstance(snapshot, Snapshot) for _, snapshot in left)


# --- any history ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_a_compacted_topic(seed: int) -> None:
    """`RegionLog.check` compares everything after each step; here, what is left with a dict."""
    chance = random.Random(seed)
    log = RegionLog(others=("b",), topics=())
    last: dict[str, str] = {}
    log.declare("t", compacted=True, retention_ms=500, replicated=False)
    count = 0
    for _ in range(80):
        bodies = []
        for _ in range(chance.randint(1, 5)):
            count += 1
            key = chance.choice(("", "x", "y", "z", "w"))
            bodies.append((str(count) if chance.random() < 0.8 else "", key))
        what = chance.random()
        if what < 0.4:
            log.publish("t", *(message(body, key) for body, key in bodies))
        elif what < 0.8:
            known = log.vector().get("b", 0) + 1
            log.deliver("t", "b", *(copy_of(known + n, *one) for n, one in enumerate(bodies)))
        else:
            log.now += chance.choice((100, 1_000))
            log.sweep("t", rows_max=chance.choice((1, 10, 1_000)))
            bodies = []
        for body, key in bodies:
            if key:
                last.pop(key, None)
                if body:
                    last[key] = body
        assert left(log) == list(last.values()), f"seed {seed}"
    assert log.topic().first > 1, f"seed {seed}"
    assert log.replay().digest() == log.digest()


def copy_of(seq: int, body: str, key: str) -> Copy:
    return Copy("b", seq, message(body, key), 1)
