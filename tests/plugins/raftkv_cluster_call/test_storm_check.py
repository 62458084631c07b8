"""The checks of storms of calls, checked: what is right passes, and each wrong is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from raftkv.kv import Put
from raftkv.plugin import Member, MemberChange
from raftkv_cluster_call.commands import (
    Abort,
    Acknowledge,
    Advance,
    Advanced,
    Behind,
    Commit,
    Committed,
    Cursor,
    Expire,
    Failing,
    Force,
    Granted,
    Join,
    Leave,
    Left,
    LostEffect,
    Queued,
    Record,
    Reservation,
    Reserve,
    Reset,
    Skip,
    StaleView,
    Sync,
    Trim,
    Withdraw,
)
from raftkv_cluster_call.testing.storm_check import (
    STUCK,
    State,
    Step,
    check_step,
)
from raftkv_cluster_call.testing.storm_ledger import Ledger, check_effect
from raftkv_cluster_call.testing.storm_runs import (
    Ending,
    Run,
    Story,
    check_ending,
    check_required,
    check_run,
    check_runs,
    check_story,
    expected_shelf,
)

NOW, SERIAL, INDEX = 1_000, 40, 100
ARGS = b"args"
SETTINGS: Mapping[str, Any] = {
    "history_max": 1,
    "history_hard_max": 3,
    "replicants_take_part": False,
}
ROLES = {"n1": "core", "n2": "core", "r1": "replicant"}
LIVES = {"n1": 1, "n2": 1, "r1": 1}


def record(state: str = "committed", cause: str = "", node: str = "n1", **more: Any) -> Record:
    fields: dict[str, Any] = {
        "function": "note",
        "version": 1,
        "args": ARGS if state != "aborted" else b"",
        "initiator": node,
        "incarnation": 1,
        "created_ms": 0,
        "decided_ms": 0,
        "state": state,
        "cause": cause,
        "ticket": 30,
        "kind": "call",
        "deadline_ms": 5_000,
        **more,
    }
    return Record(**fields)


def at(id_: int, state: Any = "following", **more: Any) -> Cursor:
    return Cursor(id_, state, **more)


def waiting(node: str = "n1", deadline_ms: int = 5_000, incarnation: int = 1) -> Reservation:
    return Reservation(node, incarnation, "note", 1, ARGS, 0, deadline_ms)


def state(
    records: Mapping[int, Record] | None = None,
    cursors: Mapping[str, Cursor] | None = None,
    queue: Mapping[int, Reservation] | None = None,
    **more: Any,
) -> State:
    """Tables that fit together: what is granted, last and due follows from the records."""
    records, queue = dict(records or {}), dict(queue or {})
    reserved = [each for each in records.values() if each.state == "reserved"]
    due = {ticket: each.deadline_ms for ticket, each in queue.items()}
    due |= {each.ticket: each.deadline_ms for each in reserved}
    fields: dict[str, Any] = {
        "last": max(records, default=0),
        "granted": reserved[0].ticket if reserved else 0,
        "records": records,
        "cursors": cursors if cursors is not None else {"n1": at(0), "n2": at(0)},
        "queue": queue,
        "due": due,
        **more,
    }
    return State(**fields)


def step(command: Any, before: State, after: State, result: Any = None, **more: Any) -> Step:
    fields: dict[str, Any] = {
        "origin": ("n1", 1),
        "lives": LIVES,
        "roles": ROLES,
        "settings": SETTINGS,
        "now": NOW,
        **more,
    }
    return Step(
        index=INDEX,
        serial=SERIAL,
        command=command,
        before=before,
        after=after,
        result=result,
        **fields,
    )


def members(node: str, *, removed: bool = False) -> MemberChange:
    old = Member(node, "core", node, "", None, 1, True, 0)
    return MemberChange(old, None if removed else msgspec.structs.replace(old, up=False), 1)


DONE = record()
RESERVED = record("reserved")
GRANTED_NOW = record("reserved", ticket=SERIAL)
RESERVE = Reserve("note", 1, ARGS, 0, 4_000, 0)
RUNNING = state({1: RESERVED})
BOTH_1, N1_AHEAD = {"n1": at(1), "n2": at(1)}, {"n1": at(1), "n2": at(0)}
BUSY = state({1: RESERVED}, queue={31: waiting("n2"), 32: waiting("n1")})
GAP = at(1, "gap", as_of=1)
N1_AND_N2 = {"n1": at(0), "n2": at(0)}
LOST = {("n1", 1): LostEffect("note", 1, "expired", 0)}
ABORTED = record("aborted", "failed: Error at f.py:1 in f")
DEAD = {"n2": 1, "r1": 1}
FOUR = dict.fromkeys((1, 2, 3, 4), DONE)

RIGHT = {
    "granted at once": step(RESERVE, state(), state({1: GRANTED_NOW}), Granted(SERIAL, 1)),
    "queued": step(
        RESERVE,
        RUNNING,
        state({1: RESERVED}, queue={SERIAL: waiting("n1")}),
        Queued(SERIAL, 1),
    ),
    "behind": step(RESERVE, state({1: DONE}, N1_AHEAD), state({1: DONE}, N1_AHEAD), Behind(1, 0)),
    "committed": step(
        Commit(1, 30), RUNNING, state({1: DONE}, N1_AHEAD), Committed(1, ("n1", "n2"), INDEX)
    ),
    "commit grants": step(
        Commit(1, 30),
        BUSY,
        state(
            {1: DONE, 2: record("reserved", node="n2", ticket=31)},
            N1_AHEAD,
            {32: waiting("n1")},
        ),
        Committed(1, ("n1", "n2"), INDEX),
    ),
    "commit passes over a dead head": step(
        Commit(1, 30),
        BUSY,
        state({1: DONE, 2: record("reserved", ticket=32)}, N1_AHEAD),
        Committed(1, ("n1", "n2"), INDEX),
        lives={"n1": 1},
    ),
    "aborted": step(Abort(1, 30, "x"), RUNNING, state({1: ABORTED}, BOTH_1)),
    "withdrawn": step(
        Withdraw(30, "withdrawn"), RUNNING, state({1: record("aborted", "withdrawn")}, BOTH_1)
    ),
    "withdrawn from the queue": step(
        Withdraw(32, "withdrawn"), BUSY, state({1: RESERVED}, queue={31: waiting("n2")})
    ),
    "expired": step(
        Expire(10),
        RUNNING,
        state({1: record("aborted", "expired")}, BOTH_1, lost=LOST),
        now=5_000,
        origin=("n2", 1),
    ),
    "initiator ended": step(
        members("n1"),
        RUNNING,
        state({1: record("aborted", "initiator_ended")}, BOTH_1, lost=LOST),
        origin=None,
        lives=DEAD,
    ),
    "removed": step(
        members("n2", removed=True),
        state({1: DONE}, BOTH_1),
        state({1: DONE}, {"n1": at(1)}),
        origin=None,
        lives={"n1": 1},
        roles={"n1": "core"},
    ),
    "removed while it ran": step(
        members("n1", removed=True),
        state({1: RESERVED}, N1_AND_N2),
        state({1: record("aborted", "initiator_ended")}, {"n2": at(1)}),
        origin=None,
        lives={"n2": 1},
    ),
    "advanced": step(
        Advance(1),
        state({1: DONE}, N1_AHEAD),
        state({1: DONE}, BOTH_1),
        Advanced(1),
        origin=("n2", 1),
    ),
    "advanced over an aborted one": step(
        Advance(1),
        state({1: DONE, 2: ABORTED}, {"n1": at(2), "n2": at(0)}),
        state({1: DONE, 2: ABORTED}, {"n1": at(2), "n2": at(2)}),
        Advanced(2),
        origin=("n2", 1),
    ),
    "failing": step(
        Failing(1, 1, "x"),
        state({1: DONE}, N1_AHEAD),
        state({1: DONE}, {"n1": at(1), "n2": at(0, failing=1, attempts=1)}),
        origin=("n2", 1),
    ),
    "stuck with a reservation": step(
        Failing(1, STUCK, "x"),
        state({1: DONE, 2: record("reserved", node="n2")}, N1_AHEAD),
        state(
            {1: DONE, 2: record("aborted", "stale_view", node="n2")},
            {"n1": at(2), "n2": at(0, failing=1, attempts=STUCK)},
        ),
        origin=("n2", 1),
    ),
    "skipped": step(
        Skip(1),
        state({1: DONE}, N1_AHEAD),
        state({1: DONE}, {"n1": at(1), "n2": at(1, skipped=(1,))}),
        Advanced(1),
        origin=("n2", 1),
    ),
    "first to join": step(Join(), state(cursors={}), state(cursors={"n1": at(0)})),
    "joins others": step(
        Join(),
        state({1: DONE}, {"n2": at(1)}),
        state({1: DONE}, {"n1": at(0, "joining", as_of=1), "n2": at(1)}),
    ),
    "wiped": step(Join(True), state({1: DONE}, BOTH_1), state({1: DONE}, {"n1": GAP, "n2": at(1)})),
    "synced": step(Sync(1), state({1: DONE}, {"n1": GAP, "n2": at(1)}), state({1: DONE}, BOTH_1)),
    "left": step(
        Leave("n1", False),
        state({1: DONE}, BOTH_1),
        state({1: DONE}, {"n2": at(1)}, left={"n1": Left(False)}),
    ),
    "left by force": step(
        Leave("n1", True),
        state({1: DONE}, BOTH_1),
        state({1: DONE}, {"n2": at(1)}, left={"n1": Left(True)}),
        origin=("n2", 1),
        lives=DEAD,
    ),
    "forced": step(
        Force(1, (), (("n2", 0),)),
        state({1: DONE}, N1_AHEAD),
        state(
            {1: DONE, 2: record(kind="force")},
            {"n1": at(2), "n2": at(0, "gap", as_of=2)},
        ),
    ),
    "forced forward": step(
        Force(1, (("n2", 0),), ()),
        state({1: DONE}, N1_AHEAD),
        state({1: DONE, 2: record(kind="force")}, {"n1": at(2), "n2": at(2, skipped=(1,))}),
    ),
    "reset": step(
        Reset(2),
        state({1: DONE, 2: DONE}, {"n1": at(2), "n2": at(0, "gap", as_of=1)}),
        State(last=2, cursors={"n1": at(2), "n2": at(2)}, reset=2),
    ),
    "trimmed": step(
        Trim(10), state({1: DONE, 2: DONE}, {"n1": at(2)}), state({2: DONE}, {"n1": at(2)})
    ),
    "trimmed past a node": step(
        Trim(10),
        state(FOUR, {"n1": at(4), "n2": at(0)}),
        state(FOUR, {"n1": at(4), "n2": at(0, "gap", as_of=1)}),
    ),
    "acknowledged": step(Acknowledge(1), state(lost=LOST), state()),
    "acknowledged by another": step(
        Acknowledge(1, "n1"), state(lost=LOST), state(), origin=("n2", 1)
    ),
    "refused": step(Commit(1, 30), RUNNING, RUNNING, refusal="NotReserved"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_pass(name: str) -> None:
    assert check_step(RIGHT[name]) == []


WRONG = {
    "ids [2] are new": step(RESERVE, state(), state({2: GRANTED_NOW}), Granted(SERIAL, 2)),
    "took 2 ids": step(
        RESERVE, state(), state({1: DONE, 2: GRANTED_NOW}, N1_AHEAD), Granted(SERIAL, 2)
    ),
    "a hole in": step(Trim(1), state(FOUR, BOTH_1), state({1: DONE, 4: DONE}, BOTH_1)),
    "reserved are": step(
        RESERVE, RUNNING, state({1: RESERVED, 2: GRANTED_NOW}), Granted(SERIAL, 2)
    ),
    "was committed, and is aborted": step(
        Abort(1, 30, "x"), state({1: DONE}, BOTH_1), state({1: ABORTED}, BOTH_1)
    ),
    "was aborted, and is committed": step(
        Commit(1, 30), state({1: ABORTED}, BOTH_1), state({1: DONE}, BOTH_1)
    ),
    "became another call": step(
        Commit(1, 30), RUNNING, state({1: record(function="other")}, N1_AHEAD)
    ),
    "('n2', 1) committed id 1 of n1": step(
        Commit(1, 30), RUNNING, state({1: DONE}, N1_AHEAD), origin=("n2", 1)
    ),
    "('n1', 2) committed id 1 of n1": step(
        Commit(1, 30), RUNNING, state({1: DONE}, N1_AHEAD), origin=("n1", 2)
    ),
    "is committed by a node that is at": step(
        Commit(2, 30),
        state({1: DONE, 2: RESERVED}, {"n1": at(0), "n2": at(1)}),
        state({1: DONE, 2: DONE}, {"n1": at(0), "n2": at(1)}),
    ),
    "('n2', 1) aborted id 1": step(
        Abort(1, 30, "x"), RUNNING, state({1: ABORTED}, BOTH_1), origin=("n2", 1)
    ),
    "for 'expired'": step(
        Expire(10), RUNNING, state({1: record("aborted", "expired")}, BOTH_1, lost=LOST)
    ),
    "for 'initiator_ended'": step(
        members("n1"),
        RUNNING,
        state({1: record("aborted", "initiator_ended")}, BOTH_1, lost=LOST),
        origin=None,
    ),
    "no lost effect of it is kept": step(
        Expire(10), RUNNING, state({1: record("aborted", "expired")}, BOTH_1), now=5_000
    ),
    "was forgotten": step(Trim(1), state(lost=LOST), state()),
    "lost effect of 1 on n1 was": step(Acknowledge(1), state(lost=LOST), state(), origin=("n2", 1)),
    "which n2 at": step(
        Trim(10),
        state({1: DONE, 2: DONE}, {"n1": at(2), "n2": at(0)}),
        state({2: DONE}, {"n1": at(2), "n2": at(0)}),
    ),
    "of those that were completed": step(
        Trim(10), state({1: DONE}, BOTH_1), State(last=1, cursors=BOTH_1)
    ),
    "deleted the records": step(
        Advance(2),
        state({1: DONE, 2: DONE}, {"n1": at(1)}),
        state({2: DONE}, {"n1": at(2)}),
    ),
    "put ticket 33": step(Expire(10), RUNNING, state({1: RESERVED}, queue={33: waiting("n1")})),
    "queued n2 life 1 for": step(
        RESERVE, RUNNING, state({1: RESERVED}, queue={SERIAL: waiting("n2")}), Queued(SERIAL, 1)
    ),
    "whose turn would have come": step(
        Expire(10), BUSY, state({1: RESERVED}, queue={32: waiting("n1")})
    ),
    "have a deadline and no place": step(
        RESERVE, state(), state({1: GRANTED_NOW}, due={}), Granted(SERIAL, 1)
    ),
    "past those that wait": step(
        RESERVE,
        state(queue={31: waiting("n2")}),
        state({1: GRANTED_NOW}, queue={31: waiting("n2")}),
        Granted(SERIAL, 1),
    ),
    "the last id is 1": step(
        RESERVE,
        state({1: DONE}, N1_AHEAD),
        state({1: DONE, 2: GRANTED_NOW}, N1_AHEAD),
        Granted(SERIAL, 2),
    ),
    "which did not wait": step(
        Commit(1, 30), RUNNING, state({1: DONE, 2: record("reserved", ticket=9)}, N1_AHEAD)
    ),
    "which is dead, late or stuck": step(
        Commit(1, 30),
        BUSY,
        state(
            {1: DONE, 2: record("reserved", node="n2", ticket=31)}, N1_AHEAD, {32: waiting("n1")}
        ),
        lives={"n1": 1},
    ),
    "before [31]": step(
        Commit(1, 30),
        BUSY,
        state({1: DONE, 2: record("reserved", ticket=32)}, N1_AHEAD, {31: waiting("n2")}),
    ),
    "as another call": step(
        Commit(1, 30),
        BUSY,
        state(
            {1: DONE, 2: record("reserved", node="n2", ticket=31, function="other")},
            N1_AHEAD,
            {32: waiting("n1")},
        ),
    ),
    "stands before the aborted id": step(Abort(1, 30, "x"), RUNNING, state({1: ABORTED})),
    "is at 2, and the last id is 1": step(
        Advance(1), state({1: DONE}, N1_AHEAD), state({1: DONE}, {"n1": at(2), "n2": at(0)})
    ),
    "a cursor was deleted": step(
        Advance(1), state({1: DONE}, BOTH_1), state({1: DONE}, {"n1": at(1)})
    ),
    "forced a node out that is up": step(
        Leave("n2", True), state({1: DONE}, BOTH_1), state({1: DONE}, {"n1": at(1)})
    ),
    "left by the word of another": step(
        Leave("n2", False), state({1: DONE}, BOTH_1), state({1: DONE}, {"n1": at(1)})
    ),
    "joined by the word of another": step(
        Join(), state(cursors={}), state(cursors={"n1": at(0)}), origin=("n2", 1)
    ),
    "a node that has left joined": step(
        Join(),
        state(cursors={}, left={"n1": Left(False)}),
        state(cursors={"n1": at(0)}),
    ),
    "a replicant joined": step(
        Join(), state(cursors={}), state(cursors={"r1": at(0)}), origin=("r1", 1)
    ),
    "joined without a copy": step(
        Join(), state({1: DONE}, {"n2": at(1)}), state({1: DONE}, BOTH_1)
    ),
    "does not join at the last": step(
        Join(), state({1: DONE}, {}), state({1: DONE}, {"n1": at(0)})
    ),
    "a cursor went back": step(
        Advance(1), state({1: DONE}, BOTH_1), state({1: DONE}, {"n1": at(0), "n2": at(1)})
    ),
    "a cursor moved over [1, 2]": step(
        Advance(2),
        state({1: DONE, 2: DONE}, {"n1": at(0), "n2": at(2)}),
        state({1: DONE, 2: DONE}, {"n1": at(2), "n2": at(2)}),
    ),
    "a cursor moved over [1] (n2": step(
        Advance(1), state({1: DONE}, N1_AHEAD), state({1: DONE}, BOTH_1)
    ),
    "a force went past [1], and noted () as": step(
        Force(1, (("n2", 0),), ()),
        state({1: DONE}, N1_AHEAD),
        state({1: DONE, 2: record(kind="force")}, {"n1": at(2), "n2": at(2)}),
    ),
    "a skip of 1 noted () as": step(
        Skip(1), state({1: DONE}, N1_AHEAD), state({1: DONE}, BOTH_1), origin=("n2", 1)
    ),
    "a force moved a cursor that": step(
        Force(1, (), ()),
        state({1: DONE}, N1_AHEAD),
        state({1: DONE, 2: record(kind="force")}, {"n1": at(2), "n2": at(2)}),
    ),
    "to another place than the last": step(
        Reset(2),
        state({1: DONE, 2: DONE}, {"n1": at(0)}),
        state({1: DONE, 2: DONE}, {"n1": at(1)}),
    ),
    "without a sync of its own": step(
        Advance(1), state({1: DONE}, {"n1": GAP}), state({1: DONE}, {"n1": at(1)})
    ),
    "a sync as of 1 (": step(
        Sync(1),
        state({1: DONE, 2: DONE}, {"n1": at(1, "gap", as_of=2)}),
        state({1: DONE, 2: DONE}, {"n1": at(1)}),
    ),
    "behind the oldest record": step(
        Sync(1),
        state({3: DONE}, {"n1": at(0, "joining", as_of=1)}),
        state({3: DONE}, {"n1": at(1)}),
    ),
    "a sync as of 1 led to 2": step(
        Sync(1),
        state({1: DONE, 2: DONE}, {"n1": GAP}),
        state({1: DONE, 2: DONE}, {"n1": at(2)}),
    ),
    "a node fell out": step(
        Advance(1), state({1: DONE}, BOTH_1), state({1: DONE}, {"n1": at(1), "n2": GAP})
    ),
    "is to be synced as of less": step(
        Trim(1),
        state(FOUR, {"n1": at(0, "gap", as_of=2)}),
        state(FOUR, {"n1": at(0, "gap", as_of=1)}),
    ),
    "granted is 40": step(RESERVE, state(), state({1: GRANTED_NOW}), Granted(SERIAL, 2)),
    "which is not in the queue": step(RESERVE, RUNNING, RUNNING, Queued(SERIAL, 1)),
    "and wrote": step(RESERVE, state(), state({1: GRANTED_NOW}), Behind(0, 0)),
    "to a node that is not stuck": step(RESERVE, RUNNING, RUNNING, StaleView(1, 0, STUCK)),
    "answered the participants": step(
        Commit(1, 30), RUNNING, state({1: DONE}, N1_AHEAD), Committed(1, ("n1",), INDEX)
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_each_wrong_step_is_found(words: str) -> None:
    found = check_step(WRONG[words])
    assert any(words in each for each in found), found
    assert all(each.startswith("index 100, ") for each in found)


def test_a_fall_out_of_a_history_that_is_not_too_long_is_found() -> None:
    early = step(
        Trim(10),
        state({1: DONE, 2: DONE}, {"n1": at(2), "n2": at(0)}),
        state({1: DONE, 2: DONE}, {"n1": at(2), "n2": at(0, "gap", as_of=1)}),
    )
    assert any("a node fell out" in each for each in check_step(early))


# Ledgers -----------------------------------------------------------------------------------------


def ledger_of(*steps: Step) -> Ledger:
    ledger = Ledger()
    for each in steps:
        ledger.note(each)
    return ledger


RESERVED_1 = step(RESERVE, state(), RUNNING)
COMMITTED_1 = step(Commit(1, 30), RUNNING, state({1: DONE}, N1_AHEAD))
ABORTED_1 = step(Abort(1, 30, "x"), RUNNING, state({1: ABORTED}, BOTH_1))


def test_a_ledger_knows_what_became_of_every_id() -> None:
    ledger = ledger_of(RESERVED_1)
    assert ledger.last == 1
    assert (ledger.entries[1].state, ledger.entries[1].args) == ("reserved", ARGS)
    ledger.note(ABORTED_1)
    # The arguments are dropped from the log, and kept here.
    assert (ledger.entries[1].state, ledger.entries[1].args) == ("aborted", ARGS)
    assert ledger.passes(1, 2)
    assert not ledger.passes(1, 3)
    committed = ledger_of(RESERVED_1, COMMITTED_1)
    assert committed.entries[1].nodes == ("n1", "n2")
    assert not committed.passes(1, 2)


def test_a_refused_step_changes_nothing() -> None:
    refused = replace(COMMITTED_1, refusal="NotReserved")
    assert ledger_of(RESERVED_1, refused).entries[1].state == "reserved"


def test_what_an_operator_passes_over_is_excused() -> None:
    assert ledger_of(RIGHT["skipped"]).excused == {1}
    forward = replace(RIGHT["forced"], command=Force(1, (("n2", 0),), ()))
    assert ledger_of(forward).excused == {1}
    assert ledger_of(RIGHT["reset"]).reset_at == 2
    alone = step(Join(), state({1: DONE}, {}), state({1: DONE}, {"n1": at(1)}))
    assert check_step(alone) == []
    assert ledger_of(alone).reset_at == 1
    assert ledger_of(RIGHT["joins others"]).reset_at == 0
    assert ledger_of(RIGHT["left"]).parted == {"n1"}
    removed = ledger_of(RIGHT["removed"])
    assert (removed.parted, removed.replaced) == ({"n2"}, {"n2"})
    assert ledger_of(RIGHT["removed while it ran"]).lost == {("n1", 1)}


def test_a_sync_without_a_copy_is_an_operators_word() -> None:
    ledger = Ledger()
    ledger.loaded.add(("n1", 1))
    ledger.note(RIGHT["synced"])
    assert ledger.reset_at == 0
    assert ledger_of(RIGHT["synced"]).reset_at == 1


def test_effects_come_with_the_cursor() -> None:
    effectful, put = {"count": True}, Put(b"k", b"v")
    counted = record("reserved", function="count")
    ledger = ledger_of(step(RESERVE, state(), state({1: counted})))
    right = step(Commit(1, 30, put), RUNNING, RUNNING)
    assert check_effect(right, effectful, ledger) == []
    (found,) = check_effect(replace(right, command=Commit(1, 30)), effectful, ledger)
    assert "without its effect" in found
    noted = ledger_of(RESERVED_1)
    assert check_effect(replace(right, command=Advance(1)), effectful, noted) == []
    (found,) = check_effect(right, effectful, noted)
    assert "with Put" in found
    assert "never given" in check_effect(right, effectful, Ledger())[0]
    ledger.note(right)
    assert ledger.effects == Counter({(1, "n1"): 1})
    assert "made twice" in check_effect(right, effectful, ledger)[0]
    ledger.replaced.add("n1")
    assert check_effect(right, effectful, ledger) == []


# Runs --------------------------------------------------------------------------------------------


def run(node: str = "n1", kind: str = "initiate", **more: Any) -> Run:
    fields: dict[str, Any] = {
        "boots": 1,
        "incarnation": 1,
        "id": 1,
        "function": "note",
        "version": 1,
        "number": 7,
        "attempt": 1,
        "cursor": at(0),
        "record": RESERVED if kind == "initiate" else DONE,
        "end": "ok",
        **more,
    }
    token = fields.pop("token", f"{fields['id']}@{node}")
    return Run(node=node, kind=kind, token=token, **fields)


UNDECIDED = ledger_of(RESERVED_1)
AFTERWARDS = ledger_of(RESERVED_1, COMMITTED_1)
GIVEN_UP = ledger_of(RESERVED_1, ABORTED_1)


def test_right_runs_pass() -> None:
    assert check_run(run(), UNDECIDED) == []
    assert check_run(run("n2", "replicate"), AFTERWARDS) == []
    assert check_run(run("n2", "replicate", attempt=5), AFTERWARDS) == []


@pytest.mark.parametrize(
    ("wrong", "ledger", "words"),
    [
        (run(id=3), UNDECIDED, "no such id"),
        (run(token="1@n2"), UNDECIDED, "its token"),
        (run(function="other"), UNDECIDED, "the log says note"),
        (run(version=2), UNDECIDED, "the log says note"),
        (run(attempt=0), UNDECIDED, "count from 1"),
        (run("n2"), UNDECIDED, "initiated for n1"),
        (run(incarnation=2), UNDECIDED, "initiated for n1 life 1"),
        (run(record=DONE), AFTERWARDS, "is committed already"),
        (run(record=None), UNDECIDED, "already"),
        (run(kind="rehearse"), AFTERWARDS, "of the kind"),
        (run("n2", "replicate"), UNDECIDED, "replicated, and is reserved"),
        (run("n2", "replicate"), GIVEN_UP, "replicated, and is aborted"),
        (run("n1", "replicate"), AFTERWARDS, "by its initiator"),
        (run("n2", "replicate", cursor=None), AFTERWARDS, "does not follow"),
        (run("n2", "replicate", cursor=GAP), AFTERWARDS, "does not follow"),
        (run("n2", "replicate", cursor=at(1)), AFTERWARDS, "is at 1 already"),
    ],
)
def test_each_wrong_run_is_found(wrong: Run, ledger: Ledger, words: str) -> None:
    found = check_run(wrong, ledger)
    assert any(words in each for each in found), found
    assert all(each.startswith(str(wrong)) or "no such id" in each for each in found)


def test_a_run_out_of_turn_is_found() -> None:
    second = record("reserved", ticket=31)
    before, after = state({1: DONE}, N1_AHEAD), state({1: DONE, 2: second}, N1_AHEAD)
    ledger = ledger_of(RESERVED_1, COMMITTED_1, step(RESERVE, before, after))
    early = run(id=2, token="2@n1", cursor=at(0), record=second)
    assert any("something comes first" in each for each in check_run(early, ledger))
    assert check_run(run(id=2, token="2@n1", cursor=at(1), record=second), ledger) == []


def test_two_runs_at_once_are_found() -> None:
    found = check_run(run(), UNDECIDED, [run(end="")])
    assert any("meanwhile" in each for each in found)


def test_runs_fit_what_became_of_their_ids() -> None:
    assert check_runs([run(), run("n2", "replicate")], AFTERWARDS) == []
    assert check_runs([run(end="raised")], GIVEN_UP) == []
    assert check_runs([], ledger_of(RESERVED_1, RIGHT["withdrawn"])) == []
    assert check_runs([run()], ledger_of(RESERVED_1, RIGHT["expired"])) == []
    unkept = record("aborted", "failed: OSError at f.py:1 in f")
    refused = step(Abort(1, 30, "x"), RUNNING, state({1: unkept}, BOTH_1))
    assert check_runs([run()], ledger_of(RESERVED_1, refused)) == []


@pytest.mark.parametrize(
    ("runs", "ledger", "words"),
    [
        ([run(), run()], AFTERWARDS, "initiated 2 times"),
        ([], AFTERWARDS, "ended never"),
        ([run(end="raised")], AFTERWARDS, "ended ['raised']"),
        ([run()], GIVEN_UP, "succeeded, and was aborted"),
        ([run(end="raised"), run("n2", "replicate")], GIVEN_UP, "a replica ran what is aborted"),
        ([run()], ledger_of(RESERVED_1, RIGHT["withdrawn"]), "no lost effect is known"),
    ],
)
def test_each_misfit_of_runs_is_found(runs: list[Run], ledger: Ledger, words: str) -> None:
    found = check_runs(runs, ledger)
    assert any(words in each for each in found), found


def test_a_call_that_is_initiated_under_two_ids_is_found() -> None:
    second = record("reserved", ticket=31)
    ledger = ledger_of(
        RESERVED_1,
        ABORTED_1,
        step(RESERVE, state({1: ABORTED}, BOTH_1), state({1: ABORTED, 2: second}, BOTH_1)),
    )
    twice = [run(end="raised"), run(id=2, token="2@n1")]
    assert any("under the ids [1, 2]" in each for each in check_runs(twice, ledger))


# Callers -----------------------------------------------------------------------------------------


def story(outcome: str = "ok", **more: Any) -> Story:
    fields: dict[str, Any] = {
        "number": 7,
        "node": "n1",
        "function": "note",
        "required": 1,
        "timeout_s": 5.0,
        "began": 0.0,
        "id": 1,
        "result": "1/7",
        **more,
    }
    return Story(outcome=outcome, **fields)


def test_true_answers_pass() -> None:
    assert check_story(story(), [run()], AFTERWARDS) == []
    assert check_story(story("peers_lagging", nodes=("n2",)), [run()], AFTERWARDS) == []
    failed = story("init_failure", error="Error", result=None)
    assert check_story(failed, [run(end="raised")], GIVEN_UP) == []
    assert check_story(story("init_failure", id=0, error="Error"), [], Ledger()) == []
    assert check_story(story("DeadlinePassed", id=0, nothing_ran=True), [], AFTERWARDS) == []
    assert check_story(story("Timeout", id=0), [run()], AFTERWARDS) == []


@pytest.mark.parametrize(
    ("told", "runs", "ledger", "words"),
    [
        (story(), [run()], GIVEN_UP, "the log says"),
        (story(id=5), [run()], AFTERWARDS, "the log says None"),
        (story(), [], AFTERWARDS, "its runs were of []"),
        (story(result="1/8"), [run()], AFTERWARDS, "of another call"),
        (story("peers_lagging"), [run()], AFTERWARDS, "misses nobody"),
        (story("init_failure", error="E"), [run()], AFTERWARDS, "id 1 is committed"),
        (story("init_failure", error="E"), [], UNDECIDED, "the log says"),
        (story("init_failure"), [run(end="raised")], GIVEN_UP, "no error is told"),
        (
            story("DeadlinePassed", nothing_ran=True),
            [run()],
            AFTERWARDS,
            "nothing ran, it was told",
        ),
        (
            story("StaleView", nothing_ran=True),
            [run(end="raised")],
            GIVEN_UP,
            "nothing ran, it was told",
        ),
    ],
)
def test_each_wrong_answer_is_found(
    told: Story, runs: list[Run], ledger: Ledger, words: str
) -> None:
    found = check_story(told, runs, ledger)
    assert any(words in each for each in found), found


@pytest.mark.parametrize("required", ["all", 2, ("n2",)])
def test_an_ok_that_did_not_wait_is_found(required: Any) -> None:
    (found,) = check_required(story(required=required), AFTERWARDS)
    assert "['n2'] had not executed it" in found


def test_an_ok_that_waited_long_enough_passes() -> None:
    assert check_required(story(required=1), AFTERWARDS) == []
    assert check_required(story(required=("n1",)), AFTERWARDS) == []
    everywhere = ledger_of(RESERVED_1, COMMITTED_1, RIGHT["advanced"])
    assert check_required(story(required="all"), everywhere) == []
    gone = ledger_of(RESERVED_1, COMMITTED_1)
    gone.cursors = {"n1": at(1)}
    assert check_required(story(required="all"), gone) == []


# The end -----------------------------------------------------------------------------------------

KEYS = {1: "k"}


def ending(**more: Any) -> Ending:
    fields: dict[str, Any] = {
        "cursors": {"n1": dict(BOTH_1), "n2": dict(BOTH_1)},
        "waiting": {"n1": 0, "n2": 0},
        "last": {"n1": 1, "n2": 1},
        "expected": ("n1", "n2"),
        "alarms": {"n1": [], "n2": []},
        "under_way": {"n1": 0, "n2": 0},
        "shelves": {"n1": {"k": 1}, "n2": {"k": 1}},
        "effects": {},
        **more,
    }
    return Ending(**fields)


def test_a_good_end_passes() -> None:
    assert check_ending(ending(), AFTERWARDS, KEYS) == []
    assert expected_shelf(AFTERWARDS, KEYS) == {"k": 1}
    assert expected_shelf(GIVEN_UP, KEYS) == {}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cursors": {"n1": N1_AHEAD}}, "n2 at"),
        ({"cursors": {"n1": {"n1": at(1), "n2": GAP}}}, "n2 at"),
        ({"cursors": {"n1": {"n1": at(1)}}}, "shows the participants ['n1']"),
        ({"waiting": {"n1": 2}}, "n1 has 2 waiting calls"),
        ({"under_way": {"n2": 1}}, "n2 has 1 calls under way"),
        ({"alarms": {"n1": ["call_failed 1"]}}, "shows the alarms call_failed 1"),
        ({"shelves": {"n2": {}}}, "n2 has k as of 0, and lacks the ids [1]"),
        ({"shelves": {"n2": {"k": 9}}}, "as of 9, which is unknown"),
        ({"effects": {(1, "n1"): 1}}, "effects (id, node)"),
    ],
)
def test_each_trace_that_is_left_is_found(changed: dict[str, Any], words: str) -> None:
    found = check_ending(ending(**changed), AFTERWARDS, KEYS)
    assert any(words in each for each in found), found


def test_what_was_skipped_may_be_missing() -> None:
    ledger = ledger_of(RESERVED_1, COMMITTED_1)
    ledger.excused.add(1)
    assert check_ending(ending(shelves={"n2": {}}), ledger, KEYS) == []
    old = ledger_of(RESERVED_1, COMMITTED_1)
    old.reset_at = 1
    assert check_ending(ending(shelves={"n2": {}}), old, KEYS) == []


def test_an_aborted_effect_is_where_it_was_told_to_be() -> None:
    lost = ledger_of(RESERVED_1, RIGHT["expired"])
    assert check_ending(ending(), lost, KEYS) == []
    found = check_ending(ending(), GIVEN_UP, KEYS)
    assert any("which is aborted failed" in each for each in found), found
