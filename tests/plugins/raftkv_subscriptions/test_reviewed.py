"""Found by reading, each a failing test first: what could have been taken for acknowledged and was
not, what could grow or be refused for ever."""

from __future__ import annotations

import pytest

from raftkv.errors import Refused
from raftkv_subscriptions import views
from raftkv_subscriptions.commands import Merged, SetRegion, Update
from raftkv_subscriptions.ranges import normal, without
from raftkv_subscriptions.refusals import (
    OriginBehind,
    RegionFixed,
    TooManyConsumers,
    TooManyRanges,
    TooManyRegions,
)
from raftkv_subscriptions.rows import ORIGINS_MAX, ROWS_MAX, Copy, Hole

from .pure import RegionLog, copies, copy
from .snapshot_logs import SnapshotRegions

# --- snapshots and holes --------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 2])
def test_an_update_excepts_a_hole_that_ends_what_was_here(before: int) -> None:
    """c's last messages never came to a, b has them, and nobody has acknowledged them."""
    regions = SnapshotRegions("a", "b", "c")
    if before:
        regions["c"].publish("t", *("m",) * before)
        regions.carry_all()
    regions["c"].publish("t", "m", "m", "m")
    regions.carry("c", "b")
    # Retention in c did not wait for a, which was excluded there.
    regions["a"].deliver("t", "c", Hole("c", before + 1, before + 3))
    regions["a"].publish("t", "x")
    regions["b"].subscribe(replicate=True, initial="earliest")
    assert regions.start().started
    regions.round("a", "b", "c")
    assert regions.round("a", "b", "c", number=2).complete
    regions["a"].ack_to(before + 1)
    for n in range(3):
        # The hole is no longer at the end.
        regions["c"].publish("t", f"later {n}")
        regions.carry("c", "a")
    regions.carry("a", "b")
    assert regions.advance("a") is not None
    regions.update("a", "b")
    state = views.state_of(regions["b"].view(), "t", "s")
    assert [one for one in state.ranges if one[0] == "c"] == ([("c", 1, 2)] if before else [])
    missing = {("c", before + n) for n in (1, 2, 3)}
    assert missing <= set(regions["b"].wanted())


def test_an_update_beyond_the_end_says_nothing() -> None:
    """This region never answered with a position that it had not given: it lost its last ones."""
    log = RegionLog("a", others=("b",))
    log.subscribe(initial="earliest", replicate=True)
    log.publish("t", "x", "y")
    told = Update("t", "b", "s", "exclusive", 7, 3, (), ())
    merged: Merged = log.anywhere(told)
    assert merged.done == 0
    assert log.sub().mark == 0
    assert log.anywhere(Update("t", "b", "s", "exclusive", 7, 2, (), ())).mark == 2


# --- another life of this region ------------------------------------------------------------------


def test_acknowledgements_of_own_messages_that_there_are_not() -> None:
    """Those that there are have the numbers of others, then: none of it is true here."""
    log = RegionLog("a", others=("b",))
    log.subscribe(initial="earliest", replicate=True)
    log.publish("t", "x", "y")
    before = log.digest_of_plugin()
    with pytest.raises(OriginBehind) as refused:
        log.merge(("a", 1, 9))
    assert (refused.value.seq, refused.value.known) == (9, 2)
    with pytest.raises(OriginBehind):
        log.merge(("a", 5, 9), ("b", 1, 1))
    with pytest.raises(OriginBehind):
        log.merge(sub="new", base=(("a", 9),))
    assert log.wanted() == [("a", 1), ("a", 2)]
    assert set(log.table("subs")) == {(log.topic().id, "s")}
    assert log.digest_of_plugin() == before
    log.merge(("a", 1, 2))
    assert log.sub().mark == 2


def test_a_name_that_others_told_of_is_not_taken() -> None:
    """A subscription has acknowledged messages of it already: they would be passed over."""
    log = RegionLog("", others=("b",))
    log.merge(("c", 1, 5))
    with pytest.raises(RegionFixed):
        log.anywhere(SetRegion("c"))
    log = RegionLog("", others=("b",))
    log.merge(base=(("c", 5),))
    with pytest.raises(RegionFixed):
        log.anywhere(SetRegion("c"))


# --- for ever -------------------------------------------------------------------------------------


