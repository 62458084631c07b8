"""Consumers: who is served, how they end, and what is in their hands."""

from __future__ import annotations

import pytest

from raftkv_subscriptions.commands import Attach, Detach, Take
from raftkv_subscriptions.refusals import (
    BadName,
    ConsumerGone,
    NotAMember,
    NotYourConsumer,
    SubscriptionBusy,
    TooManyConsumers,
    UnknownSubscription,
    WrongKind,
)
from raftkv_subscriptions.rows import MESSAGE_OVERHEAD, ROWS_MAX

from .pure import RegionLog


def log_of(kind: str, messages: int = 0) -> RegionLog:
    log = RegionLog("a")
    log.subscribe(kind=kind, initial="earliest")
    if messages:
        log.publish("t", *("x" * messages))
    return log


# --- exclusive ------------------------------------------------------------------------------------


def test_exclusive() -> None:
    log = log_of("exclusive")
    one = log.attach("n1")
    assert one.active
    with pytest.raises(SubscriptionBusy) as refused:
        log.attach("n2")
    assert refused.value.consumer == one.consumer
    log.detach(one.consumer)
    log.detach(one.consumer)
    assert log.attach("n2").active


def test_takeover_at_once() -> None:
    """The entry that ends the node's life ends its consumers, whenever they are swept."""
    log = log_of("exclusive", 3)
    one = log.attach("n2").consumer
    log.node_down("n2")
    two = log.attach("n3")
    assert two.active
    assert log.sub().active == two.consumer
    # The node's next life is not the one that attached.
    log.node_up("n2")
    with pytest.raises(ConsumerGone):
        log.send("n2", Take(one, 1))
    log.sweep_all()
    assert (log.sub().active, log.sub().consumers) == (two.consumer, 1)
    assert set(log.table("consumers")) == {two.consumer}


def test_who_may_attach() -> None:
    log = log_of("exclusive")
    with pytest.raises(NotAMember):
        log.run(log.client(), "subscriptions", Attach("t", "s"))
    with pytest.raises(UnknownSubscription):
        log.attach(sub="other")
    with pytest.raises(BadName):
        log.send("n1", Attach("t", "s", "not a name"))
    one = log.attach("n1").consumer
    with pytest.raises(NotYourConsumer):
        log.send("n2", Detach(one))
    log.set("consumers_max", 1)
    log.subscribe(sub="u")
    with pytest.raises(TooManyConsumers):
        log.attach(sub="u")
    log.detach(one)
    log.attach(sub="u")


def test_only_shared_ones_take() -> None:
    log = log_of("failover", 1)
    one = log.attach("n1").consumer
    with pytest.raises(WrongKind):
        log.take(one)
    with pytest.raises(WrongKind):
        log.release(one, 1)


# --- failover -------------------------------------------------------------------------------------


def test_failover_by_priority_then_age() -> None:
    log = log_of("failover")
    first = log.attach("n1", priority=1)
    second = log.attach("n2", priority=1)
    assert (first.active, second.active) == (True, False)
    third = log.attach("n3", priority=0)
    assert third.active
    log.send("n3", Detach(third.consumer))
    assert log.sub().active == first.consumer
    log.node_down("n1")
    # Nobody has looked yet; who comes does.
    assert log.sub().active == first.consumer
    fourth = log.attach("n3", priority=1)
    assert not fourth.active
    assert log.sub().active == second.consumer
    log.node_down("n2")
    log.sweep_all()
    assert log.sub().active == fourth.consumer
    log.send("n3", Detach(fourth.consumer))
    assert (log.sub().active, log.sub().consumers) == (0, 0)


def test_sweep_finds_the_next() -> None:
    log = log_of("failover")
    log.attach("n2")
    two = log.attach("n3").consumer
    log.node_down("n2")
    log.sweep_all()
    assert log.sub().active == two


# --- shared ---------------------------------------------------------------------------------------


def test_take_release_take() -> None:
    log = log_of("shared", 5)
    one, two = log.attach("n1").consumer, log.attach("n2").consumer
    taken = log.take(one, 2)
    assert (taken.positions, taken.deliveries, taken.more) == ((1, 2), (1, 1), True)
    assert log.take(two, 9).positions == (3, 4, 5)
    released = log.release(one, 2, 3)
    assert (released.done, released.missing) == (1, 1)
    log.release(two, 5, 4)
    taken = log.take(one, 2)
    assert (taken.positions, taken.deliveries, taken.more) == ((2, 4), (2, 2), True)
    log.ack(1, 2, 4, consumer=one)
    assert (log.sub().mark, log.sub().locked) == (2, 1)
    assert log.take(one, 9).positions == (5,)
    assert log.take(one, 9).positions == ()


