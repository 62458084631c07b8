"""How long records are kept; force and reset."""

from __future__ import annotations

import pytest

from raftkv_cluster_call.commands import (
    FORCE,
    GRANT_DROPS_MAX,
    Advance,
    BadCursor,
    Cursor,
    Force,
    Forced,
    Join,
    Joined,
    Leave,
    Moved,
    NotTakingPart,
    Reset,
    ResetDone,
    Sync,
    TooOld,
    Trim,
    Trimmed,
)
from raftkv_cluster_call.plugin import Calls
from raftkv_cluster_call.views import next_for, oldest_id, record_of, trim_due
from tests.plugins.raftkv_cluster_call.pure import CallLog


def kept(log: CallLog) -> tuple[int, int]:
    ids = list(log.table("records"))
    assert oldest_id(log.view()) == ids[0]
    return ids[0], ids[-1]


def test_history_keeps_the_last_completed_ones() -> None:
    """Scenario 9."""
    log = CallLog(("n1",))
    log.call("n1")
    assert not trim_due(log.view())
    for _ in range(149):
        log.call("n1")
    assert trim_due(log.view())
    assert log.send("n1", Trim(1_000)) == Trimmed(50, (), False)
    assert kept(log) == (51, 150)
    assert record_of(log.view(), 50) is None
    assert log.record(51).created_ms == 1_000
    assert not trim_due(log.view())
    assert log.send("n1", Trim(1_000)) == Trimmed(0, (), False)


def test_failed_calls_do_not_wipe_the_completed_ones() -> None:
    """`history_max` counts completed calls, as the seed has it: 95 failures delete nothing."""
    log = CallLog(("n1",))
    for _ in range(100):
        log.call("n1")
    for _ in range(95):
        log.fail("n1")
    assert not trim_due(log.view())
    assert log.send("n1", Trim(1_000)) == Trimmed(0, (), False)
    assert kept(log) == (1, 195)
    log.call("n1")
    assert trim_due(log.view())
    assert log.send("n1", Trim(1_000)) == Trimmed(1, (), False)
    assert kept(log) == (2, 196)
    assert sum(log.record(id).state == "committed" for id in range(2, 197)) == 100


def test_failed_calls_alone_are_bounded() -> None:
    log = CallLog(("n1",))
    log.set("history_max", 10)
    log.set("history_hard_max", 1_000)
    for _ in range(5):
        log.call("n1")
    for _ in range(1_020):
        log.fail("n1")
    log.send("n1", Trim(1_000))
    assert kept(log) == (26, 1_025)
    assert not trim_due(log.view())


class FormerCalls(Calls):
    """The plugin in a cluster whose members announce format 1 of it."""

    version = 1


def test_at_format_1_failed_calls_count() -> None:
    log = CallLog(("n1",), plugin=FormerCalls)
    for _ in range(100):
        log.call("n1")
    for _ in range(95):
        log.fail("n1")
    assert log.send("n1", Trim(1_000)) == Trimmed(95, (), False)
    assert kept(log) == (96, 195)


def test_a_force_notes_what_nodes_are_taken_past() -> None:
    """They hold the same data, and never executed these calls."""
    log = CallLog(("n1", "n2", "n3"))
    log.call("n1")
    log.fail("n1")
    log.call("n1")
    log.catch_up("n3")
    assert (log.cursor("n1").id, log.cursor("n2").id) == (3, 0)
    log.send("n1", Force(3, (("n2", 0),), ()))
    assert log.cursor("n2").skipped == (1, 3)
    assert (log.cursor("n1").skipped, log.cursor("n3").skipped) == ((), ())
    former = CallLog(("n1", "n2"), plugin=FormerCalls)
    former.call("n1")
    former.send("n1", Force(1, (("n2", 0),), ()))
    assert former.cursor("n2").skipped == ()


def test_history_in_batches() -> None:
    log = CallLog(("n1",))
    log.set("history_max", 10)
    for _ in range(35):
        log.call("n1")
    assert log.send("n1", Trim(10)) == Trimmed(10, (), True)
    assert log.send("n1", Trim(10)) == Trimmed(10, (), True)
    assert log.send("n1", Trim(10)) == Trimmed(5, (), False)
    assert kept(log) == (26, 35)


