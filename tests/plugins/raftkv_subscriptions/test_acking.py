"""Acknowledgements: what they say of which messages, and what they cost."""

from __future__ import annotations

import pytest

from raftkv_subscriptions import marks, views
from raftkv_subscriptions.commands import (
    Ack,
    AckDelivered,
    Acked,
    AckTo,
    AckToDelivered,
    Released,
    ReleaseDelivered,
)
from raftkv_subscriptions.refusals import (
    ConsumerGone,
    NotCumulative,
    NotYourConsumer,
    TooManyRanges,
    UnknownPosition,
    UnknownSubscription,
)
from raftkv_subscriptions.rows import BLOCK, ROWS_MAX, Hole

from .pure import RegionLog, copies


def filled(messages: int, *, own: bool = True) -> RegionLog:
    log = RegionLog("a", others=("b",), checks=False)
    log.subscribe(initial="earliest", replicate=True)
    for start in range(0, messages, 500):
        n = min(500, messages - start)
        if own:
            log.publish("t", *(b"x" for _ in range(n)))
        else:
            log.deliver("t", "b", *copies("b", start + 1, start + n))
    log.checks = True
    return log


def published(log: RegionLog, sub: str = "s") -> tuple[tuple[str, int, int], ...]:
    return views.state_of(log.view(), "t", sub).ranges


def test_one_by_one_and_out_of_order() -> None:
    log = filled(6)
    assert log.ack(3, 5) == Acked(2, 0)
    assert published(log) == (("a", 3, 3), ("a", 5, 5))
    assert log.ack(3) == Acked(0, 0)
    assert log.ack(1, 2) == Acked(2, 3)
    assert log.sub().ranges == 1
    assert log.ack(4) == Acked(1, 5)
    assert (log.sub().ranges, log.table("acks")) == (0, {})


def test_unknown_positions_and_names() -> None:
    log = filled(2)
    with pytest.raises(UnknownPosition) as refused:
        log.ack(1, 3)
    assert (refused.value.position, refused.value.next) == (3, 3)
    assert log.sub().mark == 0
    with pytest.raises(UnknownPosition):
        log.ack_to(3)
    with pytest.raises(UnknownSubscription):
        log.ack(1, sub="other")
    assert log.ack_to(0) == Acked(0, 0)
    assert log.ack() == Acked(0, 0)


def test_an_acknowledgement_of_what_was_delivered_before_a_seek_is_passed_over() -> None:
    """Pulsar 26304: it was proposed before the seek, and stands behind it in the log."""
    for kind in ("exclusive", "failover"):
        log = filled(10)
        log.unsubscribe()
        log.subscribe(kind=kind, initial="earliest")
        consumer = log.attach().consumer
        before = log.sub().epoch
        log.seek(2)
        for late in (
            AckDelivered("t", "s", (5, 6), consumer, before),
            AckToDelivered("t", "s", 10, consumer, before),
            AckToDelivered("t", "s", 10, epoch=before),
        ):
            assert log.send("n1", late) == Acked(0, 2)
        assert published(log) == ()
        epoch = log.sub().epoch
        assert log.send("n1", AckDelivered("t", "s", (4,), consumer, epoch)) == Acked(1, 2)
        assert log.send("n1", AckToDelivered("t", "s", 9, consumer, epoch)) == Acked(6, 9)


def test_an_old_acknowledgement_leaves_what_a_shared_consumer_has_taken_anew() -> None:
    log = filled(3)
    log.unsubscribe()
    log.subscribe(kind="shared", initial="earliest")
    consumer = log.attach().consumer
    old = log.take(consumer, 3).epoch
    log.seek(0)
    new = log.take(consumer, 3)
    assert (new.positions, new.epoch > old) == ((1, 2, 3), True)
    assert log.send("n1", AckDelivered("t", "s", (1, 2, 3), consumer, old)) == Acked(0, 0)
    assert (log.sub().locked, log.sub().mark) == (3, 0)
    assert log.send("n1", AckDelivered("t", "s", (1, 2, 3), consumer, new.epoch)) == Acked(3, 3)


