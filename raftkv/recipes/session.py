"""A session: the lease under which a process holds things, kept alive while it lives.

    async with Session(node, ttl_s=10) as session:
        async with Lock(session, b"locks/report") as token: ...

Everything that a recipe holds is a key attached to the session's lease. If the process dies or is
cut off, the lease ends and so do the keys, and whoever waits behind them goes on. So a session is
also the unit of loss: `lost` is done when it happens, and whoever holds or waits for something
under it hears `LockLost`.

A process learns of its loss late when it stands still itself. Between the end of the lease and that
moment it may believe that it holds what another holds already. No time-out can prevent that; a
fencing token can (docs/recipes.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from raftkv.errors import LockLost, RaftkvError
from raftkv.kv import Keeping
from raftkv.kv.background import finished
from raftkv.kv.commands import LeaseNotFound
from raftkv.validation import checked

from .ports import Store

__all__ = ["Session"]

T = TypeVar("T")

# A caller that is cancelled waits so long for its key to be removed; the removal goes on without
# it, and ends at the latest with the lease.
CLEAN_UP_S = 2.0


@checked
class Session:
    """A lease that is kept alive, and what is held under it.

    `ttl_s`: so long after the last sign of life others go on. Short means that a dead holder is
    soon replaced, long that a slow network or a paused process is forgiven; 5 to 30 s are usual.
    Leaving the context revokes the lease: everything held under the session is given back.
    """

    @checked
    def __init__(self, store: Store, ttl_s: int = 10) -> None:
        self.store = store
        self._keeping = Keeping(store.leases, ttl_s)
        self._number = 0
        self._tasks: set[asyncio.Task[Any]] = set()

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
        """Grant the lease and begin to keep it alive. Raises what `leases.grant` raises."""
        await self._keeping.open(timeout_s)

    async def close(self, *, revoke: bool = True) -> None:
        """Give back what is held. Without `revoke` as after a crash: the lease runs out."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # Also for a caller that is cancelled here: else the lease would be kept for ever.
        await finished(self._end(tasks, revoke=revoke))

    async def _end(self, tasks: list[asyncio.Task[Any]], *, revoke: bool) -> None:
        if tasks:
            await asyncio.wait(tasks)
        await self._keeping.close(revoke=revoke)

    @property
    def lease(self) -> int:
        """The id of the lease."""
        return self._keeping.id

    @property
    def lost(self) -> asyncio.Future[None]:
        """Done once the session has ended. Each look gives a future of its own."""
        return self._keeping.lost

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, as far as this process can know."""
        return self._keeping.is_lost

    def check(self) -> None:
        """Raise `LockLost` if the session has ended."""
        if not self.lease:
            raise RuntimeError("the session is not open: use `async with`")
        if self.is_lost:
            raise self._loss()

    def _loss(self) -> LockLost:
        return LockLost(
            f"the session's lease {self.lease:x} is gone, and with it all that was held: open a "
            f"new session"
        )

    def next_key(self) -> bytes:
        """The last part of a key that nobody else uses: the lease and a number, in hexadecimals."""
        self._number += 1
        return b"%016x-%08x" % (self.lease & (1 << 64) - 1, self._number)

    async def unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; it is cancelled, and `LockLost` raised, if the session ends first.

        Also raises it when the cluster says that the lease is gone.
        """
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        task = asyncio.ensure_future(work)
        lost = self.lost
        try:
            await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        except LeaseNotFound:
            raise self._loss() from None
        finally:
            lost.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        raise self._loss()

    async def whole(
        self, work: Coroutine[Any, Any, T], undo: Callable[[], Coroutine[Any, Any, None]]
    ) -> T:
        """The result of `work`, of which nothing stays behind if this does not return.

        A caller that is cancelled does not cancel `work`: a write that is on its way could be
        applied after the one that is to undo it. It is finished, and then `undo` is done.
        """
        task = self._own(self.unless_lost(work))
        caller = asyncio.current_task()
        try:
            return await asyncio.shield(task)
        except BaseException:
            # The session was closed by somebody else: nobody has cancelled this caller.
            closed = task.cancelled() and caller is not None and not caller.cancelling()
            await self.clean_up(_after(task, undo))
            if closed:
                raise self._loss() from None
            raise

    async def clean_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` even if this caller is cancelled, but do not hold it up for long.

        Raises nothing: what cannot be cleaned up is cleaned up by the end of the lease.
        """
        await asyncio.wait((self._own(self._quietly(work)),), timeout=CLEAN_UP_S)

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that ends with the session at the latest."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        # If it cannot be done, the lease's end does it.
        with contextlib.suppress(RaftkvError):
            await self.unless_lost(work)

    @contextlib.asynccontextmanager
    async def cancelling(self) -> AsyncIterator[None]:
        """Cancel the body when the session ends, and raise `LockLost` in its place.

        The body stops at its next `await`; what it does without one goes on until then.
        """
        self.check()
        body = asyncio.current_task()
        assert body is not None
        struck = False

        def strike(lost: asyncio.Future[None]) -> None:
            nonlocal struck
            if not lost.cancelled():
                struck = True
                body.cancel()

        lost = self.lost
        lost.add_done_callback(strike)
        try:
            yield
        except asyncio.CancelledError:
            if struck and body.uncancel() == 0:
                raise self._loss() from None
            raise
        finally:
            lost.remove_done_callback(strike)
            lost.cancel()


async def _after(task: asyncio.Task[Any], undo: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # its caller has gone, and has heard of it or does not want to
    await undo()
