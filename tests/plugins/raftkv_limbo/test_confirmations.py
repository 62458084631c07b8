"""The record of each CONFIRM, and drops of synchronous spaces that wait for one."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.errors import UnknownCommand
from raftkv.state import StateMachine
from raftkv_limbo.commands import (
    AlterSpace,
    Confirmation,
    CreateSpace,
    Declare,
    DropFenced,
    DropSpace,
    RollBack,
    Submit,
    Transaction,
    Write,
)
from raftkv_limbo.refusals import (
    DropPending,
    ForeignOwner,
    NotAMember,
    QueueFull,
    SpaceBusy,
    SpaceExists,
    StaleOwner,
    StaleTerm,
    Unclaimed,
)
from raftkv_limbo.reports import queue_report
from raftkv_limbo.views import confirmation_of
from raftkv_limbo.waiting import verdict_of
from tests.plugins.raftkv_limbo.pure import FormerLimbo, LimboLog, put


def cause(log: LimboLog, position: int) -> tuple[str, str, int]:
    """What completed the quorum of a position, and that another machine holds the same."""
    kept = confirmation_of(log.view(), position)
    assert kept is not None
    copy = StateMachine([type(log.plugin)()])
    copy.restore(list(log.machine.freeze().slices(3)), log.machine.index)
    assert confirmation_of(copy.view("limbo"), position) == kept
    assert kept == confirmation_of(log.replay().view("limbo"), position)
    return kept.cause, kept.by, kept.upto


def test_item_9_the_acknowledgement_that_completes_a_quorum_is_kept() -> None:
    log = LimboLog()
    first, second = log.sync(key=b"1"), log.sync(key=b"2")
    log.ack("n1", "n2")
    assert verdict_of(log.view(), first).index == 0
    log.now += 500
    log.ack("n3", upto=second)
    verdict = verdict_of(log.view(), first)
    assert (verdict.fate, verdict.cause, verdict.by, verdict.upto) == (
        "confirmed",
        "ack",
        "n3",
        second,
    )
    assert (verdict.index, verdict.at_ms) == (log.machine.index, log.now)
    assert 0 < verdict.submitted_index < verdict.index
    assert log.table("confirmations") == {
        first: Confirmation(second, log.machine.index, 1, log.now, "ack", "n3", second)
    }
    assert cause(log, second) == ("ack", "n3", second)


def test_item_9_everything_that_completes_a_quorum_is_told_apart() -> None:
    log = LimboLog()
    waits = log.sync(key=b"1")
    log.set("quorum", "1")
    assert cause(log, waits) == ("setting", "quorum", 0)
    fast = log.sync("n1")
    assert cause(log, fast) == ("submit", "n1", 0)
    log.set("quorum", "N")
    waits = log.sync(key=b"2")
    log.ack("n1", "n2")
    log.set_voters("n1", "n2")
    assert cause(log, waits) == ("voters", "", 0)
    log.node_up("r1", "replicant")
    log.set("quorum_over", "members")
    waits = log.sync(key=b"3")
    log.ack("n1", "n2")
    log.node_down("r1")
    assert cause(log, waits) == ("member", "r1", 0)
    log.set("quorum_zones", {"east": 1})
    waits = log.sync(key=b"4")
    log.ack("n1", "n2")
    log.send("n2", Declare("east"))
    assert cause(log, waits) == ("declare", "n2", 0)


def test_item_9_what_waits_for_order_only_shares_the_record_and_independent_has_its_own() -> None:
    log = LimboLog()
    first = log.sync()
    free = log.taken("n1", put("a", b"free", independent=True))
    behind = log.taken("n1", put("a", b"behind"))
    log.ack("n1", "n2", "n3", upto=first)
    assert cause(log, free) == ("submit", "n1", 0)
    assert cause(log, first) == cause(log, behind) == ("ack", "n3", first)
    assert [(at, run.last) for at, run in log.table("confirmations").items()] == [
        (first, first),
        (free, free),
        (behind, behind),
    ]
    assert confirmation_of(log.view(), behind + 1) is None


def test_item_9_records_are_kept_as_long_as_rollbacks_and_no_longer() -> None:
    log = LimboLog(quorum="1")
    log.set("rollbacks_kept", 10)
    log.set("entries_kept", 0)
    for number in range(25):
        log.sync(key=b"%d" % number)
    assert len(log.table("confirmations")) == 10
    assert verdict_of(log.view(), 16).cause == "submit"
    old = verdict_of(log.view(), 15)
    assert (old.fate, old.index, old.cause) == ("confirmed", 0, "")


def test_item_9_at_format_1_nothing_is_recorded_or_fenced() -> None:
    log = LimboLog(quorum="1", plugin=FormerLimbo)
    position = log.sync()
    assert log.table("confirmations") == {}
    assert verdict_of(log.view(), position).cause == ""
    with pytest.raises(UnknownCommand):
        log.send("n1", DropFenced("s", 1))
    log.set("quorum", "N")
    assert log.send("n2", DropSpace("s")).rows == 1


# --- drops ----------------------------------------------------------------------------------------


def test_item_9_drop_of_a_synchronous_space_waits_for_its_quorum() -> None:
    log = LimboLog(quorum="1")
    log.sync(key=b"k")
    log.set("quorum", "N")
    done = log.drop("s")
    assert (done.confirmed, done.rows) == (False, 1)
    assert log.fate(done.position) == "pending"
    assert log.value("s", b"k") == b"v"
    assert queue_report(log.view(), 0, 10, log.now).entries[0].spaces == ("s",)
    log.ack("n1", "n2")
    assert "s" in log.table("spaces")
    log.ack("n3")
    assert cause(log, done.position) == ("ack", "n3", done.position)
    assert "s" not in log.table("spaces")
    assert log.table("dropped") == {1: None}
    assert log.send("n1", CreateSpace("s", True)).id == 3
    assert log.value("s", b"k") is None


def test_item_9_drop_is_fenced_by_owner_and_term() -> None:
    log = LimboLog()
    with pytest.raises(ForeignOwner):
        log.drop("s", "n2")
    with pytest.raises(StaleOwner):
        log.drop("s", term=0)
    with pytest.raises(NotAMember):
        log.run(log.client(), "limbo", DropFenced("s", 1))
    # A command of format 1 that was on its way.
    for command in (DropSpace("s"), AlterSpace("s", False)):
        with pytest.raises(StaleTerm):
            log.send("n1", command)
    log.node_down("n1")
    log.node_up("n1")
    with pytest.raises(StaleOwner):
        log.drop("s", "n1")
    unclaimed = LimboLog(owner="")
    with pytest.raises(Unclaimed):
        unclaimed.drop("s")
    assert unclaimed.drop("a", "n2").confirmed
    assert "a" not in unclaimed.table("spaces")


def test_item_9_making_a_space_async_is_no_way_around() -> None:
    log = LimboLog()
    with pytest.raises(ForeignOwner):
        log.alter("s", "n2", sync=False)
    with pytest.raises(StaleOwner):
        log.alter("s", "n1", sync=False, term=0)
    assert log.alter("a", "n2", sync=True)
    assert log.alter("s", "n1", sync=False)


def test_item_9_nothing_is_written_to_a_space_that_is_being_dropped() -> None:
    log = LimboLog()
    busy = log.sync()
    with pytest.raises(SpaceBusy) as caught:
        log.drop("s")
    assert caught.value.args == ("s", busy)
    log.ack("n1", "n2", "n3")
    position = log.drop("s").position
    assert log.rejected("n1", put("s", b"x")) == ("drop_pending", "s", position)
    refused: tuple[tuple[Any, type[Exception]], ...] = (
        (lambda: log.drop("s"), DropPending),
        (lambda: log.alter("s", sync=False), DropPending),
        (lambda: log.send("n1", CreateSpace("s", True)), SpaceExists),
    )
    for step, error in refused:
        with pytest.raises(error):
            step()
    # Others go on behind it.
    behind = log.taken("n1", put("a", b"k"))
    assert log.fate(behind) == "pending"
    log.send("n2", RollBack(position, 1, "not yet"))
    assert (log.fate(position), log.fate(behind)) == ("rolled back", "rolled back")
    assert log.table("drops") == {}
    assert log.sync(key=b"x") == behind + 1


def test_item_9_drop_takes_a_place_of_the_queue() -> None:
    log = LimboLog()
    log.send("n1", CreateSpace("t", True))
    log.set("queue_entries_max", 1)
    log.sync()
    submit = Submit((Transaction((Write("t", b"k", b"v"),)),), 1)
    assert [each.code for each in log.send("n1", submit).rejected] == ["limbo_queue_full"]
    with pytest.raises(QueueFull):
        log.drop("t")
