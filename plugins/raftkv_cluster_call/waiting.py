"""Who waits on this node, and for what: calls that want their turn, and calls that want the others.

An `Initiation` is one call of this node from its reservation to its decision. It stands here under
its ticket, and its state says who may still do what:

    waiting   reserved, queued or granted, not begun. Its caller may take it back (`close`).
    running   the worker has taken it. It will be committed or aborted, whatever its caller does.
    over      `done` has the end of it.

The worker runs an id of this node only for an initiation that is *waiting*. So once a caller was
told that nothing ran (`DeadlinePassed`), nothing can run: its reservation may still stand in the
log for a moment, but nobody here takes it.

A `Watch` waits for the cursors of the nodes that a committed call requires.

Both are woken by the log only (`look`), from the tables as they are; a hint that comes twice or for
nothing does no harm. So a restored snapshot is no special case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from raftkv.plugin import Host, View

from .commands import Committed
from .functions import CallError, Function
from .views import answer_of, cursor_of, record_of, reserved

__all__ = ["Done", "Dropped", "Failed", "Initiation", "Initiations", "Reached", "Waiting"]

# Own ids that have begun to run, as far back as they are remembered. Only the last one can be
# undecided; the others matter while their lost effect is looked at, which is at once.
BEGUN_MAX: Final = 1_000
# How far back in the records a ticket is looked for that was granted and aborted: it was just now.
LOOK_BACK: Final = 1_000


class Done(msgspec.Struct, frozen=True):
    """It ran here, and was committed."""

    committed: Committed
    result: Any


class Failed(msgspec.Struct, frozen=True):
    """It ran here and failed, or was not committed; no other node runs it."""

    id: int
    error: CallError


class Dropped(msgspec.Struct, frozen=True):
    """It did not run and never will. `reason`: an `answers` reason, or the record's `cause`."""

    reason: str


class Initiation:
    """One call of this node. `deadline` is of the runtime's monotonic clock."""

    __slots__ = ("args", "deadline", "done", "function", "state", "ticket")

    def __init__(
        self,
        ticket: int,
        function: Function,
        args: Any,
        deadline: float,
        done: asyncio.Future[Done | Failed | Dropped],
    ) -> None:
        self.ticket = ticket
        self.function = function
        self.args = args
        self.deadline = deadline
        self.done = done
        self.state: Literal["waiting", "running", "over"] = "waiting"

    def end(self, end: Done | Failed | Dropped) -> None:
        self.state = "over"
        if not self.done.done():
            self.done.set_result(end)


