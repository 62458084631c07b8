"""Promote, demote, and rolling back on request: who may, and who comes too late."""

from __future__ import annotations

import pytest

from raftkv_limbo.commands import Demote, Promote, RollBack, Submit
from raftkv_limbo.refusals import (
    AlreadyConfirmed,
    AlreadyRolledBack,
    InterferingPromote,
    NotAMember,
    NotOwner,
    NotSettled,
    StaleTerm,
    UnknownPosition,
)
from raftkv_limbo.views import rollback_of
from tests.plugins.raftkv_limbo.pure import LimboLog, must, put


def test_unclaimed_async_ones_work_everywhere_and_sync_ones_nowhere() -> None:
    log = LimboLog(owner="")
    log.node_up("r1", "replicant")
    for node in ("n1", "n2", "r1"):
        log.taken(node, put("a", b"k"))
        assert log.rejected(node, put("s", b"k")) == ("unclaimed",)


def test_claimed_only_the_owner_writes_either_kind() -> None:
    log = LimboLog()
    for space in ("s", "a"):
        assert log.rejected("n2", put(space, b"k")) == ("foreign_owner", "n1", 1)
        log.taken("n1", put(space, b"k"))


def test_an_older_life_or_term_of_the_owner_is_fenced() -> None:
    log = LimboLog()
    assert log.rejected("n1", put("a", b"k"), term=0) == ("stale_owner", 1)
    log.node_up("n1")
    assert log.rejected("n1", put("a", b"k")) == ("stale_owner", 1)
    assert log.promote("n1").term == 2
    log.taken("n1", put("a", b"k"))
    assert log.rejected("n1", put("a", b"k"), term=1) == ("stale_owner", 2)


def test_the_owner_keeps_the_queue_though_it_dies() -> None:
    log = LimboLog()
    position = log.sync()
    log.node_down("n1")
    assert (log.state.owner, log.fate(position)) == ("n1", "pending")
    assert log.rejected("n2", put("a", b"k"))[0] == "foreign_owner"


def test_promoting_the_owner_again_changes_nothing() -> None:
    log = LimboLog()
    position = log.sync()
    again = log.send("n1", Promote(1, 99))
    assert (again.term, again.rolled_back) == (1, 0)
    assert log.fate(position) == "pending"


@pytest.mark.parametrize(
    ("held", "fates"),
    [
        (2, ["confirmed", "confirmed"]),
        (1, ["confirmed", "rolled back"]),
        (0, ["rolled back", "rolled back"]),
    ],
)
def test_promote_settles_the_old_owner_s_queue(held: int, fates: list[str]) -> None:
    log = LimboLog()
    log.sync(value=b"1")
    log.sync(value=b"2")
    log.ack("n1", "n2", "n3", upto=held)
    done = log.send("n2", Promote(1, held))
    assert (done.term, done.confirmed, done.rolled_back) == (2, held, 2 - held)
    assert [log.fate(1), log.fate(2)] == fates
    assert (log.state.owner, log.state.incarnation, log.state.pending) == ("n2", 1, 0)
    run = rollback_of(log.view(), 2)
    if held < 2:
        assert run is not None
        assert (run.reason, run.node) == ("promotion of n2 in term 2", "n2")
    # What the old owner sends now comes too late, whatever it is.
    assert log.rejected("n1", put("s", b"k"), term=1) == ("foreign_owner", "n2", 2)
    with pytest.raises(StaleTerm):
        log.send("n1", RollBack(1, 1, "late"))
    log.ack("n1", "n3")
    assert [log.fate(1), log.fate(2)] == fates


def test_promote_waits_for_what_it_knows_of() -> None:
    log = LimboLog()
    log.sync()
    with pytest.raises(NotSettled) as caught:
        log.send("n2", Promote(1, 1))
    assert caught.value.args == (1, 1)
    assert (log.state.owner, log.state.term, log.fate(1)) == ("n1", 1, "pending")


def test_of_two_promotes_one_wins() -> None:
    log = LimboLog(owner="")
    log.send("n1", Promote(0, 0))
    with pytest.raises(InterferingPromote) as caught:
        log.send("n2", Promote(0, 0))
    assert caught.value.args == ("n1", 1)
    assert log.state.owner == "n1"


def test_demote_leaves_nobody() -> None:
    log = LimboLog()
    position = log.sync()
    with pytest.raises(NotSettled):
        log.send("n1", Demote(1, position))
    done = log.send("n1", Demote(1, 0))
    assert (done.term, done.rolled_back) == (2, 1)
    run = rollback_of(log.view(), position)
    assert run is not None
    assert run.reason == "demotion of n1 in term 2"
    assert (log.state.owner, log.state.incarnation) == ("", 0)
    assert log.rejected("n1", put("s", b"k")) == ("unclaimed",)
    log.taken("n3", put("a", b"k"))


def test_only_the_owner_demotes_in_whatever_life() -> None:
    log = LimboLog()
    with pytest.raises(NotOwner) as caught:
        log.send("n2", Demote(1, 0))
    assert caught.value.args == ("n1", 1)
    with pytest.raises(InterferingPromote):
        log.send("n1", Demote(0, 0))
    log.node_up("n1")
    log.send("n1", Demote(1, 0))
    with pytest.raises(NotOwner, match="nobody owns .* nothing to give away"):
        log.send("n1", Demote(2, 0))


def test_rolling_back_on_request() -> None:
    log = LimboLog()
    for _ in range(3):
        log.sync()
    log.ack("n1", "n2", "n3", upto=1)
    done = log.send("n3", RollBack(2, 1, "r" * 600))  # an operator, on any node
    assert (done.first, done.last, done.entries) == (2, 3, 2)
    run = rollback_of(log.view(), 3)
    assert run is not None
    assert (run.head, run.last, run.term, run.at_ms, run.node) == (2, 3, 1, log.now, "n3")
    assert run.reason == "r" * 500
    with pytest.raises(AlreadyConfirmed):
        log.send("n1", RollBack(1, 1, ""))
    with pytest.raises(AlreadyRolledBack):
        log.send("n1", RollBack(2, 1, ""))
    for unknown in (0, 4):
        with pytest.raises(UnknownPosition):
            log.send("n1", RollBack(unknown, 1, ""))


@pytest.mark.parametrize("first", ["ack", "rollback"])
def test_the_quorum_and_the_request_race_and_the_log_decides(first: str) -> None:
    log = LimboLog()
    log.sync()
    log.ack("n1", "n2")
    if first == "ack":
        log.ack("n3")
        with pytest.raises(AlreadyConfirmed):
            log.send("n1", RollBack(1, 1, "too slow"))
    else:
        log.send("n1", RollBack(1, 1, "too slow"))
        log.ack("n3")
    assert log.fate(1) == {"ack": "confirmed", "rollback": "rolled back"}[first]


def test_an_operator_that_is_no_node_may_roll_back_and_nothing_else() -> None:
    log = LimboLog()
    log.sync()
    client = log.client()
    for command in (Promote(1, 0), Demote(1, 0), Submit((), 1)):
        with pytest.raises(NotAMember):
            log.run(client, "limbo", command)
    log.run(client, "limbo", RollBack(1, 1, "by hand"))
    run = must(object, rollback_of(log.view(), 1))
    assert run.node == ""  # type: ignore[attr-defined]
