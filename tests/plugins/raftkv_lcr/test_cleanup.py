"""Cleaning up after ended lives, on a faked log: once, in batches, by whoever leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from raftkv.state import Envelope
from raftkv.testing.clock import run
from raftkv_lcr.commands import Channel, Cleanup
from raftkv_lcr.past import gone
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode

# Longer than any cleaning in here takes.
SOON_S = 2.0


def on(cores: int, replicants: int, body: Callable[[Cluster], Awaitable[None]]) -> None:
    """Run `body` on a started cluster, in virtual time, with the invariants checked at its end."""

    async def whole() -> None:
        cluster = await Cluster(cores, replicants).start()
        await body(cluster)
        cluster.check()

    run(whole())


async def connect(node: FakeNode, *clients: str) -> list[Channel]:
    answers = await asyncio.gather(*(node.lcr.connect(client, "x") for client in clients))
    return [answer.owner for answer in answers if answer.owner is not None]


def living(cluster: Cluster) -> list[FakeNode]:
    return [node for node in cluster.nodes.values() if node.alive]


def tables(cluster: Cluster, name: str) -> list[list[Any]]:
    """The keys of a table, node by node."""
    return [[key for key, _ in node.view().table(name).scan()] for node in living(cluster)]


def cleanups(cluster: Cluster) -> list[Cleanup]:
    """All Cleanup commands that reached the log, from now on."""
    found: list[Cleanup] = []

    def note(node: FakeNode, envelope: Envelope) -> bool:
        if envelope.plugin == "lcr" and msgspec.msgpack.decode(envelope.command)[0] == "cleanup":
            found.append(msgspec.msgpack.decode(envelope.command, type=Cleanup))
        return True

    cluster.filter = note
    return found


def runs(cluster: Cluster) -> int:
    return sum(node.lcr.counters["cleanup_runs"] for node in cluster.nodes.values())


def test_a_dead_replicant_is_cleaned_exactly_once() -> None:
    """Scenario 11: five clients there, one each on two other nodes, six nodes in all."""

    async def body(cluster: Cluster) -> None:
        mine = tuple(f"f{number}" for number in range(5))
        await connect(cluster.nodes["rep1"], *mine)
        others = [
            (await connect(cluster.nodes[name], client))[0]
            for name, client in (("rep2", "one"), ("core2", "two"))
        ]
        commands = cleanups(cluster)
        cluster.kill("rep1")
        await asyncio.sleep(SOON_S)
        # Silence is no death: nothing goes before the cluster has declared it.
        assert commands == []
        cluster.declare_dead("rep1")
        # At once, by that entry: no node shows a channel of it any more.
        assert all(node.lcr.lookup_local("f0") is None for node in living(cluster))
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "clients") == [["one", "two"]] * 5
        assert tables(cluster, "ended") == [[]] * 5
        assert [node.lcr.lookup_local("one") for node in living(cluster)] == [others[0]] * 5
        assert runs(cluster) == 1
        assert [command.done for command in commands] == [True]
        assert sorted(commands[0].client_ids) == list(mine)

    on(3, 3, body)


@pytest.mark.parametrize("rows_max", [30, 200, 1_000])
def test_400_clients_go_in_batches(rows_max: int) -> None:
    async def body(cluster: Cluster) -> None:
        cluster.set("cleanup_rows_max", rows_max)
        await connect(cluster.nodes["rep1"], *(f"gone{number:03}" for number in range(400)))
        await connect(cluster.nodes["core2"], *(f"kept{number:03}" for number in range(50)))
        commands = cleanups(cluster)
        cluster.kill("rep1")
        cluster.declare_dead("rep1")
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "clients") == [[f"kept{number:03}" for number in range(50)]] * 3
        named = Counter(client for command in commands for client in command.client_ids)
        assert len(named) == 400
        assert set(named.values()) == {1}
        assert max(len(command.client_ids) for command in commands) == min(rows_max, 400)
        assert [command.done for command in commands].count(True) == 1
        assert cluster.nodes["core1"].lcr.counters["cleanup_rows"] == 400
        assert runs(cluster) == 1

    on(3, 1, body)


def test_a_voting_node_is_fenced_cleaned_and_comes_back_clean() -> None:
    """Scenario 12: unlike upstream, nothing waits for the node to return."""

    async def body(cluster: Cluster) -> None:
        clients = tuple(f"c{number}" for number in range(5))
        await connect(cluster.nodes["core3"], *clients)
        cluster.kill("core3")
        cluster.declare_dead("core3")
        moved = (await connect(cluster.nodes["core2"], "c0"))[0]
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "clients") == [["c0"]] * 2
        node = await cluster.add("core3", "core")
        fresh = (await connect(node, "c1"))[0]
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "clients") == [["c0", "c1"]] * 3
        for member in living(cluster):
            assert member.lcr.lookup_local("c0") == moved
            assert member.lcr.lookup_local("c1") == fresh
        assert runs(cluster) == 1

    on(3, 0, body)


def test_a_restart_is_cleaned_without_a_hit_on_the_new_life() -> None:
    async def body(cluster: Cluster) -> None:
        await connect(cluster.nodes["rep1"], "back", "gone")
        release = cluster.hold("core1")
        node = await cluster.restart("rep1")
        await asyncio.sleep(SOON_S)
        # The cleaning is held up; the client is back before it.
        fresh = (await connect(node, "back"))[0]
        release()
        await asyncio.sleep(10.0)
        assert tables(cluster, "clients") == [["back"]] * 4
        assert cluster.nodes["core2"].lcr.lookup_local("back") == fresh
        assert tables(cluster, "ended") == [[]] * 4

    on(3, 1, body)


def test_the_next_leader_finishes_what_the_last_one_began() -> None:
    async def body(cluster: Cluster) -> None:
        cluster.set("cleanup_rows_max", 10)
        await connect(cluster.nodes["rep1"], *(f"c{number:02}" for number in range(60)))
        commands = cleanups(cluster)
        cluster.kill("rep1")
        cluster.declare_dead("rep1")
        while len(commands) < 3:
            await asyncio.sleep(0.001)
        cluster.kill("core1")
        cluster.leader = None
        await asyncio.sleep(SOON_S)
        left = len(cluster.nodes["core2"].view().table("clients"))
        assert 0 < left < 60
        assert tables(cluster, "ended") == [[("rep1", 1)]] * 2
        cluster.lead("core2")
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "clients") == [[]] * 2
        assert tables(cluster, "ended") == [[]] * 2
        assert cluster.nodes["core2"].lcr.counters["cleanup_rows"] == left

    on(3, 1, body)


def test_two_that_believe_they_lead_do_no_harm() -> None:
    async def body(cluster: Cluster) -> None:
        cluster.set("cleanup_rows_max", 7)
        await connect(cluster.nodes["rep1"], *(f"c{number:02}" for number in range(40)))
        kept = (await connect(cluster.nodes["core3"], "kept"))[0]
        # Core 1 has not heard yet that it does no longer lead.
        cluster.nodes["core2"].service.on_leader()
        cluster.kill("rep1")
        cluster.declare_dead("rep1")
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "clients") == [["kept"]] * 3
        assert cluster.nodes["core3"].lcr.lookup_local("kept") == kept
        # Each row was deleted once, by whichever came first.
        deleted = [node.lcr.counters["cleanup_rows"] for node in cluster.nodes.values()]
        assert sum(deleted) == 40

    on(3, 1, body)


def test_several_lives_end_together() -> None:
    async def body(cluster: Cluster) -> None:
        for name in ("rep1", "rep2"):
            await connect(cluster.nodes[name], *(f"{name}-{number}" for number in range(20)))
        for name in ("rep1", "rep2"):
            cluster.kill(name)
            cluster.declare_dead(name)
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "clients") == [[]] * 3
        assert runs(cluster) == 2
        assert cluster.nodes["core1"].lcr.counters["cleanup_rows"] == 40

    on(3, 2, body)


def test_a_life_that_held_nothing_leaves_no_mark() -> None:
    async def body(cluster: Cluster) -> None:
        cluster.kill("rep1")
        cluster.declare_dead("rep1")
        await asyncio.sleep(SOON_S)
        assert tables(cluster, "ended") == [[]] * 3
        assert runs(cluster) == 1

    on(3, 1, body)


def test_what_was_cleaned_stands_in_the_history() -> None:
    async def body(cluster: Cluster) -> None:
        cluster.set("history_ms", 60_000)
        row = (await connect(cluster.nodes["rep1"], "c"))[0]
        cluster.kill("rep1")
        cluster.declare_dead("rep1")
        ended = cluster.nodes["core1"].machine.now
        cluster.stamp_ms += 1_000
        await asyncio.sleep(SOON_S)
        for node in living(cluster):
            last = gone(node.view(), "c")
            assert last is not None
            assert (last.channel, last.at_ms) == (row, ended)

    on(3, 1, body)
