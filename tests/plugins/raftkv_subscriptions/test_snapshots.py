"""The seed's protocol as commands alone: rounds, time-out, order, cache, updates, seek.

A region's machine has entries of its own, links are carried by hand. After each command all
invariants are checked (`pure.py`).
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from raftkv.errors import Refused
from raftkv_subscriptions.commands import Answered, SnapshotAnswered, Started
from raftkv_subscriptions.refusals import (
    OriginBehind,
    OutOfOrder,
    OwnRegion,
    RegionExcluded,
    UnknownRegion,
    UnknownTopic,
)
from tests.plugins.raftkv_subscriptions.fakes import FormerSubscriptions
from tests.plugins.raftkv_subscriptions.snapshot_logs import SnapshotRegions, marker_of

# --- rounds ---------------------------------------------------------------------------------------


def test_two_regions_need_one_round() -> None:
    regions = SnapshotRegions("a", "b")
    a, b = regions["a"], regions["b"]
    a.publish("t", "a1")
    b.publish("t", *(f"b{n}" for n in range(1, 12)))
    started = regions.start()
    assert started.started
    assert regions.request("a").id == started.id == regions.pending().id  # type: ignore[union-attr]
    answer = regions.ask("a", "b")
    assert (answer.position, answer.vector) == (11, (("b", 11),))
    regions.carry("b", "a")
    assert regions.tell("a", answer) == Answered(True, True)
    assert regions.snapshots() == {12: {"b": 11}}
    assert regions.pending() is None
    assert marker_of(a, "request") is None
    assert a.meta().snapshots == 1


def test_three_regions_need_two_rounds() -> None:
    regions = SnapshotRegions("a", "b", "c")
    a, b, c = regions["a"], regions["b"], regions["c"]
    a.publish("t", "a1")
    b.publish("t", "b1", "b2")
    c.publish("t", "c1")
    regions.start()
    first_b, first_c = regions.ask("a", "b"), regions.ask("a", "c")
    regions.carry("b", "a")
    regions.carry("c", "a")
    regions.tell("a", first_b)
    done = regions.tell("a", first_c)
    assert (done.counted, done.complete) == (True, False)
    assert regions.snapshots() == {}
    assert regions.request("a").round == 2
    # Neither of the first round counts again.
    assert not regions.tell("a", first_b).counted
    assert not regions.tell("a", first_c).counted
    b.publish("t", "b3")
    second_b = regions.ask("a", "b", 2)
    assert (second_b.position, second_b.round) == (3, 2)
    regions.carry("b", "a")
    assert not regions.tell("a", second_b).complete
    assert not regions.tell("a", second_b).counted
    c.publish("t", "c2")
    second_c = regions.ask("a", "c", 2)
    regions.carry("c", "a")
    assert regions.tell("a", second_c).complete
    # Positions there are of the first round, the one here is of the last answer.
    assert regions.snapshots() == {6: {"b": 2, "c": 1}}


def test_an_answer_that_is_not_waited_for_is_not_counted() -> None:
    regions = SnapshotRegions("a", "b", "c")
    regions["a"].publish("t", "a1")
    id = regions.start().id
    for other in (
        SnapshotAnswered("t", "b", id + 1, 1, 0, ()),
        SnapshotAnswered("t", "b", id, 2, 0, ()),
    ):
        assert not regions["a"].anywhere(other).counted
    pending = regions.pending()
    assert pending is not None
    assert (pending.first, pending.second) == ((), ())
    # Nothing is pending in b.
    assert not regions["b"].anywhere(SnapshotAnswered("t", "a", id, 1, 0, ())).counted


def test_an_answer_that_is_ahead_of_its_link_is_refused_until_the_messages_are_here() -> None:
    regions = SnapshotRegions("a", "b")
    regions["a"].publish("t", "a1")
    regions["b"].publish("t", "b1", "b2")
    regions.start()
    answer = regions.ask("a", "b")
    with pytest.raises(OutOfOrder) as refused:
        regions.tell("a", answer)
    assert (refused.value.origin, refused.value.expected) == ("b", 1)
    regions.carry("b", "a")
    assert regions.tell("a", answer).complete


def test_what_an_excluded_region_published_must_be_here_too() -> None:
    regions = SnapshotRegions("a", "b", "c")
    regions["a"].put_region("c", "excluded")
    regions["a"].publish("t", "a1")
    regions["c"].publish("t", "c1")
    regions.carry("c", "b")
    regions.start()
    answer = regions.ask("a", "b")
    assert answer.vector == (("c", 1),)
    with pytest.raises(OutOfOrder) as refused:
        regions.tell("a", answer)
    assert refused.value.origin == "c"
    regions.carry("b", "a")
    assert regions.tell("a", answer).complete
    assert regions.snapshots() == {2: {"b": 1}}


def test_what_other_participants_published_need_not_be_here_in_the_first_round() -> None:
    regions = SnapshotRegions("a", "b", "c")
    regions["a"].publish("t", "a1")
    regions.start()
    first_c = regions.ask("a", "c")
    regions["c"].publish("t", "c1")
    regions.carry("c", "b")
    first_b = regions.ask("a", "b")
    assert regions.tell("a", first_b).counted
    assert regions.tell("a", first_c).counted
    # The second answer of c comes after c1.
    second_c = regions.ask("a", "c", 2)
    regions.tell("a", regions.ask("a", "b", 2))
    with pytest.raises(OutOfOrder):
        regions.tell("a", second_c)
    regions.carry("c", "a")
    assert regions.tell("a", second_c).complete
    assert regions.snapshots() == {2: {"b": 1, "c": 0}}


def test_an_answer_that_knows_more_of_us_than_we_do() -> None:
    regions = SnapshotRegions("a", "b")
    regions["a"].publish("t", "a1")
    id = regions.start().id
    with pytest.raises(OriginBehind):
        regions["a"].anywhere(SnapshotAnswered("t", "b", id, 1, 7, (("a", 7),)))


def test_a_request_is_answered_once() -> None:
    regions = SnapshotRegions("a", "b")
    regions["a"].publish("t", "a1")
    id = regions.start().id
    first = regions.ask("a", "b")
    before = regions["b"].digest_of_plugin()
    regions["b"].publish("t", "b1")
    markers_before = regions["b"].table("markers")
    # It comes again: the answer stays what it was, and where it was.
    assert regions.ask("a", "b") == first
    assert regions["b"].table("markers") == markers_before == before["markers"]
    # Another one replaces it.
    assert regions.ask("a", "b", 2, id=id).position == 1
    assert len(regions["b"].table("markers")) == 1


@pytest.mark.parametrize(
    ("source", "refusal"), [("a", OwnRegion), ("x", UnknownRegion), ("b", RegionExcluded)]
)
def test_from_whom_nothing_is_taken(source: str, refusal: type[Refused]) -> None:
    regions = SnapshotRegions("a", "b")
    regions["a"].put_region("b", "excluded")
    with pytest.raises(refusal):
        regions.ask(source, "a", id=5)
    with pytest.raises(refusal):
        regions["a"].anywhere(SnapshotAnswered("t", source, 5, 1, 0, ()))


# --- when -----------------------------------------------------------------------------------------


def test_reasons_not_to_start() -> None:
    regions = SnapshotRegions("a", "b", subscribed=False)
    a = regions["a"]
    assert regions.start() == Started(False, "nothing new")
    a.publish("t", "a1")
    assert regions.start().reason == "nobody"
    a.subscribe(replicate=False)
    assert regions.start().reason == "nobody"
    a.set_replicate(True)
    a.set("enabled", False)
    assert regions.start().reason == "disabled"
    a.set("enabled", True)
    a.set("mode", "vector")
    assert regions.start().reason == "disabled"
    a.set("mode", "snapshot")
    a.put_region("b", "excluded")
    assert regions.start().reason == "no regions"
    a.put_region("b")
    a.declare("t", replicated=False)
    assert regions.start().reason == "no regions"
    a.declare("t")
    assert regions.start().started
    assert regions.start() == Started(False, "pending")
    with pytest.raises(UnknownTopic):
        regions.start(topic="none")


def test_idle_topics_get_no_snapshots() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    a.publish("t", "a1")
    regions.start()
    regions.round("a", "b")
    assert regions.start().reason == "nothing new"
    a.ack(1)
    assert regions.start().reason == "nothing new"
    a.publish("t", "a2")
    assert regions.start().started


def test_a_message_during_the_rounds_is_something_new() -> None:
    regions = SnapshotRegions("a", "b")
    regions["a"].publish("t", "a1")
    regions.start()
    regions["a"].publish("t", "a2")
    regions.round("a", "b")
    assert regions.start().started


def _answered_before_a_message_of_c(**more: Any) -> SnapshotRegions:
    """b answers before it has what c published and a has; a acknowledges it; then it comes to b."""
    regions = SnapshotRegions("a", "b", "c", **more)
    regions["c"].publish("t", "c1")
    regions.carry("c", "a")
    regions.start()
    regions.round("a", "b", "c")
    assert regions.round("a", "b", "c", number=2).complete
    assert regions.snapshots() == {1: {"b": 0, "c": 1}}
    regions["a"].ack(1)
    assert regions.start().reason == "nothing new"
    regions.carry("c", "b")
    return regions


def test_what_a_region_received_after_it_had_answered_is_something_new_when_it_reports_it() -> None:
    """Seed 20057: nothing more is published, and only a reports what it has acknowledged."""
    regions = _answered_before_a_message_of_c()
    a = regions["a"]
    a.report("b", t=(("c", 1),))
    assert regions.start().started
    regions.round("a", "b", "c")
    assert regions.round("a", "b", "c", number=2).complete
    assert regions.snapshots() == {1: {"b": 1, "c": 1}}
    done = regions.update("a", "b")
    assert (done.done, done.mark) == (1, 1)
    # Once; said again it is nothing new.
    a.report("b", t=(("c", 1),))
    assert regions.start().reason == "nothing new"


def test_what_a_region_reports_while_a_snapshot_is_pending_is_something_new() -> None:
    regions = SnapshotRegions("a", "b", "c")
    a = regions["a"]
    regions["c"].publish("t", "c1")
    regions.carry("c", "a")
    regions.start()
    regions.round("a", "b", "c")
    regions.carry("c", "b")
    a.report("b", t=(("c", 1),))
    assert regions.round("a", "b", "c", number=2).complete
    assert regions.snapshots() == {1: {"b": 0, "c": 1}}
    assert regions.start().started


def test_what_was_there_when_a_region_answered_is_nothing_new() -> None:
    """Its own messages, and those of this region: the link brings them before the request."""
    regions = SnapshotRegions("a", "b", "c")
    a = regions["a"]
    a.publish("t", "a1")
    regions["b"].publish("t", "b1")
    regions.carry_all()
    regions.start()
    regions.round("a", "b", "c")
    assert regions.round("a", "b", "c", number=2).complete
    a.report("b", t=(("a", 1), ("b", 1)))
    assert regions.start().reason == "nothing new"


def test_a_snapshot_with_the_same_positions_leads_to_no_update() -> None:
    regions = SnapshotRegions("a", "b", "c")
    a = regions["a"]
    regions["c"].publish("t", "c1")
    regions.carry_all()
    a.ack(1)
    regions.start()
    regions.round("a", "b", "c")
    regions.round("a", "b", "c", number=2)
    told, updates = regions.advance("a"), a.meta().updates
    assert told is not None
    # b had it when it answered, which a does not know before the report.
    a.report("b", t=(("c", 1),))
    assert regions.start().started
    regions.round("a", "b", "c")
    assert regions.round("a", "b", "c", number=2).complete
    assert (regions.advance("a"), a.meta().updates) == (told, updates)


def test_at_format_1_only_messages_are_something_new() -> None:
    regions = _answered_before_a_message_of_c(checks=False, plugin=FormerSubscriptions)
    a = regions["a"]
    a.report("b", t=(("c", 1),))
    for key, value in (("mode", "vector"), ("mode", "snapshot"), ("enabled", False)):
        a.set(key, value)
    a.set("enabled", True)
    assert regions.start().reason == "nothing new"


@pytest.mark.parametrize(
    ("key", "off", "on"), [("mode", "vector", "snapshot"), ("enabled", False, True)]
)
def test_what_was_acknowledged_without_snapshots_is_told_when_they_begin(
    key: str, off: Any, on: Any
) -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    every(regions, 2)
    assert regions.start().reason == "nothing new"
    a.set(key, off)
    a.ack(1, 2)
    assert regions.advance("a") is None
    a.set(key, on)
    assert regions.start().started
    assert regions.round("a", "b").complete
    assert regions.update("a", "b").mark == 2
    assert regions.start().reason == "nothing new"


def test_a_region_that_returns_is_something_new() -> None:
    regions = SnapshotRegions("a", "b", "c")
    regions["a"].put_region("c", "excluded")
    regions["a"].publish("t", "a1")
    regions.start()
    assert regions.round("a", "b").complete
    assert regions.start().reason == "nothing new"
    regions["a"].put_region("c")
    assert regions.start().started


def test_time_out() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    a.set("timeout_ms", 3_000)
    a.publish("t", "a1")
    id = regions.start().id
    answer = regions.ask("a", "b")
    a.now += 2_000
    assert not regions.abandon("a", id).counted
    assert not regions.abandon("a", id + 1).counted
    assert regions.pending() is not None
    a.now += 3_000
    assert regions.abandon("a", id).counted
    assert not regions.abandon("a", id).counted
    assert (regions.pending(), marker_of(a, "request")) == (None, None)
    assert not regions.tell("a", answer).counted
    assert (a.meta().timed_out, a.meta().snapshots) == (1, 0)
    assert regions.start().started
    # A late answer of the old one says nothing of the new one.
    assert not regions.tell("a", answer).counted


@pytest.mark.parametrize("change", ["exclude", "return", "add", "mode"])
def test_what_ends_a_pending_one(change: str) -> None:
    regions = SnapshotRegions("a", "b", "c", "d")
    a = regions["a"]
    a.put_region("d", "excluded")
    a.publish("t", "a1")
    id = regions.start().id
    answer = regions.ask("a", "b")
    if change == "exclude":
        a.put_region("c", "excluded")
    elif change == "return":
        a.put_region("d")
    elif change == "add":
        a.put_region("e")
    else:
        a.set("mode", "vector")
    assert (regions.pending(), marker_of(a, "request")) == (None, None)
    assert not regions.tell("a", answer).counted
    a.set("mode", "snapshot")
    assert regions.start().id > id


def test_a_region_with_replication_disabled_does_not_answer() -> None:
    regions = SnapshotRegions("a", "b")
    regions["a"].publish("t", "a1")
    regions.start()
    regions["b"].set("enabled", False)
    with pytest.raises(AssertionError):
        regions.ask("a", "b")
    assert regions["b"].table("markers") == {}


# --- cache and updates ----------------------------------------------------------------------------


def taken(regions: SnapshotRegions, *others: str) -> None:
    """A whole snapshot of a."""
    assert regions.start().started
    for number in range(1, 2 if len(others) == 1 else 3):
        regions.round("a", *others, number=number)
    assert regions.pending() is None


def every(regions: SnapshotRegions, *counts: int) -> None:
    """Snapshots at these positions of a: messages are published up to each."""
    a = regions["a"]
    for position in counts:
        a.publish("t", *(f"a{n}" for n in range(a.topic().next, position + 1)))
        regions.carry("a", "b")
        taken(regions, "b")


def test_the_highest_one_that_the_mark_has_passed() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    every(regions, 11, 22, 55, 77)
    assert regions.cached() == [11, 22, 55, 77]
    a.ack_to(10)
    assert (regions.cached(), regions.advance("a")) == ([11, 22, 55, 77], None)
    assert (a.meta().cache_hits, a.meta().cache_misses) == (0, 1)
    a.ack_to(11)
    update = regions.advance("a")
    assert update is not None
    assert (update.positions, update.without, update.base) == ((("b", 11),), (), ())
    assert regions.cached() == [22, 55, 77]
    a.ack_to(56)
    second = regions.advance("a")
    assert second is not None
    assert second.positions == (("b", 55),)
    # The one that was passed over is gone as well.
    assert regions.cached() == [77]
    a.ack_to(76)
    assert regions.advance("a") == second
    assert (a.meta().cache_hits, a.meta().cache_misses, a.meta().updates) == (2, 2, 2)
    assert a.sub().update == second.id
    assert len(a.table("marked")) == 1


def test_what_leaves_a_full_cache() -> None:
    regions = SnapshotRegions("a", "b")
    regions["a"].set("cached_max", 5)
    every(regions, 1, 2, 10, 15, 25)
    left = []
    for position in (100, 110, 112, 113, 200):
        before = {*regions.cached(), position}
        every(regions, position)
        left += sorted(before - set(regions.cached()))
    assert left == [2, 10, 110, 112, 15]
    assert len(regions.snapshots()) == 10


def test_a_lowered_limit_is_reached_in_time() -> None:
    regions = SnapshotRegions("a", "b")
    every(regions, *range(1, 9))
    regions["a"].set("cached_max", 3)
    regions["a"].set("snapshots_kept", 4)
    every(regions, *range(9, 18))
    assert len(regions.cached()) == 3
    assert len(regions.snapshots()) == 4


def test_the_mark_is_there_already() -> None:
    regions = SnapshotRegions("a", "b")
    a, b = regions["a"], regions["b"]
    a.publish("t", "a1", "a2")
    a.ack_to(2)
    regions.carry("a", "b")
    taken(regions, "b")
    assert regions.cached() == []
    merged = regions.update("a", "b")
    assert (merged.created, merged.mark) == (True, 2)
    assert b.sub().replicate
    # b does not answer with an update of what it was told.
    assert regions.advance("b") is None


def test_an_update_creates_the_subscription_where_it_belongs() -> None:
    regions = SnapshotRegions("a", "b")
    a, b = regions["a"], regions["b"]
    a.publish("t", *(f"a{n}" for n in range(1, 11)))
    regions.carry("a", "b")
    taken(regions, "b")
    a.publish("t", *(f"a{n}" for n in range(11, 21)))
    regions.carry("a", "b")
    a.ack_to(12)
    merged = regions.update("a", "b")
    assert (merged.created, merged.mark) == (True, 10)
    assert b.wanted() == [("a", seq) for seq in range(11, 21)]


def test_slow_acknowledgements_lead_to_one_update() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    a.set("cached_max", 5)
    every(regions, *range(10, 201, 10))
    for first in range(2, 201, 50):
        a.ack(*range(first, min(first + 50, 201)))
    assert (regions.advance("a"), a.meta().updates) == (None, 0)
    a.ack(1)
    update = regions.advance("a")
    assert update is not None
    assert (update.positions, a.meta().updates) == ((("b", 200),), 1)


def test_what_nobody_acknowledged_is_excepted() -> None:
    regions = SnapshotRegions("a", "b", subscribed=False)
    a, b = regions["a"], regions["b"]
    a.publish("t", "a1", "a2", "a3")
    a.subscribe(replicate=True, initial="latest")
    b.subscribe(replicate=True, initial="earliest")
    a.publish("t", "a4")
    regions.carry("a", "b")
    taken(regions, "b")
    a.ack(4)
    update = regions.advance("a")
    assert update is not None
    assert (update.without, update.base) == ((("a", 1, 3),), (("a", 3),))
    regions.update("a", "b")
    assert b.wanted() == [("a", 1), ("a", 2), ("a", 3)]
    assert b.sub().mark == 0


def test_an_update_equal_to_the_last_one_is_not_written() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    every(regions, 5)
    a.ack_to(5)
    before = a.table("markers")
    # The snapshot is handed to it once more.
    a.set_replicate(True)
    assert a.table("markers") == before
    assert a.meta().updates == 1


def test_sought_back_it_repopulates_and_tells_nothing_stale() -> None:
    regions = SnapshotRegions("a", "b")
    a, b = regions["a"], regions["b"]
    every(regions, 10, 20, 30)
    a.ack_to(30)
    before = a.table("markers")
    a.seek(12)
    # The newest one that is passed, and those to come.
    assert regions.cached() == [10, 20, 30]
    for position in (25, 30):
        a.ack_to(position)
        # What was told is more: a region that was away still finds it.
        assert a.table("markers") == before
    assert (a.meta().updates, regions.cached()) == (1, [])
    regions.update("a", "b")
    assert b.sub().mark == 30
    every(regions, 40)
    a.ack_to(40)
    update = regions.advance("a")
    assert update is not None
    assert (dict(update.positions), update.without) == ({"b": 40}, (("a", 1, 12),))


def test_sought_back_before_where_it_began_it_tells_what_is_new() -> None:
    regions = SnapshotRegions("a", "b", subscribed=False)
    a, b = regions["a"], regions["b"]
    a.subscribe(sub="other", replicate=True)
    every(regions, 10)
    a.subscribe(replicate=True, initial="latest")
    b.subscribe(replicate=True, initial="earliest")
    every(regions, 20)
    a.ack_to(20)
    regions.update("a", "b")
    assert b.sub().mark == 0
    a.seek(0)
    a.ack_to(10)
    update = regions.advance("a")
    assert update is not None
    assert (dict(update.positions), update.without) == ({"b": 10}, ())
    regions.update("a", "b")
    assert b.sub().mark == 20


def test_a_region_that_was_sought_back_ignores_what_it_knew() -> None:
    regions = SnapshotRegions("a", "b")
    a, b = regions["a"], regions["b"]
    every(regions, 10)
    a.ack_to(10)
    regions.update("a", "b")
    b.seek(3)
    regions.update("a", "b")
    assert b.sub().mark == 3


def test_repopulating_takes_few_and_even_ones() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    a.set("cached_max", 3)
    every(regions, *range(5, 101, 5))
    a.ack_to(100)
    a.seek(50)
    cached = regions.cached()
    assert len(cached) == 3
    assert (cached[0], cached[-1]) == (50, 100)


def test_no_longer_replicated_it_has_neither_cache_nor_update() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    every(regions, 5, 10)
    a.ack_to(5)
    assert regions.advance("a") is not None
    a.set_replicate(False)
    assert (regions.cached(), regions.advance("a")) == ([], None)
    assert a.table("marked") == {}
    a.set_replicate(True)
    # What is passed may be told once more (and is at once, or with the next mark).
    assert 10 in regions.cached()


def test_other_subscriptions_are_left_alone() -> None:
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    a.subscribe(sub="local", initial="earliest")
    every(regions, 5)
    assert regions.cached("a", "local") == []
    a.ack_to(5, sub="local")
    assert a.table("markers") == {}
    assert (a.meta().cache_hits, a.meta().cache_misses) == (0, 0)


def test_every_node_comes_to_the_same() -> None:
    regions = SnapshotRegions("a", "b")
    every(regions, 3, 6, 9)
    regions["a"].ack_to(7)
    regions["a"].seek(2)
    assert regions["a"].replay().digest() == regions["a"].digest()


# --- a consumer that lags ----------------------------------------------------------------------


def _unknown_after_each_step(regions: SnapshotRegions, last: int, step: int) -> int:
    """How far region b is behind the mark of a, at most, while a catches up."""
    known, most = 0, 0
    for position in range(step, last + 1, step):
        regions["a"].ack_to(position)
        update = regions.advance("a")
        if update is not None:
            known = dict(update.positions)["b"]
        most = max(most, position - known)
    return most


def test_a_lagging_consumer_has_the_duplicates_of_one_period() -> None:
    """The cache holds few of the snapshots that lie before it."""
    regions = SnapshotRegions("a", "b", checks=False)
    regions["a"].set("cached_max", 3)
    every(regions, *range(10, 601, 10))
    assert (len(regions.snapshots()), len(regions.cached())) == (60, 3)
    assert _unknown_after_each_step(regions, 600, 5) <= 10


def test_a_snapshot_is_used_once() -> None:
    regions = SnapshotRegions("a", "b")
    every(regions, 10, 20, 30)
    a = regions["a"]
    for position in (10, 11, 12):
        a.ack_to(position)
    assert a.meta().updates == 1
    a.ack_to(29)
    assert a.meta().updates == 2
    assert regions.advance("a").positions == (("b", 20),)  # type: ignore[union-attr]


def test_at_format_1_the_cache_alone_is_used() -> None:
    regions = SnapshotRegions("a", "b", checks=False, plugin=FormerSubscriptions)
    regions["a"].set("cached_max", 3)
    every(regions, *range(10, 601, 10))
    assert _unknown_after_each_step(regions, 600, 10) > 100


@pytest.mark.parametrize("seed", range(6))
def test_item_13_marks_that_jump_while_snapshots_are_made(seed: int) -> None:
    """Whatever a mark jumps over, the update is of the highest kept snapshot that it has passed."""
    chance = random.Random(seed)
    regions = SnapshotRegions("a", "b")
    a = regions["a"]
    a.set("cached_max", chance.choice((3, 5)))
    a.set("snapshots_kept", chance.choice((10, 1_000)))
    end = mark = 0
    for _ in range(60):
        for _ in range(chance.choice((0, 0, 1, 4))):
            end += chance.randrange(1, 5)
            every(regions, end)
        if chance.random() < 0.1 and mark:
            mark = chance.randrange(mark)
            a.seek(mark)
        kept = regions.snapshots()
        if mark < end:
            mark = min(end, mark + chance.choice((1, 2, 9, 30)))
            a.ack_to(mark)
        passed = [position for position in kept if position <= mark]
        told = regions.advance("a")
        assert not passed or (told is not None and dict(told.positions)["b"] >= passed[-1])
