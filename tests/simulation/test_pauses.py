"""A leader that stood still for longer than `node_down_ms` ends no incarnation but its own."""

from __future__ import annotations

import pytest

from raftkv.failure_detector import Verdict
from raftkv.parts import CorePart
from raftkv.state import Context
from raftkv.state.core import Core, DeclareDead
from raftkv.testing.patching import replaced
from raftkv.testing.simulated import SimulatedCluster
from raftkv.verdicts import Verdicts


def standing(cluster: SimulatedCluster, name: str) -> dict[str, tuple[int, bool]]:
    """Of every member, as `name` knows it: its incarnation, and whether it is up."""
    members = cluster.nodes[name].machine.members.values()
    return {member.name: (member.incarnation, member.up) for member in members}


def leader_of(cluster: SimulatedCluster) -> str:
    return next(name for name in cluster.cores if cluster.nodes[name].leader == name)


@pytest.mark.parametrize("pause_s", [8.0, 11.0, 14.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_paused_leader_declares_no_healthy_node_dead(seed: int, pause_s: float) -> None:
    with SimulatedCluster(seed, cores=3, replicants=2, rate_per_s=30.0) as cluster:
        cluster.run(2.0)
        old = leader_of(cluster)
        other = next(name for name in cluster.cores if name != old)
        before = standing(cluster, other)
        cluster.world.pause(old, pause_s)
        cluster.run(pause_s + 5.0)
        after = standing(cluster, other)
        assert {name: after[name] for name in after if name != old} == {
            name: before[name] for name in before if name != old
        }
        # After 11 s the new leader may just not have led for the whole time.
        ended = after[old] != before[old]
        assert ended or pause_s < 14.0
        assert not ended or pause_s > 10.0
        assert after[old][1], "its incarnation ended, and it did not come back"
        cluster.settle()


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_is_gone_is_declared_dead_within_the_bound(seed: int) -> None:
    """`node_down_ms` and 3 s."""
    with SimulatedCluster(seed, cores=3, replicants=2, rate_per_s=30.0) as cluster:
        cluster.run(2.0)
        leader = leader_of(cluster)
        gone = [next(name for name in cluster.cores if name != leader), "replicant1"]
        for name in gone:
            cluster.world.crash(name, power_cut=True)
        cluster.run(9.5)
        assert all(standing(cluster, leader)[name][1] for name in gone)
        cluster.run(3.5)
        assert not any(standing(cluster, leader)[name][1] for name in gone)
        for name in gone:
            cluster.world.restart(name)
        cluster.settle()


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_leader_that_is_gone_is_declared_dead_in_time(seed: int, power_cut: bool) -> None:
    """The next one is elected and leads for the whole time within `node_down_ms` and 3 s."""
    with SimulatedCluster(seed, cores=3, replicants=1, rate_per_s=30.0) as cluster:
        cluster.run(2.0)
        gone = leader_of(cluster)
        other = next(name for name in cluster.cores if name != gone)
        cluster.world.crash(gone, power_cut=power_cut)
        cluster.run(10.0)
        assert standing(cluster, other)[gone][1]
        cluster.run(3.0)
        after = standing(cluster, other)
        assert [name for name, (_, up) in after.items() if not up] == [gone]
        cluster.world.restart(gone)
        cluster.settle()


def ended_by_another_leader() -> bool:
    """A leader reaches a verdict and is cut off before it can commit it: is it in the log later?"""
    with SimulatedCluster(3, cores=3, replicants=1, rate_per_s=30.0) as cluster:
        cluster.run(2.0)
        leader = leader_of(cluster)
        for name in cluster.cores:
            if name != leader:
                cluster.world.network.cut(leader, name)
        node = cluster.nodes[leader]
        part, victim = node._part, node.machine.members["replicant1"]
        assert isinstance(part, CorePart)
        engine, leading = part.engine, part.engine.leading
        verdict = Verdict(victim.name, victim.incarnation, part.term)

        def propose() -> None:
            node._declare_down(verdict, lambda: engine.leading is leading)

        cluster.world.host(leader).inside(propose)
        cluster.run(4.0)
        assert engine.leading is not leading
        cluster.world.network.heal()
        cluster.run(4.0)
        assert not node._verdicts.is_under_way(verdict)
        cluster.settle()
        return standing(cluster, leader)["replicant1"] != (victim.incarnation, True)


def test_a_verdict_is_not_sent_to_the_next_leader() -> None:
    assert not ended_by_another_leader()


def test_a_verdict_that_is_sent_again_has_no_effect_in_an_entry_of_another_term() -> None:
    with replaced(Verdicts, "_checked", lambda _, envelope: envelope):
        assert not ended_by_another_leader()


def test_without_either_guard_it_would_be_noticed() -> None:
    def regardless_of_the_term(core: Core, command: DeclareDead, ctx: Context) -> object:
        return core._ended(command.name, command.incarnation, ctx)

    with (
        replaced(Verdicts, "_checked", lambda _, envelope: envelope),
        replaced(Core, "_declare_dead", regardless_of_the_term),
    ):
        assert ended_by_another_leader()


def test_a_core_of_which_only_a_minority_has_heard_is_isolated() -> None:
    """It stays up in the log, since another core has heard it; the leader's status names it."""
    with SimulatedCluster(5, cores=3, replicants=0, rate_per_s=30.0) as cluster:
        cluster.run(3.0)
        leader = leader_of(cluster)
        lone = next(name for name in cluster.cores if name != leader)
        assert cluster.nodes[leader].status().isolated == []
        cluster.world.network.cut(leader, lone)
        cluster.run(4.0)
        assert leader_of(cluster) == leader
        assert cluster.nodes[leader].status().isolated == [lone]
        cluster.run(12.0)
        assert all(up for _, up in standing(cluster, leader_of(cluster)).values())
        cluster.world.network.heal()
        cluster.run(4.0)
        assert cluster.nodes[leader_of(cluster)].status().isolated == []
        cluster.settle()
