"""A lease that is kept alive outlives its lessor, whatever becomes of that one; then it ends.

The holders that work in every run (lease_holders.py) look at the same in storms. Here it is one
fault at a time, long enough that the lease would have ended under the old lessor.
"""

from __future__ import annotations

import pytest

from raftkv.errors import NotApplied, OutcomeUnknown
from raftkv.testing.lease_holders import Promise
from raftkv.testing.simulated import SimulatedCluster

TTL_S = 3


def kept_alive(cluster: SimulatedCluster, name: str, lease: int, seconds: float) -> int:
    """Keep it alive through one node for so long; how many keep-alives were answered."""
    world, answered = cluster.world, 0
    until = world.loop.now + seconds
    while world.loop.now < until:
        keep = cluster.nodes[name].leases.keep_alive(lease, timeout_s=TTL_S)
        call = world.call(name, keep)
        world.wait(call.done, TTL_S + 1, "an answer to a keep-alive")
        if call.exception() is None:
            answered += 1
        elif not isinstance(call.exception(), NotApplied | OutcomeUnknown):
            call.result()
        world.run(0.4)
    return answered


def strike(cluster: SimulatedCluster, old: str, fault: str) -> None:
    world = cluster.world
    if fault == "pause":
        world.pause(old, 4 * TTL_S)
    elif fault == "kill":
        world.crash(old, power_cut=False)
    else:
        for core in cluster.cores:
            if core != old:
                world.network.cut(old, core)


@pytest.mark.parametrize("fault", ["pause", "kill", "cut"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_lease_outlives_its_lessor(seed: int, fault: str) -> None:
    with SimulatedCluster(seed, cores=3, replicants=1, rate_per_s=20) as cluster:
        world, nodes = cluster.world, cluster.nodes
        cluster.run(2)
        old = next(name for name in cluster.cores if nodes[name].leader == name)
        name = next(name for name in cluster.cores if name != old)
        granting = world.call(name, nodes[name].leases.grant(TTL_S, timeout_s=10))
        world.wait(granting.done, 10, "the grant")
        lease = granting.result().id
        with cluster.judging():
            assert kept_alive(cluster, name, lease, TTL_S) >= 3
            strike(cluster, old, fault)
            # It is paused for longer than the lease lives, and goes on in the middle of this.
            assert kept_alive(cluster, name, lease, 6 * TTL_S) >= 10
        assert nodes[name].leader != old
        assert lease in nodes[name].machine.view("kv").table("leases")
        world.network.heal()
        cluster.settle()
        assert lease not in cluster.nodes[name].machine.view("kv").table("leases")


def test_a_lease_found_after_a_forced_recovery_has_the_index_of_its_grant() -> None:
    """The node that answers a keep-alive may be far behind: its index is no bound."""
    promise = Promise(1, 5, 40, 0.0, key=b"lease/1")
    promise.found_in(1)
    assert (promise.index, promise.key) == (40, b"lease/1")
    promise.found_in(2)
    assert (promise.index, promise.key) == (40, b"")
