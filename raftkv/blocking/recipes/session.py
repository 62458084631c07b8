"""A session without asyncio: the lease under which a process holds things."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from raftkv.errors import Stopped
from raftkv.recipes import Session as AsyncSession

from .bridge import Store, wait

__all__ = ["Session"]


class Session:
    """A lease that is kept alive in the background, and what is held under it.

        with Session(client, ttl_s=10) as session: ...

    `ttl_s`: so long after the last sign of life others go on. Any thread may hold something under
    it. Nobody is interrupted when it is lost: ask `is_lost`, keep a thread at `wait_lost`, and
    guard what you write.
    """

    def __init__(self, store: Store, ttl_s: int = 10) -> None:
        self.store = store
        self._portal, behind = store._behind()
        self._made = AsyncSession(behind, ttl_s)

    def open(self, timeout_s: float | None = None) -> None:
        """Grant the lease and begin to keep it alive. Raises what `leases.grant` raises."""
        self._portal.call(self._made.open(timeout_s))

    def close(self, *, revoke: bool = True) -> None:
        """Give back what is held. Without `revoke` as after a crash: the lease runs out."""
        self._portal.call(self._made.close(revoke=revoke))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing the client or node has given it up already, or leaves it to its end.
        with contextlib.suppress(Stopped):
            self.close()

    @property
    def lease(self) -> int:
        """The id of the lease; 0 before it was granted."""
        return self._made.lease

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, as far as this process can know."""
        return self._portal.run(lambda: self._made.is_lost)

    def check(self) -> None:
        """Raise `LockLost` if the session has ended."""
        self._portal.run(self._made.check)

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the session has ended; False if it still lives after `timeout_s`."""

        async def lost() -> None:
            await self._made.lost

        try:
            wait(self._portal, lost, timeout_s)
        except TimeoutError:
            return False
        return True
