"""Disks with room for the log and none for one more snapshot, on all nodes at once."""

from __future__ import annotations

import pytest

from raftkv import rejecting
from raftkv.config import Limits
from raftkv.errors import Overloaded, Timeout
from raftkv.raft.free_space import FreeSpace
from raftkv.runtime import Space
from raftkv.testing.disk import SPACE
from raftkv.testing.patching import replaced
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


@pytest.mark.parametrize("told", [False, True])
def test_callers_learn_of_a_full_disk_and_are_not_sent_again_all_the_time(told: bool) -> None:
    """On all cores, so that no leader has room. Before core format 2 the others are not told."""
    since = rejecting.FORMAT_REJECTED if told else 99
    simulated = SimulatedCluster(seed=1, replicants=1, rate_per_s=5.0, deliveries=False)
    with replaced(rejecting, "FORMAT_REJECTED", since), simulated:
        simulated.run(3.0)
        leader = next(n for n in simulated.cores if simulated.nodes[n].leader == n)
        full = replaced(FreeSpace, "at_end", property(lambda space: True))
        with full, replaced(FreeSpace, "_leave", lambda space: None):
            resends = {name: simulated.nodes[name].outbox.resends for name in simulated.nodes}
            calls = {
                name: simulated.world.call(name, node.kv.put(b"k", b"v", timeout_s=5.0))
                for name, node in simulated.nodes.items()
            }
            for name, call in calls.items():
                simulated.world.wait(call.done, 10, f"the end of the put at {name}")
            deletion = simulated.world.call(leader, simulated.nodes[leader].kv.delete(b"k"))
            simulated.world.wait(deletion.done, 5, "a deletion")
            assert deletion.exception() is None
        for name, call in calls.items():
            if not told and name != leader:
                assert type(call.exception()) is Timeout
                continue
            assert type(call.exception()) is Overloaded
            assert f"the disk of the leader {leader} is full (alarm DISK)" in str(call.exception())
            assert simulated.nodes[name].outbox.resends - resends[name] <= 3
        call = simulated.world.call("replicant1", simulated.nodes["replicant1"].kv.put(b"k", b"v"))
        simulated.world.wait(call.done, 5, "a put once there is room")
        assert call.exception() is None
