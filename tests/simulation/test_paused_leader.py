"""A leader that stood still (SIGSTOP) never answers a linearizable read from the past.

While it stood still another leader was elected and something written. When it goes on, readers on
it and on the replicants that it feeds must see that, or get no answer.
"""

from __future__ import annotations

import pytest

from raftkv.config import RaftTimes
from raftkv.kv.commands import RangeOp
from raftkv.testing.planted import planted
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.world import WorldFailed

NEW = b"written meanwhile"


def seen_after_a_pause(cluster: SimulatedCluster, old: str, *, cut: bool) -> list[bool]:
    """Pause the leader `old`, write elsewhere, wake it: whether readers see it from then on.

    `cut`: for a second more it hears of no other core, but goes on feeding replicants.
    """
    world, nodes = cluster.world, cluster.nodes

    world.pause(old)
    for core in cluster.cores:
        if cut and core != old:
            world.network.cut(old, core)
    other = next(name for name in cluster.cores if name != old)
    world.wait(lambda: nodes[other].leader not in (None, old), 10, "another leader")
    written = world.call(other, nodes[other].kv.put(NEW, b"v", timeout_s=20))
    world.wait(written.done, 20, "the write")
    written.result()
    # The readers' calls are the first thing that runs there, before any message is read.
    readers = [old] * 3 + [name for name in cluster.names if name not in cluster.cores]
    reads = [
        world.call(name, nodes[name].kv.read(RangeOp(NEW), consistency=how, timeout_s=3))
        for name in readers
        for how in ("lease", "linearizable")
    ]
    world.resume(old)
    world.run(1)
    world.network.heal()
    world.wait(lambda: all(read.done() for read in reads), 10, "the end of the reads")
    answers = [read.result() for read in reads if read.exception() is None]
    return [len(answer.kvs) == 1 for answer in answers]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("lease_ms", [0, 500])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_leader_that_stood_still_answers_nothing_old(seed: int, lease_ms: int, cut: bool) -> None:
    raft = RaftTimes(lease_ms=lease_ms)
    with SimulatedCluster(seed, cores=3, replicants=3, rate_per_s=40, raft=raft) as cluster:
        cluster.world.run(2)
        old = next(name for name in cluster.cores if cluster.nodes[name].leader == name)
        seen = seen_after_a_pause(cluster, old, cut=cut)
        assert all(seen)
        assert len(seen) >= 6, "hardly a reader was answered: the test shows little"
        cluster.settle()


def noticed(cluster: SimulatedCluster, old: str) -> bool:
    """Whether a reader is shown the old state: one of ours, or before it one of the load."""
    try:
        return not all(seen_after_a_pause(cluster, old, cut=True))
    except WorldFailed as failed:
        return "linearizable" in str(failed)


def test_a_leader_that_asks_nobody_would_be_noticed() -> None:
    """The test above checked: a leader that answers from its own belief gives the old state."""
    with SimulatedCluster(1, cores=3, replicants=3, rate_per_s=40) as cluster:
        cluster.world.run(2)
        old = next(name for name in cluster.cores if cluster.nodes[name].leader == name)
        with planted("read-without-round"):
            assert noticed(cluster, old)
