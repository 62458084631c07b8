"""The keys that a heavy load begins with, and the snapshots that then spare nodes their replay.

A start applies the log behind the newest snapshot. The entries that write 100,000 keys are too few
for a snapshot to be due, so every restart of a run would apply them all: most of the run's work,
and always the same. In most runs each core therefore writes a snapshot first; the others keep the
long replay tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from raftkv.testing.simulated import SimulatedCluster
    from raftkv.testing.workload import Heavy

__all__ = ["fill"]

# The keys are written within it, and each further step takes no longer.
FILL_S: Final = 120.0


def fill(cluster: SimulatedCluster, heavy: Heavy) -> None:
    """Write the keys of `heavy`, and the snapshots of the cores if it has them."""
    first = cluster.names[0]
    cluster.world.complete(cluster.load.fill(first, cluster.nodes[first]), FILL_S)
    if heavy.snapshots:
        _write_snapshots(cluster, cluster.nodes[first].machine.index)


def _write_snapshots(cluster: SimulatedCluster, index: int) -> None:
    """Every core writes one that has all up to this index."""
    world, cores = cluster.world, cluster.cores

    def applied() -> bool:
        return all(cluster.nodes[name].machine.index >= index for name in cores)

    def written() -> bool:
        parts = [cluster.part(name) for name in cores]
        return all(part and part.engine.snapshotting.last_index >= index for part in parts)

    world.wait(applied, FILL_S, "the first keys on every core")
    for name in cores:
        part = cluster.part(name)
        assert part is not None, f"{name} has stopped before any fault"
        part.engine.snapshotting.begin()
    world.wait(written, FILL_S, "a snapshot of the first keys on every core")
