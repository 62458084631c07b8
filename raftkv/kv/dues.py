"""When leases are due, in a lessor's memory: a heap that is put right when its top comes up.

Rules of this file
1. A keep-alive costs one look into a dict. The heap keeps the old time; when that comes, the entry
   is put back under the new one. So a lease that is kept alive for years passes through the heap
   once per time to live, however often it was renewed in between.
2. A lease is known by what makes its row its own (`Identity`), because an id may be revoked and
   granted again: what was renewed for the first says nothing about the second.
3. Nothing here knows whether a lease still exists. Whoever pops one looks into the table, and
   forgets it here if it is gone; so what was revoked is kept for one time to live at most.

Pure: times are milliseconds that the caller gives.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

__all__ = ["Dues", "Identity"]


class Identity(NamedTuple):
    """What two leases that had the same id one after the other differ in."""

    due_ms: int
    ttl_s: int


class _Known:
    __slots__ = ("at_ms", "due_ms", "identity")

    def __init__(self, identity: Identity, due_ms: int) -> None:
        self.identity = identity
        self.due_ms = due_ms
        # Of its valid entry in the heap; others of this lease are old and dropped when they show.
        self.at_ms = due_ms


class Dues:
    """The leases of one lessor, each with the time at which it will be due."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._known)

    def due_ms(self, lease: int, identity: Identity) -> int | None:
        """When the lease is due; None if nothing was heard of it here."""
        known = self._known.get(lease)
        return known.due_ms if known is not None and known.identity == identity else None

    def extend(self, lease: int, identity: Identity, due_ms: int) -> None:
        """The lease is not due before `due_ms`. It never becomes due sooner by this."""
        known = self._known.get(lease)
        if known is not None and known.identity == identity:
            known.due_ms = max(known.due_ms, due_ms)
            return
        self._known[lease] = _Known(identity, due_ms)
        heapq.heappush(self._heap, (due_ms, lease))

    def forget(self, lease: int) -> None:
        """The lease is gone."""
        self._known.pop(lease, None)

    def pop(self, now_ms: int, count: int) -> list[int]:
        """Up to `count` leases that are due, the longest due first.

        They stay known, but do not come again unless `put_back`.
        """
        found: list[int] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(found) < count:
            at_ms, lease = heapq.heappop(heap)
            known = self._known.get(lease)
            if known is None or known.at_ms != at_ms:
                continue
            if known.due_ms > now_ms:
                known.at_ms = known.due_ms
                heapq.heappush(heap, (known.due_ms, lease))
            else:
                known.at_ms = -1  # popped: it has no entry
                found.append(lease)
        return found

    def put_back(self, lease: int, not_before_ms: int) -> None:
        """A popped lease lives on: let it come up again, at `not_before_ms` or when it is due."""
        known = self._known.get(lease)
        if known is not None and known.at_ms == -1:
            known.at_ms = max(known.due_ms, not_before_ms)
            heapq.heappush(self._heap, (known.at_ms, lease))
