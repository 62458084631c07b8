"""Elections: one of many leads, and all can see who.

    election = Election(session, b"election/report")
    token = await election.campaign(b"host-7")      # waits until it leads
    await election.proclaim(b"host-7, ready")
    await election.resign()

etcd's algorithm: a lock whose holder is called leader, and whose key's value is for all to read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from raftkv.kv import Compare
from raftkv.validation import checked

from .lock import Lock
from .ports import Store
from .session import Session
from .waiting import changed, insist

__all__ = ["Election", "Leader", "leader_of", "observe"]


class Leader(msgspec.Struct, frozen=True):
    """Who leads: its `value`, the fencing token of its office, and the revision of the value."""

    key: bytes
    value: bytes
    token: int
    revision: int


@checked
async def leader_of(store: Store, name: bytes) -> Leader | None:
    """The leader now, or None. Needs no session."""
    return (await _look(store, name))[0]


@checked
async def observe(store: Store, name: bytes) -> AsyncIterator[Leader | None]:
    """The leader now, then whenever it changes, also its value; None while there is none.

    Never ends. Changes that follow on each other quickly may be passed over; the last one never is.
    """
    shown: Leader | None = None
    first = True
    while True:
        leader, revision = await _look(store, name)
        if first or leader != shown:
            first, shown = False, leader
            yield leader
        await changed(store.kv, revision, prefix=name + b"/")


async def _look(store: Store, name: bytes) -> tuple[Leader | None, int]:
    found = await insist(lambda: store.kv.range(prefix=name + b"/", limit=1, sort_by="create"))
    for kv in found.kvs:
        return Leader(kv.key, kv.value, kv.create_revision, kv.mod_revision), found.revision
    return None, found.revision


@checked
class Election:
    """One candidate of the election `name`."""

    @checked
    def __init__(self, session: Session, name: bytes) -> None:
        self._session = session
        self._name = name
        self._lock: Lock | None = None

    async def campaign(self, value: bytes) -> int:
        """Wait until this candidate leads; the fencing token of its office.

        Whoever leads already gets its token at once, and its value is proclaimed. Raises LockLost
        if the session ends. A caller that is cancelled is no candidate any more.
        """
        if self._lock is not None:
            await self.proclaim(value)
            return self._lock.token
        lock = Lock(self._session, self._name, value)
        token = await lock.acquire()
        self._lock = lock
        return token

    async def proclaim(self, value: bytes) -> int:
        """Let the leader's value be another; the revision of that. Raises LockLost.

        Everything that is written under a guard is ordered with it.
        """
        return await self._leading().set_value(value)

    async def resign(self) -> None:
        """Give up the office. Raises LockLost if it was lost before."""
        lock, self._lock = self._leading(), None
        await lock.release()

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads, as far as this process can know."""
        return self._lock is not None and self._lock.is_held

    @property
    def token(self) -> int:
        """The fencing token of the office."""
        return self._leading().token

    def guard(self) -> Compare:
        """A comparison for `txn` that holds exactly as long as this candidate leads."""
        return self._leading().guard()

    async def leader(self) -> Leader | None:
        """The leader now, or None."""
        return await leader_of(self._session.store, self._name)

    def observe(self) -> AsyncIterator[Leader | None]:
        """The leader now and whenever it changes; see `observe`."""
        return observe(self._session.store, self._name)

    def _leading(self) -> Lock:
        if self._lock is None:
            raise RuntimeError("this candidate does not lead: campaign first")
        return self._lock