def test_stuck_node_keeps_what_it_has_not_executed() -> None:
    """Scenario 9, second half."""
    log = CallLog(("n1", "n2"))
    log.set("history_max", 5)
    for _ in range(30):
        log.call("n1")
    for id in range(1, 11):
        log.send("n2", Advance(id))
    log.stick("n2")
    assert log.send("n1", Trim(1_000)) == Trimmed(5, (), False)
    assert kept(log) == (6, 30)
    log.node_down("n2")
    assert log.send("n1", Trim(1_000)).rows == 0
    log.send("n1", Leave("n2", True))
    assert log.send("n1", Trim(1_000)).rows == 20
    assert kept(log) == (26, 30)


def test_nothing_is_deleted_while_nobody_takes_part() -> None:
    log = CallLog(("n1",))
    log.set("history_max", 1)
    for _ in range(5):
        log.call("n1")
    log.send("n1", Leave("n1", False))
    assert not trim_due(log.view())
    assert log.send("n1", Trim(1_000)).rows == 0


def test_stretches_of_aborted_ids_go_with_their_records() -> None:
    log = CallLog(("n1",))
    log.set("history_max", 1)
    for _ in range(4):
        log.fail("n1")
    log.call("n1")
    log.fail("n1")
    assert log.table("aborted") == {1: 4, 6: 6}
    log.send("n1", Trim(3))
    assert kept(log) == (4, 6)
    assert log.table("aborted") == {1: 4, 6: 6}
    log.send("n1", Trim(3))
    assert log.table("aborted") == {6: 6}


def test_node_too_far_behind_falls_into_a_gap() -> None:
    log = CallLog(("n1", "n2", "n3"))
    log.set("history_hard_max", 1_000)
    log.set("history_max", 10)
    log.node_up("n4")
    for _ in range(1_100):
        log.call("n1")
    for id in range(1, 151):
        log.send("n3", Advance(id))
    log.send("n4", Join())
    assert log.cursor("n4") == Cursor(0, "joining", 0)
    assert trim_due(log.view())
    assert log.send("n1", Trim(1_000)) == Trimmed(90, ("n2",), False)
    assert log.cursor("n2") == Cursor(0, "gap", 100)
    assert log.cursor("n4") == Cursor(0, "joining", 100)
    assert kept(log) == (91, 1_100)
    assert next_for(log.view(), "n2") is None
    with pytest.raises(TooOld):
        log.send("n2", Sync(99))
    assert log.send("n2", Sync(150)) == Joined("following", 150, 0)
    assert log.cursor("n3") == Cursor(150, "following")
    assert not trim_due(log.view())


def test_most_advanced_node_never_falls_into_a_gap() -> None:
    """All that had gone further have left: the data of the last one is the best that is there."""
    log = CallLog(("n1", "n2"))
    log.set("history_hard_max", 1_000)
    for _ in range(1_100):
        log.call("n1")
    log.send("n2", Advance(1))
    log.send("n1", Leave("n1", False))
    log.send("n2", Trim(1_000))
    assert log.cursor("n2") == Cursor(1, "following")


def test_reservation_of_a_node_that_falls_into_a_gap_is_aborted() -> None:
    log = CallLog(("n1", "n2", "n3"))
    log.set("history_hard_max", 1_000)
    for _ in range(1_000):
        log.call("n1")
    granted = log.granted("n1")
    log.queued("n2")
    log.queued("n1")
    log.commit("n1", granted)
    assert log.running == (1_002, "n2")
    log.send("n3", Trim(1_000))
    assert log.cursor("n2").state == "gap"
    assert log.record(1_002).cause == "stale_view"
    assert log.running == (1_003, "n1")


# --- force ----------------------------------------------------------------------------------------


def standing(log: CallLog) -> dict[str, tuple[int, str]]:
    return {name: (cursor.id, cursor.state) for name, cursor in log.table("cursors").items()}


def diverged() -> CallLog:
    """n1 at 3, n2 at 3, n3 stuck at 1, n4 at 2."""
    log = CallLog(("n1", "n2", "n3", "n4"))
    for _ in range(3):
        log.call("n1")
    log.catch_up("n2")
    log.send("n3", Advance(1))
    log.stick("n3")
    log.send("n4", Advance(1))
    log.send("n4", Advance(2))
    return log