def test_b12_a_release_of_what_was_delivered_before_a_seek_is_passed_over() -> None:
    """The consumer holds the same positions again: they stay in its hands."""
    log = filled(3)
    log.unsubscribe()
    log.subscribe(kind="shared", initial="earliest")
    consumer, other = log.attach().consumer, log.attach("n2").consumer
    old = log.take(consumer, 3).epoch
    log.seek(0)
    late = ReleaseDelivered(consumer, (1, 2), old)
    assert log.send("n1", late) == Released(0, 2)  # before it takes again, too
    new = log.take(consumer, 3)
    assert (new.positions, new.deliveries) == ((1, 2, 3), (1, 1, 1))
    assert log.send("n1", late) == Released(0, 2)
    assert log.take(other, 3).positions == ()
    assert log.sub().locked == 3
    # Of this delivery it counts; 1 was not asked for twice.
    again = ReleaseDelivered(consumer, (2,), new.epoch)
    assert (log.send("n1", again), log.send("n1", again)) == (Released(1, 0), Released(0, 1))
    taken = log.take(other, 3)
    assert (taken.positions, taken.deliveries) == ((2,), (2,))
    assert log.replay().digest() == log.digest()


def test_what_an_old_acknowledgement_says_is_judged_as_ever() -> None:
    log = filled(2)
    with pytest.raises(UnknownSubscription):
        log.send("n1", AckDelivered("t", "other", (1,), epoch=0))
    with pytest.raises(UnknownPosition):
        log.send("n1", AckToDelivered("t", "s", 3, epoch=log.sub().epoch))
    with pytest.raises(ConsumerGone):
        log.send("n1", AckDelivered("t", "s", (1,), 99, 7))


def test_a_hole_is_never_acknowledged() -> None:
    for far in (5, 3 * BLOCK):
        log = filled(0)
        log.deliver("t", "b", *copies("b", 1, 3), Hole("b", 4, 9), *copies("b", 10, 12))
        log.publish("t", *("x" * far))
        assert log.ack_to(log.topic().next - 1).mark == far + 6
        assert published(log) == (("a", 1, far), ("b", 1, 3), ("b", 10, 12))


def test_a_hole_at_the_mark() -> None:
    """It is in front of the first message that stands behind the mark."""
    log = filled(0)
    log.deliver("t", "b", *copies("b", 1, 3))
    log.ack_to(3)
    log.deliver("t", "b", Hole("b", 4, 9), *copies("b", 10, 9 + 2 * BLOCK))
    assert log.ack_to(3 + 2 * BLOCK).done == 2 * BLOCK
    assert published(log) == (("b", 1, 3), ("b", 10, 9 + 2 * BLOCK))


def test_what_was_trimmed_before_is_not_acknowledged() -> None:
    """Another region makes the subscription here, from the beginning; the beginning is trimmed."""
    for messages in (20, 2 * BLOCK):
        log = filled(0)
        log.put_region("b", fetches=False)
        log.publish("t", *("x" * 10))
        log.ack_to(10)
        log.unsubscribe()
        log.declare("t", retention_bytes=1)
        log.sweep_all("t")
        assert log.topic().first == 11
        log.declare("t", retention_bytes=0)
        log.publish("t", *("x" * messages))
        log.merge(("b", 1, 1))
        assert log.sub().mark == 10
        log.ack_to(10 + messages)
        assert published(log) == (("a", 11, 10 + messages), ("b", 1, 1))


def test_the_base_is_not_acknowledged() -> None:
    log = filled(10)
    log.subscribe(sub="late", initial="latest")
    log.publish("t", "x")
    log.ack_to(11, sub="late")
    assert published(log, "late") == (("a", 11, 11),)
    assert views.state_of(log.view(), "t", "late").base == (("a", 10),)


