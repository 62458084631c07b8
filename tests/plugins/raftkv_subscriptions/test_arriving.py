"""What links bring: in order, once, with holes, or not at all."""

from __future__ import annotations

import random

import pytest

from raftkv_subscriptions.arriving import LARGEST_BYTES
from raftkv_subscriptions.commands import Delivered
from raftkv_subscriptions.refusals import (
    BacklogFull,
    BadMessage,
    BadName,
    BatchTooLarge,
    EmptyBatch,
    OriginBehind,
    OutOfOrder,
    OwnRegion,
    RegionExcluded,
    TooManyKeys,
    TooManyRegions,
    UnknownRegion,
    UnknownTopic,
)
from raftkv_subscriptions.rows import (
    BLOCK,
    INT_MAX,
    MESSAGE_OVERHEAD,
    ORIGINS_MAX,
    Copy,
    Hole,
    Message,
)
from raftkv_subscriptions.views import message_at
from tests.plugins.raftkv_subscriptions.pure import RegionLog, Regions, copies, copy, message


def test_messages_of_other_regions_get_positions_here() -> None:
    log = RegionLog(others=("b",))
    log.publish("t", "x")
    log.now = 2_000
    assert log.deliver("t", "b", copy("b", 1, ms=77), copy("c", 1)) == Delivered(2, 0, 3)
    log.publish("t", "y")
    assert log.seqs_of() == [("a", 1), ("b", 1), ("c", 1), ("a", 2)]
    assert log.vector() == {"a": 2, "b": 1, "c": 1}
    stored = message_at(log.view(), 1, 2)
    assert stored is not None
    assert (stored.at_ms, stored.published_ms) == (2_000, 77)
    assert log.meta().delivered == 2


def test_doubles_are_skipped_wherever_they_come_from() -> None:
    log = RegionLog(others=("b", "c"))
    log.deliver("t", "b", *copies("b", 1, 3))
    assert log.deliver("t", "b", *copies("b", 1, 3)) == Delivered(0, 3, 3)
    assert log.deliver("t", "c", *copies("b", 2, 5)) == Delivered(2, 2, 5)
    assert log.seqs_of() == [("b", n) for n in range(1, 6)]
    assert log.meta().doubles == 5


def test_own_messages_that_come_back_are_doubles() -> None:
    log = RegionLog(others=("c",))
    log.publish("t", "x", "y")
    assert log.deliver("t", "c", *copies("a", 1, 2), Hole("a", 1, 2)) == Delivered(0, 3, 2)
    assert log.bodies() == ["x", "y"]


def test_a_region_that_was_built_anew_is_told() -> None:
    log = RegionLog(others=("b",))
    log.publish("t", "x")
    with pytest.raises(OriginBehind) as refused:
        log.deliver("t", "b", copy("a", 2))
    assert (refused.value.origin, refused.value.seq, refused.value.known) == ("a", 2, 1)
    with pytest.raises(OriginBehind):
        log.deliver("t", "b", Hole("a", 1, 5))


def test_a_gap_is_refused_with_the_number_that_is_expected() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", *copies("b", 1, 2))
    before = log.digest_of_plugin()
    with pytest.raises(OutOfOrder) as refused:
        log.deliver("t", "b", copy("b", 3), copy("c", 1), copy("b", 5))
    assert (refused.value.origin, refused.value.expected) == ("b", 4)
    with pytest.raises(OutOfOrder) as refused:
        log.deliver("t", "b", copy("c", 2))
    assert refused.value.expected == 1
    with pytest.raises(OutOfOrder):
        log.deliver("t", "b", Hole("b", 4, 5))
    assert log.digest_of_plugin() == before


def test_from_whom_nothing_is_taken() -> None:
    log = RegionLog(others=("b",))
    with pytest.raises(UnknownRegion):
        log.deliver("t", "c", copy("c", 1))
    with pytest.raises(OwnRegion):
        log.deliver("t", "a", copy("c", 1))
    log.put_region("b", "excluded")
    with pytest.raises(RegionExcluded):
        log.deliver("t", "b", copy("b", 1))
    log.put_region("b", "active")
    log.deliver("t", "b", copy("b", 1))


