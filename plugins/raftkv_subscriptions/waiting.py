"""Who waits on this node for what the log does: readers and consumers, for messages.

Theory. Whatever somebody waits for shows in few rows: a topic's, which has the next position, a
subscription's, a consumer's own. So nobody polls: whenever this node has applied something, those
rows are looked at for which somebody waits, and where another struct stands than the last time,
those who wait are asked whether it is for them. That costs a look-up per such row and nothing for
an entry. With many rows it would be the other way round, so then the rows that entries change are
listened to.

Each consumer of an exclusive or failover subscription, and each reader, reads this node's copy, and
is woken when there is something for it. Consumers of a shared one have to ask the log, who of them
gets what, so on one node they stand in a `Crowd`, the one that has waited longest in front. Those
are woken for whom there are messages: as many as ask for no more, together, than there may be. So a
message that comes does not make a hundred consumers ask for it. On other nodes others may be
faster: who comes too late keeps its place.

How many messages there may be is an estimate from above: some may be acknowledged already, or be of
no use to anybody after a seek. A crowd for which the log had nothing, though nothing has changed
since it was asked, rests until something does: one of its rows, or the limit of what may be in
hands, which is a setting.

Rules of this file
1. Everything is decided by the tables as this node has them. A hint that comes twice, late or for
   nothing does no harm, so a restored snapshot is no special case.
2. Who waits looks first, and again when it was woken: between looking and waiting nothing happens,
   for entries are applied on the node's loop.
3. A deadline takes somebody out of the line and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from raftkv.errors import Stopped
from raftkv.plugin import Change, Host, View

from .counting import Counters
from .rows import Sub, Topic

__all__ = ["LISTEN_FROM", "Crowd", "Place", "RowKey", "State", "Waiting"]

#: Rows with somebody waiting from which on changed rows are listened to: looking at so many takes
#: about as long as an entry.
LISTEN_FROM: Final = 64

#: A row: table, key.
RowKey = tuple[str, Any]
#: What shows whether there may be messages: two rows, and the setting unacked_max.
State = tuple[Topic | None, Sub | None, int]


class _Watcher(Protocol):
    """Looks at the tables when one of its rows has changed."""

    @property
    def rows(self) -> tuple[RowKey, ...]: ...

    def look(self, view: View) -> None: ...

    def fail(self, error: Exception) -> None: ...


class _Waiter:
    """One who waits until `ready` says that there is something for it."""

    __slots__ = ("_counters", "future", "ready", "rows")

    def __init__(
        self,
        rows: tuple[RowKey, ...],
        ready: Callable[[View], bool],
        future: asyncio.Future[bool],
        counters: Counters,
    ) -> None:
        self.rows = rows
        self.ready = ready
        self.future = future
        self._counters = counters

    def look(self, view: View) -> None:
        if not self.future.done() and self.ready(view):
            self._counters.add("wakeups")
            self.future.set_result(True)

    def time_up(self) -> None:
        if not self.future.done():
            self.future.set_result(False)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # who waited may have left: that is no defect to be logged


class Place:
    """A consumer's place in a crowd. `want`: messages that it would take. `awake`: it is on its
    way to take some."""

    __slots__ = ("awake", "future", "number", "want")

    def __init__(self, number: int, want: int) -> None:
        self.number = number
        self.want = want
        self.awake = False
        self.future: asyncio.Future[bool] | None = None

    def wake(self) -> None:
        self.awake = True
        if self.future is not None and not self.future.done():
            self.future.set_result(True)

    def time_up(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(False)

    def fail(self, error: Exception) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class Crowd:
    """Consumers of one shared subscription, on this node."""

    def __init__(self, topic: str, topic_id: int, sub: str, sub_id: int) -> None:
        self._topic = topic
        self._sub_key = (topic_id, sub)
        self._topic_id = topic_id
        self._sub_id = sub_id
        self.places: dict[int, Place] = {}
        #: What all of them would take together.
        self._want = 0
        #: The state for which the log had nothing.
        self._vain: State | None = None

    @property
    def rows(self) -> tuple[RowKey, ...]:
        return ("topics", self._topic), ("subs", self._sub_key)

    def add(self, place: Place) -> None:
        self.places[place.number] = place
        self._want += place.want

    def remove(self, place: Place) -> bool:
        """Whether it was there."""
        if self.places.pop(place.number, None) is None:
            return False
        self._want -= place.want
        return True

    def state(self, view: View) -> State:
        """By what one sees whether there may be messages."""
        topic, sub = view.table("topics").get(self._topic), view.table("subs").get(self._sub_key)
        return topic, sub, _unacked_max(view)

    def look(self, view: View) -> None:
        """Wake those at the front, as far as there may be messages."""
        state = self.state(view)
        topic, sub, _ = state
        if topic is None or topic.id != self._topic_id or sub is None or sub.id != self._sub_id:
            for place in self.places.values():
                place.wake()  # they find out that it is over
            return
        if self._vain is not None:
            if _is_same(self._vain, state):
                return
            self._vain = None
        left = _there_may_be(view, topic, sub, self._want)
        for place in self.places.values():
            if left <= 0:
                return
            if not place.awake:
                place.wake()
            left -= place.want

    def in_vain(self, before: State, now: View) -> None:
        """The log had nothing, and when it was asked the state was this."""
        if _is_same(before, self.state(now)):
            self._vain = before

    def fail(self, error: Exception) -> None:
        for place in self.places.values():
            place.fail(error)


def _unacked_max(view: View) -> int:
    return int(view.settings["unacked_max"])


def _is_same(one: State, other: State) -> bool:
    return one[0] is other[0] and one[1] is other[1] and one[2] == other[2]


def _there_may_be(view: View, topic: Topic, sub: Sub, want: int) -> int:
    """Messages for a shared subscription's consumers, `want` at most: never too few."""
    # What came back before a seek stands at or beyond the cursor.
    returned = view.table("returned").count((sub.id, 0), (sub.id, sub.cursor))
    ahead = max(0, topic.next - max(sub.cursor, topic.first))
    room = max(0, _unacked_max(view) - sub.locked)
    return min(want, returned + ahead, room)


