"""A watch without asyncio: an iterator."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Self

from raftkv.errors import Stopped, WatchCancelled
from raftkv.kv.watch import WatchBatch
from raftkv.validation import require_timeout

from .portal import Portal
from .taking import Taker

__all__ = ["Watch"]


class Watch:
    """An iterator of `WatchBatch`, and a context manager that closes it. Made by `kv.watch`.

    One thread iterates; any thread may `close`, which ends the iteration. Raises `WatchCancelled`
    when the watch has ended for another reason.
    """

    def __init__(self, portal: Portal, watch: Any) -> None:
        self._portal = portal
        self._watch = watch
        self._taker: Taker[WatchBatch] = Taker(portal, watch, "a watch")

    @property
    def revision(self) -> int:
        """Everything up to here was given; watch again from the next to go on."""
        revision: int = self._watch.revision
        return revision

    @property
    def cancelled(self) -> WatchCancelled | None:
        """How the watch has ended; None while it has not, or if its user has closed it."""
        cancelled: WatchCancelled | None = self._watch.cancelled
        return cancelled

    def created(self, timeout_s: float | None = None) -> int:
        """The keyspace's revision when the watch began. Raises TimeoutError after `timeout_s`."""

        require_timeout(timeout_s)

        async def created() -> int:
            async with asyncio.timeout(timeout_s):
                revision: int = await self._watch.created()
                return revision

        return self._portal.call(created())

    def next(self, timeout_s: float | None = None) -> WatchBatch | None:
        """The next batch; None when the watch is closed. Raises TimeoutError after `timeout_s`.

        Nothing is lost by a time-out, or by Ctrl-C: the next call goes on.
        """
        return self._taker.next(timeout_s)

    def close(self) -> None:
        """End the watch. Idempotent; harmless after its client or node was closed."""
        with contextlib.suppress(Stopped):
            self._portal.run(self._watch.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchBatch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def __enter__(self) -> Self:
        """Wait until the watch has begun: what is changed inside the block is not missed."""
        self._portal.call(self._watch.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
