"""What is staged, in which order, and what of it is refused; and how it is closed."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv_txqueue.commands import (
    TRANSACTION_QUEUES_MAX,
    AcceptOf,
    Message,
    Observe,
    PublishTo,
    Rollback,
    Vote,
    Voting,
    size_of,
)
from raftkv_txqueue.refusals import (
    BatchTooLarge,
    EmptyBatch,
    MessageTooLarge,
    NotHeld,
    NotInBranch,
    RollbackOnly,
    StagedFull,
    TooManyTransactions,
    TransactionClosed,
    TransactionOver,
    TransactionTooLarge,
    UnknownQueue,
    UnknownTransaction,
    WrongKind,
)
from raftkv_txqueue.views import operations_of
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, message, publish_to


@pytest.fixture
def log() -> TxLog:
    return TxLog(queues=("q", "r"))


def meta(log: TxLog) -> Any:
    return log.table("meta")["state"]


def test_what_is_staged_is_visible_to_nobody_and_kept_in_order(log: TxLog) -> None:
    log.publish("q", "a", "b")
    session = log.open(kind="tx")
    log.get(session, count=2)
    staged = log.stage(session, publish_to("r", "1", "2"), accept_of("q", 2))
    assert (staged.number, staged.rows) == (1, 3)
    assert log.stage(session, publish_to("q", "3"), publish_to("r", "4")).rows == 5
    assert log.bodies("r") == []
    assert log.places("q") == {"a": "acquired", "b": "accepted"}
    assert operations_of(log.view(), 1) == (
        publish_to("r", "1", "2"),
        AcceptOf("q", (2,)),
        publish_to("q", "3"),
        publish_to("r", "4"),
    )
    assert operations_of(log.view(), 1, 3) == (publish_to("q", "3"), publish_to("r", "4"))
    assert (log.queue("q").uses, log.queue("r").uses) == (1, 1)
    assert log.session(session).held == 1
    assert meta(log).staged_bytes == sum(size_of(message(text)) for text in "1234")


def test_a_refused_stage_leaves_nothing(log: TxLog) -> None:
    log.publish("q", "a")
    session = log.open(kind="tx")
    log.get(session)
    log.stage(session, publish_to("q", "1"))
    for operations, refusal in (
        ((publish_to("r", "2"), publish_to("nowhere", "3")), UnknownQueue),
        ((publish_to("r", "2"), accept_of("q", 2)), NotHeld),
        ((accept_of("q", 1), accept_of("q", 1)), NotHeld),
        ((accept_of("q", 1, 1),), NotHeld),
        ((PublishTo("q", ()),), EmptyBatch),
        ((AcceptOf("q", ()),), EmptyBatch),
        ((), EmptyBatch),
        ((PublishTo("q", (Message(b"x" * 300_000),)),), MessageTooLarge),
        ((PublishTo("q", (Message(b"x" * 200_000),) * 3),), BatchTooLarge),
        (
            (PublishTo("q", (Message(b""),) * 501), PublishTo("r", (Message(b""),) * 500)),
            BatchTooLarge,
        ),
    ):
        before = log.digest_of_plugin()
        with pytest.raises(refusal):
            log.stage(session, *operations)
        assert log.digest_of_plugin() == before


def test_who_may_stage_what(log: TxLog) -> None:
    plain, tx, dtx = log.open(), log.open(kind="tx"), log.open(kind="dtx")
    for session, counter, refusal in (
        (plain, 1, WrongKind),
        (plain, 0, WrongKind),
        (tx, 0, WrongKind),
        (dtx, 1, WrongKind),
        (dtx, 0, NotInBranch),
        (tx, 2, UnknownTransaction),
    ):
        with pytest.raises(refusal):
            log.stage(session, publish_to("q", "1"), counter=counter)
    log.commit(tx, publish_to("q", "1"))
    with pytest.raises(TransactionOver):
        log.stage(tx, publish_to("q", "1"), counter=1)


def test_limits_of_a_transaction_and_of_all(log: TxLog) -> None:
    session, other = log.open(kind="tx"), log.open(kind="tx")
    log.set("transaction_rows_max", 3)
    with pytest.raises(TransactionTooLarge):
        log.stage(session, publish_to("q", "1", "2", "3", "4"))
    log.stage(session, publish_to("q", "1", "2"))
    done = log.commit(session, publish_to("q", "3", "4"))
    assert (done.verdict, done.cause) == ("rolled back", "txqueue_transaction_too_large")
    log.set("transaction_rows_max", 100)

    log.set("transaction_bytes_max", 1024)
    big = PublishTo("q", (Message(b"x" * 900),))
    log.stage(session, big)
    with pytest.raises(TransactionTooLarge):
        log.stage(session, big)
    log.set("staged_bytes_max", 1024)
    with pytest.raises(StagedFull):
        log.stage(other, big)
    # One entry stages nothing, so it needs no room there.
    assert log.commit(other, big).verdict == "committed"
    log.of(session, Rollback(session, 2))
    assert meta(log).staged_bytes == 0

    log.set("transactions_max", 1)
    log.stage(session, publish_to("q", "1"))
    with pytest.raises(TooManyTransactions):
        log.stage(other, publish_to("q", "1"))
    assert log.commit(other, publish_to("q", "1")).verdict == "committed"


def test_queues_of_a_transaction() -> None:
    names = tuple(f"q{at}" for at in range(TRANSACTION_QUEUES_MAX + 1))
    log = TxLog(queues=names, checks=False)
    session = log.open(kind="tx")
    done = log.commit(session, *(publish_to(name, "1") for name in names))
    assert (done.verdict, done.cause) == ("rolled back", "txqueue_transaction_too_large")
    assert log.commit(session, *(publish_to(name, "1") for name in names[1:])).verdict == (
        "committed"
    )


def test_a_transaction_past_its_time_takes_nothing_more_and_is_rolled_back(log: TxLog) -> None:
    log.set("transaction_timeout_ms", 500)
    session = log.open(kind="tx")
    log.stage(session, publish_to("q", "1"))
    log.now += 500
    with pytest.raises(RollbackOnly):
        log.stage(session, publish_to("q", "2"))
    done = log.commit(session, publish_to("q", "2"))
    assert (done.verdict, done.cause) == ("rolled back", "timeout")
    assert log.bodies() == []
    assert log.table("due") == {}


# --- closing --------------------------------------------------------------------------------------


def test_the_participants_are_those_that_were_in_before_the_close(log: TxLog) -> None:
    log.send("n1", Observe(True))
    log.send("n2", Observe(True))
    session = log.open("n3", "tx")
    voting = log.commit(session, publish_to("q", "1"))
    assert isinstance(voting, Voting)
    log.send("n3", Observe(True))
    row = log.transaction(voting.number)
    assert row is not None
    assert [one.node for one in row.participants] == ["n1", "n2"]
    assert log.bodies() == []
    assert log.commit(session, publish_to("q", "1"), counter=1) == voting
    with pytest.raises(TransactionClosed):
        log.stage(session, publish_to("q", "2"))
    log.send("n3", Vote(voting.number, False, "late comer"))
    log.send("n1", Vote(voting.number, True))
    log.send("n1", Vote(voting.number, False, "too late to change it"))
    assert log.bodies() == []
    log.send("n2", Vote(voting.number, True))
    assert log.bodies() == ["1"]
    assert log.table("transactions") == {}
    assert log.table("due") == {}


def test_a_closed_transaction_has_its_room(log: TxLog) -> None:
    log.declare("q", depth_max=3)
    log.send("n1", Observe(True))
    session = log.open("n1", "tx")
    voting = log.commit(session, publish_to("q", "1", "2"))
    assert (log.queue().reserved, log.queue().depth) == (2, 0)
    log.publish("q", "x")
    second = log.open("n1", "tx")
    done = log.commit(second, publish_to("q", "y"))
    assert (done.verdict, done.cause) == ("rolled back", "txqueue_queue_full")
    log.declare("q", depth_max=1, overflow="drop_oldest")
    log.send("n1", Vote(voting.number, False, "disk full"))
    assert (log.queue().reserved, log.queue().reserved_bytes) == (0, 0)
    assert log.table("rollbacks")[session, 1].reason == "n1: disk full"


def test_an_empty_commit_asks_nobody(log: TxLog) -> None:
    log.send("n1", Observe(True))
    session = log.open("n1", "tx")
    assert log.commit(session).verdict == "committed"


def test_accepting_makes_room_for_what_is_published_in_the_same_transaction(log: TxLog) -> None:
    log.declare("q", depth_max=2)
    log.publish("q", "a", "b")
    session = log.open(kind="tx")
    log.get(session, count=2)
    assert log.commit(session, publish_to("q", "c"), accept_of("q", 1)).verdict == "committed"
    assert log.commit(session, publish_to("q", "d")).cause == "txqueue_queue_full"
    assert log.places() == {"b": "acquired", "c": "available"}


def test_what_was_staged_before_a_limit_was_lowered_can_be_committed(log: TxLog) -> None:
    log.publish("q", "a")
    session = log.open(kind="tx")
    log.get(session)
    log.stage(session, *(publish_to("r", "x" * 900) for _ in range(3)))
    log.set("staged_bytes_max", 1_024)
    log.set("transaction_bytes_max", 1_024)
    log.stage(session, accept_of("q", 1))  # publishes nothing
    log.set("transaction_rows_max", 1)
    assert log.commit(session).verdict == "committed"
    assert (len(log.bodies("r")), log.places("q")) == (3, {})
