"""A party without asyncio: who is there."""

from __future__ import annotations

from types import TracebackType

from raftkv.recipes import Member
from raftkv.recipes import Party as AsyncParty
from raftkv.recipes import members_of as async_members_of
from raftkv.recipes import observe_members as async_observe_members

from .bridge import Store, leave, wait
from .changes import Changes
from .session import Session

__all__ = ["Party", "members_of", "observe_members"]


def members_of(store: Store, name: bytes, timeout_s: float | None = None) -> tuple[Member, ...]:
    """Who is there, in the order of joining. Needs no session."""
    portal, behind = store._behind()
    return wait(portal, lambda: async_members_of(behind, name), timeout_s)


def observe_members(store: Store, name: bytes) -> Changes[tuple[Member, ...]]:
    """Who is there now, then whenever that changes.

    Changes that follow on each other quickly may be passed over; the last one never is.
    """
    portal, behind = store._behind()
    return Changes(portal, lambda: async_observe_members(behind, name))


class Party:
    """One member of the party `name`. `with party:` joins and leaves."""

    def __init__(self, session: Session, name: bytes, value: bytes = b"") -> None:
        self._portal = session._portal
        self._made = AsyncParty(session._made, name, value)

    def join(self, timeout_s: float | None = None) -> int:
        """Be there until `leave`, or until the session ends; the fencing token."""
        return wait(self._portal, self._made.join, timeout_s)

    def leave(self, timeout_s: float | None = None) -> None:
        """Be there no more. Raises LockLost if the session had ended before."""
        wait(self._portal, self._made.leave, timeout_s)

    @property
    def token(self) -> int:
        """The fencing token of this membership. Raises RuntimeError outside."""
        return self._made.token

    def members(self, timeout_s: float | None = None) -> tuple[Member, ...]:
        """Who is there now, in the order of joining."""
        return wait(self._portal, self._made.members, timeout_s)

    def observe(self) -> Changes[tuple[Member, ...]]:
        """Who is there now, then whenever that changes; see `observe_members`."""
        return Changes(self._portal, self._made.observe)

    def __enter__(self) -> int:
        return self.join()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self._portal, self._made.__aexit__(kind, error, trace), error)
