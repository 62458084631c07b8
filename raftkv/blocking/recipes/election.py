"""Elections without asyncio: one of many leads, and all can see who."""

from __future__ import annotations

from raftkv.kv import Compare
from raftkv.recipes import Election as AsyncElection
from raftkv.recipes import Leader
from raftkv.recipes import leader_of as async_leader_of
from raftkv.recipes import observe as async_observe

from .bridge import Store, wait
from .changes import Changes
from .session import Session

__all__ = ["Election", "leader_of", "observe"]


def leader_of(store: Store, name: bytes, timeout_s: float | None = None) -> Leader | None:
    """The leader now, or None. Needs no session."""
    portal, behind = store._behind()
    return wait(portal, lambda: async_leader_of(behind, name), timeout_s)


def observe(store: Store, name: bytes) -> Changes[Leader | None]:
    """The leader now, then whenever it changes, also its value; None while there is none.

    Changes that follow on each other quickly may be passed over; the last one never is.
    """
    portal, behind = store._behind()
    return Changes(portal, lambda: async_observe(behind, name))


class Election:
    """One candidate of the election `name`."""

    def __init__(self, session: Session, name: bytes) -> None:
        self._portal = session._portal
        self._made = AsyncElection(session._made, name)

    def campaign(self, value: bytes, timeout_s: float | None = None) -> int:
        """Wait until this candidate leads; the fencing token of its office.

        Whoever leads already gets its token at once, and its value is proclaimed. Raises LockLost
        if the session ends, TimeoutError after `timeout_s`: it is then no candidate any more.
        """
        return wait(self._portal, lambda: self._made.campaign(value), timeout_s)

    def proclaim(self, value: bytes, timeout_s: float | None = None) -> int:
        """Let the leader's value be another; the revision of that. Raises LockLost."""
        return wait(self._portal, lambda: self._made.proclaim(value), timeout_s)

    def resign(self, timeout_s: float | None = None) -> None:
        """Give up the office. Raises LockLost if it was lost before."""
        wait(self._portal, self._made.resign, timeout_s)

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads, as far as this process can know."""
        return self._portal.run(lambda: self._made.is_leader)

    @property
    def token(self) -> int:
        """The fencing token of the office. Raises RuntimeError unless this candidate leads."""
        return self._made.token

    def guard(self) -> Compare:
        """A comparison for `txn` that holds exactly as long as this candidate leads."""
        return self._made.guard()

    def leader(self, timeout_s: float | None = None) -> Leader | None:
        """The leader now, or None."""
        return wait(self._portal, self._made.leader, timeout_s)

    def observe(self) -> Changes[Leader | None]:
        """The leader now and whenever it changes; see `observe`."""
        return Changes(self._portal, self._made.observe)
