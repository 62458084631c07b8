"""Reserve, run, decide: who gets the next id, and what becomes of it."""

from __future__ import annotations

import pytest

from raftkv.kv import DeleteRange, EmptyKey, Put, PutOp, PutWith, Txn
from raftkv_cluster_call.commands import (
    ANSWERS_MAX,
    CAUSE_CHARS_MAX,
    GRANT_DROPS_MAX,
    LOST_MAX,
    Abort,
    Acknowledge,
    Acknowledged,
    Advance,
    ArgsTooLarge,
    Behind,
    Commit,
    Effect,
    Expire,
    Expired,
    Failing,
    Granted,
    Join,
    LostEffect,
    NotAMember,
    NotCaughtUp,
    NotReserved,
    NotTakingPart,
    Queued,
    QueueFull,
    Reserve,
    StaleView,
    Withdraw,
    Withdrawn,
)
from raftkv_cluster_call.views import (
    expiry_due,
    grants_pending,
    own_turn,
    pending_nodes,
    queue_place,
    record_of,
)
from tests.plugins.raftkv_cluster_call.pure import FUNCTION, CallLog, must

# --- reserve --------------------------------------------------------------------------------------


def test_first_id_is_granted_at_once() -> None:
    log = CallLog()
    granted = log.granted("n2", ttl_ms=5_000)
    assert granted.id == 1
    record = log.record(1)
    assert (record.function, record.version, record.args) == (FUNCTION, 1, b"args")
    assert (record.initiator, record.incarnation, record.state) == ("n2", 1, "reserved")
    assert (record.created_ms, record.decided_ms, record.kind) == (1_000, 0, "call")
    assert record.deadline_ms == 6_000
    assert own_turn(log.view(), "n2") == (1, record)
    assert own_turn(log.view(), "n1") is None
    assert list(log.table("due")) == [(6_000, granted.ticket)]


def test_reservations_queue_in_order_of_coming() -> None:
    log = CallLog()
    granted = log.granted("n1")
    tickets = [log.queued(node) for node in ("n2", "n3", "n1", "n2")]
    assert [queued.place for queued in tickets] == [1, 2, 3, 4]
    assert queue_place(log.view(), tickets[2].ticket) == 3
    log.commit("n1", granted)
    order = []
    while log.running is not None:
        id, node = log.running
        order.append((id, node))
        log.catch_up()
        log.commit(node, Granted(log.record(id).ticket, id))
    assert order == [(2, "n2"), (3, "n3"), (4, "n1"), (5, "n2")]
    assert queue_place(log.view(), tickets[2].ticket) == 0


def test_next_in_line_waits_for_its_turn_on_its_own_node() -> None:
    """Granted does not mean runnable: what was committed before has to be executed first."""
    log = CallLog()
    first = log.granted("n1")
    queued = log.queued("n2")
    log.commit("n1", first)
    assert log.running == (2, "n2")
    assert own_turn(log.view(), "n2") is None
    with pytest.raises(NotCaughtUp):
        log.send("n2", Commit(2, queued.ticket))
    log.send("n2", Advance(1))
    assert own_turn(log.view(), "n2") == (2, log.record(2))
    log.commit("n2", Granted(queued.ticket, 2))


def test_who_is_behind_is_told_and_nothing_is_written() -> None:
    log = CallLog()
    log.call("n1")
    before = log.table("queue"), log.table("due"), log.table("meta")
    assert log.ask("n2", expected=0) == Behind(1, 0)
    assert log.ask("n2", expected=1) == Behind(1, 0)  # it says so, but has not run it
    log.catch_up("n2")
    assert log.ask("n2", expected=0) == Behind(1, 1)  # it has, but did not know when it asked
    assert (log.table("queue"), log.table("due"), log.table("meta")) == before
    assert log.granted("n2").id == 2


def test_compare_and_set_of_two_that_race_for_one_id() -> None:
    log = CallLog()
    granted = log.granted("n1")
    assert isinstance(log.ask("n2", expected=0), Queued)
    log.commit("n1", granted)
    assert log.running == (2, "n2")


