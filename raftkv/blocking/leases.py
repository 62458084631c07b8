"""Leases without asyncio: `leases` of a blocking client or node."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from raftkv.client.leases import ClientLeases
from raftkv.kv.commands import GrantResult, RevokeResult
from raftkv.kv.keeping import Keeping as AsyncKeeping
from raftkv.kv.keeping import LeaseStatus
from raftkv.kv.leases import LeaseApi
from raftkv.validation import require_timeout

from .portal import Portal

__all__ = ["Keeping", "Leases"]


class Keeping:
    """A lease that is kept alive in the background: `with leases.keeping(10) as lease: ...`

    `id` is the lease's. It is revoked on leaving, with the keys attached to it.
    """

    def __init__(self, portal: Portal, keeping: AsyncKeeping) -> None:
        self._portal = portal
        self._keeping = keeping

    @property
    def id(self) -> int:
        """The lease's id; 0 before it was granted, unless one was asked for."""
        return self._keeping.id

    @property
    def ttl_s(self) -> int:
        """The time to live that was granted."""
        return self._keeping.ttl_s

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone, or its time has passed unanswered."""
        return self._portal.run(lambda: self._keeping.is_lost)

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the lease is gone; False if it still lives after `timeout_s`."""

        require_timeout(timeout_s)

        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._keeping.lost
            except TimeoutError:
                return False
            return True

        return self._portal.call(wait())

    def open(self, timeout_s: float | None = None) -> None:
        """Grant the lease and begin to keep it alive. Raises what `grant` raises."""
        self._portal.call(self._keeping.open(timeout_s))

    def close(self, *, revoke: bool = True) -> None:
        """Stop keeping it alive, and `revoke` it. Without, it ends within its time to live."""
        self._portal.call(self._keeping.close(revoke=revoke))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Leases:
    """Grant, keep alive, revoke and look at leases. Any thread may call."""

    def __init__(self, portal: Portal, api: LeaseApi | ClientLeases) -> None:
        self._portal = portal
        self._api = api

    def grant(self, ttl_s: int, *, id: int = 0, timeout_s: float | None = None) -> GrantResult:
        """A new lease that lives `ttl_s` seconds from its last keep-alive. `id` 0: any.

        Raises `LeaseExists` or `LeaseTtlTooLarge`.
        """
        result: GrantResult = self._portal.call(self._api.grant(ttl_s, id=id, timeout_s=timeout_s))
        return result

    def revoke(self, id: int, *, timeout_s: float | None = None) -> RevokeResult:
        """End a lease and delete its keys. Raises `LeaseNotFound`."""
        result: RevokeResult = self._portal.call(self._api.revoke(id, timeout_s=timeout_s))
        return result

    def keep_alive(self, id: int, *, timeout_s: float | None = None) -> int:
        """Extend a lease to its whole time to live; the seconds it has now.

        Raises `LeaseNotFound` when it is gone.
        """
        left_s: int = self._portal.call(self._api.keep_alive(id, timeout_s=timeout_s))
        return left_s

    def time_to_live(
        self, id: int, *, keys: bool = False, timeout_s: float | None = None
    ) -> LeaseStatus:
        """What is left of a lease, `ttl_s` -1 if it is gone; with `keys`, what is attached."""
        status: LeaseStatus = self._portal.call(
            self._api.time_to_live(id, keys=keys, timeout_s=timeout_s)
        )
        return status

    def list(self, *, timeout_s: float | None = None) -> tuple[int, ...]:
        """The ids of all leases."""
        ids: tuple[int, ...] = self._portal.call(self._api.list(timeout_s=timeout_s))
        return ids

    def keeping(self, ttl_s: int, *, id: int = 0) -> Keeping:
        """`with`: a lease that is kept alive in the background and revoked at the end."""
        return Keeping(self._portal, self._api.keeping(ttl_s, id=id))
