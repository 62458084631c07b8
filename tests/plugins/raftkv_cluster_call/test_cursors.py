"""How far each node has come; joining, gaps, leaving."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftkv.plugin import MemberChange
from raftkv.state import NodeRole
from raftkv_cluster_call import cursors
from raftkv_cluster_call.commands import (
    SKIPPED_MAX,
    Advance,
    Advanced,
    BadCursor,
    Cursor,
    Expire,
    Failing,
    HasLeft,
    Join,
    Joined,
    Leave,
    LeaveDone,
    Left,
    NodeIsUp,
    NotAMember,
    NotTakingPart,
    NotYourNode,
    Rejoin,
    Rejoined,
    Reset,
    Skip,
    Sync,
    TooOld,
    Trim,
)
from raftkv_cluster_call.views import (
    call_row,
    call_rows,
    lead,
    next_for,
    participants,
    pending_nodes,
    status_rows,
)
from tests.plugins.raftkv_cluster_call.pure import FUNCTION, CallLog

# --- executing ------------------------------------------------------------------------------------


def test_ids_are_executed_one_by_one() -> None:
    log = CallLog()
    for _ in range(3):
        log.call("n1")
    for wrong in (0, 2, 3, 4):
        with pytest.raises(BadCursor) as refused:
            log.send("n2", Advance(wrong))
        assert refused.value.args[1] == 0
    assert log.send("n2", Advance(1)) == Advanced(1)
    with pytest.raises(BadCursor):
        log.send("n2", Advance(1))
    assert log.send("n2", Advance(2)) == Advanced(2)


def test_nobody_executes_what_is_not_committed() -> None:
    log = CallLog()
    log.granted("n1")
    for node in ("n1", "n2"):
        assert next_for(log.view(), node) is None
        for command in (Advance(1), Skip(1), Failing(1, 1, "x")):
            with pytest.raises(BadCursor):
                log.send(node, command)


def test_failing_is_noted_and_cleared() -> None:
    log = CallLog()
    log.call("n1")
    log.send("n2", Failing(1, 1, "OSError at g.py:2"))
    assert log.cursor("n2") == Cursor(0, "following", 0, 1, 1, "OSError at g.py:2")
    log.send("n2", Failing(1, 10, "KeyError at h.py:3"))
    log.node_up("n2")
    log.send("n2", Failing(1, 1, "KeyError at h.py:3"))  # counts anew, and is stuck all the same
    assert (log.cursor("n2").attempts, log.cursor("n2").cause) == (10, "KeyError at h.py:3")
    log.send("n2", Advance(1))
    assert log.cursor("n2") == Cursor(1, "following")


def test_skip_is_noted() -> None:
    log = CallLog()
    for _ in range(SKIPPED_MAX + 2):
        log.call("n1")
    log.stick("n2")
    assert log.send("n2", Skip(1)) == Advanced(1)
    assert log.cursor("n2") == Cursor(1, "following", skipped=(1,))
    with pytest.raises(BadCursor):
        log.send("n2", Skip(1))
    log.send("n2", Advance(2))
    for id in range(3, SKIPPED_MAX + 3):
        log.send("n2", Skip(id))
    assert log.cursor("n2").skipped == tuple(range(3, SKIPPED_MAX + 3))
    assert log.cursor("n3").id == 0


# --- joining --------------------------------------------------------------------------------------


def test_first_nodes_follow_at_once() -> None:
    log = CallLog(("n1", "n2"), join=False)
    assert participants(log.view()) == ()
    assert log.send("n2", Join()) == Joined("following", 0, 0)
    assert log.send("n1", Join()) == Joined("following", 0, 0)
    assert log.send("n1", Join()) == Joined("following", 0, 0)
    assert participants(log.view()) == ("n1", "n2")


def test_late_joiner_starts_where_its_copy_stands() -> None:
    """Scenario 11: neither all that is kept, nor the latest only."""
    log = CallLog(("n1", "n2"))
    for _ in range(5):
        log.call("n1")
    for _ in range(3):
        log.send("n2", Advance(log.cursor("n2").id + 1))
    log.node_up("n3")
    assert log.send("n3", Join()) == Joined("joining", 0, 3)
    assert participants(log.view()) == ("n1", "n2")
    assert pending_nodes(log.view(), 5) == ("n2",)
    assert next_for(log.view(), "n3") is None
    for command in (Advance(1), Skip(4)):
        with pytest.raises(NotTakingPart):
            log.send("n3", command)
    with pytest.raises(NotTakingPart):
        log.ask("n3")
    assert log.send("n3", Sync(4)) == Joined("following", 4, 0)
    assert log.next_of("n3") == 5
    assert log.send("n3", Join()) == Joined("following", 4, 0)


def test_records_are_kept_for_a_joiner_that_copies() -> None:
    log = CallLog(("n1",))
    log.set("history_max", 1)
    for _ in range(3):
        log.call("n1")
    log.node_up("n2")
    assert log.send("n2", Join()) == Joined("joining", 0, 3)
    for _ in range(3):
        log.call("n1")
    log.send("n1", Trim(100))
    assert list(log.table("records")) == [3, 4, 5, 6]
    log.send("n2", Sync(3))
    log.catch_up("n2")
    assert log.cursor("n2").id == 6


@pytest.mark.parametrize("as_of", [0, 2])
def test_too_old_a_copy_is_refused(as_of: int) -> None:
    log = CallLog(("n1",))
    for _ in range(3):
        log.call("n1")
    log.node_up("n2")
    log.send("n2", Join())
    with pytest.raises(TooOld) as refused:
        log.send("n2", Sync(as_of))
    assert refused.value.args[1] == 3
    assert log.cursor("n2").state == "joining"


def test_copy_from_the_future_is_refused() -> None:
    log = CallLog(("n1",))
    log.call("n1")
    log.node_up("n2")
    log.send("n2", Join())
    log.granted("n1")  # 2 runs
    for as_of in (2, 3):
        with pytest.raises(BadCursor):
            log.send("n2", Sync(as_of))
    log.send("n2", Sync(1))
    assert log.send("n2", Sync(1)) == Joined("following", 1, 0)  # asked twice
    with pytest.raises(BadCursor):
        log.send("n1", Sync(2))
    log.node_up("n3")
    with pytest.raises(NotTakingPart):
        log.send("n3", Sync(1))


def test_copy_as_of_the_id_before_an_aborted_one() -> None:
    log = CallLog(("n1",))
    log.call("n1")
    log.node_up("n2")
    log.fail("n1")
    log.fail("n1")
    assert log.send("n2", Join()) == Joined("joining", 0, 3)
    assert log.send("n2", Sync(1)) == Joined("following", 3, 0)


def test_copy_from_before_what_was_forgotten_is_refused() -> None:
    """Nothing but aborted ids lay between; but nobody can tell any more."""
    log = CallLog(("n1", "n2"))
    log.fail("n1")
    log.fail("n2")
    log.send("n1", Reset(2))
    log.node_up("n3")
    assert log.send("n3", Join()) == Joined("joining", 0, 2)
    with pytest.raises(TooOld):
        log.send("n3", Sync(1))
    assert log.send("n3", Sync(2)) == Joined("following", 2, 0)


def test_joiner_whose_only_source_has_gone_follows() -> None:
    log = CallLog(("n1",))
    log.call("n1")
    log.node_up("n2")
    assert log.send("n2", Join()).state == "joining"
    log.send("n1", Leave("n1", False))
    assert log.send("n2", Join()) == Joined("following", 1, 0)


# --- gaps -----------------------------------------------------------------------------------------


def test_wiped_node_is_in_a_gap_until_it_has_copied() -> None:
    log = CallLog(("n1", "n2"))
    log.call("n1")
    log.call("n1")
    log.send("n2", Advance(1))
    assert log.send("n2", Join(wiped=True)) == Joined("gap", 1, 1)
    assert log.send("n2", Join()) == Joined("gap", 1, 1)
    assert log.send("n2", Join(wiped=True)) == Joined("gap", 1, 1)
    assert participants(log.view()) == ("n1",)
    assert pending_nodes(log.view(), 2) == ("n2",)  # it has not executed it, and is missed
    with pytest.raises(TooOld):
        log.send("n2", Sync(0))
    assert log.send("n2", Sync(2)) == Joined("following", 2, 0)


def test_wiped_node_that_had_executed_nothing_goes_on() -> None:
    log = CallLog(("n1",))
    assert log.send("n1", Join(wiped=True)) == Joined("following", 0, 0)


def test_wiped_node_loses_its_place_at_the_head() -> None:
    log = CallLog()
    first = log.granted("n1")
    log.queued("n2")
    log.queued("n3")
    log.commit("n1", first)
    log.send("n2", Advance(1))
    log.send("n2", Join(wiped=True))
    assert (log.record(2).cause, log.running) == ("stale_view", (3, "n3"))


def test_nobody_follows_without_data_while_others_wait_in_a_gap() -> None:
    """A newcomer with nothing in hand must not become the source of those who had the data."""
    log = CallLog(("n1",))
    log.call("n1")
    log.send("n1", Join(wiped=True))
    log.node_up("n2")
    assert log.send("n2", Join()) == Joined("joining", 0, 1)


# --- leaving --------------------------------------------------------------------------------------


def test_leave_and_rejoin_with_a_fresh_cursor() -> None:
    """Scenario 12."""
    log = CallLog()
    log.call("n1")
    assert log.send("n3", Leave("n3", False)) == LeaveDone(True, 0)
    assert log.table("left") == {"n3": Left(False)}
    assert log.commit("n1", log.granted("n1")).nodes == ("n1", "n2")
    with pytest.raises(HasLeft):
        log.send("n3", Join())
    log.node_up("n3")
    with pytest.raises(HasLeft):
        log.send("n3", Join())
    assert log.send("n3", Rejoin()) == Rejoined(True)
    assert log.send("n3", Rejoin()) == Rejoined(False)
    assert log.send("n3", Join()) == Joined("joining", 0, 0)
    assert log.send("n3", Sync(2)) == Joined("following", 2, 0)
    assert log.send("n3", Leave("n3", False)) == LeaveDone(True, 0)
    assert log.send("n3", Leave("n3", False)) == LeaveDone(False, 0)


def test_who_comes_back_does_not_execute_again_what_it_had_executed() -> None:
    log = CallLog()
    log.call("n1")
    log.call("n1")
    log.send("n3", Advance(1))
    log.send("n3", Advance(2))
    log.send("n3", Leave("n3", False))
    log.send("n3", Rejoin())
    # A copy of n2, which stands at 0, would let n3 execute 1 and 2 under the same tokens again.
    assert log.send("n3", Join()) == Joined("joining", 0, 2)
    with pytest.raises(TooOld):
        log.send("n3", Sync(1))
    # Nor does it help to leave once more in between.
    log.send("n3", Leave("n3", False))
    log.send("n3", Rejoin())
    assert log.send("n3", Join()) == Joined("joining", 0, 2)
    assert log.send("n3", Sync(2)) == Joined("following", 2, 0)


def test_leave_by_force() -> None:
    log = CallLog()
    log.call("n1")
    with pytest.raises(NodeIsUp):
        log.send("n1", Leave("n3", True))
    with pytest.raises(NotYourNode):
        log.send("n1", Leave("n3", False))
    log.node_down("n3")
    assert log.send("n1", Leave("n3", True)) == LeaveDone(True, 0)
    assert log.send("n1", Leave("n3", True)) == LeaveDone(False, 0)
    assert log.send("n1", Leave("nobody", True)) == LeaveDone(False, 0)
    assert log.table("left") == {"n3": Left(True)}
    assert participants(log.view()) == ("n1", "n2")
    log.node_up("n3")
    assert log.send("n3", Join()).state == "joining"
    assert not log.table("left")


def test_force_does_not_undo_a_node_s_own_wish() -> None:
    log = CallLog()
    log.send("n3", Leave("n3", False))
    log.node_down("n3")
    log.send("n1", Leave("n3", True))
    assert log.table("left") == {"n3": Left(False)}


def test_leaving_drops_what_was_reserved() -> None:
    log = CallLog()
    granted = log.granted("n1")
    mine, other, last = log.queued("n1"), log.queued("n2"), log.queued("n1")
    assert log.send("n1", Leave("n1", False)) == LeaveDone(True, 2)
    assert [log.answer(queued.ticket) for queued in (mine, last)] == ["withdrawn", "withdrawn"]
    assert log.record(1).cause == "withdrawn"
    assert list(log.table("lost")) == [("n1", 1)]  # it may have run
    assert log.record(2).ticket == other.ticket
    assert granted.id == 1


def test_reservations_of_a_node_that_has_left_are_dropped_at_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors, "LEAVE_ROWS_MAX", 1)
    log = CallLog()
    granted = log.granted("n2")
    first, second = log.queued("n1"), log.queued("n1")
    assert log.send("n1", Leave("n1", False)) == LeaveDone(True, 1)
    assert log.answer(first.ticket) == "withdrawn"
    assert log.answer(second.ticket) is None
    log.commit("n2", granted)
    assert log.answer(second.ticket) == "withdrawn"
    assert log.running is None


# --- replicants -----------------------------------------------------------------------------------


def test_replicants_take_part_as_the_setting_says() -> None:
    log = CallLog(("n1",))
    log.node_up("r1", "replicant")
    with pytest.raises(NotTakingPart):
        log.send("r1", Join())
    log.set("replicants_take_part", True)
    assert log.send("r1", Join()).state == "following"
    log.granted("r1")
    log.set("replicants_take_part", False)
    assert participants(log.view()) == ("n1",)
    assert log.record(1).state == "aborted"


def test_promoted_replicant_may_join() -> None:
    log = CallLog(("n1",))
    log.node_up("r1", "replicant")
    life = log.machine.members["r1"].incarnation
    log.run(log.sessions["n1"], "core", NodeRole("r1", life, "core"))
    assert log.send("r1", Join()).state == "following"


def test_core_that_comes_back_as_a_replicant_takes_no_part() -> None:
    log = CallLog(("n1", "n2"))
    log.granted("n2")
    log.node_up("n2", "replicant")
    assert participants(log.view()) == ("n1",)
    assert log.record(1).cause == "initiator_ended"


# --- members --------------------------------------------------------------------------------------


class Ctx:
    """A context for a hook whose entry no command of the machine makes: a member was removed."""

    def __init__(self, log: CallLog, members: dict[str, Any]) -> None:
        routed = log.machine._all["calls"]  # the very tables of the machine
        self.now, self.index, self.serial, self.origin = log.now, 0, 0, None
        self.settings = routed.settings_view
        self.members = members
        self.table = routed.ctx.table


def test_removed_member_leaves_nothing_behind() -> None:
    log = CallLog()
    log.granted("n3", ttl_ms=10)
    log.now += 10
    log.send("n1", Expire(10))
    assert list(log.table("lost")) == [("n3", 1)]
    log.granted("n3")
    members = dict(log.machine.members)
    old = members.pop("n3")
    change = MemberChange(old, None, old.incarnation)
    cursors.members_changed(change, Ctx(log, members))  # type: ignore[arg-type]
    assert sorted(log.table("cursors")) == ["n1", "n2"]
    assert not log.table("lost")
    assert log.record(2).cause == "initiator_ended"
    view = SimpleNamespace(
        table=log.view().table,
        members=members,
        settings=log.view().settings,
        now=log.now,
        index=log.machine.index,
    )
    assert list(log.plugin.invariants(view)) == []  # type: ignore[arg-type]


def test_commands_without_a_node_are_refused() -> None:
    log = CallLog()
    client = log.client()
    commands: tuple[Any, ...] = (Advance(1), Skip(1), Join(), Sync(0), Leave("n1", True), Rejoin())
    for command in (*commands, Trim(1), Expire(1), Failing(1, 1, "x")):
        with pytest.raises(NotAMember):
            log.run(client, "calls", command)


# --- for people -----------------------------------------------------------------------------------


def test_status_of_nodes_and_calls() -> None:
    log = CallLog()
    log.call("n2")
    log.fail("n2")
    log.call("n2")
    log.stick("n1")
    log.node_down("n3")
    log.send("n1", Leave("n3", True))
    log.granted("n2")
    rows = status_rows(log.view(), "n2")
    assert [(row.name, row.up, row.cursor, row.lag, row.state) for row in rows] == [
        ("n2", True, 3, 0, "following"),
        ("n1", True, 0, 3, "following"),
        ("n3", False, 0, 0, "left_forced"),
    ]
    assert (rows[1].failing, rows[1].attempts, rows[1].cause) == (1, 10, "OSError")
    calls = call_rows(log.view())
    assert [(call.id, call.state, call.pending_nodes) for call in calls] == [
        (4, "reserved", ()),
        (3, "committed", ("n1",)),
        (1, "committed", ("n1",)),
    ]
    assert [call.id for call in call_rows(log.view(), all=True)] == [4, 3, 2, 1]
    assert [call.id for call in call_rows(log.view(), limit=1, before=3)] == [1]
    assert calls[1] == call_row(log.view(), 3)
    assert (calls[1].function, calls[1].initiator) == (FUNCTION, "n2")
    assert call_row(log.view(), 5) is None


def test_lead_is_the_most_advanced_core() -> None:
    log = CallLog()
    assert lead(log.view()) == "n1"
    log.call("n3")
    assert lead(log.view()) == "n3"
    log.catch_up("n2")
    assert lead(log.view()) == "n2"
    log.set("replicants_take_part", True)
    log.node_up("r1", "replicant")
    log.send("r1", Join())
    log.send("r1", Sync(1))
    log.call("r1")
    assert lead(log.view()) == "n2"
    assert lead(log.view(), cores_only=False) == "r1"
