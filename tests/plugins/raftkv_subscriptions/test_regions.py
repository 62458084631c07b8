"""Regions: names, exclusion and return, what others have."""

from __future__ import annotations

import pytest

from raftkv_subscriptions.commands import (
    Declared,
    PutRegion,
    Report,
    SetRegion,
    SnapshotAnswer,
    SnapshotStart,
)
from raftkv_subscriptions.refusals import (
    BadName,
    BatchTooLarge,
    OriginBehind,
    OwnRegion,
    RegionActive,
    RegionExcluded,
    RegionFixed,
    TooManyRegions,
    UnknownRegion,
)
from raftkv_subscriptions.rows import LOCAL, ORIGINS_MAX, REGIONS_MAX, Hole, Region
from raftkv_subscriptions.views import active_regions, own_region, pending_of, regions_of
from tests.plugins.raftkv_subscriptions.pure import RegionLog, copy

# --- this region ----------------------------------------------------------------------------------


def test_a_region_is_named_until_its_first_message() -> None:
    log = RegionLog(region="")
    assert own_region(log.view()) == LOCAL
    log.anywhere(SetRegion("x"))
    log.anywhere(SetRegion("y"))
    assert own_region(log.view()) == "y"
    log.publish("t", "m")
    log.anywhere(SetRegion("y"))
    with pytest.raises(RegionFixed) as refused:
        log.anywhere(SetRegion("z"))
    assert refused.value.region == "y"


def test_messages_without_a_name_fix_the_common_one() -> None:
    log = RegionLog(region="")
    log.publish("t", "m")
    with pytest.raises(RegionFixed):
        log.anywhere(SetRegion("x"))
    log.anywhere(SetRegion(LOCAL))
    assert log.meta().region == LOCAL


@pytest.mark.parametrize("part", [copy("x", 1), Hole("x", 1, 3)])
def test_what_others_published_fixes_it_too(part: Hole) -> None:
    log = RegionLog(region="", others=("b",))
    log.deliver("t", "b", part)
    with pytest.raises(RegionFixed):
        log.anywhere(SetRegion("x"))


def test_no_two_regions_have_one_name() -> None:
    log = RegionLog(region="", others=("b",))
    with pytest.raises(OwnRegion):
        log.anywhere(SetRegion("b"))
    with pytest.raises(OwnRegion):
        log.put_region(LOCAL)
    log.anywhere(SetRegion("a"))
    with pytest.raises(OwnRegion):
        log.put_region("a")
    with pytest.raises(BadName):
        log.put_region("b c")
    with pytest.raises(BadName):
        log.anywhere(SetRegion(""))


# --- other regions --------------------------------------------------------------------------------


def test_regions_are_added_excluded_and_return() -> None:
    log = RegionLog()
    log.now = 1_000
    assert log.put_region("b") == Declared(0, True, False)
    log.now = 2_000
    assert log.put_region("b") == Declared(0, False, False)
    assert log.put_region("b", "excluded") == Declared(0, False, True)
    assert regions_of(log.view()) == (("b", Region("excluded", 2_000, True)),)
    assert active_regions(log.view()) == ()
    log.now = 3_000
    assert log.put_region("b", if_missing=True) == Declared(0, False, False)
    assert log.put_region("b") == Declared(0, False, True)
    assert log.put_region("b", fetches=False) == Declared(0, False, True)
    assert regions_of(log.view()) == (("b", Region("active", 3_000, False)),)
    assert log.put_region("b", "excluded") == Declared(0, False, True)
    assert regions_of(log.view())[0][1].fetches is False


def test_a_snapshot_ends_in_the_entry_that_excludes_a_region() -> None:
    log = RegionLog(others=("b", "c"))
    log.set("mode", "snapshot")
    log.subscribe(initial="earliest", replicate=True)
    log.publish("t", "x")
    assert log.anywhere(SnapshotStart("t")).started
    log.put_region("b", fetches=False)
    assert pending_of(log.view(), 1) is not None
    log.put_region("b", "excluded")
    assert pending_of(log.view(), 1) is None
    assert log.anywhere(SnapshotStart("t")).started
    log.put_region("b")
    assert pending_of(log.view(), 1) is None


