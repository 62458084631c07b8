"""Waiting for room in the queue, in order.

The limits of the queue are decided at apply (`queue.py`). But a node knows beforehand what will be
refused: it has one Submit in flight at a time, and while none is, everything that it has written is
in its own tables; nobody else writes to the queue that it owns. So it holds back what would find no
room, in the order of the calls, and asks again when the queue has moved.

A `Load` is what the queue would hold with some more transactions in it. Its answers need not be
exact: if it is too hopeful the log refuses, and the transaction waits here after all; if it is too
timid the transaction waits for the next change. Into an empty queue something always enters, so
nothing waits for ever.

Only what would be pending needs room: nothing does while Raft's commit is the quorum, nor do
independent transactions, which pass those that wait here.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from raftkv.plugin import View

from .commands import Transaction
from .refusals import QueueFull
from .submission import GATHERED, Submission
from .views import is_fast, state_of

__all__ = ["Load", "Room", "is_wanted"]


class Load:
    """The queue as one view has it, and what is about to enter."""

    __slots__ = ("_bytes", "_entries", "_head", "_settings", "_spaces", "_writes", "free")

    def __init__(self, view: View, *, mine: bool) -> None:
        state = state_of(view)
        self._head = state.head > 0
        #: Nothing of this node will be pending: there is room for all. Who does not own the queue
        #: (`mine`) is not to wait for it, but to be told so by the log.
        self.free = not mine or (not self._head and is_fast(view))
        self._settings = view.settings
        self._spaces = view.table("spaces")
        self._entries = state.last - state.head + 1 if self._head else 0
        self._bytes = state.held_bytes if self._head else 0
        self._writes = state.pending_writes

    def full(self) -> QueueFull:
        """What one is told that stands behind others who wait for room."""
        settings: Any = self._settings
        return QueueFull("entries", settings["queue_entries_max"])

    def refuse(self, submission: Submission) -> QueueFull | None:
        """Why it would find no room; None: it would, and is counted from now on."""
        transaction = submission.transaction
        if self.free or transaction.independent:
            return None
        if not self._head:
            if not self._is_sync(transaction):
                return None
            # The first one always enters.
            self._head = True
        else:
            settings: Any = self._settings
            for what, value, limit in (
                ("entries", self._entries + 1, settings["queue_entries_max"]),
                ("bytes", self._bytes + submission.bytes, settings["queue_bytes_max"]),
                ("writes", self._writes + len(transaction.writes), settings["queue_writes_max"]),
            ):
                if value > limit:
                    return QueueFull(what, limit)
        self._entries += 1
        self._bytes += submission.bytes
        self._writes += len(transaction.writes)
        return None

    def _is_sync(self, transaction: Transaction) -> bool:
        for write in transaction.writes:
            space = self._spaces.get(write.space)
            if space is not None and space.sync:
                return True
        return False


class Room:
    """Transactions of this node that wait for room, in the order of their calls."""

    def __init__(self) -> None:
        #: Those that have left are among them until it is their turn, or `forget`.
        self.waiting: deque[Submission] = deque()
        #: Bytes of keys and values of all of `waiting`.
        self.bytes = 0

    def __len__(self) -> int:
        """How many do wait. Looks at all of them."""
        return sum(is_wanted(one) for one in self.waiting)

    def add(self, submission: Submission) -> None:
        self.waiting.append(submission)
        self.bytes += submission.bytes

    def first(self) -> Submission | None:
        """Whose turn it is. Who has left loses its place."""
        waiting = self.waiting
        while waiting and not is_wanted(waiting[0]):
            self.take()
        return waiting[0] if waiting else None

    def take(self) -> None:
        """The first one waits no longer."""
        self.bytes -= self.waiting.popleft().bytes

    def put_back(self, submissions: list[Submission]) -> None:
        """These were refused for want of room after all; they came before all that wait."""
        self.waiting.extendleft(reversed(submissions))
        self.bytes += sum(one.bytes for one in submissions)

    def forget(self) -> None:
        """Those who have left make way."""
        waiting = deque(one for one in self.waiting if is_wanted(one))
        if len(waiting) < len(self.waiting):
            self.waiting = waiting
            self.bytes = sum(one.bytes for one in waiting)

    def clear(self) -> None:
        self.waiting.clear()
        self.bytes = 0


def is_wanted(submission: Submission) -> bool:
    """Whether it was neither withdrawn nor given up by its caller."""
    return submission.stage == GATHERED and not submission.abandoned
