"""One core's disk is put back to what it held some time ago, as when an old image is restored.

It then lacks entries that it had acknowledged, and may have forgotten its vote. No rule can help
before a leader has noticed that, so the world is calm until the voter is distrusted: the leader
holds the acknowledgement, so it must notice the loss. From then on the storm goes on, and all
checks count that voter for nothing (observer.py). Afterwards the operator replaces it, as the log
of the leader advises: it is removed, its disk is emptied, and it is added as a new core.

A copy is of what is durable at one moment; the machine is off when it is put back.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from raftkv.raft.membership import name_of
from raftkv.testing.world import NotReached

if TYPE_CHECKING:
    from raftkv.parts import CorePart
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["Rollback"]

# Until the copy is made, and then until it is put back, uniform.
BEFORE_S = (1.0, 8.0)
AGE_S = (0.2, 3.0)
# A calm world must have a leader whose log all voters hold within this time.
CALM_S = 15.0
# And the leader must have committed the flag within this one: a few heartbeats and a start.
NOTICED_S = 5.0
# In one run the same core is put back so often at most.
TIMES_MAX = 2


class Rollback:
    """Puts one core of a cluster back; `storm` runs beside the nemesis."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng
        self._name = rng.choice(cluster.cores)
        self._over = False

    async def storm(self) -> None:
        """Until it is done or cancelled."""
        for _ in range(TIMES_MAX):
            await asyncio.sleep(self._rng.uniform(*BEFORE_S))
            if self._over:
                return
            await self._put_back()

    async def finish(self) -> None:
        """After healing: a core that is distrusted is replaced."""
        self._over = True
        cluster, name = self._cluster, self._name
        newest = cluster.observer.possible_configurations()[0]
        if newest.raft_id_of(name) in newest.distrusted:
            assert cluster.operator is not None
            await cluster.operator.replace(name)
            cluster.marks.hit("distrusted voter replaced")

    async def _put_back(self) -> None:
        cluster, world, name = self._cluster, self._world, self._name
        nemesis = cluster.nemesis
        part = cluster.part(name)
        if part is None or nemesis is None:
            return
        copy, kept = world.host(name).disk.platters(), part.engine.wal.last_index
        await asyncio.sleep(self._rng.uniform(*AGE_S))
        nemesis.calm = True
        nemesis.heal()
        try:
            await world.until(lambda: self._leader(kept), CALM_S, "a leader that all follow")
        except NotReached:
            nemesis.calm = False
            return  # this core leads, or another one has had no writes to acknowledge
        leader = self._leader(kept)
        assert leader is not None
        self._restore(copy)
        await self._distrusted(leader, leader.engine.term)
        nemesis.calm = False

    def _leader(self, kept: int) -> CorePart | None:
        """A leader with a log that all voters hold, the one to be put back beyond `kept`."""
        for name in self._cluster.names:
            part = self._cluster.part(name)
            if part is None or name == self._name or part.engine.leading is None:
                continue
            engine, leading = part.engine, part.engine.leading
            voters = engine.configuration.voters
            newest = engine.wal.last_index
            held = min(self._match(part, voter) for voter in voters)
            settled = engine.commit == newest == held > kept
            if settled and leading.first_index <= engine.commit:
                return part
        return None

    def _match(self, part: CorePart, voter: str) -> int:
        engine, leading = part.engine, part.engine.leading
        if voter == engine.me:
            return engine.wal.durable_index
        assert leading is not None
        if self._cluster.running_id(name_of(voter)) != voter:
            return 0
        return leading._progress[voter].match

    def _restore(self, copy: dict[str, bytes]) -> None:
        cluster, world, name = self._cluster, self._world, self._name
        raft_id = cluster.running_id(name)
        assert raft_id is not None
        world.crash(name, power_cut=True)
        world.note(name, "the disk is rolled back")
        world.host(name).disk.roll_back(copy)
        cluster.observer.promises.rolled_back(raft_id)
        cluster.marks.hit("disk rolled back")
        world.restart(name)

    async def _distrusted(self, leader: CorePart, term: int) -> None:
        """The leader has noticed it, and its flag is committed."""
        engine = leader.engine
        raft_id = self._cluster.running_id(self._name)

        def flagged() -> bool:
            latest = engine.configurations.latest_index
            return raft_id in engine.configuration.distrusted and engine.commit >= latest

        try:
            await self._world.until(flagged, NOTICED_S, "a distrusted voter")
        except NotReached:
            stayed = engine.leading is not None and engine.term == term
            self._cluster.violated(
                "a voter that lost entries is distrusted",
                f"{self._name} was put back, and the leader of term {term} "
                f"{'counts it still' if stayed else 'has lost its leadership'}",
            )
