"""Alarms about a rebuild, a cleanup and a sweep that take too long."""

from __future__ import annotations

import asyncio

from raftkv.state import Envelope
from raftkv.testing.clock import run
from raftkv_lcr.options import LcrOptions
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode, tag_of


def raised(node: FakeNode) -> list[str]:
    names = [alarm.name for alarm in node.lcr.alarms()]
    gauges = {m.labels["alarm"] for m in node.service.metrics() if m.name == "alarms" and m.value}
    assert gauges == set(names)
    assert [each["name"] for each in node.service.status()["alarms"]] == names
    return names


def test_item_5_alarm_while_a_sweep_takes_longer_than_its_interval() -> None:
    async def whole() -> None:
        cluster = await Cluster(1, options=LcrOptions(slow_after_s=5.0)).start()
        node = cluster.any_live()
        cluster.configure(sweep_interval_s=20, sweep_rows_per_s=10)
        for number in range(400):
            await node.lcr.connect(f"c{number:03}", "a")
        before = node.lcr.counters["sweep_scanned"]
        while node.lcr.counters["sweep_scanned"] == before:
            await asyncio.sleep(0.1)
        await asyncio.sleep(18)
        assert raised(node) == []
        await asyncio.sleep(3)
        assert raised(node) == ["sweep_slow"]
        cluster.configure(sweep_rows_per_s=100_000)
        await asyncio.sleep(10)
        assert raised(node) == []

    run(whole())


def test_item_5_alarm_while_a_rebuild_or_a_cleanup_does_not_come_to_an_end() -> None:
    async def whole() -> None:
        cluster = await Cluster(3, options=LcrOptions(slow_after_s=5.0)).start()
        await cluster.sessions("enabled")
        leader = next(node for node in cluster.nodes.values() if node.is_leader)
        victim = next(node for node in cluster.nodes.values() if node is not leader)
        await victim.broker.connect("c", "a")
        held: list[Envelope] = []

        def hold(sender: FakeNode, envelope: Envelope) -> bool:
            if tag_of(envelope) not in ("adopt", "cleanup"):
                return True
            held.append(envelope)
            return False

        cluster.filter = hold
        cluster.declare_dead(victim.name)
        cluster.node_up(victim)
        await asyncio.sleep(4)
        assert (raised(victim), raised(leader)) == ([], [])
        await asyncio.sleep(3)
        assert raised(victim) == ["rebuild_slow"]
        assert raised(leader) == ["cleanup_slow"]
        cluster.filter = lambda sender, envelope: True
        cluster.append(held)
        await asyncio.sleep(1)
        assert (raised(victim), raised(leader)) == ([], [])

    run(whole())