class Initiations:
    """The calls of this node that are not decided yet, by ticket."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._open: dict[int, Initiation] = {}
        # Ids that began to run in this process, and the lowest that would be remembered.
        self._begun: dict[int, None] = {}
        self._forgotten = 0
        # The first life of this process: what earlier ones began is not known here.
        self._first_incarnation = 0
        # Why no turn is taken any more; "" while the node runs.
        self._stopped = ""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, initiation: Initiation) -> None:
        self._open[initiation.ticket] = initiation
        # It may have been granted, or dropped, in the very entry that reserved it or since.
        self.look((initiation.ticket,))
        if self._stopped and initiation.state == "waiting":
            # The answer to its reservation came when the node had begun to stop.
            self.end(initiation, Dropped(self._stopped))

    def take(self, id: int, ticket: int) -> Initiation | None:
        """For the worker: it runs now. None: nobody wants it any more, or its time is over."""
        initiation = self._open.get(ticket)
        if initiation is None or initiation.state != "waiting":
            return None
        if initiation.deadline <= self._host.runtime.monotonic():
            # Its caller is about to close it.
            return None
        initiation.state = "running"
        self._begun[id] = None
        if len(self._begun) > BEGUN_MAX:
            self._forgotten = next(iter(self._begun))
            del self._begun[self._forgotten]
        return initiation

    def close(self, initiation: Initiation) -> bool:
        """The caller wants it no more. False: it runs, or is over, and must be waited for."""
        if initiation.state != "waiting":
            return False
        initiation.end(Dropped("withdrawn"))
        self._forget(initiation)
        return True

    def end(self, initiation: Initiation, end: Done | Failed | Dropped) -> None:
        initiation.end(end)
        self._forget(initiation)

    def lose(self, initiation: Initiation) -> None:
        """It has begun, and what became of it cannot be had here: its caller is told so."""
        initiation.state = "over"
        initiation.done.cancel()
        self._forget(initiation)

    def ran_not(self, id: int) -> bool:
        """Whether it is certain that an aborted id of this node has not begun to run here."""
        record = record_of(self._host.view(), id)
        return (
            record is not None
            and 0 < self._first_incarnation <= record.incarnation
            and id > self._forgotten
            and id not in self._begun
        )

    def on_incarnation(self, incarnation: int) -> None:
        """This node has a new life; what the former one had reserved is dropped."""
        if not self._first_incarnation:
            self._first_incarnation = incarnation
        self.look_at_all()

    def look(self, tickets: Iterable[int]) -> None:
        """The rows of these tickets have changed: end what was dropped without having run."""
        for ticket in tickets:
            initiation = self._open.get(ticket)
            if initiation is not None and initiation.state == "waiting":
                reason = self._dropped(self._host.view(), ticket)
                if reason is not None:
                    self.end(initiation, Dropped(reason))

    def look_at_all(self) -> None:
        self.look(list(self._open))

    def stop(self, reason: str) -> None:
        """The node stops: whatever has not begun, or comes from now on, never will."""
        self._stopped = reason
        for initiation in list(self._open.values()):
            if initiation.state == "waiting":
                self.end(initiation, Dropped(reason))

    def _dropped(self, view: View, ticket: int) -> str | None:
        """Why this waiting ticket will not get its turn; None: it still may."""
        if ticket in view.table("queue"):
            return None
        granted = reserved(view)
        if granted is not None and granted[1].ticket == ticket:
            return None
        answer = answer_of(view, ticket)
        if answer is not None:
            return answer
        # It was granted, and aborted. That is seldom long ago.
        for _, record in view.table("records").scan(reverse=True, limit=LOOK_BACK):
            if record.ticket == ticket and record.kind == "call":
                return str(record.cause)
        return "withdrawn"

    def _forget(self, initiation: Initiation) -> None:
        if self._open.get(initiation.ticket) is initiation:
            del self._open[initiation.ticket]


# --- waiting for the others -----------------------------------------------------------------------


class Reached(msgspec.Struct, frozen=True):
    """How a wait for nodes ended: `missing` have not executed the id."""

    outcome: Literal["ok", "peers_lagging", "stopped_nodes"]
    missing: tuple[str, ...] = ()


class _Watch:
    __slots__ = ("done", "id", "names", "need")

    def __init__(
        self, id: int, names: tuple[str, ...], need: int, done: asyncio.Future[Reached]
    ) -> None:
        self.id = id
        self.names = names
        self.need = need
        self.done = done


class Waiting:
    """Futures that wait for cursors, on this node's copy of them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._watches: dict[int, _Watch] = {}
        self._moves: dict[int, asyncio.Future[None]] = {}
        self._next = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._watches)

    async def reached(self, id: int, names: Sequence[str], need: int, deadline: float) -> Reached:
        """Wait until `need` of the nodes have executed this id, or are gone.

        At once "stopped_nodes" when all that have not are down, and "peers_lagging" at the
        deadline.
        """
        watch = _Watch(id, tuple(names), need, self._host.runtime.future())
        self._next += 1
        number = self._next
        self._watches[number] = watch
        try:
            self._judge(watch)
            left_s = deadline - self._host.runtime.monotonic()
            if not watch.done.done() and left_s > 0 and not self._stopped:
                await asyncio.wait((watch.done,), timeout=left_s)
            if watch.done.done():
                return watch.done.result()
            return Reached("peers_lagging", self._missing(watch))
        finally:
            del self._watches[number]

    async def moved(self, seconds: float) -> bool:
        """Whether some cursor has moved within that time."""
        self._next += 1
        number = self._next
        future = self._moves[number] = self._host.runtime.future()
        try:
            if not self._stopped:
                await asyncio.wait((future,), timeout=seconds)
            return future.done()
        finally:
            del self._moves[number]

    def look(self) -> None:
        """Cursors have changed, or nodes came or went."""
        for watch in list(self._watches.values()):
            self._judge(watch)
        for future in list(self._moves.values()):
            if not future.done():
                future.set_result(None)

    def stop(self) -> None:
        """Nothing moves here any more."""
        self._stopped = True
        for watch in self._watches.values():
            if not watch.done.done():
                watch.done.set_result(Reached("peers_lagging", self._missing(watch)))
        self.look()

    def _missing(self, watch: _Watch) -> tuple[str, ...]:
        """Who has not executed it. Who takes part no more is not waited for."""
        view = self._host.view()
        missing = []
        for name in watch.names:
            row = cursor_of(view, name)
            if row is not None and row.id < watch.id:
                missing.append(name)
        return tuple(missing)

    def _judge(self, watch: _Watch) -> None:
        if watch.done.done():
            return
        missing = self._missing(watch)
        # Who takes part no more has not executed it: nobody waits for it, nor does it count.
        view = self._host.view()
        part = sum(1 for name in watch.names if cursor_of(view, name) is not None)
        if part - len(missing) >= min(watch.need, part):
            watch.done.set_result(Reached("ok"))
            return
        members = self._host.members
        if not any(name in members and members[name].up for name in missing):
            watch.done.set_result(Reached("stopped_nodes", missing))


def is_decided(view: View, id: int, ticket: int) -> bool:
    """Whether the id that this ticket had reserved is committed or aborted by now."""
    record = record_of(view, id)
    return record is None or record.ticket != ticket or record.state != "reserved"
