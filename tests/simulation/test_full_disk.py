"""Disks with room for the log and none for one more snapshot, on all nodes at once."""

from __future__ import annotations

import pytest

from raftkv.config import Limits
from raftkv.runtime import Space
from raftkv.testing.disk import SPACE
from raftkv.testing.planted import planted
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster

LIMITS = Limits(snapshot_log_entries=150, log_tail_entries=20)


def cluster() -> SimulatedCluster:
    return SimulatedCluster(seed=1, rate_per_s=100.0, deliveries=False, limits=LIMITS)


def fill(simulated: SimulatedCluster, space: Space) -> None:
    for name in simulated.cores:
        disk = simulated.world.host(name).disk
        disk.space_of_snapshots, disk.fail_snapshots = space, True


def alarms(simulated: SimulatedCluster) -> list[str]:
    return [name for name in simulated.cores if simulated.nodes[name].status().alarms == ["DISK"]]


@pytest.mark.parametrize("space", [SPACE, Space(0, SPACE.total_bytes)], ids=["quota", "seen"])
def test_no_node_stops_and_all_come_back_by_themselves(space: Space) -> None:
    with cluster() as simulated:
        simulated.run(1.0)
        fill(simulated, space)
        simulated.run(8.0)
        assert all(simulated.is_up(name) for name in simulated.cores)
        assert alarms(simulated) == simulated.cores
        before = len(simulated.acknowledged)
        simulated.power_cut()
        simulated.run(8.0)
        assert all(simulated.is_up(name) for name in simulated.cores)
        assert len(simulated.acknowledged) > before + 100, "writes go on"
        indexes = {n: simulated.nodes[n].status().snapshot_index for n in simulated.cores}
        for name in simulated.cores:
            simulated.world.host(name).disk.fail_snapshots = False
        simulated.run(20.0)
        assert alarms(simulated) == []
        for name in simulated.cores:
            assert (simulated.nodes[name].status().snapshot_index or 0) > (indexes[name] or 0)
        simulated.settle()


def test_the_former_bug_is_found() -> None:
    with planted("full-disk-stops-node"), cluster() as simulated:
        simulated.run(1.0)
        fill(simulated, SPACE)
        with pytest.raises(SafetyViolation, match="nodes stop for a reason"):
            simulated.run(8.0)
