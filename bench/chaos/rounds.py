"""Many quick rounds: kill, start again, look. For kills and power cuts by the thousand.

The clients never pause: they put ledger keys, each once, through every door. A round strikes at a
random moment, starts again what it ended, and waits until every door has acknowledged a write that
began after that. Once the writes of the round are back, everything that was acknowledged in it
must be there, read through a random node; at the end of the run, all of it through every node.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence

from bench.chaos.cluster import ChaosError
from bench.chaos.faults import KINDS, World
from bench.chaos.load import Load, Slice
from bench.chaos.soak import HEAL_BOUND_S, Event
from raftkv.errors import RaftkvError

__all__ = ["Rounds"]

LOAD_MIN_S = 0.05
LOAD_MAX_S = 0.3
"""Of load before each strike."""


class Rounds:
    """Runs rounds; `told` hears each."""

    def __init__(
        self, world: World, load: Load, kinds: Sequence[str], told: Callable[[Event], None]
    ) -> None:
        self._world = world
        self._load = load
        self._kinds = list(kinds)
        self._told = told
        self._rng = random.Random(world.rng.getrandbits(64))
        self._deck: list[str] = []
        self._unchecked: list[Slice] = []
        self.events: list[Event] = []
        self.findings: list[str] = []
        self.checked = 0

    async def run(self, count: int) -> None:
        """So many rounds, or fewer if the cluster does not come back."""
        for _ in range(count):
            await asyncio.sleep(self._rng.uniform(LOAD_MIN_S, LOAD_MAX_S))
            if not await self._round():
                return
            self._unchecked.append(self._load.next_slice())
            await self._check()

    async def _round(self) -> bool:
        if not self._deck:
            self._deck = self._rng.sample(self._kinds, len(self._kinds))
        cluster, kind = self._world.cluster, self._deck.pop()
        began, exits = time.monotonic(), len(cluster.unexpected)
        async with contextlib.AsyncExitStack() as stack:
            fault = await stack.enter_async_context(KINDS[kind](self._world))
        self.findings += fault.findings
        held_s, recovery_s = time.monotonic() - began, None
        try:
            recovery_s = await self._load.progress(cluster.names, time.monotonic(), HEAL_BOUND_S)
        except ChaosError as error:
            self.findings.append(f"{error} ({kind} of {fault.target})")
        for one in cluster.unexpected[exits:]:
            self.findings.append(f"{one.name} ended by itself: {one.last_words}")
        event = Event(
            kind,
            fault.target,
            round(began - self._load.started, 3),
            round(held_s, 3),
            fault.proof,
            None if recovery_s is None else round(recovery_s, 3),
        )
        self.events.append(event)
        self._told(event)
        return recovery_s is not None

    async def _check(self) -> None:
        """Look at the rounds whose writes are all back."""
        ready = [one for one in self._unchecked if not one.pending]
        for one in ready:
            node = self._rng.choice(self._world.cluster.names)
            try:
                _, ledger = await self._load.read_back(node, one)
            except RaftkvError:
                continue  # an election is going on: with the next round
            self._unchecked.remove(one)
            self.findings += one.ledger_findings(node, ledger)
            self.checked += 1