def test_stuck_node_gets_no_id() -> None:
    log = CallLog()
    log.call("n1")
    log.send("n2", Failing(1, 9, "OSError at g.py:2"))
    assert log.ask("n2") == Behind(1, 0)
    log.send("n2", Failing(1, 12, "OSError at g.py:2"))
    assert log.ask("n2") == StaleView(1, 0, 12)
    log.catch_up("n2")
    assert log.granted("n2").id == 2


def test_who_takes_no_part_gets_no_id() -> None:
    log = CallLog(("n1",), join=False)
    with pytest.raises(NotTakingPart):
        log.ask("n1")
    with pytest.raises(NotAMember):
        log.run(log.client(), "calls", Reserve(FUNCTION, 1, b"", 0, 1_000, 0))


def test_limits_of_arguments_and_queue() -> None:
    log = CallLog()
    log.set("args_bytes_max", 4)
    log.set("queue_max", 2)
    with pytest.raises(ArgsTooLarge, match="5 bytes, args_bytes_max is 4"):
        log.send("n1", Reserve(FUNCTION, 1, b"12345", 0, 1_000, 0))
    log.granted("n1")
    log.queued("n2")
    log.queued("n3")
    digest = log.table("queue"), log.table("due")
    with pytest.raises(QueueFull):
        log.ask("n2")
    assert (log.table("queue"), log.table("due")) == digest


def test_deadline_is_cut_to_the_longest_allowed() -> None:
    log = CallLog()
    log.set("deadline_max_ms", 2_000)
    log.granted("n1", ttl_ms=10**15)
    assert log.record(1).deadline_ms == log.now + 2_000


# --- commit ---------------------------------------------------------------------------------------


def test_commit_moves_the_initiator_and_names_who_takes_part() -> None:
    log = CallLog()
    granted = log.granted("n2")
    log.node_down("n3")
    log.now += 5
    committed = log.commit("n2", granted)
    assert (committed.id, committed.nodes) == (1, ("n1", "n2", "n3"))
    assert committed.index == log.machine.index
    assert log.record(1).state == "committed"
    assert log.record(1).decided_ms == log.now
    assert {name: cursor.id for name, cursor in log.table("cursors").items()} == {
        "n1": 0,
        "n2": 1,
        "n3": 0,
    }
    assert pending_nodes(log.view(), 1) == ("n1", "n3")
    assert not log.table("due")


def test_commit_is_for_who_reserved_and_once_only() -> None:
    log = CallLog()
    granted = log.granted("n1")
    for node, command in (
        ("n2", Commit(1, granted.ticket)),
        ("n1", Commit(1, granted.ticket + 1)),
        ("n1", Commit(2, granted.ticket)),
        ("n2", Abort(1, granted.ticket, "x")),
    ):
        with pytest.raises(NotReserved):
            log.send(node, command)
    log.commit("n1", granted)
    for command in (Commit(1, granted.ticket), Abort(1, granted.ticket, "x")):
        with pytest.raises(NotReserved, match="is committed"):
            log.send("n1", command)


@pytest.mark.parametrize(
    "effect",
    [Put(b"k", b"v"), PutWith(b"k", b"v", True), Txn(success=(PutOp(b"k", b"v"),))],
)
def test_effect_and_cursor_are_one(effect: Effect) -> None:
    log = CallLog()
    granted = log.granted("n1")
    assert log.kv(b"k") is None
    log.commit("n1", granted, effect)
    assert log.kv(b"k") == b"v"
    log.send("n2", Advance(1, DeleteRange(b"k")))
    assert log.kv(b"k") is None
    assert (log.cursor("n1").id, log.cursor("n2").id) == (1, 1)


def test_refused_effect_leaves_everything() -> None:
    """A refusal of the keyspace refuses the whole command: id and cursor stay as they are."""
    log = CallLog()
    granted = log.granted("n1")
    tables = {name: log.table(name) for name in ("records", "cursors", "due", "meta")}
    with pytest.raises(EmptyKey):
        log.send("n1", Commit(1, granted.ticket, Put(b"", b"v")))
    assert tables == {name: log.table(name) for name in tables}
    log.commit("n1", granted, Put(b"k", b"v"))
    with pytest.raises(EmptyKey):
        log.send("n2", Advance(1, Put(b"", b"v")))
    assert log.cursor("n2").id == 0
    log.send("n2", Advance(1))
    assert log.cursor("n2").id == 1


