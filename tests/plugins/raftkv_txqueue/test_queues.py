"""Queues: declared, published to, limited, dropped from, purged, deleted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftkv.errors import Refused
from raftkv_txqueue.commands import (
    COMMAND_BYTES,
    HEADERS_MAX,
    MESSAGE_OVERHEAD,
    ROWS_MAX,
    Declared,
    Deleted,
    DeleteQueue,
    End,
    EnsureQueue,
    Message,
    PrepareBranch,
    Publish,
    Published,
    Purge,
    Purged,
    RollbackBranch,
    Start,
    size_of,
)
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.queues import make_room
from raftkv_txqueue.refusals import (
    BadDeadLetter,
    BadHeaders,
    BadQueueName,
    BatchTooLarge,
    DeadLetterInUse,
    EmptyBatch,
    MessageTooLarge,
    QueueAcquired,
    QueueDiffers,
    QueueFull,
    QueueInUse,
    QueueNotEmpty,
    TooManyQueues,
    UnknownDeadLetter,
    UnknownQueue,
)
from raftkv_txqueue.xa import Xid
from tests.plugins.raftkv_txqueue.pure import TxLog, message, publish_to


def refused(log: TxLog, command: Any) -> tuple[Any, ...]:
    """The refusal's class and arguments; nothing was written."""
    before = log.digest_of_plugin()
    with pytest.raises(Refused) as caught:
        log.anywhere(command)
    assert log.digest_of_plugin() == before
    return type(caught.value), *caught.value.args


# --- declaring ------------------------------------------------------------------------------------


def test_a_queue_is_declared_once_and_may_be_given_other_limits() -> None:
    log = TxLog(queues=())
    assert log.declare("a") == Declared(1, created=True, changed=False)
    assert log.declare("a") == Declared(1, created=False, changed=False)
    log.publish("a", "1", "2", "3")
    assert log.declare("a", depth_max=2) == Declared(1, created=False, changed=True)
    assert log.bodies("a") == ["1", "2", "3"]  # a limit takes nothing away
    assert log.queue("a").depth_max == 2
    assert log.declare("b") == Declared(2, created=True, changed=False)


@pytest.mark.parametrize("name", ["", "a/b", "a b", ".a", "-a", "ü", "a\n", "x" * 256, "a?"])
def test_a_bad_name_is_refused(name: str) -> None:
    log = TxLog(queues=())
    with pytest.raises(BadQueueName, match="1 to 255"):
        log.declare(name)
    if name:
        with pytest.raises(BadQueueName):
            log.declare("good", dead_letter=name)


def test_good_names() -> None:
    log = TxLog(queues=("a", "A.b-c:d_9", "_", "0", "x" * 255))
    assert len(log.table("queues")) == 5


def test_a_queue_does_not_take_its_own_dead_letters() -> None:
    log = TxLog()
    with pytest.raises(BadDeadLetter):
        log.declare("q", dead_letter="q")


def test_there_are_no_more_queues_than_allowed() -> None:
    log = TxLog()
    log.set("queues_max", 2)
    log.declare("b")
    with pytest.raises(TooManyQueues, match="2 queues"):
        log.declare("c")
    log.declare("q", depth_max=1)  # one that is there may be changed
    log.delete("b")
    log.declare("c")


# --- publishing -----------------------------------------------------------------------------------


def test_messages_get_their_seqs_in_the_order_of_the_log() -> None:
    log = TxLog()
    assert log.publish("q", "a") == Published(1, 1)
    assert log.publish("q", "b", "c") == Published(2, 3)
    assert log.bodies() == ["a", "b", "c"]
    queue = log.queue()
    assert (queue.depth, queue.ready, queue.next, queue.cursor) == (3, 3, 4, 1)
    assert queue.bytes == 3 * (MESSAGE_OVERHEAD + 1)


def test_anybody_may_publish_also_a_client_that_is_no_node() -> None:
    log = TxLog()
    client = log.client()
    assert log.run(client, "txqueue", Publish("q", (message("a"),))) == Published(1, 1)


