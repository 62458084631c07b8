"""Minutes of faults under load, one after the other, some two at a time, with time to heal between.

Every kind is drawn from a shuffled deck, so that each comes as often as the others and the first
few minutes have seen all of them. After every fault the run waits until each node's door has
acknowledged something that began after the healing; if one does not within `HEAL_BOUND_S`, that is
a finding, and so is a node that ended without being asked to.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence

import msgspec

from bench.chaos.cluster import ChaosError
from bench.chaos.faults import KINDS, LINK_KINDS, PROCESS_KINDS, Injected, World
from bench.chaos.load import Load

__all__ = ["HEAL_BOUND_S", "Event", "Soak"]

HEAL_BOUND_S = 20.0
"""From healing to a write through every door: a start of all nodes, two failed elections, slack."""

HEAL_FAILURES_MAX = 3
"""A cluster that has not come back so often in a row will not: the run ends early."""

PAIR_SHARE = 0.3
"""Of the faults: with one of the other family at the same time."""


class Event(msgspec.Struct, frozen=True):
    """One fault, as it is written to faults.jsonl. Seconds count from the start of the run."""

    kind: str
    target: str
    began_s: float
    held_s: float
    proof: str
    recovery_s: float | None


class Soak:
    """Runs faults until the time is over. `told` hears one line a fault."""

    def __init__(
        self,
        world: World,
        load: Load,
        kinds: Sequence[str],
        *,
        hold_s: float = 3.0,
        told: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._world = world
        self._load = load
        self._kinds = list(kinds)
        self._hold_s = hold_s
        self._told = told
        self._deck: list[str] = []
        # Draws of kinds and times alone: what targets are drawn depends on who leads.
        self._rng = random.Random(world.rng.getrandbits(64))
        self.events: list[Event] = []
        self.findings: list[str] = []

    async def run(self, seconds: float) -> None:
        """Until the time is over, and every kind has struck once."""
        deadline = time.monotonic() + seconds
        missing, failures = set(self._kinds), 0
        while time.monotonic() < deadline or missing:
            if time.monotonic() > deadline + 60.0 + 10 * self._hold_s * len(self._kinds):
                break  # the report names the kinds that never struck
            chosen = [self._draw()]
            if self._rng.random() < PAIR_SHARE:
                chosen += self._partner(chosen[0])
            events = await self._once(chosen)
            missing -= {event.kind for event in events if event.proof}
            failures = failures + 1 if events[0].recovery_s is None else 0
            if failures == HEAL_FAILURES_MAX:
                break
            await asyncio.sleep(self._hold_s * self._rng.uniform(0.1, 0.4))

    def _draw(self) -> str:
        if not self._deck:
            self._deck = list(self._kinds)
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    def _partner(self, kind: str) -> list[str]:
        family = LINK_KINDS if kind in PROCESS_KINDS else PROCESS_KINDS
        others = [other for other in self._kinds if other in family]
        return [self._rng.choice(others)] if others else []

    async def _once(self, chosen: Sequence[str]) -> list[Event]:
        began, exits = time.monotonic(), len(self._world.cluster.unexpected)
        faults: list[Injected] = []
        async with contextlib.AsyncExitStack() as stack:
            for kind in chosen:
                faults.append(await stack.enter_async_context(KINDS[kind](self._world)))
            await asyncio.sleep(self._hold_s * self._rng.uniform(0.3, 1.5))
        held_s, recovery_s = time.monotonic() - began, None
        for fault in faults:
            self.findings += fault.findings
        cluster = self._world.cluster
        try:
            recovery_s = await self._load.progress(cluster.names, time.monotonic(), HEAL_BOUND_S)
        except ChaosError as error:
            self.findings.append(f"{error} ({'+'.join(chosen)})")
        for one in cluster.unexpected[exits:]:
            self.findings.append(
                f"{one.name} ended by itself with {one.code} after {'+'.join(chosen)}: "
                f"{one.last_words}"
            )
        await cluster.start(cluster.names)
        return [self._file(fault, began, held_s, recovery_s) for fault in faults]

    def _file(
        self, fault: Injected, began: float, held_s: float, recovery_s: float | None
    ) -> Event:
        event = Event(
            fault.kind,
            fault.target,
            round(began - self._load.started, 3),
            round(held_s, 3),
            fault.proof,
            None if recovery_s is None else round(recovery_s, 3),
        )
        self.events.append(event)
        self._told(event)
        return event