# --- abort ----------------------------------------------------------------------------------------


def test_aborted_id_is_passed_by_all_and_not_used_again() -> None:
    log = CallLog()
    assert log.fail("n1") == 1
    record = log.record(1)
    assert (record.state, record.args) == ("aborted", b"")
    assert record.cause == "failed: ValueError at f.py:1"
    assert {cursor.id for cursor in log.table("cursors").values()} == {1}
    assert pending_nodes(log.view(), 1) == ()
    assert log.call("n2") == 2
    log.catch_up("n1")
    assert log.cursor("n1").id == 2
    assert log.cursor("n3").id == 1


def test_stretches_of_aborted_ids_are_passed_at_once() -> None:
    log = CallLog()
    log.call("n1")  # 1; n3 stays behind
    for _ in range(5):  # 2 to 6
        log.fail("n2")
    log.call("n1")  # 7
    log.fail("n1")  # 8
    assert log.table("aborted") == {2: 6, 8: 8}
    assert log.cursor("n3").id == 0
    assert log.send("n3", Advance(1)).cursor == 6
    assert log.send("n3", Advance(7)).cursor == 8


@pytest.mark.parametrize("cause", ["failed", "failed: KeyError at a.py:3", "KeyError at a.py:3"])
def test_cause_is_kept_in_one_form(cause: str) -> None:
    log = CallLog()
    log.abort("n1", log.granted("n1"), cause)
    assert log.record(1).cause in ("failed", "failed: KeyError at a.py:3")


def test_long_cause_is_cut() -> None:
    log = CallLog()
    log.abort("n1", log.granted("n1"), "x" * 10_000)
    assert len(log.record(1).cause) == CAUSE_CHARS_MAX


def test_abort_grants_the_next() -> None:
    log = CallLog()
    granted = log.granted("n1")
    log.queued("n2")
    log.abort("n1", granted)
    assert log.running == (2, "n2")
    assert log.cursor("n2").id == 1


# --- withdraw -------------------------------------------------------------------------------------


def test_withdraw_from_the_queue() -> None:
    log = CallLog()
    log.granted("n1")
    second, third = log.queued("n2"), log.queued("n3")
    assert log.send("n2", Withdraw(second.ticket, "withdrawn")) == Withdrawn(
        "queued", log.machine.index
    )
    assert log.answer(second.ticket) == "withdrawn"
    assert queue_place(log.view(), third.ticket) == 1
    assert log.send("n2", Withdraw(second.ticket, "withdrawn")).was == "gone"


@pytest.mark.parametrize("cause", ["withdrawn", "stale_view"])
def test_withdraw_of_the_granted_one_aborts_it(cause: str) -> None:
    log = CallLog()
    granted = log.granted("n1")
    log.queued("n2")
    command = Withdraw(granted.ticket, cause)  # type: ignore[arg-type]
    assert log.send("n1", command).was == "granted"
    assert (log.record(1).state, log.record(1).cause) == ("aborted", cause)
    assert log.running == (2, "n2")
    assert not log.table("lost")


def test_nobody_withdraws_for_another_node() -> None:
    log = CallLog()
    granted, queued = log.granted("n1"), log.queued("n2")
    assert log.send("n3", Withdraw(granted.ticket, "withdrawn")).was == "gone"
    assert log.send("n3", Withdraw(queued.ticket, "withdrawn")).was == "gone"
    assert log.running == (1, "n1")
    assert queue_place(log.view(), queued.ticket) == 1


# --- who holds up the queue -----------------------------------------------------------------------