def test_force_puts_all_on_a_new_id() -> None:
    log = diverged()
    answer = log.send("n1", Force(3, (("n4", 2),), (("n3", 1),)))
    assert answer == Forced(4, ("n1", "n2", "n4"), log.machine.index)
    assert standing(log) == {
        "n1": (4, "following"),
        "n2": (4, "following"),
        "n3": (1, "gap"),
        "n4": (4, "following"),
    }
    assert log.cursor("n3") == Cursor(1, "gap", 4)
    record = log.record(4)
    assert (record.kind, record.function, record.state) == ("force", FORCE, "committed")
    with pytest.raises(TooOld):
        log.send("n3", Sync(3))
    log.send("n3", Sync(4))
    assert log.call("n3") == 5


def test_node_that_force_did_not_name_passes_it() -> None:
    log = diverged()
    log.send("n1", Force(3, (), (("n3", 1),)))
    assert standing(log)["n4"] == (2, "following")
    log.catch_up("n4")
    assert standing(log)["n4"] == (4, "following")


def test_force_may_have_an_advanced_node_copy_again() -> None:
    log = diverged()
    log.send("n1", Force(3, (), (("n2", 3), ("n3", 1), ("n4", 2))))
    assert standing(log)["n1"] == (4, "following")
    assert standing(log)["n2"] == (3, "gap")


def test_force_is_refused_when_anything_moved() -> None:
    log = diverged()
    command = Force(3, (("n4", 2),), (("n3", 1),))
    for other in (
        Force(2, (("n4", 2),), ()),
        Force(3, (("n4", 1),), ()),
        Force(3, (), (("n3", 2),)),
        Force(3, (("nobody", 0),), ()),
    ):
        with pytest.raises(Moved):
            log.send("n1", other)
    granted = log.granted("n1")
    with pytest.raises(Moved):
        log.send("n1", Force(4, (("n4", 2),), (("n3", 1),)))
    log.abort("n1", granted)
    with pytest.raises(Moved):
        log.send("n1", command)
    log.catch_up("n4")
    with pytest.raises(Moved):
        log.send("n1", Force(4, (("n4", 2),), (("n3", 1),)))
    assert log.send("n1", Force(4, (), (("n3", 1),))).id == 5


def test_force_and_reset_wait_for_the_queue() -> None:
    """Nothing is granted for a moment, because too many dead ones stand in front; but one waits."""
    log = CallLog()
    granted = log.granted("n1")
    for _ in range(GRANT_DROPS_MAX):
        log.queued("n2")
    log.queued("n3")
    log.node_down("n2")
    log.commit("n1", granted)
    assert log.running is None
    for command in (Force(1, (), ()), Reset(1)):
        with pytest.raises(Moved):
            log.send("n1", command)


def test_force_that_would_leave_nobody_is_refused() -> None:
    log = CallLog(("n1",))
    with pytest.raises(NotTakingPart):
        log.send("n1", Force(0, (), (("n1", 0),)))


def test_force_forwards_nobody_without_data() -> None:
    log = diverged()
    log.send("n3", Join(wiped=True))
    with pytest.raises(Moved):
        log.send("n1", Force(3, (("n3", 1),), ()))


# --- reset ----------------------------------------------------------------------------------------


def test_reset_forgets_the_records_and_ids_go_on() -> None:
    log = diverged()
    log.fail("n1")
    log.send("n4", Join(wiped=True))
    assert log.send("n2", Reset(4)) == ResetDone(4, 4, False)
    assert log.table("records") == {}
    assert log.table("aborted") == {}
    assert set(standing(log).values()) == {(4, "following")}
    assert log.cursor("n3") == Cursor(4, "following")
    assert log.call("n3") == 5


def test_reset_is_refused_when_the_log_moved() -> None:
    log = diverged()
    with pytest.raises(Moved):
        log.send("n1", Reset(2))
    log.granted("n1")
    with pytest.raises(Moved):
        log.send("n1", Reset(4))
    assert len(log.table("records")) == 4


def test_reset_of_more_than_one_command_deletes() -> None:
    log = CallLog(("n1",))
    for _ in range(1_050):
        log.call("n1")
    assert log.send("n1", Reset(1_050)) == ResetDone(1_050, 1_000, True)
    assert kept(log) == (1_001, 1_050)
    assert trim_due(log.view())
    log.call("n1")
    # What was reset goes, though history_max would keep it; what came later stays.
    assert log.send("n1", Trim(1_000)) == Trimmed(50, (), False)
    assert kept(log) == (1_051, 1_051)


def test_reset_of_an_empty_log() -> None:
    log = CallLog(("n1",))
    assert log.send("n1", Reset(0)) == ResetDone(0, 0, False)
    with pytest.raises(BadCursor):
        log.send("n1", Advance(1))
