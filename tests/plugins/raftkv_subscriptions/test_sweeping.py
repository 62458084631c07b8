"""Sweep: all work is done in the end, a bounded part at a time, and nothing else."""

from __future__ import annotations

import pytest

from raftkv_subscriptions.sweeping import work

from .pure import RegionLog, copies


def busy(rows: int) -> RegionLog:
    """Topics, subscriptions and consumers of all kinds, with `rows` messages each."""
    log = RegionLog("a", others=("b",), topics=("t", "u"), checks=False)
    for topic in ("t", "u"):
        log.publish(topic, *("x" * rows))
        log.deliver(topic, "b", *copies("b", 1, rows))
        for kind in ("shared", "failover"):
            log.subscribe(topic, kind, kind=kind, initial="earliest", replicate=True)
            log.attach("n2", topic, kind)
            log.ack(*range(2, 2 * rows, 2), topic=topic, sub=kind)
        log.take(log.attach("n3", topic, "shared").consumer, rows)
    log.checks = True
    return log


def test_nothing_to_do() -> None:
    log = busy(10)
    assert not work(log.view())
    before = log.digest_of_plugin()
    swept = log.sweep("t", "u", "no such topic")
    assert (swept.rows, swept.more) == (0, False)
    assert log.digest_of_plugin() == before


@pytest.mark.parametrize("rows_max", [1, 2, 7, 50, 1_000])
def test_everything_goes(rows_max: int) -> None:
    """A deleted topic and a deleted subscription leave nothing, nodes that ended no consumers."""
    log = busy(20)
    log.put_region("b", "excluded")
    log.unsubscribe("u", "shared", force=True)
    log.delete("t")
    log.node_down("n2")
    assert work(log.view())
    bound = rows_max + 10
    for _ in range(2_000):
        swept = log.sweep(rows_max=rows_max)
        assert swept.rows <= bound
        if not swept.more:
            break
    assert not work(log.view())
    assert set(log.table("topics")) == {"u"}
    kept = log.topic("u").id
    for name in ("messages", "vectors", "blocks", "subs", "fetched"):
        assert all(kept in key for key in log.table(name)), name
    assert len(log.table("messages")) == 40
    assert [key[1] for key in log.table("subs")] == ["failover"]
    sub = log.sub("failover", "u")
    assert (sub.consumers, sub.active) == (0, 0)
    for name in ("locks", "returned", "consumers", "attached", "owners", "ahead"):
        assert log.table(name) == {}, name
    assert {key[0] for key in log.table("acks")} == {sub.id}
    assert log.meta().consumers == 0


def test_retention() -> None:
    log = RegionLog("a")
    log.subscribe(initial="earliest")
    log.publish("t", *("x" * 10))
    log.declare("t", retention_bytes=1)
    assert log.sweep("t").rows == 0
    log.ack_to(7)
    swept = log.sweep("t", rows_max=3)
    assert (swept.rows, swept.more, log.topic().first) == (3, True, 4)
    log.sweep_all("t")
    assert (log.topic().first, log.meta().trimmed) == (8, 7)


def test_many_topics_with_a_small_budget() -> None:
    """Topics without anything due do not use it up."""
    log = RegionLog("a", topics=("t", "u", "v"))
    for topic in ("t", "u", "v"):
        log.publish(topic, "x", "y", "z")
        log.declare(topic, retention_bytes=1 if topic == "v" else 0)
    assert log.sweep_all("t", "u", "v", rows_max=1) > 0
    assert log.topic("v").first == 4


def test_a_node_with_many_consumers() -> None:
    log = RegionLog("a", checks=False)
    log.subscribe(kind="shared")
    for _ in range(30):
        log.attach("n2")
    log.checks = True
    log.node_down("n2")
    swept = log.sweep(rows_max=10)
    assert swept.more
    assert 0 < len(log.table("consumers")) < 30
    log.sweep_all(rows_max=10)
    assert log.table("consumers") == {}
    assert log.sub().consumers == 0