class Waiting:
    """What waits on one node. Deadlines are of `runtime.monotonic`; None: no deadline."""

    def __init__(self, host: Host, counters: Counters) -> None:
        self._host = host
        self._counters = counters
        self._watchers: dict[RowKey, dict[_Watcher, None]] = {}
        #: Each watched row when it was last looked at.
        self._seen: dict[RowKey, Any] = {}
        #: Those that were changed since, while rows are listened to.
        self._changed: dict[RowKey, None] = {}
        self._unlisten: Callable[[], None] | None = None
        self._crowds: dict[int, Crowd] = {}
        #: The setting, when the crowds were last looked at.
        self._unacked_max = 0
        self._next = 0
        self._waiters = 0
        #: The node has stopped: nothing comes any more.
        self.stopped = False

    def __len__(self) -> int:
        """Readers and consumers that wait."""
        return self._waiters + sum(len(crowd.places) for crowd in self._crowds.values())

    # --- what the log did ---

    def look(self) -> None:
        """Something was applied."""
        if not self._watchers:
            return
        view = self._host.view()
        if self._crowds and self._unacked_max != _unacked_max(view):
            self._unacked_max = _unacked_max(view)
            for crowd in tuple(self._crowds.values()):
                crowd.look(view)
        if self._unlisten is not None:
            if not self._changed:
                return
            rows, self._changed = tuple(self._changed), {}
        else:
            rows = tuple(
                row
                for row, seen in self._seen.items()
                if view.table(row[0]).get(row[1]) is not seen
            )
        self._look_at(view, rows)

    def look_at_all(self) -> None:
        """A snapshot has replaced the state, or the node began a new life."""
        self._changed = {}
        self._look_at(self._host.view(), tuple(self._watchers))

    def poke(self, rows: tuple[RowKey, ...]) -> None:
        """Ask those who wait for these rows, though nothing was applied."""
        self._look_at(self._host.view(), rows)

    def _look_at(self, view: View, rows: Sequence[RowKey]) -> None:
        found: dict[_Watcher, None] = {}
        for row in rows:
            watchers = self._watchers.get(row)
            if watchers is not None:
                self._seen[row] = view.table(row[0]).get(row[1])
                found.update(watchers)
        for watcher in found:
            watcher.look(view)

    # --- one who waits alone ---

    async def until(
        self, rows: tuple[RowKey, ...], ready: Callable[[View], bool], deadline: float | None
    ) -> bool:
        """Wait until `ready`, asked whenever one of these rows has changed; False: not in time.

        Raises Stopped when the node stops.
        """
        if self.stopped:
            raise Stopped("this node stops")
        if ready(self._host.view()):
            return True
        runtime = self._host.runtime
        if deadline is not None and deadline <= runtime.monotonic():
            return False
        waiter = _Waiter(rows, ready, runtime.future(), self._counters)
        timer = None
        if deadline is not None:
            timer = runtime.call_later(deadline - runtime.monotonic(), waiter.time_up)
        self._counters.add("waits")
        self._waiters += 1
        self._watch(waiter)
        try:
            return await waiter.future
        finally:
            self._unwatch(waiter)
            self._waiters -= 1
            if timer is not None:
                timer.cancel()

    # --- crowds ---

    def enter(self, crowd: Crowd, sub_id: int, want: int) -> tuple[Crowd, Place]:
        """A place at the end of the subscription's crowd, `crowd` if there is none yet. It must be
        left (`leave`)."""
        if self.stopped:
            raise Stopped("this node stops")
        self._next += 1
        place = Place(self._next, want)
        known = self._crowds.get(sub_id)
        if known is None:
            known = self._crowds[sub_id] = crowd
            self._unacked_max = _unacked_max(self._host.view())
            self._watch(known)
        known.add(place)
        known.look(self._host.view())
        return known, place

    async def turn(self, place: Place, deadline: float | None) -> bool:
        """Wait until there may be messages for this place; False: there were none in time."""
        if self.stopped:
            raise Stopped("this node stops")
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
            woken = await place.future
            if woken:
                self._counters.add("wakeups")
            return woken
        finally:
            place.future = None
            if timer is not None:
                timer.cancel()

    def again(self, crowd: Crowd, place: Place) -> None:
        """There was nothing: it goes on waiting where it stood."""
        place.awake = False
        crowd.look(self._host.view())

    def leave(self, crowd: Crowd, sub_id: int, place: Place) -> None:
        """Served, or it waits no more; its turn goes to the next."""
        if not crowd.remove(place):
            return
        if not crowd.places:
            if self._crowds.get(sub_id) is crowd:
                del self._crowds[sub_id]
                self._unwatch(crowd)
        elif place.awake:
            crowd.look(self._host.view())

    # --- the end ---

    def stop(self) -> None:
        """The node stops: nothing comes any more, and this decides nothing."""
        self.stopped = True
        error = Stopped("this node stops")
        for watchers in tuple(self._watchers.values()):
            for watcher in tuple(watchers):
                watcher.fail(error)

    # --- rows ---

    def _watch(self, watcher: _Watcher) -> None:
        view = self._host.view()
        for row in watcher.rows:
            watchers = self._watchers.get(row)
            if watchers is None:
                watchers = self._watchers[row] = {}
                self._seen[row] = view.table(row[0]).get(row[1])
            watchers[watcher] = None
        self._mind()

    def _unwatch(self, watcher: _Watcher) -> None:
        for row in watcher.rows:
            watchers = self._watchers[row]
            del watchers[watcher]
            if not watchers:
                del self._watchers[row], self._seen[row]
        self._mind()

    def _mind(self) -> None:
        """Listen to rows while that is cheaper than to look at them."""
        many = len(self._watchers) >= LISTEN_FROM
        if many and self._unlisten is None:
            self._unlisten = self._host.listen(self._heard)
            self._changed = dict.fromkeys(self._watchers)
        elif self._unlisten is not None and 2 * len(self._watchers) < LISTEN_FROM:
            self._unlisten()
            self._unlisten = None
            self._changed = {}
            # What was looked at last is not known: look at all of them the next time.
            self._seen = dict.fromkeys(self._watchers, self)

    def _heard(self, index: int, changes: Sequence[Change]) -> None:
        for change in changes:
            row = (change.table, change.key)
            if row in self._watchers:
                self._changed[row] = None
