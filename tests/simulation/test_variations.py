"""What some seeds have beside: hurt and rolled back disks, an upgrade, limits that differ, load."""

from __future__ import annotations

import random

import pytest

from raftkv.config import Limits, NodeConfig
from raftkv.testing.nemesis import OPERATIONS
from raftkv.testing.scenario import draw, run_seed
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster
from raftkv.testing.upgrade import NEWEST, OLD
from raftkv.testing.variations import Variations
from raftkv.testing.varied import differ, varied

TINY = Limits(
    key_bytes_max=512,
    value_bytes_max=1024,
    command_bytes_max=2048,
    batch_bytes_max=2048,
    frame_bytes_max=64 * 1024,
    snapshot_chunk_bytes=1024,
    inflight_bytes_max=16 * 1024,
)


@pytest.mark.parametrize("limits", [Limits(), TINY])
def test_drawn_limits_are_valid_and_any_node_may_lead_any_other(limits: Limits) -> None:
    base = NodeConfig(
        name="core1", dir="/d", peer_address="h:1", cores={"core1": "h:1"}, insecure=True,
        limits=limits,
    )  # fmt: skip
    drawn = [varied(base, random.Random(seed)) for seed in range(200)]
    longest = max(each.raft.heartbeat_ms for each in drawn)
    assert 3 * longest <= min(each.raft.election_timeout_min_ms for each in drawn)
    assert all(each.limits.frame_bytes_max == limits.frame_bytes_max for each in drawn)
    assert len({each.limits for each in drawn if differ(base, each)}) > 50


def test_nodes_with_other_limits_and_time_outs_agree() -> None:
    with SimulatedCluster(
        4, 3, 1, limits=TINY, deliveries=False, more=Variations(differing=True)
    ) as cluster:
        cluster.storm(6, {"kill": 1.0, "power_cut": 1.0, "reset": 1.0}, duration_s=(0.2, 0.8))
        cluster.settle()
        assert cluster.marks.counts["limits differ between nodes"] > 2
        assert len(cluster.acknowledged) > 200


def test_a_lost_sector_and_a_failed_read_stop_the_node_and_nothing_is_lost() -> None:
    with SimulatedCluster(4, 3, 1, rate_per_s=60, deliveries=False) as cluster:
        faults = {"lose_sector": 2.0, "fail_reads": 1.0, **OPERATIONS}
        cluster.storm(12, faults, duration_s=(0.2, 0.8))
        cluster.settle()
        assert cluster.nemesis is not None
        assert cluster.nemesis.counts["lose_sector"] > 2
        assert cluster.marks.counts["damage noticed"] > 1
        assert cluster.marks.counts["disk failed"] > 1
        assert sum(host.disk.read_failures_total for host in cluster.world.hosts.values()) > 1


def test_a_core_with_an_old_disk_is_distrusted_and_replaced() -> None:
    with SimulatedCluster(
        6, 3, rate_per_s=60, deliveries=False, more=Variations(rolled_back=True)
    ) as cluster:
        cluster.storm(20, {"reset": 1.0, "kill": 1.0})
        assert cluster.marks.counts["disk rolled back"] > 0
        assert cluster.marks.counts["voter distrusted"] > 0
        cluster.settle_members()
        cluster.settle()
        assert not cluster.observer.possible_configurations()[0].distrusted
        assert cluster.marks.counts["distrusted voter replaced"] == 1


def test_the_world_counts_a_distrusted_voter_for_nothing() -> None:
    with SimulatedCluster(
        6, 3, rate_per_s=60, deliveries=False, more=Variations(rolled_back=True)
    ) as cluster:
        cluster.storm(20, {"reset": 1.0})
        name = next(n for n in cluster.names if cluster.nodes[n].leader == n)
        engine = cluster.observer.running(name)
        assert engine is not None
        configuration = engine.configuration
        assert configuration.distrusted
        promises = cluster.observer.promises
        for voter in configuration.voters:
            if voter != engine.me:
                promises._of(voter).index = 0
        promises._of(configuration.distrusted[0]).index = engine.commit
        with pytest.raises(SafetyViolation, match="commit by a majority"):
            promises.committed(name, engine, engine.commit, configuration)


def test_a_cluster_of_the_former_software_is_upgraded_under_faults() -> None:
    with SimulatedCluster(
        3, 3, 2, rate_per_s=60, deliveries=False, more=Variations(upgraded=True)
    ) as cluster:
        assert {node.machine.core_format for node in cluster.nodes.values()} == {OLD}
        cluster.storm(8, {"kill": 1.0, "reset": 1.0, "isolate": 1.0}, duration_s=(0.2, 0.8))
        cluster.settle()
        assert {node.machine.core_format for node in cluster.nodes.values()} == {NEWEST}
        assert cluster.marks.counts["core format raised"] == 1
        assert len(cluster.acknowledged) > 100


def test_work_that_takes_time_and_large_values_in_a_usual_seed() -> None:
    seed = next(seed for seed in range(200) if draw(seed).more.charged and not draw(seed).disaster)
    result = run_seed(seed, seconds=6)
    assert not result.check, result.message
    assert result.marks["value near the limit"] + result.marks["range of many keys compared"] > 0


def test_every_variation_is_drawn_often_enough() -> None:
    drawn = [draw(seed) for seed in range(400)]
    for variation in Variations._fields:
        drawn_in = sum(getattr(scenario.more, variation) for scenario in drawn)
        assert 10 < drawn_in < 200, variation
    assert not any(scenario.more.rolled_back and scenario.more.upgraded for scenario in drawn)


def test_an_entry_below_the_base_of_a_log_is_held_by_its_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with SimulatedCluster(1, 3, rate_per_s=20, deliveries=False) as cluster:
        cluster.run(1)
        promises = cluster.observer.promises
        engine = cluster.observer.running("core1")
        assert engine is not None
        entry = engine.wal.entries(engine.commit, engine.commit)[0]
        assert promises._still_holds(engine.me, entry)
        monkeypatch.setattr(promises, "_on_platter", lambda name, record: False)
        assert not promises._still_holds(engine.me, entry)
        monkeypatch.setattr(promises, "_base_of", lambda name: entry.index)
        assert promises._still_holds(engine.me, entry)
