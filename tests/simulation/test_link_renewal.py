"""A consensus link whose connection swallows what is sent on it is replaced by a new one.

The old link stands until the new one is up, so a core that only stands still loses nothing by it.
"""

from __future__ import annotations

import pytest

from raftkv import link_renewal
from raftkv.link_renewal import LESSER_PERIODS, SILENT_PERIODS
from raftkv.parts import CorePart
from raftkv.raft.engine import Engine
from raftkv.raft.transport import Link
from raftkv.testing.patching import replaced
from raftkv.testing.simulated import SimulatedCluster

# Until the core with the lesser name has dialled: looks a second apart, a handshake, and a half.
RENEWED_S = SILENT_PERIODS + LESSER_PERIODS + 1.5


def engine_of(cluster: SimulatedCluster, name: str) -> Engine:
    part = cluster.nodes[name]._part
    assert isinstance(part, CorePart)
    return part.engine


def link_to(cluster: SimulatedCluster, name: str, other: str) -> Link | None:
    links = engine_of(cluster, name).links.values()
    return next((link for link in links if link.peer_name == other), None)


def leader_of(cluster: SimulatedCluster) -> str:
    return next(name for name in cluster.cores if cluster.nodes[name].leader == name)


def pair_of(cluster: SimulatedCluster, *, with_leader: bool) -> tuple[str, str]:
    leader = leader_of(cluster)
    followers = [name for name in cluster.cores if name != leader]
    return (leader, followers[0]) if with_leader else (followers[0], followers[1])


def received(cluster: SimulatedCluster, a: str, b: str, seconds: float) -> list[int]:
    """The bytes that arrive at each end of the link between the two in so many seconds."""
    before = [link_to(cluster, *pair) for pair in ((a, b), (b, a))]
    counts = [0 if link is None else link.received_bytes for link in before]
    cluster.world.run(seconds)
    after = [link_to(cluster, *pair) for pair in ((a, b), (b, a))]
    return [
        link.received_bytes - count
        for link, was, count in zip(after, before, counts, strict=True)
        if link is not None and link is was
    ]


@pytest.mark.parametrize("with_leader", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_link_that_swallows_is_renewed(seed: int, with_leader: bool) -> None:
    with SimulatedCluster(seed, cores=3, replicants=0, rate_per_s=20) as cluster:
        cluster.world.run(6)
        a, b = pair_of(cluster, with_leader=with_leader)
        leader, term = leader_of(cluster), engine_of(cluster, a).term
        old = link_to(cluster, a, b)
        assert cluster.world.network.swallow(a, b) >= 1
        cluster.world.run(RENEWED_S)
        renewed = link_to(cluster, a, b)
        assert renewed is not None
        assert renewed is not old
        assert old is not None
        assert old.closed.done()
        assert all(received(cluster, a, b, 3.0)), "both ends get what the other one sends"
        assert leader_of(cluster) == leader
        assert engine_of(cluster, leader).term == term
        cluster.settle()


def test_without_the_renewal_the_link_stays_deaf() -> None:
    """The test above checked: nothing else ends such a link."""
    with (
        replaced(link_renewal, "SILENT_PERIODS", 1_000_000),
        SimulatedCluster(1, cores=3, replicants=0, rate_per_s=20) as cluster,
    ):
        cluster.world.run(6)
        a, b = pair_of(cluster, with_leader=False)
        old = link_to(cluster, a, b)
        cluster.world.network.swallow(a, b)
        cluster.world.run(3 * RENEWED_S)
        assert link_to(cluster, a, b) is old
        assert received(cluster, a, b, 3.0) == [0, 0]


@pytest.mark.parametrize("pause_s", [8.0, 14.0])
def test_a_core_that_stands_still_keeps_its_links(pause_s: float) -> None:
    """A stopped process completes no handshake, so nothing takes the place of its link."""
    with SimulatedCluster(1, cores=3, replicants=0, rate_per_s=20) as cluster:
        cluster.world.run(6)
        a, b = pair_of(cluster, with_leader=True)
        other = next(name for name in cluster.cores if name not in (a, b))
        old = link_to(cluster, a, b)
        cluster.world.pause(b)
        cluster.world.run(pause_s)
        assert link_to(cluster, a, b) is old
        assert leader_of(cluster) == a
        cluster.world.resume(b)
        cluster.world.run(3)
        assert leader_of(cluster) == a
        assert all(received(cluster, b, other, 3.0))
        cluster.settle()


def test_a_healthy_cluster_renews_no_link() -> None:
    with SimulatedCluster(2, cores=3, replicants=0, rate_per_s=5) as cluster:
        cluster.world.run(6)
        pairs = [(a, b) for a in cluster.cores for b in cluster.cores if a != b]
        before = [link_to(cluster, *pair) for pair in pairs]
        cluster.world.run(2 * RENEWED_S)
        assert [link_to(cluster, *pair) for pair in pairs] == before
