"""What `observe` gives: an iterator of the states of something, one after each change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from raftkv.blocking.portal import Portal
from raftkv.errors import Stopped
from raftkv.validation import require_timeout

__all__ = ["Changes"]

T = TypeVar("T")


class _Ended(Exception):
    """There is no further state: the observation is closed."""


class Changes(Generic[T]):
    """An iterator without end, and a context manager that closes it.

    One thread iterates; any thread may `close`, which ends the iteration.
    """

    def __init__(self, portal: Portal, states: Callable[[], AsyncIterator[T]]) -> None:
        self._portal = portal
        self._states = states()
        # Outlives a call that has waited long enough: to cancel it would end the iterator.
        self._coming: asyncio.Task[T] | None = None
        self._closed = False

    def next(self, timeout_s: float | None = None) -> T:
        """The state now, or once it has changed since the last call.

        Raises TimeoutError after `timeout_s`, and loses nothing by it; `Stopped` when this is
        closed, or its client or node.
        """
        require_timeout(timeout_s)
        try:
            return self._portal.call(self._step(timeout_s))
        except _Ended:
            raise Stopped("this observation is closed: make another one") from None

    async def _step(self, timeout_s: float | None) -> T:
        if self._closed:
            raise _Ended
        if self._coming is None:
            self._coming = asyncio.ensure_future(_next(self._states))
            self._coming.add_done_callback(_heard)
        coming = self._coming
        await asyncio.wait((coming,), timeout=timeout_s)
        if not coming.done():
            raise TimeoutError
        self._coming = None
        if coming.cancelled():
            raise _Ended
        return coming.result()

    def close(self) -> None:
        """End it. Idempotent; harmless after its client or node was closed."""
        with contextlib.suppress(Stopped):
            self._portal.call(self._close())

    async def _close(self) -> None:
        self._closed = True
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait((self._coming,))
        if isinstance(self._states, AsyncGenerator):
            await self._states.aclose()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self._portal.call(self._step(None))
        except _Ended:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _next(states: AsyncIterator[T]) -> T:
    try:
        return await anext(states)
    except StopAsyncIteration:
        raise _Ended from None


def _heard(coming: asyncio.Task[T]) -> None:
    # Whoever asks next hears of an error; if nobody does, it is no reason for a message.
    if not coming.cancelled():
        coming.exception()
