"""Several clusters in one simulated world: each is well by itself, and fails by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raftkv.testing.nemesis import FAULTS
from raftkv.testing.several import SeveralClusters, Shape
from raftkv.testing.world import World

SHAPES = {"a": Shape(3, 1), "b": Shape(3), "c": Shape(1)}


class Violated(Exception):
    pass


def violated(check: str, found: Sequence[str]) -> None:
    if found:
        raise Violated(f"{check}: {found}")


def stormy(seed: int) -> tuple[str, int]:
    """A run with faults and outages: its fingerprint, and how many faults there were."""
    world = World(seed)
    with SeveralClusters(world, SHAPES, violated) as clusters:
        clusters.weather(
            3.0, FAULTS, interval_s=(0.1, 0.5), duration_s=(0.1, 1.0), outage_every_s=1.0
        )
        clusters.wait(clusters.converged, 30, "equal indexes")
        clusters.check()
        return clusters.fingerprint(), sum(clusters.counts.values())


def test_clusters_get_well_again_and_a_seed_takes_the_same_steps() -> None:
    first, second = stormy(7), stormy(7)
    assert first == second
    assert first[1] > 3


def test_clusters_elect_leaders_of_their_own() -> None:
    with SeveralClusters(World(1), SHAPES, violated) as clusters:
        for cluster, names in clusters.members.items():
            clusters.wait(lambda cluster=cluster: clusters.leader_of(cluster), 10, "a leader")
            assert clusters.leader_of(cluster) in names
            assert all(clusters.cluster_of(name) == cluster for name in names)


def test_an_outage_takes_all_nodes_of_one_cluster_and_no_others() -> None:
    with SeveralClusters(World(2), SHAPES, violated) as clusters:
        clusters.world.spawn(clusters.outage("a", 1.0), "outage")
        clusters.world.run(0.5)
        up = {name for name in clusters.names if clusters.world.host(name).is_up}
        assert up == {*clusters.members["b"], *clusters.members["c"]}
        assert list(clusters.dark) == ["a"]
        clusters.world.run(1.0)
        clusters.wait(clusters.converged, 30, "equal indexes")
        assert not clusters.dark


@pytest.mark.parametrize("name", ["a-core2", "a-rep1"])
def test_a_node_comes_back_with_an_empty_disk(name: str) -> None:
    with SeveralClusters(World(3), SHAPES, violated) as clusters:
        clusters.wait(clusters.converged, 30, "equal indexes")
        before = clusters.nodes["a-core1"].machine.index
        clusters.replace_disk(name)
        clusters.wait(clusters.converged, 30, "equal indexes")
        assert clusters.nodes[name].machine.index >= before
        clusters.check()


def test_a_node_that_applies_something_else_is_found() -> None:
    world = World(4)
    with SeveralClusters(world, SHAPES, violated) as clusters:
        clusters.wait(clusters.converged, 30, "equal indexes")
        index = clusters.nodes["b-core1"].machine.index
        # What the others have applied next is not what this cluster will.
        clusters._applied["b"][index + 1] = 0
        world.crash("b-core2")
        with pytest.raises(AssertionError):
            world.run(20)