def test_an_excluded_region_may_be_added_at_once() -> None:
    log = RegionLog()
    assert log.put_region("b", "excluded").created
    assert active_regions(log.view()) == ()


def test_there_may_be_too_many_regions() -> None:
    log = RegionLog()
    for n in range(REGIONS_MAX - 1):
        log.put_region(f"r{n}")
    with pytest.raises(TooManyRegions):
        log.put_region("more")
    assert not log.put_region("r0").created


def test_only_an_excluded_region_is_removed() -> None:
    log = RegionLog(others=("b", "c"), topics=("t", "u"))
    log.publish("t", "x")
    log.report("b", t=(("a", 1),))
    log.report("c", t=(("a", 1),))
    with pytest.raises(RegionActive):
        log.remove_region("b")
    with pytest.raises(UnknownRegion):
        log.remove_region("d")
    log.put_region("b", "excluded")
    log.remove_region("b")
    assert log.table("fetched") == {("c", 1): (("a", 1),)}
    assert [name for name, _ in regions_of(log.view())] == ["c"]


# --- reports --------------------------------------------------------------------------------------


def test_reports_only_raise() -> None:
    log = RegionLog(others=("b",), topics=("t", "u"))
    log.publish("t", *"xyz")
    assert log.report("b", t=(("a", 2), ("c", 5)), u=()) == 1
    assert log.report("b", t=(("a", 2), ("c", 5))) == 0
    assert log.report("b", t=(("a", 1), ("b", 9), ("c", 6))) == 1
    assert log.table("fetched") == {("b", 1): (("a", 2), ("b", 9), ("c", 6))}


def test_reports_are_brought_into_normal_form() -> None:
    log = RegionLog(others=("b",))
    log.anywhere(Report("b", (("t", (("z", 1), ("c", 5), ("z", 3), ("d", 0))),)))
    assert log.table("fetched") == {("b", 1): (("c", 5), ("z", 3))}


def test_reports_of_topics_that_are_not_here_are_left_out() -> None:
    log = RegionLog(others=("b",))
    assert log.report("b", missing=(("b", 2),), t=(("b", 2),)) == 1


def test_a_region_that_was_built_anew_learns_it_from_reports() -> None:
    log = RegionLog(others=("b",))
    log.publish("t", "x")
    with pytest.raises(OriginBehind) as refused:
        log.report("b", t=(("a", 2),))
    assert (refused.value.seq, refused.value.known) == (2, 1)


def test_whose_reports_are_not_taken() -> None:
    log = RegionLog(others=("b",))
    with pytest.raises(UnknownRegion):
        log.report("c", t=())
    with pytest.raises(OwnRegion):
        log.report("a", t=())
    log.put_region("b", "excluded")
    with pytest.raises(RegionExcluded):
        log.report("b", t=())
    log.put_region("b")
    with pytest.raises(BatchTooLarge):
        log.anywhere(Report("b", (("t", ()),) * 1_001))
    vector = tuple((f"o{n:03}", 1) for n in range(ORIGINS_MAX + 1))
    with pytest.raises(TooManyRegions):
        log.anywhere(Report("b", (("t", vector),)))


def test_replicas_agree() -> None:
    log = RegionLog(others=("b",))
    log.report("b", t=(("b", 3),))
    log.anywhere(PutRegion("b", "excluded"))
    log.remove_region("b")
    assert log.replay().digest() == log.digest()


def test_what_was_answered_to_a_removed_region_goes() -> None:
    log = RegionLog("a", others=("b", "c"))
    for source in ("b", "c"):
        log.anywhere(SnapshotAnswer("t", source, 7, 1))
    log.put_region("b", "excluded")
    log.remove_region("b")
    assert set(log.table("marked")) == {(1, "answer/c")}
    assert len(log.table("markers")) == 1