def test_what_cannot_be_published() -> None:
    log = TxLog()
    log.set("message_bytes_max", 2_000)
    fits = Message(b"x" * (2_000 - MESSAGE_OVERHEAD))
    assert log.publish("q", fits) == Published(1, 1)
    large = Message(b"x" * (2_000 - MESSAGE_OVERHEAD), (("", ""),))
    named = Message(b"x" * (1_999 - MESSAGE_OVERHEAD), (("ab", ""),))
    many = Message(b"", tuple((str(n), "") for n in range(HEADERS_MAX + 1)))
    assert refused(log, Publish("nowhere", (fits,))) == (UnknownQueue, "nowhere")
    assert refused(log, Publish("q", ())) == (EmptyBatch,)
    assert refused(log, Publish("q", (Message(b""),) * (ROWS_MAX + 1))) == (
        BatchTooLarge,
        "rows",
        ROWS_MAX,
    )
    assert refused(log, Publish("q", (fits, named))) == (MessageTooLarge, 2_001, 2_000)
    assert refused(log, Publish("q", (large,)))[0] is BadHeaders
    assert refused(log, Publish("q", (many,)))[0] is BadHeaders
    assert log.queue().depth == 1


def test_a_batch_is_bounded_in_bytes_but_one_message_may_have_more() -> None:
    log = TxLog()
    log.set("message_bytes_max", 2 * COMMAND_BYTES)
    half = Message(b"x" * (COMMAND_BYTES // 2 - MESSAGE_OVERHEAD))
    log.publish("q", half, half)
    assert refused(log, Publish("q", (half, half, Message(b"")))) == (
        BatchTooLarge,
        "bytes",
        COMMAND_BYTES,
    )
    log.publish("q", Message(b"x" * COMMAND_BYTES))


def test_a_full_queue_refuses_the_whole_batch() -> None:
    log = TxLog()
    log.declare("q", depth_max=3, bytes_max=1_000)
    log.publish("q", "a", "b")
    command = Publish("q", (message("c"), message("d")))
    assert refused(log, command) == (QueueFull, "q", "messages", 3)
    log.publish("q", "c")
    assert refused(log, Publish("q", (message("d"),))) == (QueueFull, "q", "messages", 3)
    log.declare("q", bytes_max=3 * size_of(message("a")) + 1)
    assert refused(log, Publish("q", (message("d"),)))[2:] == (
        "bytes",
        3 * size_of(message("a")) + 1,
    )
    log.declare("q", bytes_max=4 * size_of(message("a")))
    log.publish("q", "d")


def test_what_a_prepared_branch_was_promised_counts_against_the_limits() -> None:
    log = TxLog()
    size = size_of(message("a"))
    session, xid = log.open(kind="dtx"), Xid(1, b"x")
    log.of(session, Start(session, xid))
    log.of(session, End(session, xid, operations=(publish_to("q", "a", "b"),)))
    log.declare("q", depth_max=3)
    log.anywhere(PrepareBranch(xid))
    log.publish("q", "c")
    assert refused(log, Publish("q", (message("d"),))) == (QueueFull, "q", "messages", 3)
    log.declare("q", bytes_max=3 * size)
    assert refused(log, Publish("q", (message("d"),))) == (QueueFull, "q", "bytes", 3 * size)
    log.anywhere(RollbackBranch(xid))
    log.publish("q", "d")


def test_acquired_messages_count_against_the_limits() -> None:
    log = TxLog()
    log.declare("q", depth_max=1)
    log.publish("q", "a")
    session = log.open()
    log.get(session)
    assert refused(log, Publish("q", (message("b"),)))[0] is QueueFull
    log.accept(session, "q", 1)
    log.publish("q", "b")


# --- dropping the oldest --------------------------------------------------------------------------


def test_the_oldest_available_ones_make_room() -> None:
    log = TxLog()
    log.declare("q", depth_max=3, overflow="drop_oldest")
    log.publish("q", "a", "b", "c")
    assert log.publish("q", "d") == Published(4, 4, dropped=1)
    assert log.bodies() == ["b", "c", "d"]
    assert log.publish("q", "e", "f", "g", "h", "i") == Published(5, 9, dropped=5)
    assert log.bodies() == ["g", "h", "i"]
    assert log.queue().dropped == 6


def test_returned_ones_are_dropped_before_fresh_ones_and_acquired_ones_never() -> None:
    log = TxLog()
    log.declare("q", depth_max=4, overflow="drop_oldest")
    log.publish("q", "a", "b", "c", "d")
    session = log.open()
    log.get(session, count=3)
    log.release(session, "q", 2)
    log.publish("q", "e")
    assert log.places() == {"a": "acquired", "c": "acquired", "d": "available", "e": "available"}
    log.publish("q", "f")
    assert list(log.places()) == ["a", "c", "e", "f"]


def test_the_newest_message_always_stays() -> None:
    """Otherwise a publication would be answered and be gone in the same entry."""
    log = TxLog()
    log.declare("q", depth_max=2, overflow="drop_oldest")
    log.publish("q", "a", "b")
    session = log.open()
    log.get(session, count=2)
    assert log.publish("q", "c") == Published(3, 3, dropped=0)
    assert log.queue().depth == 3
    assert log.publish("q", "d", "e") == Published(4, 5, dropped=2)
    assert list(log.places()) == ["a", "b", "e"]
    log.get(session)
    log.release(session, "q", 5)  # the newest one, returned
    assert log.publish("q", "f").dropped == 1
    assert list(log.places()) == ["a", "b", "f"]


def test_bytes_make_room_too() -> None:
    log = TxLog()
    size = size_of(message("a"))
    log.declare("q", bytes_max=2 * size, overflow="drop_oldest")
    log.publish("q", "a", "b")
    log.publish("q", "c")
    assert log.bodies() == ["b", "c"]
    log.publish("q", "x" * 500)
    assert log.queue().depth == 1


def test_one_entry_drops_a_bounded_number_and_marks_the_queue_for_the_rest() -> None:
    log = TxLog(checks=False)
    for _ in range(3):
        log.publish("q", *(["x"] * ROWS_MAX))
    log.declare("q", depth_max=10, overflow="drop_oldest")
    assert log.publish("q", "y") == Published(3 * ROWS_MAX + 1, 3 * ROWS_MAX + 1, ROWS_MAX)
    assert log.table("overfull") == {"q": None}
    assert log.queue().depth == 2 * ROWS_MAX + 1
    log.check()
    log.sweep_all()
    assert (log.table("overfull"), log.queue().depth) == ({}, 10)
    assert log.queue().dropped == 3 * ROWS_MAX - 9
    log.check()


def test_making_room_in_steps_ends() -> None:
    """What `Sweep` does: it is told whether there is more."""
    log = TxLog()
    log.publish("q", *"abcdef")
    log.declare("q", depth_max=2, overflow="drop_oldest")
    ctx: Any = log.machine._all["txqueue"].ctx
    queue, dropped, more = make_room(ctx, "q", log.queue(), 3)
    assert (queue.depth, dropped, more) == (3, 3, True)
    queue, dropped, more = make_room(ctx, "q", queue, 3)
    assert (queue.depth, dropped, more) == (2, 1, False)
    queue, dropped, more = make_room(ctx, "q", queue, 3)
    assert (queue.depth, dropped, more, queue.dropped) == (2, 0, False, 4)


def test_the_last_step_may_be_a_full_one() -> None:
    log = TxLog()
    log.publish("q", *"abc")
    log.declare("q", depth_max=2, overflow="drop_oldest")
    ctx: Any = log.machine._all["txqueue"].ctx
    queue, dropped, more = make_room(ctx, "q", log.queue(), 1)
    assert (queue.depth, dropped, more) == (2, 1, False)


def test_a_queue_that_refuses_drops_nothing() -> None:
    log = TxLog()
    log.publish("q", "a", "b")
    log.declare("q", depth_max=1)
    ctx: Any = log.machine._all["txqueue"].ctx
    assert make_room(ctx, "q", log.queue(), 10) == (log.queue(), 0, False)


# --- purging --------------------------------------------------------------------------------------


def test_purge_removes_what_is_available_up_to_a_seq() -> None:
    log = TxLog()
    log.publish("q", *"abcdef")
    session = log.open()
    log.get(session, count=3)
    log.release(session, "q", 1, 3)
    assert log.anywhere(Purge("q", 4)) == Purged(3, more=False)
    assert log.places() == {"b": "acquired", "e": "available", "f": "available"}
    assert log.anywhere(Purge("q", 4)) == Purged(0, more=False)
    log.release(session, "q", 2)
    assert log.bodies() == ["b", "e", "f"]


def test_purge_goes_in_batches() -> None:
    log = TxLog()
    log.publish("q", *"abcde")
    session = log.open()
    log.get(session, count=2)
    log.release(session, "q", 1, 2)
    assert log.anywhere(Purge("q", 9, 3)) == Purged(3, more=True)
    assert log.bodies() == ["d", "e"]
    assert log.anywhere(Purge("q", 9, 2)) == Purged(2, more=False)
    assert log.queue().bytes == 0
    log.publish("q", "f")
    assert log.get(session).seqs == (6,)


def test_purge_of_an_unknown_queue() -> None:
    assert refused(TxLog(), Purge("nowhere", 1)) == (UnknownQueue, "nowhere")


# --- deleting -------------------------------------------------------------------------------------


def test_a_deleted_queue_is_gone_at_once_and_a_new_one_of_its_name_is_empty() -> None:
    log = TxLog()
    log.publish("q", "a", "b")
    session = log.open()
    log.get(session)
    assert log.delete("q") == Deleted(2)
    with pytest.raises(UnknownQueue):
        log.get(session)
    assert log.declare("q").id == 2
    assert log.bodies() == []
    log.publish("q", "c")
    assert log.get(session).seqs == (1,)
    log.sweep_all()
    assert set(log.table("messages")) == {(2, 1)}
    assert log.table("dropped") == {}


def test_a_deleted_queue_is_no_longer_above_its_limit() -> None:
    log = TxLog(checks=False)
    for _ in range(2):
        log.publish("q", *(["x"] * ROWS_MAX))
    log.declare("q", depth_max=1, overflow="drop_oldest")
    log.publish("q", "y")
    assert log.table("overfull") == {"q": None}
    log.delete("q")
    log.check()
    log.declare("q")
    log.sweep_all()
    log.check()
    assert (log.table("overfull"), log.table("messages")) == ({}, {})


def test_an_empty_queue_leaves_nothing_to_sweep() -> None:
    log = TxLog()
    assert log.delete("q") == Deleted(0)
    assert log.table("dropped") == {}
    assert log.table("names") == {}


def test_a_queue_is_deleted_only_if_it_is_empty_or_unused_if_so_wished() -> None:
    log = TxLog()
    log.publish("q", "a")
    with pytest.raises(QueueNotEmpty, match="1 messages"):
        log.delete("q", if_empty=True)
    session = log.open()
    log.get(session)
    with pytest.raises(QueueAcquired):
        log.delete("q", if_unused=True)
    log.release(session, "q", 1)
    log.delete("q", if_unused=True)


def test_a_queue_with_content_of_an_undecided_transaction_is_not_deleted() -> None:
    log = TxLog()
    session = log.open(kind="tx")
    log.stage(session, publish_to("q", "a"))
    with pytest.raises(QueueInUse, match="1 undecided"):
        log.delete("q")
    log.commit(session)
    assert log.delete("q") == Deleted(1)


def test_b10_a_dead_letter_queue_that_is_in_use_is_not_deleted() -> None:
    log = TxLog(queues=("q", "dead"))
    for name in ("b", "a"):
        ensure(log, name, dead_letter="dead")
    log.publish("dead", "x")
    for command in (DeleteQueue("dead"), DeleteQueue("dead", if_empty=True)):
        assert refused(log, command) == (DeadLetterInUse, "dead", ("a", "b"), 0)
    ensure(log, "a", dead_letter="q", change=True)
    with pytest.raises(DeadLetterInUse, match="is the dead_letter of 'b': declare these with"):
        log.delete("dead")
    log.delete("b")
    assert log.delete("dead") == Deleted(1)
    assert log.replay().digest() == log.digest()


def test_b10_few_of_many_senders_are_named() -> None:
    log = TxLog(queues=("q", *(f"s{number:02}" for number in range(13))))
    for number in range(13):
        ensure(log, f"s{number:02}", dead_letter="q", change=True)
    with pytest.raises(DeadLetterInUse, match=r"'s09' and 3 more: ") as caught:
        log.delete("q")
    assert caught.value.queues == tuple(f"s{number:02}" for number in range(10))
    assert caught.value.more == 3


def test_b10_below_format_2_a_dead_letter_queue_is_deleted_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TxQueue, "version", 1)
    log = TxLog(queues=("q", "dead"))
    log.declare("a", dead_letter="dead")
    assert log.delete("dead") == Deleted(0)


def test_two_machines_agree() -> None:
    log = TxLog()
    log.declare("q", depth_max=3, overflow="drop_oldest")
    log.publish("q", *"abcdef")
    log.anywhere(Purge("q", 5))
    log.delete("q")
    assert log.replay().digest() == log.digest()


def test_headers_count_as_many_bytes_as_they_have() -> None:
    plain, umlauts = message("x", key="abc"), message("x", key="\u00e4\u20ac\U0001f600")
    assert size_of(umlauts) - size_of(plain) == len("\u00e4\u20ac\U0001f600".encode()) - 3 == 6
    log = TxLog()
    log.declare("q", bytes_max=size_of(umlauts) - 1)
    with pytest.raises(QueueFull):
        log.publish("q", umlauts)
    log.publish("q", plain)


# --- declared again ------------------------------------------------------------------------------


def ensure(log: TxLog, name: str, **limits: Any) -> Declared:
    done = log.anywhere(EnsureQueue(name, **limits))
    assert isinstance(done, Declared)
    return done


def test_a_plain_redeclare_leaves_the_limits_as_they_are() -> None:
    log = TxLog()
    ensure(log, "jobs", depth_max=5, overflow="drop_oldest", deliveries_max=2, dead_letter="q")
    before = log.queue("jobs")
    assert ensure(log, "jobs") == Declared(before.id, False, False)
    assert ensure(log, "jobs", depth_max=5, dead_letter="q").changed is False
    assert log.queue("jobs") == before


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("depth_max", 0),
        ("bytes_max", 9),
        ("overflow", "refuse"),
        ("deliveries_max", 3),
        ("dead_letter", ""),
    ],
)
def test_a_difference_is_refused_unless_asked_for(what: str, asked: Any) -> None:
    log = TxLog()
    limits = {"depth_max": 5, "overflow": "drop_oldest", "deliveries_max": 2, "dead_letter": "q"}
    ensure(log, "jobs", **limits)
    before = log.queue("jobs")
    with pytest.raises(QueueDiffers) as refused:
        ensure(log, "jobs", **{what: asked})
    assert (refused.value.queue, refused.value.what) == ("jobs", what)
    assert (refused.value.declared, refused.value.asked) == (str(getattr(before, what)), str(asked))
    assert log.queue("jobs") == before
    assert ensure(log, "jobs", **{what: asked}, change=True).changed
    assert log.queue("jobs") == msgspec.structs.replace(before, **{what: asked})


def test_a_dead_letter_queue_that_does_not_exist_is_refused() -> None:
    log = TxLog()
    for change in (False, True):
        with pytest.raises(UnknownDeadLetter, match="declare that queue first"):
            ensure(log, "jobs", dead_letter="typo", change=change)
    with pytest.raises(BadDeadLetter):
        ensure(log, "jobs", dead_letter="jobs")
    ensure(log, "typo")
    assert ensure(log, "jobs", dead_letter="typo").created
    assert log.queue("jobs").dead_letter == "typo"