def test_trimmed_positions_are_done() -> None:
    log = filled(10)
    log.put_region("b", fetches=False)
    log.ack_to(4)
    log.declare("t", retention_bytes=1)
    log.sweep_all("t")
    assert log.topic().first == 5
    assert log.ack(1, 2, 3, 5) == Acked(1, 5)
    assert log.ack_to(3) == Acked(0, 5)


@pytest.mark.parametrize("far", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_near_and_far(far: int) -> None:
    """`ack_to` by the messages between, and by the index: the same."""
    log = filled(100, own=False)
    log.publish("t", *("x" * 150))
    log.deliver("t", "b", *copies("b", 101, 900))
    for position in range(far, log.topic().next, far):
        acked = log.ack_to(position)
        assert (acked.done, acked.mark) == (far, position)
    assert log.sub().ranges == 0


def test_a_mark_moves_a_thousand_messages_an_entry() -> None:
    log = filled(3 * ROWS_MAX)
    # Alternating positions: no index helps, each message has to be looked at.
    log.set("ranges_max", 20_000)
    log.checks = False
    for start in range(2, 3 * ROWS_MAX, 1_000):
        log.ack(*range(start, start + 1_000, 2))
    for start in range(3, 3 * ROWS_MAX, 1_000):
        log.ack(*range(start, min(start + 1_000, 3 * ROWS_MAX + 1), 2))
    assert log.sub().mark == 0
    # A range beyond the first gap: the set is no vector.
    log.publish("t", "x", "x")
    log.ack(3 * ROWS_MAX + 2)
    log.checks = True
    assert log.ack(1).mark == ROWS_MAX
    assert set(log.table("advancing")) == {log.sub().id}
    swept = log.sweep()
    assert swept.more
    assert log.sub().mark == 2 * ROWS_MAX
    log.sweep_all()
    assert log.sub().mark == 3 * ROWS_MAX
    assert log.table("advancing") == {}


def test_cheap_for_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message more each time: neither a scan of the index nor of the ranges."""
    log = filled(1_000)
    log.checks = False
    looked = []
    real = marks.mark_of
    monkeypatch.setattr(marks, "mark_of", lambda *a: looked.append(real(*a)[1]) or real(*a))
    for position in range(1, 301):
        log.ack_to(position)
    assert max(looked) == 1


def test_too_many_ranges() -> None:
    log = filled(100)
    log.set("ranges_max", 10)
    log.ack(*range(2, 22, 2))
    before = log.digest_of_plugin()
    with pytest.raises(TooManyRanges):
        log.ack(22, 30)
    assert log.digest_of_plugin() == before
    # What makes no row more, is always taken; and everything up to a position too.
    assert log.ack(3, 1).done == 2
    assert log.ack_to(100).mark == 100
    assert log.sub().ranges == 0


def test_consumers_fence() -> None:
    log = filled(10)
    one = log.attach("n1").consumer
    log.send("n1", AckTo("t", "s", 2, one))
    with pytest.raises(NotYourConsumer):
        log.send("n2", AckTo("t", "s", 3, one))
    log.detach(one)
    with pytest.raises(ConsumerGone):
        log.send("n1", AckTo("t", "s", 3, one))
    two = log.attach("n1").consumer
    log.unsubscribe(force=True)
    log.subscribe(initial="earliest")
    with pytest.raises(ConsumerGone):
        log.send("n1", AckTo("t", "s", 3, two))
    other = log.attach("n1").consumer
    log.subscribe(sub="u", initial="earliest")
    with pytest.raises(ConsumerGone):
        log.send("n1", Ack("t", "u", (3,), other))
    assert log.sub().mark == 0


def test_shared_is_not_cumulative_for_consumers() -> None:
    log = filled(5)
    log.subscribe(kind="shared")
    one = log.attach("n1").consumer
    log.take(one, 3)
    with pytest.raises(NotCumulative):
        log.send("n1", AckTo("t", "s", 3, one))
    # An operator skips what is left; what is in hands does not come back.
    assert log.ack_to(4).mark == 4
    assert log.sub().locked == 3
    log.release(one, 1, 2, 3)
    assert log.sub().locked == 0
    assert log.take(one, 5).positions == (5,)
