"""Barriers without asyncio."""

from __future__ import annotations

from types import TracebackType

from raftkv.recipes import Barrier as AsyncBarrier
from raftkv.recipes import DoubleBarrier as AsyncDoubleBarrier

from .bridge import Store, leave, wait
from .session import Session

__all__ = ["Barrier", "DoubleBarrier"]


class Barrier:
    """Who waits at it goes on once it is lifted, or at once if there is none.

    With a `lease` (a session's) it is lifted by the end of that as well.
    """

    def __init__(self, store: Store, name: bytes, *, lease: int = 0) -> None:
        self._portal, behind = store._behind()
        self._made = AsyncBarrier(behind, name, lease=lease)

    def hold(self, timeout_s: float | None = None) -> int:
        """Put the barrier up, unless it is up already; its token, the revision that put it up."""
        return wait(self._portal, self._made.hold, timeout_s)

    def release(self, timeout_s: float | None = None) -> bool:
        """Lift it; whether it was up."""
        return wait(self._portal, self._made.release, timeout_s)

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once it is not up. Raises TimeoutError after `timeout_s`."""
        wait(self._portal, self._made.wait, timeout_s)


class DoubleBarrier:
    """`count` processes or threads enter together and leave together.

        with DoubleBarrier(session, b"barriers/step", 4) as token: ...

    A process that dies outside a round is not counted; one that dies inside counts as having left.
    """

    def __init__(self, session: Session, name: bytes, count: int) -> None:
        self._portal = session._portal
        self._made = AsyncDoubleBarrier(session._made, name, count)

    @property
    def token(self) -> int:
        """The round's token, the same for all who are in it. Raises RuntimeError outside."""
        return self._made.token

    def enter(self, timeout_s: float | None = None) -> int:
        """Wait until `count` are there; the round's token.

        Raises LockLost if the session ends, TimeoutError after `timeout_s`: it is then not counted
        any more, unless its round had begun just then; in that case it has left again.
        """
        return wait(self._portal, self._made.enter, timeout_s)

    def leave(self, timeout_s: float | None = None) -> None:
        """Leave, and wait until all of the round have left or died. Raises LockLost.

        After TimeoutError this one has left, or does when its session ends, and others have not.
        """
        wait(self._portal, self._made.leave, timeout_s)

    def __enter__(self) -> int:
        return self.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self._portal, self._made.__aexit__(kind, error, trace), error)
