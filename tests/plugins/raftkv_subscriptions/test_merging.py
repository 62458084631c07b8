"""Other regions' acknowledgements: united, never more than that."""

from __future__ import annotations

import pytest

from raftkv_subscriptions import views
from raftkv_subscriptions.commands import Merge, Merged, Update
from raftkv_subscriptions.refusals import (
    BadName,
    OwnRegion,
    TooManyRegions,
    TooManySubscriptions,
    UnknownRegion,
    UnknownTopic,
)
from raftkv_subscriptions.rows import ORIGINS_MAX, ROWS_MAX, Hole, Vector

from .pure import RegionLog, Regions, copies


def region() -> RegionLog:
    log = RegionLog("a", others=("b", "c"))
    log.subscribe(initial="earliest", replicate=True)
    return log


def update(
    log: RegionLog, position: int, *without: tuple[str, int, int], sub: str = "s", base: Vector = ()
) -> Merged:
    merged: Merged = log.anywhere(
        Update("t", "b", sub, "exclusive", log.machine.index, position, base, without)
    )
    return merged


def test_united_in_any_order_any_number_of_times() -> None:
    log = region()
    log.deliver("t", "b", *copies("b", 1, 6))
    assert log.merge(("b", 4, 5)) == Merged(False, 2, 0)
    assert log.merge(("b", 1, 2), ("b", 5, 6)) == Merged(False, 3, 2)
    before = log.sub().changed
    assert log.merge(("b", 4, 6), ("b", 1, 2)) == Merged(False, 0, 2)
    assert log.sub().changed == before
    assert log.merge(("b", 3, 3)).mark == 6
    assert log.meta().merged == 6


def test_before_the_messages_come() -> None:
    log = region()
    log.merge(("b", 1, 3), ("b", 5, 6))
    assert set(log.table("ahead")) == {(log.topic().id, log.sub().id)}
    log.deliver("t", "b", *copies("b", 1, 2))
    assert log.sub().mark == 2
    log.deliver("t", "b", *copies("b", 3, 4))
    assert log.sub().mark == 3
    log.deliver("t", "b", *copies("b", 5, 6))
    assert (log.sub().mark, log.table("ahead")) == (3, {})
    log.ack(4)
    assert log.sub().mark == 6


def test_a_large_delivery_that_was_acknowledged() -> None:
    log = RegionLog("a", others=("b", "c"), checks=False)
    names = [f"s{n}" for n in range(5)]
    for name in names:
        log.subscribe(sub=name, initial="earliest", replicate=True)
        # Ranges beyond a gap: no vector, so each message is looked at.
        log.merge(("b", 1, 900), ("b", 902, 2_000), sub=name)
    log.checks = True
    log.deliver("t", "b", *copies("b", 1, 900))
    # One entry looks at so many; the others' turn comes with Sweep.
    assert [log.sub(name).mark for name in names] == [900, 100, 0, 0, 0]
    assert len(log.table("advancing")) == 4
    log.sweep_all()
    assert [log.sub(name).mark for name in names] == [900] * 5


def test_made_by_a_merge() -> None:
    log = RegionLog("a", others=("b",))
    log.deliver("t", "b", *copies("b", 1, 5))
    log.publish("t", "x")
    merged = log.merge(("b", 3, 4), sub="new", kind="failover", base=(("b", 2), ("c", 7)))
    assert merged == Merged(True, 2, 4)
    sub = log.sub("new")
    assert (sub.kind, sub.replicate) == ("failover", True)
    state = views.state_of(log.view(), "t", "new")
    assert (state.base, state.ranges) == ((("b", 2), ("c", 7)), (("b", 3, 4),))
    assert log.wanted("new") == [("b", 5), ("a", 1)]
    # The base of another region counts once.
    log.merge(base=(("a", 1), ("b", 5)), sub="new")
    assert views.state_of(log.view(), "t", "new") == state


def test_not_taken() -> None:
    log = region()
    log.deliver("t", "b", *copies("b", 1, 2))
    log.set_replicate(False)
    assert log.merge(("b", 1, 1)) == Merged(False, 0, 0, "not replicated")
    log.set_replicate(True)
    log.put_region("b", "excluded")
    assert log.merge(("b", 1, 1)).ignored == "excluded"
    log.put_region("b", "active")
    log.set("enabled", False)
    assert log.merge(("b", 1, 1)).ignored == "disabled"
    assert log.merge(("b", 1, 1), sub="new") == Merged(False, 0, 0, "disabled")
    assert log.meta().ignored == 4
    assert log.wanted() == [("b", 1), ("b", 2)]
    with pytest.raises(UnknownTopic):
        log.anywhere(Merge("other", "b", "s", "shared", (), ()))
    with pytest.raises(UnknownRegion):
        log.merge(source="nowhere")
    with pytest.raises(OwnRegion):
        log.merge(source="a")


