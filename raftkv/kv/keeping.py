"""A lease that is kept alive in the background: for a node and for a network client alike.

    async with node.leases.keeping(10) as lease:
        await node.kv.put(b"/services/a", b"here", lease=lease.id)
        await lease.lost                      # done when it is gone

What the holder may believe. The cluster promises that the lease lives for its time to live from the
moment at which the last answered keep-alive was *sent*. So `valid_until` counts from there, on this
process's own clock, and when it has passed without a new answer the lease counts as lost here,
whether or not it still stands in the cluster. A process that stood still for longer finds that out
when it runs again, and not sooner: what it writes must be guarded by the lease or by a fencing
token, which the cluster compares (docs/recipes.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Protocol, Self

import msgspec

from raftkv.errors import RaftkvError

from .background import finished
from .commands import GrantResult, LeaseNotFound, RevokeResult

__all__ = ["Keepable", "Keeping", "LeaseStatus"]

# A keep-alive is sent when this share of the time to live has passed, so that two may be lost.
SHARE = 1 / 3
# After a failure the next attempt comes this soon; a leader is elected within a second or so.
RETRY_S = 0.2
# At the end the lease is revoked; if that takes longer, it ends by itself.
REVOKE_S = 2.0


class LeaseStatus(msgspec.Struct, frozen=True):
    """A lease as it stands: `ttl_s` whole seconds are left of `granted_s`, -1 if there is none."""

    id: int
    granted_s: int
    ttl_s: int
    keys: tuple[bytes, ...] = ()


class Keepable(Protocol):
    """What is needed of `node.leases` or `client.leases`."""

    async def grant(
        self, ttl_s: int, *, id: int = 0, timeout_s: float | None = None
    ) -> GrantResult: ...

    async def revoke(self, id: int, *, timeout_s: float | None = None) -> RevokeResult: ...

    async def keep_alive(self, id: int, *, timeout_s: float | None = None) -> int: ...


class Keeping:
    """One lease: granted on entering, kept alive, revoked on leaving, with the keys attached to it.

    `id` is the lease's. `lost` is done, with None, once the lease is gone or must be taken for
    gone; waiting for it does no harm to others who wait. Leaving does not raise if the cluster
    cannot be reached: the lease then ends by itself, within its time to live.
    """

    def __init__(self, leases: Keepable, ttl_s: int, *, id: int = 0) -> None:
        self._leases = leases
        self._wanted_ttl_s = ttl_s
        self.id = id
        self.ttl_s = ttl_s
        #: Until when, by this loop's clock, the lease certainly lives; 0 before it was granted.
        self.valid_until = 0.0
        self._lost: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened = False
        # Its caller was cancelled while the grant was under way.
        self._unwanted = False

    @property
    def lost(self) -> asyncio.Future[None]:
        """Done once the lease is gone. Each look gives a future of its own, safe to cancel."""
        return asyncio.shield(self._future())

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone, or its time has passed unanswered."""
        now = asyncio.get_running_loop().time()
        return self._lost is None or self._lost.done() or now >= self.valid_until

    def _future(self) -> asyncio.Future[None]:
        if self._lost is None:
            raise RuntimeError("the lease has not been granted yet: use `async with`")
        return self._lost

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self, timeout_s: float | None = None) -> None:
        """Grant the lease and begin to keep it alive. Raises what `grant` raises.

        A caller that is cancelled leaves no lease behind: one that is granted all the same is
        revoked.
        """
        if self._lost is not None or self._opened:
            raise RuntimeError("a lease is kept once: make another object")
        self._opened = True
        try:
            await finished(self._open(timeout_s))
        except asyncio.CancelledError:
            self._unwanted = True
            if self._task is not None:
                await self.close()
            raise
        except BaseException:
            self._opened = False  # it may be tried again
            raise

    async def _open(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        granted = await self._leases.grant(self._wanted_ttl_s, id=self.id, timeout_s=timeout_s)
        self.id, self.ttl_s = granted.id, granted.ttl_s
        self.valid_until = sent_at + granted.ttl_s
        self._lost = loop.create_future()
        self._task = loop.create_task(self._keep(), name=f"keep lease {self.id} alive")
        if self._unwanted:
            await self.close()

    async def close(self, *, revoke: bool = True) -> None:
        """Stop keeping it alive, and `revoke` it. Without, it ends within its time to live."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        known_lost = self._future().done()
        # Before anything that can be cancelled: nobody keeps the lease from here on.
        self._set_lost()
        await finished(self._end(task, revoke=revoke and not known_lost))

    async def _end(self, task: asyncio.Task[None], *, revoke: bool) -> None:
        await asyncio.wait([task])
        if revoke:
            with contextlib.suppress(RaftkvError):
                await self._leases.revoke(self.id, timeout_s=REVOKE_S)

    def _set_lost(self) -> None:
        if not self._future().done():
            self._future().set_result(None)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self.is_lost:
                left_s = self.valid_until - loop.time()
                pause_s = max(0.0, left_s - self.ttl_s * (1 - SHARE))
                await asyncio.sleep(pause_s)
                if not await self._once():
                    break
        except Exception:
            # Whatever has broken down: nobody keeps the lease any more, and who waits must hear.
            self._set_lost()
            raise
        self._set_lost()

    async def _once(self) -> bool:
        """One keep-alive. Whether the lease may still be alive."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        left_s = self.valid_until - sent_at
        if left_s <= 0:
            return False
        try:
            # An attempt that hangs leaves time for another one.
            async with asyncio.timeout(left_s):
                ttl_s = await self._leases.keep_alive(self.id, timeout_s=max(0.05, left_s / 2))
        except LeaseNotFound:
            return False
        except (RaftkvError, TimeoutError):
            await asyncio.sleep(min(RETRY_S, max(0.0, self.valid_until - loop.time())))
        else:
            self.valid_until = max(self.valid_until, sent_at + ttl_s)
        return True
