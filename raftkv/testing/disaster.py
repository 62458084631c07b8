"""The day on which a majority of the cores is gone for good, and somebody goes on with one.

    cluster.storm(10)
    recover_by_force(cluster, random.Random(7))     # load stops, cores die, one is recovered
    cluster.settle()

All cores lose power. One that may vote survives with what its disk holds; the operator runs
`force_new_cluster` on it, which is killed now and then and run again. Replicants go on as they
were, and must discard their state when they meet the new epoch. One of the lost cores comes back
with its old disk, and must stop itself over it.

What is given up, and nothing else: entries behind the survivor's last one, and the doubt about its
uncommitted ones. So the checks keep every fact about the part of the log that the survivor shares
with what was committed (up to `agreed`), and forget the rest. If nothing that was committed lies
behind it, every acknowledged write must still be there.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from raftkv.errors import OutdatedData
from raftkv.raft.forced_recovery import force_new_cluster
from raftkv.raft.identity import DataDirectory
from raftkv.raft.membership import name_of
from raftkv.raft.recovery import recover
from raftkv.testing.runtime import SimRuntime
from raftkv.testing.workload import QUIET_S

if TYPE_CHECKING:
    from raftkv.raft.wal import Wal
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["recover_by_force"]

# A run of the recovery that is killed dies at one of its first so many changes of the disk.
CHANGES_MAX = 20
TRIES_MAX = 50
WAIT_S = 30.0
# In so many runs the survivor is cut off before, for so long (uniform): else it lacks nothing that
# was committed. If it leads, the others need an election of up to about 2 s first.
BEHIND_SHARE = 0.75
BEHIND_S = (0.1, 4.0)


def recover_by_force(cluster: SimulatedCluster, rng: random.Random) -> None:
    """See the module's text. Afterwards one core and all replicants run, and the load again."""
    with cluster.judging():
        _recover(cluster, rng)


def _recover(cluster: SimulatedCluster, rng: random.Random) -> None:
    world, observer = cluster.world, cluster.observer
    world.run(rng.uniform(0, 1))
    voters = [
        name_of(voter)
        for voter in observer.possible_configurations()[-1].voters
        if cluster.running_id(name_of(voter)) == voter
    ]
    survivor = rng.choice([name for name in voters if name in cluster.names])
    cores = [name for name in cluster.names if observer.running(name) is not None]
    others = [name for name in cores if name != survivor]
    if rng.random() < BEHIND_SHARE:
        # The others go on without it for a while.
        world.network.isolate(survivor)
        world.run(rng.uniform(*BEHIND_S))
        world.network.heal()
    for name in cores:
        if world.host(name).is_up:
            world.crash(name, power_cut=True)
        cluster.nodes.pop(name, None)
    for name in others:
        cluster.names.remove(name)
    world.note("*", f"only {survivor} is left")
    # Whoever still waits for an answer is done before there is a cluster again.
    cluster.load.running = False
    cluster.watchers.suspend()
    cluster.holders.give_up()
    world.run(QUIET_S)
    last_committed = max(observer.committed, default=0)
    agreed = _look(cluster, survivor)
    _run_recovery(cluster, survivor, rng)
    cluster.readdress([survivor])
    cluster.start(survivor)
    if others:
        _old_core_returns(cluster, rng.choice(others))
    world.wait(lambda: cluster.agrees_with(survivor), WAIT_S, "all nodes in the new epoch")
    world.run(1.0)
    cluster.load.begin_anew(
        cluster.nodes[survivor], nothing_lost=last_committed <= agreed, names=cluster.names
    )
    cluster.watchers.begin_anew(cluster.nodes[survivor])
    cluster.holders.give_up()
    cluster.marks.hit("recovered by force")
    if last_committed > agreed:
        cluster.marks.hit("recovered by force with a loss")


def _look(cluster: SimulatedCluster, survivor: str) -> int:
    """Forget what the survivor does not hold. Returns how far it agrees with what was committed."""
    disk, config = cluster.world.host(survivor).disk, cluster.configs[survivor]
    directory = DataDirectory.existing(disk, config.dir)
    try:
        recovered = recover(
            disk,
            config.dir,
            config.limits,
            fsync=True,
            belongs=True,
            owner=directory.identity.log_owner,
        )
        wal: Wal = recovered.wal
        agreed = cluster.observer.begin_anew(wal)
        wal.close()
    finally:
        directory.close()
    cluster.fork(agreed)
    return agreed


def _run_recovery(cluster: SimulatedCluster, survivor: str, rng: random.Random) -> None:
    """As a program of its own on the survivor's machine, until it gets through."""
    world, done = cluster.world, []

    async def program(runtime: SimRuntime) -> None:
        directory = DataDirectory.existing(runtime.files, cluster.configs[survivor].dir)
        try:
            force_new_cluster(runtime.files, directory, runtime.token)
        finally:
            directory.close()
        done.append(True)

    for _ in range(TRIES_MAX):
        world.start(survivor, program)
        if rng.random() < 0.5:
            power_cut = rng.random() < 0.5
            changes = rng.randint(0, CHANGES_MAX)
            world.doom(survivor, lambda: None, power_cut=power_cut, changes=changes)
        world.wait(lambda: not world.host(survivor).is_up, WAIT_S, "the end of the recovery")
        if done:
            return
    raise AssertionError("the recovery never got through")


def _old_core_returns(cluster: SimulatedCluster, name: str) -> None:
    """It must find out that its data are of the past, and stop."""
    world = cluster.world
    cluster.observer.outdated.add(name)
    cluster.start(name)
    world.wait(lambda: not world.host(name).is_up, WAIT_S, f"{name}, which is outdated, to stop")
    failure = world.host(name).failure
    if not isinstance(failure, OutdatedData):
        cluster.violated("epochs never meet", f"{name} came back and ended with {failure!r}")
    cluster.nodes.pop(name, None)
    cluster.observer.outdated.discard(name)
    cluster.marks.hit("outdated core stopped")