def test_limits() -> None:
    log = region()
    log.set("ranges_max", 10)
    log.deliver("t", "b", *copies("b", 1, 50))
    merged = log.merge(*(("b", seq, seq) for seq in range(2, 40, 2)))
    assert (merged.done, merged.ignored) == (10, "too many ranges")
    assert log.meta().ignored == 9
    assert log.merge(("b", 48, 50)).ignored == "too many ranges"
    # One between two others is always taken, and makes room for one more.
    assert log.merge(("b", 3, 3), ("b", 48, 50)).done == 4
    with pytest.raises(BadName):
        log.merge(("not a name", 1, 1))
    with pytest.raises(TooManyRegions):
        log.merge(*((f"o{n}", 1, 1) for n in range(ORIGINS_MAX + 1)))
    log.set("subs_max", 1)
    with pytest.raises(TooManySubscriptions):
        log.merge(sub="new")


def test_sought_back_here() -> None:
    """The mask: neither what was known nor what is told again undoes a seek; news do count."""
    log = region()
    log.deliver("t", "b", *copies("b", 1, 10))
    log.merge(("b", 1, 6), ("b", 8, 8))
    log.seek(2)
    assert (log.sub().mark, log.sub().ranges) == (2, 0)
    log.merge(("b", 1, 8))
    assert log.wanted() == [("b", seq) for seq in range(3, 11)]
    log.merge(("b", 7, 9))
    assert log.wanted() == [("b", seq) for seq in (*range(3, 9), 10)]
    # Forth and back again: nothing of before comes in.
    log.seek(10)
    log.seek(0)
    log.merge(("b", 1, 10))
    assert log.wanted() == [("b", seq) for seq in range(1, 11)]


def test_updates() -> None:
    log = region()
    log.deliver("t", "b", *copies("b", 1, 3), Hole("b", 4, 5), *copies("b", 6, 8))
    log.publish("t", "x")
    # The source has passed b's sixth, and so what is a hole here, unless it says otherwise.
    assert update(log, 4, ("b", 2, 2)) == Merged(False, 5, 1)
    assert views.state_of(log.view(), "t", "s").ranges == (("b", 1, 1), ("b", 3, 6))
    assert update(log, 7).mark == 7
    assert update(log, 0, sub="new", base=(("b", 1),)) == Merged(True, 0, 1)


def test_an_update_below_what_is_kept_says_nothing() -> None:
    log = region()
    log.put_region("b", fetches=False)
    log.put_region("c", fetches=False)
    log.publish("t", *("x" * 10))
    log.ack_to(6)
    log.declare("t", retention_bytes=1)
    log.sweep_all("t")
    assert log.topic().first == 7
    assert update(log, 3, sub="new") == Merged(True, 0, 6)
    assert views.state_of(log.view(), "t", "new").ranges == ()
    assert update(log, 6, sub="new").done == 6


def test_a_ring_says_it_on() -> None:
    """What a region was told counts as a change of its own: it goes on to the next."""
    regions = Regions("a", "b", "c")
    for log in regions.logs.values():
        log.subscribe(initial="earliest", replicate=True)
    regions["a"].publish("t", "x", "y")
    regions.carry_all()
    regions["a"].ack(2)
    before = regions["b"].sub().changed
    regions.say("a", "b")
    assert regions["b"].sub().changed > before
    regions.say("b", "c")
    regions.say("c", "a")
    assert [log.wanted() for log in regions.logs.values()] == [[("a", 1)]] * 3


def test_a_wide_range_swallows_many() -> None:
    log = region()
    log.checks = False
    log.deliver("t", "b", *copies("b", 1, ROWS_MAX))
    log.merge(*(("b", seq, seq) for seq in range(2, ROWS_MAX + 1, 2)))
    assert log.sub().ranges == ROWS_MAX // 2
    log.checks = True
    assert log.merge(("b", 1, ROWS_MAX)) == Merged(False, ROWS_MAX // 2, ROWS_MAX)
    assert log.table("acks") == {}
