"""Whole nodes on a virtual clock: broken connections, crashes, power cuts; one seed, one run.

A failing seed prints itself in the message; `SimulatedCluster(seed=...)` replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raftkv.config import Limits
from raftkv.testing.nemesis import FAULTS
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster
from raftkv.testing.world import NotReached

STREAM_FAULTS = {"reset": 4, "stall": 3, "cut": 2, "cut_one_way": 2, "isolate": 1}

ONE_RUN = """
from raftkv.testing.simulated import SimulatedCluster
with SimulatedCluster(
    seed=11, cores=3, replicants=1, rate_per_s=50, members=True, early=True
) as cluster:
    cluster.storm(5)
    cluster.settle()
    print(cluster.world.trace.digest())
"""


def test_broken_connections_and_one_crash_lose_nothing() -> None:
    with SimulatedCluster(seed=1, cores=3, rate_per_s=100) as cluster:
        cluster.storm(4, STREAM_FAULTS)
        victim = next(name for name in cluster.names if cluster.nodes[name].leader == name)
        cluster.world.crash(victim, power_cut=True)
        cluster.world.run(3)
        cluster.world.restart(victim)
        cluster.settle()
        assert len(cluster.acknowledged) > 300
        assert cluster.nemesis is not None
        assert sum(cluster.nemesis.counts.values()) >= 2
        assert cluster.nodes[victim].incarnation == 2


@pytest.mark.parametrize("seed", [3, 12])
def test_every_fault_at_once_with_replicants(seed: int) -> None:
    with SimulatedCluster(seed=seed, cores=3, replicants=2, rate_per_s=60) as cluster:
        cluster.storm(12, FAULTS)
        cluster.settle()
        assert len(cluster.acknowledged) > 300


def test_snapshots_are_written_and_installed_under_faults() -> None:
    limits = Limits(snapshot_log_entries=100, log_tail_entries=10, snapshot_chunk_bytes=2048)
    with SimulatedCluster(seed=5, cores=3, replicants=1, rate_per_s=100, limits=limits) as cluster:
        cluster.world.crash("core3")
        cluster.world.crash("replicant1")
        cluster.world.run(4)
        cluster.storm(4, {"power_cut": 1, "reset": 1, "kill": 1})
        cluster.settle()
        for name in ("core1", "core2", "core3"):
            status = cluster.nodes[name].status()
            assert (status.snapshot_index or 0) > 100, name
            assert (status.first_index or 0) > 50, name


def test_a_power_cut_of_all_nodes_loses_nothing_that_was_acknowledged() -> None:
    with SimulatedCluster(seed=8, cores=3, replicants=1, rate_per_s=150) as cluster:
        for _ in range(3):
            cluster.world.run(1.5)
            cluster.power_cut()
            cluster.world.run(2)
        cluster.settle()
        assert len(cluster.acknowledged) > 300


def test_without_fsync_the_same_power_cut_is_seen_to_lose_writes() -> None:
    """The checker checked: a cluster that does not sync must fail the test above."""
    with SimulatedCluster(seed=8, cores=3, rate_per_s=150, fsync="off") as cluster:
        cluster.world.run(1.5)
        cluster.power_cut()
        with pytest.raises((SafetyViolation, NotReached)):
            cluster.settle()


def test_one_seed_gives_one_trace_whatever_the_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ONE_RUN],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1, digests