def test_messages_of_an_excluded_origin_come_over_others() -> None:
    log = RegionLog(others=("b", "c"))
    log.put_region("c", "excluded")
    assert log.deliver("t", "b", copy("c", 1)).appended == 1


def test_bad_commands() -> None:
    log = RegionLog(others=("b",))
    with pytest.raises(UnknownTopic):
        log.deliver("u", "b", copy("b", 1))
    with pytest.raises(EmptyBatch):
        log.deliver("t", "b")
    with pytest.raises(BatchTooLarge):
        log.deliver("t", "b", *copies("b", 1, 1_001))
    with pytest.raises(BatchTooLarge):
        log.deliver("t", "b", *(copy("b", n, "x" * 200_000) for n in (1, 2, 3)))
    with pytest.raises(BadName):
        log.deliver("t", "b", copy("not a name", 1))
    with pytest.raises(BadMessage):
        log.deliver("t", "b", Copy("b", 1, Message(b"x", "k" * 256), 1))
    with pytest.raises(BadMessage):
        log.deliver("t", "b", Hole("b", 3, 2))
    assert log.bodies() == []


def test_one_large_message_is_taken_whatever_the_setting_is_here() -> None:
    log = RegionLog(others=("b",))
    log.set("message_bytes_max", 1024)
    log.deliver("t", "b", copy("b", 1, "x" * 700_000))
    assert log.topic().bytes == 700_000 + MESSAGE_OVERHEAD


def test_a_topic_has_so_many_origins() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", *(copy(f"o{n:02}", 1) for n in range(ORIGINS_MAX - 1)))
    with pytest.raises(TooManyRegions):
        log.deliver("t", "b", copy("x", 1), copy("y", 1))
    log.deliver("t", "b", copy("x", 1))
    with pytest.raises(TooManyRegions):
        log.deliver("t", "b", copy("y", 1))
    log.deliver("t", "b", copy("x", 2))


def test_a_full_topic_lets_the_link_wait() -> None:
    log = RegionLog(others=("b",))
    log.declare("t", backlog_bytes_max=2 * (MESSAGE_OVERHEAD + 2))
    log.subscribe()
    # Room for what both regions may have published: twice the limit and a publication.
    body, seq = bytes(200_000), 0
    while log.topic("t").bytes < 2 * LARGEST_BYTES + 4 * (MESSAGE_OVERHEAD + 2):
        seq += 1
        log.deliver("t", "b", Copy("b", seq, Message(body), 0))
    with pytest.raises(BacklogFull):
        log.deliver("t", "b", copy("b", seq + 1))
    done = log.deliver("t", "b", copy("b", seq), Hole("b", seq + 1, seq + 1))
    assert done == Delivered(0, 1, seq)


def test_regions_that_are_full_for_publishers_still_take_what_the_others_have() -> None:
    """Or retention, which waits until it is fetched, would wait for ever in each of them."""
    a, b = RegionLog("a", others=("b",)), RegionLog("b", others=("a",))
    for log in (a, b):
        log.declare("t", backlog_bytes_max=2 * (MESSAGE_OVERHEAD + 2))
        log.publish("t", "xx", "xx")
        with pytest.raises(BacklogFull):
            log.publish("t", "xx")
    assert a.deliver("t", "b", *copies("b", 1, 2)).appended == 2
    assert b.deliver("t", "a", *copies("a", 1, 2)).appended == 2


def test_keys_count_for_what_is_delivered_too() -> None:
    log = RegionLog(others=("b",), topics=())
    log.declare("t", compacted=True)
    log.set("keys_max", 1)
    log.deliver("t", "b", copy("b", 1, key="x"), copy("b", 2, key="x"))
    with pytest.raises(TooManyKeys):
        log.deliver("t", "b", copy("b", 3, key="y"))


# --- holes ----------------------------------------------------------------------------------------