def test_dead_late_and_stuck_heads_are_passed_over() -> None:
    log = CallLog(("n1", "n2", "n3", "n4"))
    log.call("n1")
    log.catch_up("n2", "n4")
    granted = log.granted("n1")
    dead = log.queued("n2")
    late = log.queued("n4", ttl_ms=10)
    stuck = log.queued("n3")
    good = log.queued("n4")
    log.node_down("n2")
    log.stick("n3")
    log.now += 10
    log.commit("n1", granted)
    assert log.running == (3, "n4")
    assert log.record(3).ticket == good.ticket
    assert [log.answer(queued.ticket) for queued in (dead, late, stuck)] == [
        "initiator_ended",
        "expired",
        "stale_view",
    ]


def test_head_whose_node_was_started_anew_is_passed_over() -> None:
    log = CallLog()
    granted = log.granted("n1")
    old = log.queued("n2")
    log.node_up("n2")
    new = log.queued("n2")
    log.commit("n1", granted)
    assert log.running == (2, "n2")
    assert log.record(2).ticket == new.ticket
    assert log.record(2).incarnation == 2
    assert log.answer(old.ticket) == "initiator_ended"


def test_so_many_dead_heads_that_one_command_does_not_reach_a_living_one() -> None:
    log = CallLog()
    granted = log.granted("n1")
    for _ in range(GRANT_DROPS_MAX + 5):
        log.queued("n2")
    good = log.queued("n3")
    log.node_down("n2")
    log.commit("n1", granted)
    assert log.running is None
    assert grants_pending(log.view())
    assert expiry_due(log.view()) == 0
    assert log.send("n1", Expire(10)) == Expired(0, False)
    assert log.running == (2, "n3")
    assert log.record(2).ticket == good.ticket


def test_who_comes_while_nothing_is_granted_waits_behind_the_others() -> None:
    log = CallLog()
    granted = log.granted("n1")
    for _ in range(GRANT_DROPS_MAX + 5):
        log.queued("n2")
    good = log.queued("n3")
    log.node_down("n2")
    log.commit("n1", granted)
    assert log.running is None
    assert log.queued("n1").place == 1
    assert log.record(2).ticket == good.ticket


def test_alone_behind_the_dead_ones_it_is_granted_at_once() -> None:
    log = CallLog()
    granted = log.granted("n1")
    for _ in range(GRANT_DROPS_MAX + 5):
        log.queued("n2")
    log.node_down("n2")
    log.commit("n1", granted)
    assert log.running is None
    assert log.granted("n1").id == 2


def test_nobody_starves() -> None:
    """Two that ask again as soon as they are done do not keep the third one waiting."""
    log = CallLog()
    running = log.granted("n1")
    waiting = {"n2": log.queued("n2"), "n3": log.queued("n3")}
    turns = []
    for _ in range(30):
        found = log.running
        assert found is not None
        id, node = found
        turns.append(node)
        log.catch_up()
        waiting[node] = log.queued(node)  # it asks again before it is done
        ticket = running.ticket if id == 1 else log.record(id).ticket
        log.commit(node, Granted(ticket, id))
    assert turns == ["n1", "n2", "n3"] * 10


def test_answers_are_bounded() -> None:
    log = CallLog(("n1",))
    log.granted("n1")
    tickets = []
    for _ in range(ANSWERS_MAX + 3):
        ticket = log.queued("n1").ticket
        log.send("n1", Withdraw(ticket, "withdrawn"))
        tickets.append(ticket)
    assert list(log.table("answers")) == tickets[3:]


# --- deadlines ------------------------------------------------------------------------------------


def test_expire_ends_what_is_due_and_grants_the_next() -> None:
    log = CallLog()
    log.granted("n1", ttl_ms=10)
    late, good = log.queued("n2", ttl_ms=20), log.queued("n3")
    assert expiry_due(log.view()) == log.now + 10
    log.now += 9
    assert log.send("n2", Expire(10)) == Expired(0, False)
    log.now += 11
    assert log.send("n2", Expire(1)) == Expired(1, False)  # the head went while granting
    assert (log.record(1).state, log.record(1).cause) == ("aborted", "expired")
    assert log.answer(late.ticket) == "expired"
    assert log.record(2).ticket == good.ticket


