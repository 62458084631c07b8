"""Holders of leases in a simulated cluster: whom a lease must not be taken from.

A holder asks some node for a lease, attaches a key, and keeps it alive for a while through whatever
node it finds; then it revokes it, or dies and lets it run out.

Never early. An answered keep-alive promises the lease for its time to live from the moment at which
it was sent. As long as that runs, no node that has applied the grant may apply anything that takes
the lease or its key away: looked at after every entry on every node. Nor may anybody answer that
the lease does not exist.

Not for ever. When the load is over and the world healed, all leases must end.

Clocks of hosts drift, so a promise counts as so much shorter (`DRIFT`): the lessor that began with
a fast clock may hand over to none that is faster than the drift allows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from raftkv.errors import NodeFault, NotApplied, OutcomeUnknown, Refused
from raftkv.kv.commands import LeaseNotFound
from raftkv.state.machine import StateMachine
from raftkv.testing.host import HostCrashed
from raftkv.testing.marks import Marks

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.testing.world import World

__all__ = ["LeaseHolders"]

HOLDERS = 3
TIMEOUT_S = 2.0
# Twice the drift of the worst of clocks, at a fast and at a slow host.
DRIFT = 0.002
CHECK = "leases live as promised"

#: How a call may end without an answer.
UNANSWERED = (NotApplied, OutcomeUnknown, Refused, HostCrashed, NodeFault)


@dataclass
class Promise:
    """A lease that was acknowledged; whoever has applied `index` must have it before `until`."""

    lease: int
    ttl_s: int
    index: int
    until: float
    # The key attached to it, once that is acknowledged.
    key: bytes = b""
    # The history of the cluster that holds it (`LeaseHolders.give_up`).
    history: int = 1

    def sent(self, at: float) -> None:
        """A keep-alive sent then was answered."""
        self.until = max(self.until, at + self.ttl_s * (1 - DRIFT))

    def found_in(self, history: int) -> None:
        """A keep-alive answered in this history: of a former one, the key may be lost.

        The lease is there, so its grant is, too, at the index that it had.
        """
        if history != self.history:
            self.history, self.key = history, b""


class LeaseHolders:
    """The holders of a cluster; they begin with `start` and end when `running` is False."""

    def __init__(
        self,
        world: World,
        names: Sequence[str],
        node: Callable[[str], Node | None],
        violated: Callable[[str, str], NoReturn],
        marks: Marks,
    ) -> None:
        self._world = world
        self._names = names
        self._node = node
        self._violated = violated
        self._marks = marks
        self._rng = random.Random(f"{world.seed}/leases")
        self._promises: dict[int, Promise] = {}
        self.running = False
        # Of how many histories the present one is the last (disaster.py).
        self._histories = 1

    def start(self) -> None:
        self.running = True
        for number in range(HOLDERS):
            self._world.spawn(self._hold_for_ever(), f"lease holder {number}")

    def give_up(self) -> None:
        """A majority is lost, and with it perhaps what was promised."""
        self._promises.clear()
        self._histories += 1

    def applied(self, machine: StateMachine) -> None:
        """Some node has applied an entry: is everything there that was promised?"""
        now = self._world.loop.now
        view = machine.view("kv")
        leases, keys = view.table("leases"), view.table("keys")
        for promise in self._promises.values():
            if machine.index < promise.index or now >= promise.until:
                continue
            if promise.lease not in leases or (promise.key and promise.key not in keys):
                self._violated(
                    CHECK,
                    f"lease {promise.lease:x} is gone at index {machine.index}, "
                    f"{promise.until - now:.3f} s before the end that was promised",
                )

    def all_ended(self, machine: StateMachine) -> bool:
        """Whether no lease is left."""
        return not len(machine.view("kv").table("leases"))

    # -- one holder

    def _pick(self) -> tuple[str, Node] | None:
        name = self._rng.choice(self._names)
        node = self._node(name)
        return None if node is None else (name, node)

    async def _hold_for_ever(self) -> None:
        while self.running:
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            promise = await self._grant(self._rng.choice((2, 2, 3, 5)))
            if promise is not None and self.running:
                await self._hold(promise)
            self._forget_past()

    def _forget_past(self) -> None:
        now = self._world.loop.now
        for lease in [lease for lease, known in self._promises.items() if known.until <= now]:
            del self._promises[lease]

    async def _grant(self, ttl_s: int) -> Promise | None:
        picked, sent_at, histories = self._pick(), self._world.loop.now, self._histories
        if picked is None:
            return None
        name, node = picked
        try:
            granted = await self._world.call(name, node.leases.grant(ttl_s, timeout_s=TIMEOUT_S))
            index = node.machine.newest_index
            promise = Promise(granted.id, granted.ttl_s, index, 0.0, history=histories)
            if histories == self._histories:
                self._promises[promise.lease] = promise
                promise.sent(sent_at)
            if self._node(name) is not node:
                return None  # it died with the answer on its lips
            key = b"lease/%x" % granted.id
            put = node.kv.put(key, b"", lease=granted.id, timeout_s=TIMEOUT_S)
            await self._world.call(name, put)
        except UNANSWERED:
            return None
        if histories == self._histories:
            promise.index = max(promise.index, node.machine.newest_index)
            promise.key = key
        return promise

    async def _hold(self, promise: Promise) -> None:
        for _ in range(self._rng.randint(1, 8)):
            await asyncio.sleep(self._rng.uniform(0.1, 0.9) * promise.ttl_s)
            if not self.running or not await self._keep_alive(promise):
                return
        if self._rng.random() < 0.5:
            self._marks.hit("lease left to run out")
            return
        self._promises.pop(promise.lease, None)
        picked = self._pick()
        if picked is not None:
            name, node = picked
            await self._try(name, node.leases.revoke(promise.lease, timeout_s=TIMEOUT_S))

    async def _keep_alive(self, promise: Promise) -> bool:
        """Whether to go on with this lease."""
        picked, sent_at, histories = self._pick(), self._world.loop.now, self._histories
        if picked is None:
            return True
        name, node = picked
        keep = node.leases.keep_alive(promise.lease, timeout_s=TIMEOUT_S)
        try:
            await self._world.call(name, keep)
        except LeaseNotFound:
            now = self._world.loop.now
            if promise.lease in self._promises and now < promise.until:
                self._violated(
                    CHECK,
                    f"lease {promise.lease:x} was answered to be gone {promise.until - now:.3f} s "
                    f"before the end that was promised",
                )
            self._marks.hit("lease expired")
            return False
        except UNANSWERED:
            self._marks.hit("keep-alive unanswered")
            return True
        if histories == self._histories:
            self._promises[promise.lease] = promise
            promise.found_in(histories)
            promise.sent(sent_at)
        self._marks.hit("lease kept alive")
        return True

    async def _try(self, name: str, call: Any) -> None:
        try:
            await self._world.call(name, call)
        except UNANSWERED:
            return