def test_what_is_fetched_does_not_grow_without_bound() -> None:
    log = RegionLog("a", others=("b",))
    log.report("b", t=tuple((f"o{n:02}", 1) for n in range(ORIGINS_MAX)))
    with pytest.raises(TooManyRegions):
        log.report("b", t=(("p", 1),))
    assert log.report("b", t=(("o00", 2),)) == 1


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_the_oldest_message_can_always_be_acknowledged(kind: str) -> None:
    """Behind a hole it needs a range of its own, however many there are."""
    log = RegionLog("a", others=("b", "c"))
    log.set("ranges_max", 10)
    log.subscribe(initial="earliest", replicate=True, kind=kind)
    log.merge(*(("c", 2 * n, 2 * n) for n in range(1, 11)))
    log.deliver("t", "b", Hole("b", 1, 3), *copies("b", 4, 5), Hole("b", 6, 7), *copies("b", 8, 9))
    with pytest.raises(TooManyRanges):
        log.ack(3)
    assert log.ack(1).mark == 1
    # Also with what follows; what does not is refused with it.
    with pytest.raises(TooManyRanges):
        log.ack(2, 4)
    assert log.ack(3, 2).mark == 3
    assert log.ack(4).mark == 4


def test_a_limit_that_was_lowered_leaves_nothing_out_below_a_mark() -> None:
    """`ack_to` took the mark along and left ranges out."""
    log = RegionLog("a", others=("b", "c"))
    log.subscribe(initial="earliest", replicate=True)
    log.merge(*(("c", 2 * n, 2 * n) for n in range(1, 31)))
    log.set("ranges_max", 10)
    log.deliver("t", "b", Hole("b", 1, 3), *copies("b", 4, 5), Hole("b", 6, 7), *copies("b", 8, 9))
    assert log.ack(1).done == 1
    acked = log.ack_to(4)
    assert (acked.done, acked.mark) == (3, 4)
    assert log.wanted() == []


def test_one_entry_takes_a_thousand_ranges() -> None:
    """A region that joined a compacted topic late has a hole before each message."""
    log = RegionLog("a", others=("b",), checks=False)
    log.subscribe(initial="earliest", replicate=True)
    for start in range(0, 3 * ROWS_MAX, ROWS_MAX // 2):
        parts: list[Copy | Hole] = []
        for n in range(start, start + ROWS_MAX // 2):
            parts += (Hole("b", 2 * n + 1, 2 * n + 1), copy("b", 2 * n + 2))
        log.deliver("t", "b", *parts)
    log.checks = True
    with pytest.raises(TooManyRanges):
        log.ack_to(3 * ROWS_MAX)
    for position in range(ROWS_MAX, 3 * ROWS_MAX + 1, ROWS_MAX):
        assert log.ack_to(position).mark == position
    assert log.sub().ranges == 3 * ROWS_MAX


# --- values ---------------------------------------------------------------------------------------


def test_many_ranges_without_many_others() -> None:
    """In time linear in both: the steps are counted by the comparisons of a number."""

    class Number(int):
        steps = 0

        def __lt__(self, other: int) -> bool:
            Number.steps += 1
            return int(self) < int(other)

        def __gt__(self, other: int) -> bool:
            Number.steps += 1
            return int(self) > int(other)

    ranges = tuple(("b", Number(10 * n), Number(10 * n + 8)) for n in range(1, 1001))
    removed = tuple(("b", Number(10 * n + 3), Number(10 * n + 11)) for n in range(1, 1001))
    left = without(ranges, removed)
    assert left == (("b", 10, 12), *(("b", 10 * n + 2, 10 * n + 2) for n in range(2, 1001)))
    assert Number.steps < 20_000


@pytest.mark.parametrize(
    ("ranges", "removed", "left"),
    [
        ((("a", 1, 9), ("b", 1, 9)), (("b", 3, 4),), (("a", 1, 9), ("b", 1, 2), ("b", 5, 9))),
        ((("b", 1, 9), ("b", 11, 12)), (("b", 5, 11),), (("b", 1, 4), ("b", 12, 12))),
        ((("b", 5, 9),), (("a", 1, 99), ("b", 1, 5), ("b", 9, 20), ("c", 1, 2)), (("b", 6, 8),)),
        ((("b", 5, 9),), (("b", 1, 20),), ()),
    ],
)
def test_without(ranges: object, removed: object, left: object) -> None:
    assert without(ranges, removed) == left  # type: ignore[arg-type]
    assert normal(left) == left  # type: ignore[arg-type]


# --- what to do next ------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [TooManyRegions(64), TooManyConsumers(1_000)])
def test_the_text_fits_both_limits(refusal: Refused) -> None:
    assert ("a new topic" in str(refusal)) or ("failover" in str(refusal))
