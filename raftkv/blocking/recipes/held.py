"""Locks and semaphores without asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar

from raftkv.kv import Compare
from raftkv.recipes import Lock as AsyncLock
from raftkv.recipes import ReadLock as AsyncReadLock
from raftkv.recipes import Semaphore as AsyncSemaphore
from raftkv.recipes import WriteLock as AsyncWriteLock

from .bridge import leave, wait
from .session import Session

__all__ = ["Lock", "ReadLock", "Semaphore", "WriteLock"]


class Held:
    """A place in a queue that becomes held: what locks and semaphores have in common.

    One holder at a time per object: make one for each thread. Nothing here is re-entrant.
    """

    def __init__(self, session: Session, made: AsyncLock | AsyncSemaphore) -> None:
        self._portal = session._portal
        self._held = made

    def acquire(self, timeout_s: float | None = None) -> int:
        """Wait until it is held; the fencing token.

        Raises LockLost if the session ends, TimeoutError after `timeout_s`: it has then left the
        queue.
        """
        return wait(self._portal, self._held.acquire, timeout_s)

    def try_acquire(self, timeout_s: float | None = None) -> int | None:
        """The fencing token if it can be held now, else None; never waits for a holder."""
        return wait(self._portal, self._held.try_acquire, timeout_s)

    def release(self, timeout_s: float | None = None) -> None:
        """Give it up. Raises LockLost if it was lost while it was held."""
        wait(self._portal, self._held.release, timeout_s)

    def check(self, timeout_s: float | None = None) -> None:
        """Ask the cluster whether it is still held; raises LockLost."""
        wait(self._portal, self._held.check, timeout_s)

    @property
    def token(self) -> int:
        """The fencing token: greater for whoever came later. Raises RuntimeError unless held."""
        return self._held.token

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this process can know."""
        return self._portal.run(lambda: self._held.is_held)

    def guard(self) -> Compare:
        """A comparison for `txn` that holds exactly as long as this is held."""
        return self._held.guard()

    def __enter__(self) -> int:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self._portal, self._held.__aexit__(kind, error, trace), error)


class Lock(Held):
    """Held by one at a time: `with Lock(session, b"locks/report") as token: ...`

    `name` is the prefix of its keys, without a slash at the end; `value` is put into the key, for
    others to see who holds it (`contenders`).
    """

    _kind: ClassVar[type[AsyncLock]] = AsyncLock

    def __init__(self, session: Session, name: bytes, value: bytes = b"") -> None:
        self._lock = self._kind(session._made, name, value)
        super().__init__(session, self._lock)

    def set_value(self, value: bytes, timeout_s: float | None = None) -> int:
        """Let others see another value of the holder; the revision of that. Raises LockLost."""
        return wait(self._portal, lambda: self._lock.set_value(value), timeout_s)

    def contenders(self, timeout_s: float | None = None) -> tuple[bytes, ...]:
        """The values of the holder and of those who wait, in their order."""
        return wait(self._portal, self._lock.contenders, timeout_s)


class ReadLock(Lock):
    """Held by any number of readers at a time, while no `WriteLock` of the same name is.

    A reader waits for the writers that came before it, so a writer is not starved by readers.
    """

    _kind = AsyncReadLock


class WriteLock(Lock):
    """Held by one writer at a time, while no `ReadLock` of the same name is."""

    _kind = AsyncWriteLock


class Semaphore(Held):
    """Held by `limit` at a time, in the order in which they asked.

    All who use one name must use one limit: whoever meets another one in front of it raises
    ValueError.
    """

    def __init__(self, session: Session, name: bytes, limit: int) -> None:
        super().__init__(session, AsyncSemaphore(session._made, name, limit))
