"""The cluster-wide lock of the old registry: one lock per client id, held by cores, with a lease.

A node that connects a client asks cores for the client's lock, all at the same time. With the
strategy "quorum" (the default upstream) it asks a majority of the cores that are up, chosen by the
client id, so that two contenders ask the same ones; with "all", every core. It holds the lock when
all of them granted it. Otherwise it gives back what it got, waits a random while and tries again.

What is weak about it is the design, and kept: each core decides by its own memory; two nodes
that disagree about which cores are up may hold the same lock; a holder that dies, or whose release
is lost, leaves the client locked until the lease ends, 30 seconds later.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from typing import Literal

import msgspec

from raftkv.errors import RaftkvError
from raftkv.plugin import Host

from .legacy_wire import LOCK, UNLOCK, Answer, LockRequest, UnlockRequest, pack, unpack

__all__ = ["Lock", "LockClient", "LockServer"]

# As upstream: the time after which a lock whose holder vanished is taken away.
LEASE_MS = 30_000
# How long a connect waits for its lock, in all and for one core's answer.
WAIT_S = 5.0
CALL_TIMEOUT_S = 1.0
# A contender that met another one comes back after a random time up to this, more each time.
BACKOFF_S = 0.02
BACKOFF_MAX_S = 0.5


class LockServer:
    """The half on a core: who holds what, in memory."""

    def __init__(self, host: Host) -> None:
        self._host = host
        # resource -> (holder, end of the lease); in order of the ends, as all leases are alike.
        self._held: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    async def on_lock(self, sender: str, payload: bytes) -> bytes:
        return pack(Answer(self.lock(unpack(payload, LockRequest))))

    async def on_unlock(self, sender: str, payload: bytes) -> bytes:
        self.unlock(unpack(payload, UnlockRequest))
        return pack(Answer(True))

    def lock(self, request: LockRequest) -> bool:
        now = self._host.runtime.monotonic()
        self._expire(now)
        held = self._held.get(request.resource)
        if held is not None and held[0] != request.holder:
            return False
        self._held[request.resource] = (request.holder, now + request.lease_ms / 1000)
        self._held.move_to_end(request.resource)
        return True

    def unlock(self, request: UnlockRequest) -> None:
        held = self._held.get(request.resource)
        if held is not None and held[0] == request.holder:
            del self._held[request.resource]

    def _expire(self, now: float) -> None:
        while self._held:
            resource, (_, end) = next(iter(self._held.items()))
            if end > now:
                return
            del self._held[resource]


class Lock(msgspec.Struct, frozen=True):
    """A lock that was asked for: where, by which token, how often, and whether it is held."""

    resource: str
    holder: str
    cores: tuple[str, ...]
    attempts: int
    granted: bool = False


class LockClient:
    """The half on every node: ask, back off, give back."""

    def __init__(self, host: Host, server: LockServer) -> None:
        self._host = host
        self._server = server
        self.strategy: Literal["quorum", "all"] = "quorum"
        self.lease_ms = LEASE_MS
        self.wait_s = WAIT_S
        self._number = 0

    async def acquire(self, resource: str, wait_s: float | None = None) -> Lock:
        """The lock; `granted` is false when it could not be had in time.

        In time is within this client's `wait_s`, or within the argument if that is shorter.
        """
        runtime = self._host.runtime
        deadline = runtime.monotonic() + min(self.wait_s, wait_s if wait_s else self.wait_s)
        self._number += 1
        holder = f"{self._host.name}/{self._host.incarnation}/{self._number}"
        attempts = 0
        while True:
            attempts += 1
            lock = Lock(resource, holder, self._cores(resource), attempts)
            try:
                if lock.cores and await self._ask_all(lock):
                    return msgspec.structs.replace(lock, granted=True)
                await self.release(lock)
            except asyncio.CancelledError:
                # Nobody else knows this token, and some cores may have granted it.
                self._host.spawn(self.release(lock), "lcr-legacy-unlock")
                raise
            pause_s = runtime.rng.uniform(0, min(BACKOFF_S * attempts, BACKOFF_MAX_S))
            if runtime.monotonic() + pause_s >= deadline:
                return lock
            await runtime.sleep(pause_s)

    async def release(self, lock: Lock) -> None:
        """Give it back. A core that cannot be reached keeps it until the lease ends."""
        request = UnlockRequest(lock.resource, lock.holder)
        await asyncio.gather(*(self._unlock(core, request) for core in lock.cores))

    def _cores(self, resource: str) -> tuple[str, ...]:
        up = [m.name for m in self._host.members.values() if m.role == "core" and m.up]
        if self.strategy == "all" or not up:
            return tuple(up)
        first = zlib.crc32(resource.encode()) % len(up)
        return tuple((up[first:] + up[:first])[: len(up) // 2 + 1])

    async def _ask_all(self, lock: Lock) -> bool:
        request = LockRequest(lock.resource, lock.holder, self.lease_ms)
        granted = await asyncio.gather(*(self._lock(core, request) for core in lock.cores))
        return all(granted)

    async def _lock(self, core: str, request: LockRequest) -> bool:
        if core == self._host.name:
            return self._server.lock(request)
        try:
            reply = await self._host.rpc.call(core, LOCK, pack(request), CALL_TIMEOUT_S)
        except RaftkvError:
            return False
        return unpack(reply, Answer).yes

    async def _unlock(self, core: str, request: UnlockRequest) -> None:
        if core == self._host.name:
            self._server.unlock(request)
            return
        try:
            await self._host.rpc.call(core, UNLOCK, pack(request), CALL_TIMEOUT_S)
        except RaftkvError as error:
            self._host.log.debug("legacy: %s keeps a lock until its lease ends: %s", core, error)