def test_acknowledged_in_the_meantime() -> None:
    log = RegionLog("a", others=("b",))
    log.subscribe(kind="shared", initial="earliest", replicate=True)
    log.publish("t", *("x" * 6))
    one = log.attach("n1").consumer
    log.take(one, 4)
    log.release(one, 1, 2)
    # In another region: one that came back, one in hands, one that nobody had.
    log.merge(("a", 2, 2), ("a", 4, 5), kind="shared")
    assert log.release(one, 4).done == 1
    taken = log.take(one, 9)
    assert (taken.positions, taken.deliveries) == ((1, 6), (2, 1))
    assert log.table("returned") == {}


def test_limits_of_one_take() -> None:
    log = log_of("shared", 6)
    log.set("unacked_max", 4)
    one = log.attach("n1").consumer
    size = MESSAGE_OVERHEAD + 1
    taken = log.take(one, 9, 2 * size)
    assert (taken.positions, taken.more) == ((1, 2), True)
    assert log.take(one, 9, 1).positions == (3,)
    taken = log.take(one, 9)
    assert (taken.positions, taken.more) == ((4,), False)
    assert log.take(one, 9).positions == ()
    log.ack(2, consumer=one)
    assert log.take(one, 9).positions == (5,)


def test_bytes_of_what_came_back() -> None:
    log = log_of("shared", 4)
    one = log.attach("n1").consumer
    log.take(one, 4)
    log.release(one, 1, 2, 3)
    size = MESSAGE_OVERHEAD + 1
    taken = log.take(one, 9, 2 * size)
    assert (taken.positions, taken.more) == ((1, 2), True)
    assert log.take(one, 9, 2 * size).positions == (3,)


def test_a_take_looks_at_a_thousand_messages() -> None:
    log = RegionLog("a", others=("b",), checks=False)
    log.subscribe(kind="shared", initial="earliest", replicate=True)
    for _ in range(3):
        log.publish("t", *("x" * ROWS_MAX))
    log.merge(("a", 2, 3 * ROWS_MAX - 1), kind="shared")
    log.checks = True
    one = log.attach("n1").consumer
    taken = log.take(one, 2)
    assert (taken.positions, taken.more) == ((1,), True)
    assert log.sub().cursor == ROWS_MAX + 1
    taken = log.take(one, 2)
    assert (taken.positions, taken.more) == ((), True)
    assert log.take(one, 2).positions == (3 * ROWS_MAX,)


def test_hands_of_a_node_that_ended() -> None:
    log = log_of("shared", 6)
    one, two = log.attach("n1").consumer, log.attach("n2").consumer
    log.take(two, 3)
    log.node_down("n2")
    assert log.take(one, 1).positions == (4,)
    log.sweep_all(rows_max=1)
    taken = log.take(one, 9)
    assert (taken.positions, taken.deliveries) == ((1, 2, 3, 5, 6), (2, 2, 2, 1, 1))


def test_many_in_hands() -> None:
    """A thousand of them go back with the end itself, the others with `Sweep`."""
    log = RegionLog("a", checks=False)
    log.subscribe(kind="shared", initial="earliest")
    one, two = log.attach("n1").consumer, log.attach("n2").consumer
    for _ in range(3):
        log.publish("t", *("x" * ROWS_MAX))
        log.take(one, ROWS_MAX)
    log.checks = True
    log.detach(one)
    assert (log.sub().locked, len(log.table("returned"))) == (2 * ROWS_MAX, ROWS_MAX)
    assert log.take(two, 1).positions == (1,)
    log.sweep_all()
    assert log.sub().locked == 1
    assert one not in log.table("consumers")


def test_many_in_hands_before_a_seek() -> None:
    log = RegionLog("a", checks=False)
    log.subscribe(kind="shared", initial="earliest")
    one = log.attach("n1").consumer
    for _ in range(2):
        log.publish("t", *("x" * ROWS_MAX))
        log.take(one, ROWS_MAX)
    log.seek(0)
    log.checks = True
    taken = log.take(one, 5)
    assert (taken.positions, taken.more) == ((), True)
    assert log.take(one, 5).positions == (1, 2, 3, 4, 5)
    assert log.table("consumers")[one].held == 5