def test_expire_in_batches() -> None:
    log = CallLog()
    log.granted("n1")
    for _ in range(5):
        log.queued("n2", ttl_ms=10)
    log.now += 10
    assert log.send("n1", Expire(2)) == Expired(2, True)
    assert log.send("n1", Expire(2)) == Expired(2, True)
    assert log.send("n1", Expire(2)) == Expired(1, False)
    assert log.running == (1, "n1")


def test_expired_call_that_ran_is_a_lost_effect() -> None:
    log = CallLog()
    granted = log.granted("n1", ttl_ms=10)
    log.now += 10
    log.send("n2", Expire(10))
    assert log.table("lost") == {("n1", 1): LostEffect(FUNCTION, 1, "expired", 1_000)}
    with pytest.raises(NotReserved, match="aborted"):
        log.send("n1", Commit(1, granted.ticket))
    assert log.send("n2", Acknowledge(1)) == Acknowledged(False)
    assert log.send("n1", Acknowledge(1)) == Acknowledged(True)
    assert log.send("n1", Acknowledge(1)) == Acknowledged(False)
    assert not log.table("lost")


def test_expired_call_whose_turn_had_not_come_lost_nothing() -> None:
    log = CallLog()
    first = log.granted("n1")
    log.queued("n2", ttl_ms=10)
    log.commit("n1", first)
    assert log.running == (2, "n2")
    log.now += 10
    log.send("n1", Expire(10))
    assert (log.record(2).state, log.record(2).cause) == ("aborted", "expired")
    assert not log.table("lost")


def test_lost_effects_are_bounded() -> None:
    log = CallLog(("n1",))
    for _ in range(LOST_MAX + 2):
        log.granted("n1", ttl_ms=10)
        log.now += 10
        log.send("n1", Expire(10))
    assert [id for _, id in log.table("lost")] == list(range(3, LOST_MAX + 3))


# --- the initiator's end --------------------------------------------------------------------------


def test_initiator_that_dies_while_it_runs() -> None:
    """Scenario 10: nobody runs it, nobody waits, and the initiator learns of it."""
    log = CallLog()
    granted = log.granted("n1")
    log.queued("n2")
    log.node_down("n1")
    record = log.record(1)
    assert (record.state, record.cause, record.args) == ("aborted", "initiator_ended", b"")
    assert log.running == (2, "n2")
    assert {cursor.id for cursor in log.table("cursors").values()} == {1}
    log.node_up("n1")
    with pytest.raises(NotReserved):
        log.send("n1", Commit(1, granted.ticket))
    assert list(log.table("lost")) == [("n1", 1)]


def test_initiator_that_restarts_while_it_runs() -> None:
    log = CallLog()
    log.granted("n1")
    log.node_up("n1")
    assert log.record(1).cause == "initiator_ended"
    assert log.send("n1", Join()).state == "following"
    assert log.granted("n1").id == 2


def test_end_of_another_life_is_none_of_its_business() -> None:
    log = CallLog()
    log.granted("n1")
    log.node_down("n2")
    assert log.running == (1, "n1")


# --- stuck ----------------------------------------------------------------------------------------


def test_granted_reservation_of_a_node_that_gets_stuck_is_aborted() -> None:
    log = CallLog()
    first = log.granted("n1")
    log.queued("n2")
    log.queued("n3")
    log.commit("n1", first)
    assert log.running == (2, "n2")
    log.send("n2", Failing(1, 1, "OSError at g.py:2"))
    assert log.running == (2, "n2")
    log.send("n2", Failing(1, 10, "OSError at g.py:2"))
    assert (log.record(2).cause, log.running) == ("stale_view", (3, "n3"))
    assert not log.table("lost")


def test_ids_have_no_holes_whatever_becomes_of_them() -> None:
    log = CallLog()
    log.call("n1")
    log.fail("n2")
    log.catch_up()
    log.granted("n3", ttl_ms=5)
    log.now += 5
    log.send("n1", Expire(10))
    log.granted("n2")
    log.node_down("n2")
    log.call("n1")
    assert [record.state for record in log.table("records").values()] == [
        "committed",
        "aborted",
        "aborted",
        "aborted",
        "committed",
    ]
    assert record_of(log.view(), 6) is None
    assert must(Granted, log.ask("n1")).id == 6
