"""Acquire, accept, release, reject; order, redelivery, dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv_txqueue.commands import (
    HEADERS_MAX,
    ROWS_MAX,
    Acquire,
    Acquired,
    Message,
    Rollback,
    Settle,
    Settled,
    size_of,
)
from raftkv_txqueue.delivering import DELIVERIES, DIED_IN
from raftkv_txqueue.refusals import (
    BatchTooLarge,
    EmptyBatch,
    NotYourSession,
    SessionEnded,
    TooManyAcquired,
    UnknownQueue,
)
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, message


def three() -> tuple[TxLog, int, int]:
    """q = a, b, c, and a session on n1 and one on n2."""
    log = TxLog()
    log.publish("q", "a", "b", "c")
    return log, log.open("n1"), log.open("n2")


# --- acquiring ------------------------------------------------------------------------------------


def test_the_oldest_come_first_and_to_one_session_only() -> None:
    log, one, two = three()
    assert log.get(one, count=2) == Acquired((1, 2), (1, 1), 1)
    assert log.get(two, count=2) == Acquired((3,), (1,), 0)
    assert log.get(two) == Acquired((), (), 0)
    assert log.places() == dict.fromkeys("abc", "acquired")
    assert (log.session(one).held, log.session(two).held) == (2, 1)


def test_returned_ones_come_before_fresh_ones_in_their_old_order() -> None:
    log, one, two = three()
    log.publish("q", "d")
    log.get(one, count=3)
    log.release(one, "q", 3, 1)
    assert log.bodies() == ["a", "c", "d"]
    assert log.get(two, count=3) == Acquired((1, 3, 4), (2, 2, 1), 0)
    log.release(two, "q", 4, 3, 1)
    assert log.get(one, count=9) == Acquired((1, 3, 4), (3, 3, 2), 0)


def test_a_bound_in_bytes_gives_one_message_always() -> None:
    log, one, _ = three()
    size = size_of(message("a"))
    assert log.get(one, count=3, bytes_max=1).seqs == (1,)
    assert log.get(one, count=3, bytes_max=2 * size).seqs == (2, 3)
    log.release(one, "q", 1, 2, 3)
    log.publish("q", "d")
    assert log.get(one, count=9, bytes_max=2 * size).seqs == (1, 2)
    assert log.get(one, count=9, bytes_max=2 * size + 1) == Acquired((3, 4), (2, 1), 0)


def test_a_session_holds_no_more_than_allowed() -> None:
    log, one, two = three()
    log.set("acquired_max", 2)
    assert log.get(one, count=3).seqs == (1, 2)
    with pytest.raises(TooManyAcquired, match="holds 2 messages"):
        log.get(one)
    assert log.get(two).seqs == (3,)
    log.accept(one, "q", 1)
    assert log.get(one) == Acquired((), (), 0)


def test_a_queue_that_is_not_there() -> None:
    log, one, _ = three()
    with pytest.raises(UnknownQueue):
        log.get(one, "nowhere")


def test_only_its_own_node_uses_a_session() -> None:
    log, one, _ = three()
    with pytest.raises(NotYourSession, match="'n1'"):
        log.send("n2", Acquire(one, "q", 1))
    with pytest.raises(NotYourSession):
        log.run(log.client(), "txqueue", Acquire(one, "q", 1))
    with pytest.raises(SessionEnded):
        log.send("n1", Acquire(99, "q", 1))


# --- settling -------------------------------------------------------------------------------------


def test_accepted_messages_are_gone() -> None:
    log, one, _ = three()
    log.get(one, count=3)
    assert log.accept(one, "q", 2, 1) == Settled(2)
    assert log.places() == {"c": "acquired"}
    assert (log.queue().depth, log.session(one).held) == (1, 1)
    assert set(log.table("messages")) == {(1, 3)}


def test_what_the_session_does_not_hold_is_told_and_left_alone() -> None:
    log, one, two = three()
    log.get(one)
    log.get(two)
    assert log.accept(one, "q", 1, 1, 2, 3, 9) == Settled(1, (1, 2, 3, 9))
    assert log.release(one, "q", 2) == Settled(0, (2,))
    assert log.places() == {"b": "acquired", "c": "available"}
    assert log.session(two).held == 1


def test_what_cannot_be_settled() -> None:
    log, one, _ = three()
    with pytest.raises(EmptyBatch):
        log.accept(one, "q")
    with pytest.raises(BatchTooLarge):
        log.accept(one, "q", *range(1, ROWS_MAX + 2))
    with pytest.raises(NotYourSession):
        log.send("n3", Settle(one, "q", "accept", (1,)))
    assert log.accept(one, "nowhere", 1) == Settled(0, (1,))


def test_a_message_of_the_same_seq_in_another_queue_is_left_alone() -> None:
    log, one, _ = three()
    log.declare("p")
    log.publish("p", "x")
    log.get(one, "p")
    assert log.accept(one, "q", 1) == log.accept(one, "nowhere", 1) == Settled(0, (1,))
    assert log.places("p") == {"x": "acquired"}
    assert log.session(one).held == 1


def test_locks_on_a_deleted_queue_are_missing_and_are_swept() -> None:
    """A consumer that lives on would be full of them otherwise."""
    log, one, two = three()
    log.set("acquired_max", 3)
    log.get(one, count=2)
    log.get(two)
    log.delete("q")
    log.declare("q")
    log.publish("q", "x", "y")
    assert log.get(one).seqs == (1,)
    assert log.accept(one, "q", 1, 2) == Settled(1, (2,))  # 2 is the old queue's
    assert (len(log.table("locks")), log.session(one).held) == (3, 2)
    log.close(two)  # it had one of them, too
    log.sweep_all(rows_max=1)
    assert (log.table("locks"), log.session(one).held) == ({}, 0)
    assert log.get(one).seqs == (2,)
    assert log.table("dropped") == {}


def test_nobody_is_searched_for_locks_on_a_queue_that_had_none() -> None:
    log, one, _ = three()
    log.get(one, count=2)
    log.release(one, "q", 1, 2)
    log.delete("q")
    assert set(log.table("dropped").values()) == {0}
    log.sweep_all()
    assert (log.table("dropped"), log.table("messages")) == ({}, {})


def test_what_a_large_rolled_back_transaction_gives_back_can_be_settled_at_once() -> None:
    """Its rows are moved later, but the session has the messages from that entry on."""
    log = TxLog(checks=False)
    for _ in range(2):
        log.publish("q", *(["x"] * 700))
    one = log.open(kind="tx")
    for _ in range(2):
        held = log.get(one, count=700).seqs
        log.stage(one, accept_of("q", *held))
    log.of(one, Rollback(one, 1))
    log.check()
    assert (log.session(one).held, len(log.table("accepts"))) == (0, 1_400)
    assert log.accept(one, "q", 1, 1_400, 1, 9_999) == Settled(2, (1, 9_999))
    log.check()
    other = log.open()
    assert log.accept(other, "q", 2) == Settled(0, (2,))
    assert log.release(one, "q", 3) == Settled(1)
    assert log.bodies() == ["x"]
    log.sweep_all(rows_max=500)
    log.check()
    assert (log.session(one).held, log.queue().depth) == (1_397, 1_398)


# --- dead letters ---------------------------------------------------------------------------------


def headers(row: Any) -> dict[str, str]:
    return dict(row.message.headers)


def test_rejected_messages_go_to_the_dead_letters_or_are_dropped() -> None:
    log, one, _ = three()
    log.declare("q", dead_letter="dead")
    log.get(one, count=3)
    assert log.reject(one, "q", 1) == Settled(1)  # there is no such queue: dropped and counted
    assert (log.queue().depth, log.queue().dead) == (2, 1)
    log.declare("dead")
    log.now = 5_000
    log.reject(one, "q", 3, 2)
    assert log.bodies("dead") == ["c", "b"]
    [letter, _] = log.browse("dead")
    assert headers(letter) == {DIED_IN: "q", DELIVERIES: "1"}
    assert letter.at_ms == 5_000
    assert (log.queue().dead, log.queue().depth, log.queue().bytes) == (3, 0, 0)
    assert log.session(one).held == 0


def test_too_many_deliveries_end_as_a_dead_letter() -> None:
    log = TxLog(queues=("dead",))
    log.declare("q", deliveries_max=2, dead_letter="dead")
    log.publish("q", Message(b"a", (("k", "v"),)))
    one = log.open()
    log.get(one)
    log.release(one, "q", 1)
    assert log.bodies() == ["a"]
    log.get(one)
    log.release(one, "q", 1)
    assert log.bodies() == []
    [letter] = log.browse("dead")
    assert letter.message.headers == (("k", "v"), (DIED_IN, "q"), (DELIVERIES, "2"))
    assert (log.queue().dead, log.queue("dead").depth) == (1, 1)


def test_a_session_that_ends_counts_as_a_delivery() -> None:
    log = TxLog(queues=("dead",))
    log.declare("q", deliveries_max=1, dead_letter="dead")
    log.publish("q", "a", "b")
    one = log.open()
    log.get(one)
    log.close(one)
    assert (log.bodies(), log.bodies("dead")) == (["b"], ["a"])


def test_a_dead_letter_is_taken_above_the_limit_of_a_queue_that_refuses() -> None:
    log = TxLog()
    log.declare("dead", depth_max=1)
    log.declare("q", dead_letter="dead")
    log.publish("dead", "x")
    log.publish("q", "a", "b")
    one = log.open()
    log.get(one, count=2)
    log.reject(one, "q", 1, 2)
    assert log.bodies("dead") == ["x", "a", "b"]
    log.declare("dead", depth_max=1, overflow="drop_oldest")
    log.publish("q", "c")
    log.get(one)
    log.reject(one, "q", 3)
    assert log.bodies("dead") == ["b", "c"]  # two make room at once, the others when it is swept
    log.sweep_all()
    assert log.bodies("dead") == ["c"]


def test_dead_letters_go_one_step_and_tell_the_last_death_only() -> None:
    log = TxLog(queues=())
    log.declare("a", dead_letter="b")
    log.declare("b", dead_letter="a")
    many = tuple((f"h{n}", "") for n in range(HEADERS_MAX))
    log.publish("a", Message(b"x", many))
    one = log.open()
    for died_in, lives_in in (("a", "b"), ("b", "a"), ("a", "b")):
        [seq] = log.get(one, died_in).seqs
        log.reject(one, died_in, seq)
        assert log.bodies(died_in) == []
        [letter] = log.browse(lives_in)
        assert letter.message.headers == (*many, (DIED_IN, died_in), (DELIVERIES, "1"))


def test_two_machines_agree() -> None:
    log = TxLog(queues=("dead",))
    log.declare("q", deliveries_max=2, dead_letter="dead")
    log.publish("q", *"abcdef")
    one, two = log.open("n1"), log.open("n2")
    log.get(one, count=4)
    log.release(one, "q", 4, 2)
    log.get(two, count=9)
    log.release(two, "q", 2, 5)
    log.reject(one, "q", 1)
    log.close(two)
    assert log.replay().digest() == log.digest()


def test_many_dead_letters_do_not_drop_a_whole_queue_in_one_entry() -> None:
    """Each makes room for itself and a little more; the rest is swept."""
    log = TxLog(checks=False)
    log.declare("dead")
    for _ in range(5):
        log.publish("dead", *(["old"] * 1_000))
    log.declare("dead", depth_max=10, overflow="drop_oldest")
    log.declare("q", dead_letter="dead")
    log.publish("q", *(["x"] * 100))
    one = log.open()
    log.reject(one, "q", *log.get(one, count=100).seqs)
    assert log.queue("dead").dropped == 200
    log.check()
    assert log.table("overfull") == {"dead": None}
    log.sweep_all()
    assert log.bodies("dead") == ["x"] * 10


# --- put back -----------------------------------------------------------------------------------


def test_what_is_put_back_is_not_counted_and_keeps_its_place() -> None:
    log = TxLog()
    log.declare("q", deliveries_max=2)
    log.publish("q", "a", "b", "c")
    one, two = log.open("n1"), log.open("n2")
    log.get(one, count=3)
    assert log.put_back(one, "q", 2, 3, 9) == Settled(2, (9,))
    assert log.get(two, count=3) == Acquired((2, 3), (1, 1), 0)
    log.release(two, "q", 2)
    assert log.get(two) == Acquired((2,), (2,), 0)
    assert log.put_back(two, "q", 2).done == 1
    assert log.get(two) == Acquired((2,), (2,), 0)
    log.release(two, "q", 2)
    assert log.bodies() == []
    assert log.session(one).held == 1
    with pytest.raises(EmptyBatch):
        log.put_back(one, "q")


def test_what_is_put_back_does_not_die_of_a_limit_that_was_lowered() -> None:
    log = TxLog()
    log.publish("q", "a")
    one = log.open("n1")
    for _ in range(3):
        log.get(one)
        log.release(one, "q", 1)
    log.get(one)
    log.declare("q", deliveries_max=1)
    log.put_back(one, "q", 1)
    assert log.bodies() == ["a"]
