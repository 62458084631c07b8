"""Two replicants under one name in the simulated world: who holds it, and how fast that changes."""

from __future__ import annotations

import pytest

from raftkv.testing.identities import SECOND, Namesake
from raftkv.testing.planted import planted
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.variations import Variations

FIRST = "replicant1"


def cluster_of(seed: int, cores: int, *, namesake: bool = False) -> SimulatedCluster:
    more = Variations(namesake=namesake)
    return SimulatedCluster(
        seed, cores, 1, rate_per_s=20.0, deliveries=False, early=namesake, more=more
    )


@pytest.mark.parametrize("cores", [1, 3])
def test_a_name_changes_hands_slowly_even_where_no_core_refuses(cores: int) -> None:
    """As after looks that found the first node gone, which each core relies on for a while."""
    with planted("two-nodes-under-one-name"), cluster_of(1, cores, namesake=True) as cluster:
        cluster.storm(5.0, {"jump_wall": 1.0})
        assert 2 < Namesake(cluster, FIRST).incarnation() <= 15


@pytest.mark.parametrize("seed", range(3))
def test_two_that_start_at_once_settle_who_holds_the_name_at_once(seed: int) -> None:
    with cluster_of(seed, 3, namesake=True) as cluster:
        cluster.storm(6.0, {"jump_wall": 1.0})
        assert Namesake(cluster, FIRST).incarnation() <= 4


@pytest.mark.parametrize("seed", range(3))
def test_the_second_is_taken_soon_after_the_first_has_gone(seed: int) -> None:
    """It need not come round to the core that has looked: with 5 cores that took 10 s."""
    with cluster_of(seed, 5) as cluster:
        world, first = cluster.world, cluster.nodes[FIRST]
        world.start(SECOND, Namesake(cluster, FIRST).program)
        world.run(10.0)
        members = cluster.nodes["core1"].machine.members
        assert members[FIRST].raft_id == first.raft_id
        world.crash(FIRST, power_cut=False)
        world.wait(
            lambda: members[FIRST].up and members[FIRST].raft_id != first.raft_id,
            7.0,
            "the second node as the one of the name",
        )
        world.crash(SECOND, power_cut=False)
        world.restart(FIRST)
        cluster.settle()
