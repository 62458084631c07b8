"""The checks that hold directories to one cluster, and a copy of a directory to what it holds."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from raftkv.config import NodeConfig
from raftkv.raft.identity import DataDirectory
from raftkv.runtime import Runtime
from raftkv.testing.copied import SECOND_PROCESS, CopiedDirectory
from raftkv.testing.identities import one_cluster
from raftkv.testing.simulated import SimulatedCluster
from tests.fakes import FakeRuntime

FIRST, OTHER = "58e0899393d7273a", "1266e78edd165654"


class Disagreed(Exception):
    """What a violation raises here."""


def violated(check: str, what: str) -> None:
    raise Disagreed(f"{check}: {what}")


CLUSTER: Any = SimpleNamespace(violated=violated)


class Machine:
    """A disk, and the directory that is opened on it again and again."""

    def __init__(self, name: str, seed: int = 1) -> None:
        self.name = name
        self.runtime = FakeRuntime(seed=seed)

    def open(self) -> DataDirectory:
        address = "127.0.0.1:1"
        config = NodeConfig(
            name=self.name,
            dir="data",
            peer_address=address,
            cores={self.name: address},
            plugins=(),
        )
        return DataDirectory(config, self.runtime)  # type: ignore[arg-type]

    def dies_in_join(self, cluster_id: str, changes: int) -> None:
        """The power fails after so many changes of the disk by the join."""
        directory = self.open()
        self.runtime.files.changes_left = changes
        with pytest.raises(OSError, match="the power is off"):
            directory.join(cluster_id)
        self.runtime.files.crash()


def test_a_join_that_the_disk_has_lost_is_none() -> None:
    machine, another = Machine("core1"), Machine("core2")
    with one_cluster(CLUSTER):
        machine.dies_in_join(FIRST, 0)
        machine.open().join(OTHER)
        another.open().join(OTHER)


def test_a_join_that_was_stored_counts_although_the_node_died_in_it() -> None:
    """It has stored the id, and the power failed before the directory was synced."""
    kept = 0
    for seed in range(20):
        for changes in range(8):
            machine, another = Machine("core1", seed), Machine("core2", seed)
            with one_cluster(CLUSTER):
                try:
                    machine.dies_in_join(FIRST, changes)
                except pytest.fail.Exception:
                    break  # the join needs no more changes than these
                if not machine.open().identity.cluster_id:
                    another.open().join(OTHER)
                    continue
                kept += 1
                with pytest.raises(Disagreed, match=f"core2 joins the cluster {OTHER}"):
                    another.open().join(OTHER)
    assert kept > 0


def test_two_clusters_are_seen() -> None:
    with one_cluster(CLUSTER):
        Machine("core1").open().join(FIRST)
        with pytest.raises(Disagreed, match=f"core2 joins the cluster {OTHER}"):
            Machine("core2").open().join(OTHER)


def test_a_copy_owes_only_what_was_acknowledged_when_it_was_made() -> None:
    """The core that it is a copy of goes on while the second process starts."""
    with SimulatedCluster(1, 3, rate_per_s=200.0, deliveries=False) as cluster:
        world, promises = cluster.world, cluster.observer.promises
        copied = CopiedDirectory(cluster, random.Random(1))
        engines = {name: cluster.observer.running(name) for name in cluster.cores}
        copied._name, raft_id = next(
            (name, engine.me) for name, engine in engines.items() if engine and not engine.leading
        )
        owed: list[int] = []
        program = copied.program

        async def late(runtime: Runtime) -> None:
            await runtime.sleep(0.1)
            await program(runtime)

        async def copy() -> None:
            await asyncio.sleep(0.5)
            owed.append(promises.acknowledged(raft_id))
            await copied._copy()

        copied.program = late  # type: ignore[method-assign]
        world.spawn(copy(), "copied")
        cluster.storm(4.0, {"jump_wall": 1.0})
        assert 0 < owed[0] < promises.acknowledged(raft_id)
        assert cluster.marks.counts["second process refused"] == 1
        # What it held at that moment it must hold.
        engine = cluster.observer.running(SECOND_PROCESS)
        assert engine is not None
        assert engine.wal.last_index >= owed[0]
        promises.copied(raft_id, SECOND_PROCESS)
        promises._violated = violated  # type: ignore[assignment]
        with pytest.raises(Disagreed, match="it had acknowledged"):
            promises.recovered(SECOND_PROCESS, engine)
