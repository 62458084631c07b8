"""The registry on real nodes: consensus, sockets and files, all inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from raftkv import RaftkvError
from raftkv.errors import NotApplied
from raftkv.testing.local_cluster import LocalCluster
from raftkv_lcr import LCR, Channel, ConnectResult, LcrApi, Message
from raftkv_lcr.testing.broker import MemoryBroker, Session

pytestmark = pytest.mark.slow

DEADLINE_S = 30.0


def run(body: Callable[[LocalCluster], Awaitable[None]], cores: int, replicants: int) -> None:
    async def whole() -> None:
        async with LocalCluster(cores, replicants, plugins=[LCR()]) as cluster:
            await body(cluster)

    asyncio.run(whole())


def apis(cluster: LocalCluster) -> dict[str, LcrApi]:
    return {node.name: node.plugin(LCR) for node in cluster.nodes}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def check(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        assert list(LCR().invariants(node.machine.view("lcr"))) == []


def test_race_for_one_client_over_all_nodes_leaves_one_owner_everywhere() -> None:
    """Scenarios 1 and 15 at 0 ms, on 3 cores and 3 replicants."""

    async def body(cluster: LocalCluster) -> None:
        registries = list(apis(cluster).values())
        race: list[Coroutine[Any, Any, ConnectResult]] = [
            registries[i % 6].connect("c", f"ch{i}") for i in range(120)
        ]
        answers = await asyncio.gather(*race)
        assert {a.outcome for a in answers} <= {"ok", "outdated_late", "outdated_early"}
        winners = [a for a in answers if a.outcome == "ok"]
        assert sum(not a.session_present for a in winners) == 1
        newest = max(winners, key=lambda a: a.owner.ticket if a.owner is not None else 0)
        for registry in registries:
            assert await registry.lookup("c") == newest.owner
        held = [row for registry in registries for row in registry.held.values()]
        assert held == [newest.owner]
        check(cluster)

    run(body, 3, 3)


def test_restarted_replicant_has_lost_its_channels_and_nobody_elses() -> None:
    """Scenario 11 with a node that comes back at once: fenced, and cleaned by the leader."""

    async def body(cluster: LocalCluster) -> None:
        registries = apis(cluster)
        for number in range(5):
            await registries["replicant1"].connect(f"gone{number}", "x")
        kept = (await registries["core2"].connect("kept", "x")).owner
        await cluster.restart("replicant1")
        fresh = await apis(cluster)["replicant1"].connect("gone0", "y")
        assert not fresh.session_present
        await until(
            lambda: all(
                len(n.machine.view("lcr").table("clients")) == 2
                and len(n.machine.view("lcr").table("ended")) == 0
                for n in cluster.nodes
            )
        )
        for registry in apis(cluster).values():
            assert registry.lookup_local("kept") == kept
            assert registry.lookup_local("gone0") == fresh.owner
        check(cluster)

    run(body, 3, 1)


async def brokers_of(cluster: LocalCluster) -> list[MemoryBroker]:
    """A broker on each node, and the linear registry switched on."""
    brokers = []
    for node in cluster.nodes:
        broker = MemoryBroker(node.name)
        broker.attach(node.plugin(LCR))
        brokers.append(broker)
    row = await cluster.nodes[0].plugin(LCR).switch_mode("enabled", timeout_s=DEADLINE_S)
    assert row.mode == "enabled"
    return brokers


def live_of(brokers: list[MemoryBroker], client_id: str) -> list[Session]:
    sessions = [broker.live(client_id) for broker in brokers]
    return [session for session in sessions if session is not None]


@pytest.mark.parametrize("spacing_ms", [0, 10])
def test_a_session_survives_a_race_over_all_nodes(spacing_ms: int) -> None:
    """Scenario 15 with content: every message that was accepted, once and in order."""

    async def body(cluster: LocalCluster) -> None:
        brokers = await brokers_of(cluster)
        await brokers[-1].connect("c", "first")
        accepted: list[str] = []
        stopping = False

        async def publish() -> None:
            while not stopping:
                message = Message(f"m{len(accepted)}", bytes(1000))
                if any(broker.publish("c", message) for broker in brokers):
                    accepted.append(message.id)
                await asyncio.sleep(0.002)

        publishing = asyncio.ensure_future(publish())
        connects = []
        for number in range(50):
            connect = brokers[number % 6].connect("c", f"{number}", timeout_s=DEADLINE_S)
            connects.append(asyncio.ensure_future(connect))
            await asyncio.sleep(spacing_ms / 1000)
        answers = await asyncio.gather(*connects)
        stopping = True
        await publishing
        assert {a.outcome for a in answers} <= {"ok", "outdated_late", "outdated_early"}
        await until(lambda: len(live_of(brokers, "c")) == 1)
        await cluster.converge()
        [session] = live_of(brokers, "c")
        assert [message.id for message in session.content] == accepted
        for registry in apis(cluster).values():
            assert await registry.lookup("c") == session.row
        check(cluster)

    run(body, 3, 3)


def test_sessions_move_while_the_leader_dies() -> None:
    """No session of a surviving node is lost, whatever its connects were told."""

    async def body(cluster: LocalCluster) -> None:
        leader = cluster.leader()
        assert leader is not None
        everywhere = await brokers_of(cluster)
        brokers = [broker for broker in everywhere if broker.node_name != leader.name]
        clients = [f"c{number}" for number in range(30)]
        for client in clients:
            assert (await brokers[0].connect(client, "first")).outcome == "ok"
            assert brokers[0].publish(client, Message(client, b""))

        async def move(client: str, broker: MemoryBroker, channel: str) -> None:
            while True:
                try:
                    opened = await broker.connect(client, channel, timeout_s=DEADLINE_S)
                except NotApplied:
                    continue
                assert (opened.outcome, opened.handover) == ("ok", "complete")
                return

        moves = [
            asyncio.ensure_future(move(client, brokers[1], "second")) for client in clients[:15]
        ]
        await cluster.kill(leader.name)
        moves += [
            asyncio.ensure_future(move(client, brokers[2], "second")) for client in clients[15:]
        ]
        await asyncio.gather(*moves)
        for client in clients:
            [session] = live_of(brokers, client)
            assert session.channel == "second"
            assert [message.id for message in session.content] == [client]

    run(body, 3, 1)


def test_no_row_of_an_unanswered_connect_survives_the_change_of_leader() -> None:
    """Whoever was told an error is not registered in the end; whoever was told ok last, may be.

    Every third connect gets so little time that it ends in doubt, while the leader goes away.
    """

    async def body(cluster: LocalCluster) -> None:
        told: dict[str, list[Channel]] = {}
        errors: set[tuple[str, str]] = set()
        leader = cluster.leader()
        assert leader is not None
        survivors = {name: api for name, api in apis(cluster).items() if name != leader.name}

        async def play(name: str, api: LcrApi, player: int) -> None:
            client = f"{name}/{player}"
            for attempt in range(30):
                hurried = attempt % 3 == 1
                try:
                    answer = await api.connect(
                        client, f"{attempt}", timeout_s=0.0005 if hurried else 10.0
                    )
                except RaftkvError:
                    errors.add((client, f"{attempt}"))
                    continue
                assert answer.outcome == "ok"
                assert answer.owner is not None
                told.setdefault(client, []).append(answer.owner)

        players = [
            asyncio.ensure_future(play(name, api, player))
            for name, api in survivors.items()
            for player in range(10)
        ]
        await until(lambda: len(errors) > 5)
        await cluster.kill(leader.name)
        await asyncio.gather(*players)
        await until(lambda: all(len(api.reaper) == 0 for api in survivors.values()))
        await cluster.converge()
        assert len(told) == 30
        for client, owners in told.items():
            # The last connect of each client had time enough, so it must be the one that stands.
            assert cluster.nodes[0].plugin(LCR).lookup_local(client) == owners[-1]
            assert (client, owners[-1].channel) not in errors
            assert owners[-1].channel == "29"
        check(cluster)

    run(body, 3, 1)


def test_the_old_registry_agrees_while_nothing_lags() -> None:
    async def body(cluster: LocalCluster) -> None:
        registries = [api.legacy for api in apis(cluster).values()]
        for registry in registries:
            await registry.ready()
        first = await registries[3].connect("c", "a")
        await until(lambda: all(r.lookup_local("c") == first.owner for r in registries))
        second = await registries[1].connect("c", "b")
        assert second.session_present
        await until(lambda: all(r.channels_local("c") == [second.owner] for r in registries))

    run(body, 3, 2)


def test_item_4_removed_core_keeps_no_session() -> None:
    """Its clients find no owner at once, and its own channels are ended with a reason."""

    async def body(cluster: LocalCluster) -> None:
        brokers = {node.name: MemoryBroker(node.name) for node in cluster.nodes}
        for node in cluster.nodes:
            brokers[node.name].attach(node.plugin(LCR))
        leader = cluster.leader()
        assert leader is not None
        await leader.plugin(LCR).switch_mode("enabled", timeout_s=DEADLINE_S)
        victim = next(node for node in cluster.nodes if node is not leader)
        for number in range(3):
            await brokers[victim.name].connect(f"c{number}", f"old{number}")
        # Longer than the test may take: no failure detector helps.
        await leader.membership.remove(victim.name)
        members = leader.machine.members
        await until(lambda: not members[victim.name].up)
        assert await leader.plugin(LCR).lookup("c0") is None
        opened = await brokers[leader.name].connect("c0", "new")
        assert (opened.outcome, opened.present, opened.handover) == ("ok", False, "none")
        ended = brokers[victim.name].sessions.values()
        await until(lambda: all(session.closed_for for session in ended))
        assert {session.closed_for for session in ended} == {"this node has left the cluster"}
        await until(lambda: not len(leader.machine.view("lcr").table("ended")))

    run(body, 3, 0)
