"""Members that come and go under faults, and crashes between any two steps."""

from __future__ import annotations

import random

import pytest

from raftkv.errors import NodeFault, WipedNode
from raftkv.raft.membership import Configuration
from raftkv.testing.disaster import recover_by_force
from raftkv.testing.nemesis import FAULTS
from raftkv.testing.scenario import draw, run_seed
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster

SECONDS = 6.0


@pytest.mark.parametrize("seed", [6])
def test_cores_come_and_go_under_faults(seed: int) -> None:
    result = run_seed(seed, seconds=SECONDS, members=True)
    assert not result.check, result.message
    assert result.marks["members changed"] > 0
    assert result.acknowledged > 50


def test_one_core_grows_to_five_and_shrinks_to_three() -> None:
    with SimulatedCluster(3, cores=1, rate_per_s=60, deliveries=False, members=True) as cluster:
        world, operator = cluster.world, cluster.operator
        assert operator is not None

        async def scale() -> None:
            for name in ("core2", "core3", "core4", "core5"):
                cluster.employ(name, ["core1"])
                assert await operator._ask("add", name, patient=True)
            for name in ("core1", "core4"):
                assert await operator._ask("remove", name, patient=True)

        world.complete(scale())
        newest = cluster.observer.possible_configurations()[0]
        assert [voter.split("-")[0] for voter in newest.voters] == ["core2", "core3", "core5"]
        assert newest.removed[0].startswith("core1-")
        cluster.settle()
        assert sorted(cluster.names) == ["core2", "core3", "core5"]
        assert len(cluster.acknowledged) > 100


def test_a_wiped_core_is_refused_until_its_old_self_was_removed() -> None:
    with SimulatedCluster(4, cores=3, rate_per_s=60, deliveries=False, members=True) as cluster:
        operator, world = cluster.operator, cluster.world
        assert operator is not None
        old = cluster.running_id("core2")
        operator._start_empty("core2")
        world.wait(lambda: not world.host("core2").is_up, 10, "the wiped core's end")
        assert isinstance(world.host("core2").failure, WipedNode)
        assert cluster.running_id("core2") != old
        assert not operator.can_spare(["core1"])
        world.complete(operator._rejoin("core2"))
        world.wait(lambda: operator.can_spare(["core1"]), 10, "three cores that vote")
        cluster.settle()


def test_the_operator_excuses_only_what_was_removed_or_wiped() -> None:
    with SimulatedCluster(5, cores=3, rate_per_s=20, deliveries=False, members=True) as cluster:
        assert cluster.operator is not None
        assert not cluster.operator.excuses("core1", WipedNode("not true"))
        assert not cluster.operator.excuses("core1", NodeFault("something else"))


def test_two_changes_at_once_are_seen() -> None:
    with SimulatedCluster(6, cores=3, rate_per_s=20, deliveries=False) as cluster:
        cluster.run(1)
        name = next(n for n in cluster.names if cluster.nodes[n].leader == n)
        engine = cluster.observer.running(name)
        assert engine is not None
        old = cluster.observer.configuration_in(engine.wal)
        assert old == engine.configuration
        with pytest.raises(SafetyViolation, match="one change in flight"):
            cluster.observer._changes(name, engine, old, Configuration(voters=(engine.me,)))


def test_one_core_is_recovered_by_force_and_only_what_it_lacked_is_lost() -> None:
    with SimulatedCluster(2, cores=3, replicants=1, rate_per_s=60, deliveries=False) as cluster:
        cluster.run(2)
        before = len(cluster.acknowledged)
        recover_by_force(cluster, random.Random(1))
        assert len(cluster.names) == 2
        assert cluster.marks.counts["outdated core stopped"] == 1
        cluster.run(1)
        cluster.settle()
        assert len(cluster.acknowledged) > before


def test_faults_may_begin_before_the_cluster_is_founded() -> None:
    faults = {name: FAULTS[name] for name in ("die_at_write", "die_at_step", "reset", "power_cut")}
    with SimulatedCluster(
        7, cores=3, replicants=1, rate_per_s=60, deliveries=False, early=True
    ) as cluster:
        cluster.storm(6, faults, interval_s=(0.01, 0.3), duration_s=(0.05, 0.5))
        cluster.settle()
        assert cluster.nemesis is not None
        assert cluster.nemesis.counts["die_at_write"] > 1
        assert len(cluster.acknowledged) > 50


def test_some_seeds_change_members_and_some_begin_early() -> None:
    drawn = [draw(seed) for seed in range(100)]
    assert 20 < sum(scenario.members for scenario in drawn) < 60
    assert 10 < sum(scenario.early for scenario in drawn) < 45
    assert all(draw(seed, members=True).members for seed in range(20))
    assert not any(draw(seed, members=False).members for seed in range(20))