def test_numbers_go_on_behind_a_hole() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", *copies("b", 1, 2))
    assert log.deliver("t", "b", Hole("b", 2, 5), copy("b", 6)) == Delivered(1, 0, 3)
    assert log.vector() == {"b": 6}
    assert log.table("holes") == {(1, "b", 3): 5}
    assert log.topic().gapped
    assert log.meta().holes == 3


def test_holes_that_follow_one_another_are_one() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", Hole("b", 1, 5))
    log.deliver("t", "b", Hole("b", 6, 7), Hole("c", 1, 1))
    log.deliver("t", "b", Hole("b", 3, 9), Hole("b", 1, 9))
    assert log.table("holes") == {(1, "b", 1): 9, (1, "c", 1): 1}
    assert log.topic().next == 1
    log.deliver("t", "b", copy("b", 10), Hole("b", 11, 11))
    assert log.table("holes") == {(1, "b", 1): 9, (1, "b", 11): 11, (1, "c", 1): 1}


def test_holes_as_large_as_numbers_go() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", Hole("b", 1, INT_MAX), Hole("c", 1, INT_MAX), Hole("d", 1, INT_MAX))
    assert log.meta().holes == INT_MAX
    with pytest.raises(OutOfOrder):
        log.deliver("t", "b", Hole("e", 2, INT_MAX))
    assert log.deliver("t", "b", copy("b", INT_MAX)).doubles == 1
    assert log.vector() == {"b": INT_MAX, "c": INT_MAX, "d": INT_MAX}


def test_blocks_have_no_holes_at_their_ends() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", *copies("b", 1, BLOCK - 1), Hole("b", BLOCK, BLOCK + 9))
    log.deliver("t", "b", Hole("c", 1, 3), Hole("b", BLOCK + 10, BLOCK + 19))
    log.publish("t", "x", "y")
    assert log.table("blocks")[1, 1] == (("a", 1), ("b", BLOCK - 1))
    log.deliver("t", "b", *copies("b", BLOCK + 20, 2 * BLOCK + 18))
    log.publish("t", "z")
    assert log.table("blocks")[1, 2] == (("a", 2), ("b", 2 * BLOCK + 18))


# --- loops ----------------------------------------------------------------------------------------


def test_a_ring_carries_each_message_once() -> None:
    """a -> b -> c -> a: nobody gets his own back, nobody gets one twice."""
    regions = Regions("a", "b", "c")
    for name in "abc":
        regions[name].publish("t", f"{name}1", f"{name}2")
    for _ in range(3):
        regions.carry("a", "b")
        regions.carry("b", "c")
        regions.carry("c", "a")
    for name in "abc":
        assert sorted(regions[name].bodies()) == ["a1", "a2", "b1", "b2", "c1", "c2"]
        assert regions[name].vector() == {"a": 2, "b": 2, "c": 2}


def test_links_in_any_order_with_repeats_and_losses() -> None:
    """Whatever the links do: the same messages everywhere, once, in the order of their origins."""
    for seed in range(12):
        chance = random.Random(seed)
        regions = Regions("a", "b", "c")
        for _ in range(60):
            source, target = chance.sample("abc", 2)
            what = chance.random()
            if what < 0.5:
                count = chance.randint(1, 4)
                regions[source].publish("t", *[message("x")] * count)
                continue
            parts = regions.parts(source, target)
            if not parts:
                continue
            first = chance.randrange(len(parts))
            some = parts[first : first + chance.randint(1, 6)]
            try:
                regions[target].deliver("t", source, *some, *some)
            except OutOfOrder:
                assert first > 0, f"seed {seed}"
        regions.carry_all()
        vectors = [regions[name].vector() for name in "abc"]
        assert vectors[0] == vectors[1] == vectors[2], f"seed {seed}"
        for name in "abc":
            seqs = regions[name].seqs_of()
            assert len(set(seqs)) == len(seqs) == sum(vectors[0].values()), f"seed {seed}"
            for origin in "abc":
                own = [seq for o, seq in seqs if o == origin]
                assert own == sorted(own), f"seed {seed}"
