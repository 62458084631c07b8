"""Who waits on this node for what the log does: consumers for messages, others for decisions.

Theory. A queue's row says how many messages can be acquired (`ready`), and it changes in the entry
in which that changes. So a consumer needs no polling: whenever this node has applied something, the
rows of those queues are looked at for which somebody waits. That costs a look-up per such queue and
nothing for an entry. With many of them it would be the other way round, so then the rows that
entries change are listened to.

Consumers of one queue stand in line, the one that has waited longest in front. Those are woken for
whom there are messages: as many as ask for no more, together, than are ready, and the rest sleeps
on. So a message that comes does not make a hundred consumers ask for it. On other nodes others may
be faster: who comes too late keeps its place.

Rules of this file
1. Everything is decided by the tables as this node has them. A hint that comes twice, late or for
   nothing does no harm, so a restored snapshot is no special case.
2. A consumer whose session works at something else is passed over until that is done: a commit that
   waits for slow participants must not keep messages from the others.
3. A deadline takes a consumer out of the line and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from raftkv.errors import Stopped
from raftkv.plugin import Change, Host

from .commands import Queue, TransactionRow
from .metrics import Counters
from .refusals import UnknownQueue

__all__ = ["LISTEN_FROM", "Place", "Waiting"]

#: Queues with waiting consumers from which on changed rows are listened to: looking at so many rows
#: takes as long as an entry.
LISTEN_FROM: Final = 32


class Place:
    """A consumer's place in the line of a queue. `want`: messages that it would take.

    `free`: whether its session has nothing else to do. `awake`: it is on its way to acquire.
    """

    __slots__ = ("awake", "error", "free", "future", "number", "queue", "want")

    def __init__(self, queue: str, want: int, free: Callable[[], bool], number: int) -> None:
        self.queue = queue
        self.want = want
        self.free = free
        self.number = number
        self.awake = False
        self.error: Exception | None = None
        self.future: asyncio.Future[bool] | None = None

    def wake(self) -> None:
        """There are messages for it."""
        self.awake = True
        if self.future is not None and not self.future.done():
            self.future.set_result(True)

    def time_up(self) -> None:
        """Its deadline has come."""
        if self.future is not None and not self.future.done():
            self.future.set_result(False)

    def fail(self, error: Exception) -> None:
        """It waits in vain."""
        self.error = error
        if self.future is not None:
            _fail(self.future, error)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # who waited may have left: that is no defect to be logged


class Waiting:
    """What waits on one node. Deadlines are of `runtime.monotonic`; None: no deadline."""

    def __init__(self, host: Host, counters: Counters) -> None:
        self._host = host
        self._counters = counters
        self._lines: dict[str, dict[int, Place]] = {}
        #: The row of each of these queues when it was last looked at.
        self._seen: dict[str, Queue | None] = {}
        #: Those whose rows were changed since, while rows are listened to.
        self._changed: dict[str, None] = {}
        self._unlisten: Callable[[], None] | None = None
        self._voting: dict[int, list[asyncio.Future[bool]]] = {}
        self._next = 0
        self._stopped = False

    def __len__(self) -> int:
        """Consumers that wait."""
        return sum(len(line) for line in self._lines.values())

    # --- what the log did ---

    def look(self) -> None:
        """Something was applied."""
        if self._voting:
            self._look_at_votes()
        if self._unlisten is not None:
            if self._changed:
                changed, self._changed = self._changed, {}
                for queue in changed:
                    self.look_at(queue)
        elif self._lines:
            table = self._host.view().table("queues")
            for queue in list(self._lines):
                if table.get(queue) is not self._seen.get(queue):
                    self.look_at(queue)

    def look_at_all(self) -> None:
        """A snapshot has replaced the state, or the node began a new life."""
        self._look_at_votes()
        for queue in list(self._lines):
            self.look_at(queue)

    def look_at(self, queue: str) -> None:
        """Wake those who wait for messages of this queue, as far as there are some."""
        line = self._lines.get(queue)
        if line is None:
            return
        row: Queue | None = self._host.view().table("queues").get(queue)
        self._seen[queue] = row
        if row is None:
            for place in line.values():
                if not place.awake:
                    place.fail(UnknownQueue(queue))
            return
        left = row.ready
        for place in line.values():
            if left <= 0:
                break
            if not place.awake:
                if not place.free():
                    continue
                self._counters.add("wakeups")
                place.wake()
            left -= place.want

    # --- consumers ---

    def enter(self, queue: str, want: int, free: Callable[[], bool]) -> Place:
        """A place at the end of the line; it must be left (`leave`)."""
        self._next += 1
        place = Place(queue, want, free, self._next)
        if self._stopped:
            place.fail(Stopped("this node stops"))
        elif self._host.view().table("queues").get(queue) is None:
            place.wake()  # the log may know the queue already, and otherwise refuses
        self._lines.setdefault(queue, {})[place.number] = place
        self._mind()
        self.look_at(queue)
        return place

    async def turn(self, place: Place, deadline: float | None) -> bool:
        """Wait until there are messages for this place; False: there were none until the deadline.

        Raises `UnknownQueue` when the queue is deleted, and what the place was failed with.
        """
        if place.error is not None:
            raise place.error
        if place.awake:
            return True
        runtime = self._host.runtime
        timer = None
        if deadline is not None:
            left_s = deadline - runtime.monotonic()
            if left_s <= 0:
                return False
            timer = runtime.call_later(left_s, place.time_up)
        self._counters.add("waits")
        place.future = runtime.future()
        try:
            return await place.future
        finally:
            place.future = None
            if timer is not None:
                timer.cancel()

    def again(self, place: Place) -> None:
        """Others were faster: it goes on waiting where it stood."""
        place.awake = False
        self.look_at(place.queue)

    def leave(self, place: Place) -> None:
        """Served, or it waits no more; its turn goes to the next."""
        line = self._lines.get(place.queue)
        if line is not None and line.pop(place.number, None) is not None:
            if not line:
                del self._lines[place.queue]
                self._seen.pop(place.queue, None)
                self._mind()
            elif place.awake:
                self.look_at(place.queue)

    def _mind(self) -> None:
        """Listen to rows while that is cheaper than to look at them."""
        many = len(self._lines) >= LISTEN_FROM
        if many and self._unlisten is None:
            self._unlisten = self._host.listen(self._heard)
            self._changed = dict.fromkeys(self._lines)
        elif not many and self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
            self._changed = {}

    def _heard(self, index: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table == "queues" and change.key in self._lines:
                self._changed[change.key] = None

    # --- decisions ---

    async def decided(self, number: int, deadline: float | None) -> bool:
        """Wait until a transaction is not (or no longer) being prepared; False at the deadline.

        Raises Stopped when the node stops.
        """
        if self._stopped:
            raise Stopped("this node stops")
        if not self._is_preparing(number):
            return True
        left_s = None
        if deadline is not None:
            left_s = deadline - self._host.runtime.monotonic()
            if left_s <= 0:
                return False
        future: asyncio.Future[bool] = self._host.runtime.future()
        self._voting.setdefault(number, []).append(future)
        try:
            await asyncio.wait((future,), timeout=left_s)
            return future.done() and future.result()
        finally:
            futures = self._voting[number]
            futures.remove(future)
            if not futures:
                del self._voting[number]

    def _is_preparing(self, number: int) -> bool:
        row: TransactionRow | None = self._host.view().table("transactions").get(number)
        return row is not None and row.state == "preparing"

    def _look_at_votes(self) -> None:
        for number, futures in self._voting.items():
            if not self._is_preparing(number):
                for future in futures:
                    if not future.done():
                        future.set_result(True)

    # --- the end ---

    def stop(self) -> None:
        """The node stops: nothing comes any more, and this decides nothing."""
        self._stopped = True
        error = Stopped("this node stops")
        for line in self._lines.values():
            for place in line.values():
                place.fail(error)
        for futures in self._voting.values():
            for future in futures:
                _fail(future, error)
