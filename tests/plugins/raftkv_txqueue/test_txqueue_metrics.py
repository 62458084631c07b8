"""What a node shows of the queues: the figures are right, bounded, and nobody's data."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from raftkv_txqueue import Opened, TransactionAborted, TransactionObserver, Xid
from raftkv_txqueue.metrics import Counters
from raftkv_txqueue.settings import SETTINGS
from tests.plugins.raftkv_txqueue.fakes import Cluster, messages, story, until

XID = Xid(1, b"secret-gtrid", b"b")


def figures(cluster: Cluster, name: str = "core1") -> dict[str, float]:
    return {one.name: one.value for one in cluster.nodes[name].service.metrics()}


@story()
async def test_queues_and_what_is_in_them(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("a", depth_max=2, overflow="drop_oldest", change=True)
    await cluster.fill("a", "1", "2", "3")
    await cluster.fill("b", "4")
    session = await txq.session()
    await session.get("a")
    shown = figures(cluster, "core3")
    assert (shown["queues"], shown["queues_limit"]) == (2, 1_000)
    assert (shown["messages"], shown["ready"], shown["acquired"]) == (3, 2, 1)
    assert shown["dropped_total"] == 1
    assert shown["bytes"] == 3 * 65
    assert (shown["sessions"], shown["own_sessions"]) == (1, 0)
    mine = figures(cluster)
    assert mine["own_sessions"] == 1
    assert (mine["published_total"], mine["acquired_total"]) == (4, 1)
    assert mine["sessions_opened_total"] == 1
    [a, _] = txq.queues()
    assert (a.name, a.depth, a.ready, a.acquired, a.dropped) == ("a", 2, 1, 1, 1)
    assert (a.depth_max, a.overflow, a.next_seq) == (2, "drop_oldest", 4)
    waits = asyncio.ensure_future(session.get("none", wait_s=0.01))
    await asyncio.gather(waits, return_exceptions=True)
    await session.reject(*session.held)
    await until(lambda: figures(cluster)["dead_total"] == 1)
    await session.close()
    assert figures(cluster)["sessions_kept"] == 1


@story()
async def test_transactions_and_those_in_doubt(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("a", messages("x", "y"))
    await session.flush()
    shown = figures(cluster)
    assert (shown["transactions"], shown["active"], shown["in_doubt"]) == (1, 1, 0)
    assert shown["staged_bytes"] == 130
    await session.end(XID)
    await txq.dtx.prepare(XID)
    await asyncio.sleep(10)
    shown = figures(cluster, "core2")
    assert (shown["active"], shown["in_doubt"], shown["reserved"]) == (0, 1, 2)
    assert shown["in_doubt_age_ms"] == pytest.approx(10_000, abs=100)
    await txq.dtx.heuristic_commit(XID)
    shown = figures(cluster, "core2")
    assert (shown["in_doubt"], shown["heuristic"], shown["in_doubt_age_ms"]) == (0, 1, 0)
    assert shown["decisions_kept"] == 1
    await txq.dtx.forget(XID)
    assert figures(cluster)["transactions"] == 0
    await session.start(XID)
    await session.publish("a", b"x")
    await session.end(XID, fail=True)
    await txq.dtx.prepare(XID)
    assert figures(cluster)["failed"] == 1
    await txq.dtx.rollback(XID)


class No(TransactionObserver):
    async def prepare(self) -> None:
        raise KeyError("secret")


@story()
async def test_votes(cluster: Cluster) -> None:
    cluster.txq("core2").observe(lambda opened: No())
    await cluster.txq("core2").observing.taking_part(5)
    session = await cluster.txq("core1").session("tx")
    await session.publish("a", b"x")
    with pytest.raises(TransactionAborted):
        await session.commit()
    shown = figures(cluster, "core2")
    assert (shown["votes_no_total"], shown["observer_failures_total"]) == (1, 1)
    assert (shown["observers"], shown["own_observers"]) == (1, 1)
    assert figures(cluster)["rolled_back_total"] == 1
    assert figures(cluster)["rollbacks_kept"] == 1
    status = cluster.txq("core1").status()
    assert status.participants == ("core2",)
    assert (status.observers, status.mine["rolled_back"]) == (0, 1)
    cluster.kill("core2")
    cluster.declare_dead("core2")
    assert cluster.txq("core1").status().participants == ()


@story()
async def test_every_figure_is_bounded_and_nobodys_data(cluster: Cluster) -> None:
    txq = cluster.txq("core1")
    await txq.declare("secret-queue")
    await txq.publish("secret-queue", b"secret-body")
    cluster.txq("core1").observe(lambda opened: _note(opened))
    session = await txq.session("dtx")
    await session.start(XID)
    await session.publish("secret-queue", b"secret-body")
    await session.end(XID)
    service = cluster.nodes["core1"].service
    before = service.metrics()
    for n in range(50):
        await txq.declare(f"secret-{n}")
    after = service.metrics()
    assert len(before) == len(after) < 100
    names = [one.name for one in after]
    assert len(set(names)) == len(names)
    for one in after:
        assert re.fullmatch(r"[a-z][a-z_]*", one.name), one
        assert not one.labels, one
        assert one.doc.endswith("."), one
        assert (one.kind == "counter") == one.name.endswith("_total"), one
    assert [name for name in names if name not in figures(cluster, "core3")] == []
    for text in (str(after), str(service.status())):
        assert "secret" not in text
    assert service.status()["queues"] == 53
    assert service.status()["messages"] == 1
    msgspec.json.encode(service.status())
    await txq.dtx.rollback(XID)


def _note(opened: Opened) -> TransactionObserver:
    return TransactionObserver()


@story(queues_max=7, staged_bytes_max=2_048)
async def test_limits_are_shown_as_they_are_set(cluster: Cluster) -> None:
    shown = figures(cluster)
    assert (shown["queues_limit"], shown["staged_bytes_limit"]) == (7, 2_048)
    of_what = {name.removesuffix("_limit") for name in shown if name.endswith("_limit")}
    limits = [one.key for one in SETTINGS if one.key.endswith(("_max", "_kept"))]
    for key in limits:
        assert {key.removesuffix("_max"), key.removesuffix("_kept"), key} & of_what, key


def test_a_counter_has_a_known_name() -> None:
    counters = Counters()
    counters.add("published", 2)
    assert counters["published"] == 2
    with pytest.raises(KeyError):
        counters.add("publishes")
    assert {one.name for one in counters.metrics()} == {
        f"{name}_total" for name in counters.as_dict()
    }
