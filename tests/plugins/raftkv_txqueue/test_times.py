"""Times to live, delays, and the return to the back, in the pure half."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from raftkv.state.tables import TableView
from raftkv_txqueue import timers, times, views
from raftkv_txqueue.commands import (
    TIMED_MAX,
    Commit,
    CommitBranch,
    DeleteQueue,
    End,
    EnsureQueue,
    Message,
    PrepareBranch,
    PublishTo,
    Purge,
    Purged,
    Settled,
    Start,
    Swept,
)
from raftkv_txqueue.delivering import DELIVERIES, DIED_IN, DIED_OF
from raftkv_txqueue.refusals import (
    BadQueueTtl,
    BadTime,
    DeadLetterCycle,
    QueueAcquired,
    QueueDiffers,
    TooManyTimed,
    TransactionTooLarge,
)
from raftkv_txqueue.times import DELAY, TTL, timed
from raftkv_txqueue.views import browse
from raftkv_txqueue.xa import Xid

from .pure import TxLog, accept_of, message, publish_to


def timely(body: str, *, ttl_ms: int = 0, delay_ms: int = 0) -> Message:
    return timed(message(body), ttl_ms / 1000 or None, delay_ms / 1000 or None)


# --- time to live ---------------------------------------------------------------------------------


def test_an_expired_message_is_passed_over_by_the_entry_that_would_give_it() -> None:
    log = TxLog()
    log.publish("q", timely("a", ttl_ms=500), timely("b", ttl_ms=2_000), "c")
    session = log.open()
    log.now += 500
    got = log.get(session, count=3)
    assert (got.seqs, got.ready) == ((2, 3), 0)
    assert log.queue().dead == 1
    assert log.table("timers") != {}
    log.accept(session, "q", 2, 3)
    assert log.residue() == {}


def test_it_is_there_until_the_log_s_clock_says_otherwise() -> None:
    log = TxLog()
    log.publish("q", timely("a", ttl_ms=500))
    log.now += 499
    session = log.open()
    assert log.get(session).seqs == (1,)
    # A message that a session holds expires when it comes back.
    log.now += 1_000
    log.sweep_all()
    assert log.places() == {"a": "acquired"}
    log.release(session, "q", 1)
    assert log.bodies(everything=True) == []
    assert log.residue() == {}


@pytest.mark.parametrize("verb", ["put_back", "to_back", "close", "accepted"])
def test_what_comes_back_expired_dies_however_it_comes(verb: str) -> None:
    log = TxLog(queues=("q", "dead"))
    log.declare("e", dead_letter="dead")
    log.publish("e", timely("a", ttl_ms=500))
    session = log.open(kind="tx")
    log.get(session, "e")
    log.now += 500
    if verb == "close":
        log.close(session)
    elif verb == "accepted":
        log.stage(session, accept_of("e", 1))
        log.close(session)
    else:
        getattr(log, verb)(session, "e", 1)
    [letter] = log.browse("dead")
    assert dict(letter.message.headers)[DIED_OF] == "expired"
    assert log.queue("e").depth == 0
    assert log.residue("messages") == {}


def test_sweep_buries_them_in_bounded_slices_with_the_reason() -> None:
    log = TxLog(queues=("q", "dead"))
    log.declare("e", dead_letter="dead")
    for number in range(7):
        log.publish("e", message("m"), timely(f"e{number}", ttl_ms=100))
    log.now += 100
    first = log.sweep(3)
    assert (first.rows, first.more) == (3, True)
    assert log.queue("dead").depth == 3
    log.sweep_all(3)
    letters = log.browse("dead")
    assert [each.message.body for each in letters] == [b"e%d" % n for n in range(7)]
    for each in letters:
        assert dict(each.message.headers) == {DIED_IN: "e", DELIVERIES: "0", DIED_OF: "expired"}
    assert log.bodies("e") == ["m"] * 7
    session = log.open()
    assert log.get(session, "e", 100).seqs == (1, 3, 5, 7, 9, 11, 13)
    assert log.residue("messages", "locks") == {}


def test_a_get_passes_over_no_more_than_one_entry_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "FIRED_MAX", 2)
    log = TxLog()
    log.publish("q", *(timely(f"e{n}", ttl_ms=100) for n in range(9)), "live")
    log.now += 100
    session = log.open()
    answers = [log.get(session)]
    while not answers[-1].seqs:
        assert answers[-1].ready > 0
        answers.append(log.get(session))
    assert answers[-1].seqs == (10,)
    assert 2 <= len(answers) <= 4
    ready = [each.ready for each in answers]
    assert ready == sorted(ready, reverse=True)
    assert log.queue().dead == 9


# --- delay ----------------------------------------------------------------------------------------


def test_a_delayed_message_keeps_its_place_and_nobody_gets_it_before() -> None:
    log = TxLog()
    published = log.publish("q", "a", timely("b", delay_ms=1_000), "c")
    assert (published.first, published.last) == (1, 3)
    session = log.open()
    assert log.get(session, count=9).seqs == (1, 3)
    assert log.places() == {"a": "acquired", "b": "delayed", "c": "acquired"}
    assert (log.queue().ready, log.queue().depth) == (0, 3)
    log.now += 999
    log.sweep_all()
    assert log.get(session, count=9).seqs == ()
    log.publish("q", "d")
    log.now += 1
    # Its place is before what was published later.
    assert log.get(session, count=9).seqs == (2, 4)
    assert log.residue("messages", "locks") == {}


def test_sweep_makes_it_available_and_its_time_to_live_begins_then() -> None:
    log = TxLog()
    log.publish("q", timely("a", delay_ms=1_000, ttl_ms=300))
    log.now += 1_100
    assert log.sweep().rows == 1
    assert log.queue().ready == 1
    log.now += 199
    assert log.sweep().rows == 0
    log.now += 1
    assert log.sweep().rows == 1
    assert (log.queue().depth, log.queue().dead) == (0, 1)
    assert log.residue() == {}


def test_delayed_messages_are_neither_purged_nor_dropped_nor_acquired_by_a_condition() -> None:
    log = TxLog()
    log.declare("d", depth_max=2, overflow="drop_oldest")
    log.publish("d", timely("late", delay_ms=1_000), "a", "b", "c")
    assert log.bodies("d") == ["c"]
    log.publish("q", timely("late", delay_ms=1_000))
    session = log.open()
    log.publish("q", "now")
    log.get(session)
    with pytest.raises(QueueAcquired) as caught:
        log.anywhere(DeleteQueue("q", if_unused=True))
    assert caught.value.args == ("q", 1)
    log.publish("q", "more")
    assert log.anywhere(Purge("q", 9)) == Purged(1, False)
    log.accept(session, "q", 2)
    log.anywhere(DeleteQueue("q", if_unused=True))
    log.sweep_all()
    assert {key[0] for key in log.table("delayed")} == {log.queue("d").id}


def test_many_delayed_ones_in_front_are_passed_in_bounded_steps() -> None:
    log = TxLog(checks=False)
    log.publish("q", "first")
    for _ in range(3):
        log.publish("q", *(timely("d", delay_ms=60_000) for _ in range(1_000)))
    log.publish("q", "last")
    session = log.open()
    assert log.get(session).seqs == (1,)
    answers = [log.get(session)]
    while not answers[-1].seqs:
        answers.append(log.get(session))
    assert answers[-1].seqs == (3_002,)
    assert len(answers) <= 4
    log.check()


def test_a_purge_that_passes_over_delayed_messages_alone_leaves_them_delayed() -> None:
    log = TxLog(checks=False)
    log.publish("q", "first")
    for _ in range(3):
        log.publish("q", *(timely("d", delay_ms=60_000) for _ in range(700)))
    session = log.open()
    assert log.get(session).seqs == (1,)
    assert log.anywhere(Purge("q", 9_999)) == Purged(0, False)
    log.check()
    log.publish("q", "last")
    assert log.get(session, count=9).seqs == (2_102,)


@pytest.mark.parametrize("gaps_max", [2, 1_000])
def test_purge_and_overflow_find_what_is_behind_delayed_messages(
    gaps_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "GAPS_MAX", gaps_max)
    log = TxLog(checks=gaps_max == 2)
    late = [timely("d", delay_ms=60_000) for _ in range(gaps_max)]
    for queue in ("q", "d"):
        log.anywhere(EnsureQueue(queue))
        log.publish(queue, "a")
        log.publish(queue, *late)
        log.publish(queue, "b", "c")
        log.publish(queue, *late)
        log.publish(queue, "d", "e")
    purges = [log.anywhere(Purge("q", 9_999))]
    while purges[-1].more:
        purges.append(log.anywhere(Purge("q", 9_999)))
    assert (sum(each.messages for each in purges), log.bodies()) == (5, [])
    log.declare("d", depth_max=1, overflow="drop_oldest")
    log.publish("d", "newest")
    log.sweep_all()
    assert (log.bodies("d"), log.queue("d").dropped) == (["newest"], 5)
    log.check()


def test_b10_firing_timers_passes_a_bounded_number_of_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "GAPS_MAX", 5)
    log = TxLog()
    for _ in range(4):
        log.publish("q", timely("t", ttl_ms=100), *(timely("d", delay_ms=60_000),) * 9)
    log.publish("q", "last")
    log.now += 100
    assert log.sweep() == Swept(4, False)
    # Four of their own, and five of delayed messages.
    assert log.queue().cursor == 10
    session = log.open()
    answers = [log.get(session)]
    while not answers[-1].seqs:
        answers.append(log.get(session))
    assert answers[-1].seqs == (41,)
    assert log.replay().digest() == log.digest()


@pytest.mark.parametrize("heads", [1, 6])
def test_gaps_behind_messages_that_no_consumer_takes_do_not_grow_with_the_traffic(
    heads: int,
) -> None:
    log = TxLog()
    log.publish("q", *"abcdef"[:heads])
    most = 0
    for _ in range(20):
        log.publish("q", *(timely("t", ttl_ms=100),) * 5)
        log.now += 100
        log.sweep_all()
        log.check()
        most = max(most, len(log.table("gaps")))
    assert most <= 2 * heads
    assert (log.queue().depth, log.queue().dead) == (heads, 100)
    got = log.get(log.open(), count=9)
    assert (got.seqs, got.deliveries) == (tuple(range(1, heads + 1)), (1,) * heads)
    assert log.replay().digest() == log.digest()


def test_dead_letters_of_one_entry_pass_a_bounded_number_of_gaps() -> None:
    log = TxLog()
    log.declare("dead")
    log.publish("dead", "head", *(timely("d", delay_ms=60_000),) * 200)
    log.declare("dead", depth_max=1, overflow="drop_oldest")
    log.declare("q", dead_letter="dead")
    log.publish("q", *(timely("t", ttl_ms=100),) * 10)
    log.now += 100
    # That of the dead letter, and nothing of the other steps.
    assert log.sweep(10) == Swept(10, True)
    # A letter drops two messages, and passes two gaps before them and two between them.
    assert len(log.table("gaps")) >= 200 - 10 * 4
    log.sweep_all()
    # The others are dropped in time, but for the newest.
    assert (log.queue("dead").ready, log.queue("dead").dropped) == (1, 10)
    log.check()
    assert log.replay().digest() == log.digest()


def test_b10_what_returns_to_the_back_passes_no_gaps_but_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "GAPS_MAX", 3)
    log = TxLog()
    log.publish("q", "a", "b", *(timely("d", delay_ms=60_000),) * 20, "c")
    session = log.open()
    log.get(session, count=2)
    assert log.queue().cursor == 6
    log.to_back(session, "q", 1, 2)
    assert log.queue().cursor == 8
    assert log.bodies() == ["c", "a", "b"]


def test_what_is_appended_passes_no_gaps_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "GAPS_MAX", 5)
    log = TxLog()
    log.publish("q", "a", *(timely("d", delay_ms=60_000),) * 20)
    log.get(log.open())
    assert log.queue().cursor == 7
    log.publish("q", *(timely("d", delay_ms=60_000),) * 2)
    assert log.queue().cursor == 9
    session = log.open(kind="tx")
    log.commit(session, PublishTo("q", (timely("d", delay_ms=60_000),)))
    assert log.queue().cursor == 10


def test_looking_past_many_delayed_messages_reads_few_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = TxLog(checks=False)
    log.publish("q", "first")
    for _ in range(8):
        log.publish("q", *(timely("d", delay_ms=60_000) for _ in range(1_000)))
    log.publish("q", *(timely("t", ttl_ms=100) for _ in range(100)), "last")
    session, read = log.open(), 0
    scan = TableView.scan

    def counted(*given: Any, **more: Any) -> Iterator[Any]:
        nonlocal read
        for row in scan(*given, **more):
            read += 1
            yield row

    monkeypatch.setattr(TableView, "scan", counted)
    assert log.bodies(limit=200)[-1] == "last"
    assert read < 20
    log.now += 100
    assert log.sweep().rows == 100
    assert log.get(session).seqs == (1,)
    assert read < 1_000


# --- in transactions ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1_200])
def test_times_in_a_local_transaction_begin_with_its_commit(rows: int) -> None:
    log = TxLog()
    session = log.open(kind="tx")
    operations = PublishTo(
        "q", (timely("e", ttl_ms=500), timely("d", delay_ms=500), message("plain"))
    )
    log.stage(session, operations)
    for _ in range(rows // 400):
        log.stage(session, publish_to("q", *["more"] * 400))
    log.now += 10_000
    log.commit(session)
    assert [each.state for each in log.browse(everything=True, limit=3)] == [
        "available",
        "delayed",
        "available",
    ]
    log.now += 500
    log.sweep_all()
    assert log.bodies(limit=2) == ["d", "plain"]
    assert log.queue().dead == 1
    taker = log.open()
    assert log.get(taker, count=2).seqs == (2, 3)
    log.accept(taker, "q", 2, 3)
    assert log.residue("messages") == {}


@pytest.mark.parametrize("rows", [0, 1_200])
def test_what_was_staged_below_format_2_has_no_times(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TxLog()
    monkeypatch.setattr(times, "FORMAT_TIMES", 3)
    session = log.open(kind="tx")
    unchecked = Message(b"e", ((TTL, "9" * 15), (DELAY, "9" * 15)))
    log.stage(session, PublishTo("q", (unchecked,)))
    for _ in range(rows // 400):
        log.stage(session, publish_to("q", *["more"] * 400))
    monkeypatch.setattr(times, "FORMAT_TIMES", 2)
    log.commit(session)
    assert log.bodies(limit=1) == ["e"]
    assert log.table("timers") == {}


def test_times_in_a_branch_begin_with_its_commit_and_hold_however_long_it_is_prepared() -> None:
    log = TxLog()
    session, xid = log.open(kind="dtx"), Xid(1, b"g", b"b")
    log.send("n1", Start(session, xid))
    log.send("n1", End(session, xid, operations=(PublishTo("q", (timely("e", ttl_ms=500),)),)))
    log.send("n1", PrepareBranch(xid))
    log.now += 10_000
    log.send("n1", CommitBranch(xid))
    assert log.bodies() == ["e"]
    log.now += 500
    log.sweep_all()
    assert log.bodies() == []


def test_a_transaction_has_so_many_timers_at_most() -> None:
    log = TxLog(checks=False)
    session = log.open(kind="tx")
    many = PublishTo("q", tuple(timely("e", ttl_ms=500) for _ in range(TIMED_MAX)))
    log.stage(session, many)
    with pytest.raises(TransactionTooLarge):
        log.stage(session, PublishTo("q", (timely("e", ttl_ms=500),)))
    log.stage(session, publish_to("q", "plain"))
    log.check()
    log.commit(session)
    log.sweep_all()
    log.check()
    assert len(log.table("timers")) == TIMED_MAX
    assert log.table("staged_times") == {}


def test_a_rolled_back_transaction_leaves_no_times() -> None:
    log = TxLog()
    session = log.open(kind="tx")
    log.stage(session, PublishTo("q", (timely("e", ttl_ms=500),)))
    log.close(session)
    assert log.residue() == {}


# --- the time to live of a queue ------------------------------------------------------------------


def aging(ttl_ms: int, name: str = "q", **limits: Any) -> TxLog:
    """A log whose queue `name` bounds the times to live of its messages."""
    log = TxLog(queues=("q", "dead"))
    log.anywhere(EnsureQueue(name, ttl_ms=ttl_ms, change=True, **limits))
    return log


def test_b10_the_shorter_of_the_queue_s_time_to_live_and_the_message_s_own_counts() -> None:
    log = aging(500, dead_letter="dead")
    log.publish("q", "a", timely("b", ttl_ms=200), timely("c", ttl_ms=900))
    log.publish("q", timely("d", delay_ms=400))
    assert {each.message.headers for each in log.browse("q", limit=1)} == {()}
    for passed, left in ((199, "abc"), (1, "ac"), (299, "acd"), (1, "d"), (399, "d"), (1, "")):
        log.now += passed
        log.sweep_all()
        assert log.bodies() == list(left)
    for letter in log.browse("dead"):
        assert dict(letter.message.headers)[DIED_OF] == "expired"
    assert log.queue().dead == 4
    assert log.residue("messages") == {}


def test_b10_what_is_in_a_queue_is_not_touched_by_a_later_declaration() -> None:
    log = TxLog()
    log.publish("q", "before")
    log.anywhere(EnsureQueue("q", ttl_ms=300, change=True))
    log.publish("q", "during")
    log.anywhere(EnsureQueue("q", ttl_ms=0, change=True))
    assert log.table("queue_ttls") == {}
    log.publish("q", "after")
    log.now += 300
    log.sweep_all()
    assert log.bodies() == ["before", "after"]


def test_b10_a_plain_redeclare_keeps_the_time_to_live_and_another_is_refused() -> None:
    log = aging(500)
    for same in (EnsureQueue("q"), EnsureQueue("q", ttl_ms=500)):
        assert not log.anywhere(same).changed
    log.declare("q")  # as a node of an old release would
    assert log.table("queue_ttls") == {log.queue().id: 500}
    for other in (0, 501):
        with pytest.raises(QueueDiffers) as caught:
            log.anywhere(EnsureQueue("q", ttl_ms=other))
        assert caught.value.args == ("q", "ttl_ms", "500", str(other))
    assert log.anywhere(EnsureQueue("q", ttl_ms=501, change=True)).changed
    log.set("ttl_max_ms", 1_000)
    with pytest.raises(BadQueueTtl, match="take 1 to 1000 ms"):
        log.anywhere(EnsureQueue("q", ttl_ms=1_001, change=True))
    log.delete("q")
    assert log.table("queue_ttls") == {}


def test_a_declaration_that_changes_nothing_is_not_refused_for_a_lowered_limit() -> None:
    log = TxLog(queues=())
    command = EnsureQueue("q", ttl_ms=60_000)
    assert log.anywhere(command).created
    log.set("ttl_max_ms", 10_000)
    assert not log.anywhere(command).changed
    for refused in (EnsureQueue("other", ttl_ms=60_000), EnsureQueue("q", ttl_ms=59_999)):
        with pytest.raises(BadQueueTtl):
            log.anywhere(refused)


@pytest.mark.parametrize("large", [False, True])
def test_b10_in_a_transaction_it_is_the_one_at_the_staging_and_begins_with_the_commit(
    large: bool,
) -> None:
    log = TxLog(queues=("q", "p"))
    more = [publish_to("p", *["more"] * 600)] * 2 if large else []
    session = log.open(kind="tx")
    log.stage(session, publish_to("q", "before"))
    log.anywhere(EnsureQueue("q", ttl_ms=300, change=True))
    log.stage(session, publish_to("q", "during"))
    log.anywhere(EnsureQueue("q", ttl_ms=0, change=True))
    for operation in more:
        log.stage(session, operation)
    log.now += 10_000
    log.commit(session, publish_to("q", "after"))
    log.now += 299
    log.sweep_all()
    assert log.bodies() == ["before", "during", "after"]
    log.now += 1
    log.sweep_all()
    assert log.bodies() == ["before", "after"]
    assert log.table("staged_times") == {}
    assert log.replay().digest() == log.digest()


def test_b10_a_dead_letter_lives_as_long_as_its_new_queue_says() -> None:
    """A message that is rejected waits in another queue and comes back: a retry with a pause."""
    log = TxLog(queues=("work", "dead"))
    log.anywhere(EnsureQueue("wait", ttl_ms=1_000, dead_letter="work"))
    log.anywhere(EnsureQueue("work", dead_letter="wait", change=True))
    log.set("timed_max", 1)
    log.publish("work", "a", "b")
    session = log.open()
    log.get(session, "work", 2)
    log.reject(session, "work", 1, 2)  # beyond timed_max: a dead letter is taken anyway
    assert (log.bodies("work"), log.bodies("wait")) == ([], ["a", "b"])
    log.now += 1_000
    log.sweep_all()
    assert (log.bodies("work"), log.bodies("wait")) == (["a", "b"], [])


def test_b10_expired_messages_do_not_go_round() -> None:
    log = TxLog(queues=("c",))
    log.anywhere(EnsureQueue("b", ttl_ms=10, dead_letter="c"))
    log.anywhere(EnsureQueue("a", ttl_ms=10, dead_letter="b"))
    log.anywhere(EnsureQueue("c", dead_letter="a", change=True))
    with pytest.raises(DeadLetterCycle, match="'a', 'b', for each of these queues has a ttl_ms"):
        log.anywhere(EnsureQueue("c", ttl_ms=10, change=True))
    log.anywhere(EnsureQueue("c", dead_letter="", ttl_ms=10, change=True))
    with pytest.raises(DeadLetterCycle):
        log.declare("c", dead_letter="a")
    log.anywhere(EnsureQueue("c", dead_letter="a", ttl_ms=0, change=True))


def test_b10_each_message_of_an_aging_queue_counts_against_timed_max() -> None:
    log = aging(500)
    log.set("timed_max", 2)
    log.publish("q", "a", "b")
    with pytest.raises(TooManyTimed):
        log.publish("q", "c")
    session = log.open(kind="tx")
    with pytest.raises(TooManyTimed):
        log.stage(session, publish_to("q", "c"))
    log.publish("dead", "c")


# --- return to the back ---------------------------------------------------------------------------


def test_a_message_returned_to_the_back_is_behind_all_others_with_its_deliveries() -> None:
    log = TxLog()
    log.publish("q", "a", "b", "c")
    session = log.open()
    assert log.get(session, count=2).seqs == (1, 2)
    assert log.to_back(session, "q", 1, 9) == Settled(1, (9,))
    assert log.bodies() == ["c", "a"]
    log.publish("q", "d")
    log.release(session, "q", 2)
    got = log.get(session, count=9)
    assert got.seqs == (2, 3, 4, 5)
    assert got.deliveries == (2, 1, 2, 1)
    log.accept(session, "q", *got.seqs)
    assert log.residue() == {}


def test_it_keeps_its_headers_its_time_and_dies_of_too_many_deliveries() -> None:
    log = TxLog(queues=("q", "dead"))
    log.declare("e", deliveries_max=2, dead_letter="dead")
    log.publish("e", Message(b"a", (("k", "v"),)))
    session = log.open()
    log.get(session, "e")
    log.to_back(session, "e", 1)
    [again] = log.browse("e")
    assert (again.seq, again.message.headers, again.deliveries) == (2, (("k", "v"),), 1)
    log.get(session, "e")
    log.to_back(session, "e", 2)
    [letter] = log.browse("dead")
    assert dict(letter.message.headers) == {"k": "v", DIED_IN: "e", DELIVERIES: "2"}
    log.publish("q", timely("t", ttl_ms=500))
    log.get(session)
    log.to_back(session, "q", 1)
    log.now += 500
    log.sweep_all()
    assert log.queue().dead == 1


# --- limits and formats ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "1.5", "٣", "9" * 16])
def test_what_is_no_time_is_refused(value: str) -> None:
    log = TxLog()
    for name in (TTL, DELAY):
        with pytest.raises(BadTime):
            log.publish("q", Message(b"a", ((name, value),)))


def test_times_are_limited_by_settings() -> None:
    log = TxLog()
    log.set("ttl_max_ms", 1_000)
    log.publish("q", timely("a", ttl_ms=1_000))
    with pytest.raises(BadTime, match="1 to 1000 ms"):
        log.publish("q", timely("a", ttl_ms=1_001))
    log.set("timed_max", 2)
    log.publish("q", timely("a", delay_ms=1_000))
    with pytest.raises(TooManyTimed, match="timed_max"):
        log.publish("q", timely("a", delay_ms=1_000))
    log.publish("q", "plain")


@pytest.mark.parametrize("how", ["published", "staged", "committed"])
def test_timed_max_is_not_passed_by_messages_with_both_times(how: str) -> None:
    log = TxLog()
    log.set("timed_max", 7)
    session = log.open(kind="tx")
    both = timely("a", ttl_ms=100, delay_ms=100)

    def add(count: int) -> None:
        if how == "published":
            log.publish("q", *[both] * count)
        else:
            operations = [PublishTo("q", (both,))] * count
            (log.stage if how == "staged" else log.commit)(session, *operations)

    add(2)
    add(1)
    assert times.timed_rows(log.view()) == 6
    if how == "committed":
        log.commit(session, PublishTo("q", (both,)))
        assert log.table("rollbacks")[session, 3].cause == TooManyTimed.code
    else:
        with pytest.raises(TooManyTimed):
            add(1)
    if how == "staged":
        log.commit(session)
    assert log.queue().depth == 3
    assert times.timed_rows(log.view()) == 6


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 0.0001])
def test_a_time_that_is_none_is_a_value_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="longer"):
        timed(message("a"), seconds, None)


def test_other_headers_stay_and_the_last_call_counts() -> None:
    first = timed(Message(b"a", (("k", "v"),)), 1.5, None)
    assert first.headers == (("k", "v"), (TTL, "1500"))
    assert timed(first, 2.0, 0.25).headers == (("k", "v"), (TTL, "2000"), (DELAY, "250"))


def test_below_format_2_a_time_is_a_header_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = TxLog()
    monkeypatch.setattr(times, "FORMAT_TIMES", 3)
    log.publish("q", timely("a", ttl_ms=500), Message(b"b", ((DELAY, "x"),)))
    log.now += 10_000
    log.sweep_all()
    assert log.bodies() == ["a", "b"]
    assert log.residue("messages") == {}


OPERATIONS = ("publish", "get", "get", "settle", "settle", "sweep", "commit")


# --- all of it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_no_message_is_lost_given_early_or_given_late(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a list of what each message may do. The invariants are checked after every entry."""
    rng = random.Random(seed)
    monkeypatch.setattr(views, "GAPS_MAX", (1, 3, 1_000)[seed % 3])
    log = TxLog(queues=("q", "dead"))
    log.declare("e", dead_letter="dead", depth_max=40)
    most = rng.choice((0, 100))
    log.anywhere(EnsureQueue("e", ttl_ms=most, change=True))
    sessions = [log.open(), log.open(kind="tx")]
    born: dict[str, tuple[int, int]] = {}
    held: dict[int, list[int]] = {each: [] for each in sessions}
    gone: set[str] = set()
    for step in range(150):
        log.now += rng.choice((0, 1, 20, 100))
        session = rng.choice(sessions)
        match rng.choice((*OPERATIONS, "purge") if not step % 5 else OPERATIONS):
            case "publish" if log.queue("e").depth < 35:
                body = f"m{step}"
                delay, ttl = rng.choice((0, 0, 50, 200)), rng.choice((0, 0, 30, 150))
                log.publish("e", timely(body, ttl_ms=ttl, delay_ms=delay))
                due = log.now + delay
                born[body] = (due, due + min(ttl or 10**9, most or 10**9))
            case "get":
                wanted, bytes_max = rng.choice((1, 3)), rng.choice((0, 0, 70))
                got = log.get(session, "e", wanted, bytes_max)
                while got.ready and not got.seqs:
                    got = log.get(session, "e", wanted, bytes_max)
                shown = {each.seq: each for each in browse(log.view(), "e", 1, 99, True)}
                for seq in got.seqs:
                    due, expires = born[shown[seq].message.body.decode()]
                    assert due <= log.now < expires
                held[session] += got.seqs
            case "settle" if held[session]:
                seq = held[session].pop(rng.randrange(len(held[session])))
                (one,) = browse(log.view(), "e", seq, 1, True)
                verb = rng.choice(("accept", "release", "reject", "put_back", "to_back"))
                getattr(log, verb)(session, "e", seq)
                if verb == "accept":
                    gone.add(one.message.body.decode())
            case "commit" if log.queue("e").depth < 35 and held[sessions[1]]:
                body, taken = f"c{step}", held[sessions[1]].pop()
                (one,) = browse(log.view(), "e", taken, 1, True)
                gone.add(one.message.body.decode())
                late = PublishTo("e", (timely(body, delay_ms=40),))
                log.commit(sessions[1], accept_of("e", taken), late)
                born[body] = (log.now + 40, log.now + 40 + (most or 10**9))
            case "purge":
                upto = rng.randrange(1, log.queue("e").next + 1)
                gone |= {each.message.body.decode() for each in log.browse("e") if each.seq <= upto}
                while log.anywhere(Purge("e", upto, rng.choice((1, 1_000)))).more:
                    pass
            case "sweep":
                log.sweep(rng.choice((1, 2, 1_000)))
    alive = {each.message.body.decode() for each in browse(log.view(), "e", 1, 999, True)}
    dead = {each.message.body.decode() for each in log.browse("dead", limit=999)}
    assert alive | dead | gone == set(born)
    assert not alive & dead
    assert not gone & (alive | dead)


def test_two_machines_agree_on_times() -> None:
    log = TxLog(queues=("q", "dead"))
    log.declare("e", dead_letter="dead")
    session = log.open()
    log.publish("e", timely("a", ttl_ms=100), timely("b", delay_ms=100), "c")
    log.get(session, "e")
    log.now += 100
    log.sweep_all()
    log.to_back(session, "e", 1)
    machine = log.replay()
    assert machine.row_counts() == log.machine.row_counts()
    assert browse(machine.view("txqueue"), "e") == log.browse("e")


def test_a_commit_with_times_only_of_small_content_is_one_entry() -> None:
    log = TxLog()
    session = log.open(kind="tx")
    before = log.machine.index
    log.send("n1", Commit(session, 1, (PublishTo("q", (timely("a", ttl_ms=100),)),)))
    assert log.machine.index == before + 1
    assert len(log.table("timers")) == 1
