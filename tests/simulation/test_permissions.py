"""A replicant that forges what only a core may say, in the simulated world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from raftkv.parts import ReplicantPart
from raftkv.raft import wire
from raftkv.state import DeclareDead, NodeDown, NodeRole, SetVoters
from raftkv.testing.simulated import SimulatedCluster

_encode = msgspec.msgpack.Encoder().encode
REPLICANT = "replicant1"


class Forger:
    """A cluster of three cores, and a replicant that copies from one that does not lead."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        cluster.load.running = False
        cluster.run(4.0)
        (self.leader,) = [
            name
            for name in cluster.cores
            if cluster.nodes[name]._part.leads  # type: ignore[union-attr]
        ]
        part = cluster.nodes[REPLICANT]._part
        assert isinstance(part, ReplicantPart)
        self.follower = part.follower
        for _ in range(40):
            if self.follower.upstream not in (None, self.leader):
                break
            cluster.world.network.reset(REPLICANT, self.leader)
            cluster.run(0.5)
        assert self.follower.upstream not in (None, self.leader)
        self.upstream = str(self.follower.upstream)

    def put(self, node: str, value: bytes) -> None:
        cluster = self.cluster

        async def put() -> Any:
            return await cluster.world.call(node, cluster.nodes[node].kv.put(b"k", value))

        cluster.world.complete(put())

    def send(self, message: wire.Message) -> None:
        def forge() -> None:
            assert self.follower.link is not None
            self.follower.link.send(message)

        self.cluster.world.host(REPLICANT).inside(forge)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_replicant_confirms_no_read_of_a_core(seed: int) -> None:
    with SimulatedCluster(
        seed=seed, cores=3, replicants=1, rate_per_s=1.0, deliveries=False
    ) as cluster:
        forger = Forger(cluster)
        upstream = forger.upstream
        forger.put(forger.leader, b"old")
        cluster.run(0.2)
        for name in cluster.cores:
            if name != upstream:
                cluster.world.network.cut(upstream, name)
        cluster.run(0.2)
        forger.put(forger.leader, b"new")
        node, read = cluster.nodes[upstream], []

        async def ask() -> None:
            read.append(await cluster.world.call(upstream, node.kv.get(b"k", timeout_s=5.0)))

        cluster.world.spawn(ask(), "read")
        cluster.run(0.01)
        for index in range(1, node.reader._number + 1):
            forger.send(wire.ReadReply(index, 1))
        cluster.run(0.1)
        assert not read, "a stale linearizable read"
        cluster.world.network.heal()
        cluster.run(4.0)
        assert [entry.value for entry in read] == [b"new"]


def forged(cluster: SimulatedCluster, other: str) -> list[msgspec.Struct]:
    members = cluster.nodes[other].machine.members
    core = members[other]
    return [
        NodeDown(other, core.incarnation),
        DeclareDead(other, core.incarnation, 1),
        NodeRole(other, core.incarnation, "replicant"),
        SetVoters((core.raft_id,), 1),
        SetVoters((core.raft_id,), 0),
    ]


def _under_own_session(cluster: SimulatedCluster, other: str) -> int:
    return cluster.nodes[REPLICANT].session


def _under_the_session_of_another(cluster: SimulatedCluster, other: str) -> int:
    return cluster.nodes[other].session


@pytest.mark.parametrize("through_the_leader", [True, False])
@pytest.mark.parametrize("session", [_under_own_session, _under_the_session_of_another])
def test_a_replicant_proposes_nothing_about_others(
    session: Callable[[SimulatedCluster, str], int], through_the_leader: bool
) -> None:
    with SimulatedCluster(
        seed=7, cores=3, replicants=1, rate_per_s=1.0, deliveries=False
    ) as cluster:
        forger = Forger(cluster)
        if through_the_leader:
            for _ in range(40):
                if forger.follower.upstream == forger.leader:
                    break
                cluster.world.network.reset(REPLICANT, str(forger.follower.upstream))
                cluster.run(0.5)
            assert forger.follower.upstream == forger.leader
        (other,) = {*cluster.cores} - {forger.leader, forger.upstream}
        machine = cluster.nodes[forger.leader].machine
        before = [sorted(machine.view("core").table(name).scan()) for name in ("members", "voters")]
        number = session(cluster, other)
        commands = [
            _encode((number, 1_000 + seq, 0, "core", _encode(command)))
            for seq, command in enumerate(forged(cluster, other))
        ]
        forger.send(wire.Propose(commands))
        cluster.run(1.0)
        after = [sorted(machine.view("core").table(name).scan()) for name in ("members", "voters")]
        assert after == before
        upstream: Any = cluster.nodes[str(forger.follower.upstream)]._part
        assert upstream.relay.refused == len(commands)
        # The stream goes on, and the replicant's own commands with it.
        forger.put(REPLICANT, b"mine")
