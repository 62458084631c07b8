"""How long a cluster is without a leader after a kill, in virtual time.

There is no silence to wait for: the streams of a killed process are reset, which is a hint. The
seeds include some in which both followers ask in the same moment and split the vote.
"""

from __future__ import annotations

import pytest

from raftkv.testing.simulated import SimulatedCluster

# Far below the shortest election time-out of 0.6 s; an election takes a few hundredths of a second.
LIMIT_S = 0.3


@pytest.mark.parametrize("seed", [1, 2, 37, 40])
def test_a_killed_leader_is_replaced_without_waiting_for_a_time_out(seed: int) -> None:
    with SimulatedCluster(seed, cores=3, rate_per_s=20) as cluster:
        world = cluster.world
        world.run(2)
        old = next(name for name in cluster.cores if cluster.nodes[name].leader == name)
        other = next(name for name in cluster.cores if name != old)
        world.crash(old, power_cut=False)
        killed_at = world.loop.now
        write = cluster.nodes[other].kv.put(b"after the kill", b"v", timeout_s=20)
        written = world.call(other, write)
        world.wait(written.done, 20, "the write")
        written.result()
        assert world.loop.now - killed_at < LIMIT_S
