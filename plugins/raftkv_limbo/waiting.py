"""Who waits on this node for what the log decides: own transactions, and questions about positions.

Rules of this file
1. Everything is decided by the tables as this node has them. A hint that comes twice, late or for
   nothing does no harm, so a restored snapshot is no special case.
2. Own transactions are told oldest first when they are confirmed, newest first when they are rolled
   back, as the log does it.
3. To look costs nothing while nothing has happened: one comparison of two numbers. Positions are
   given in order and confirmed in order, so own transactions stand in a queue, and only a rollback
   makes all of them be looked at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from raftkv.errors import Stopped
from raftkv.plugin import Host, View

from .commands import Cause, State
from .errors import RolledBack, StillPending, VerdictForgotten
from .submission import Submission
from .views import Fate, confirmation_of, entry_of, fate, rollback_of, state_of

__all__ = ["Verdict", "Waiting", "verdict_of"]

T = TypeVar("T")


class Verdict(msgspec.Struct, frozen=True):
    """What became of a position, as far as this node has applied the log.

    "unknown": it was not given yet. "forgotten": it was decided so long ago that no node knows how.
    `index` and `at_ms` (the log's clock) are those of the log's entry that decided, 0 while nothing
    is decided. `reason` and `by` (a node) are those of a rollback. Of a confirmation, `cause`,
    `by` and `upto` are what completed the quorum, as in `Confirmation`: the acknowledgement up to
    `upto` of the node `by`, where `cause` is "ack". Confirmations are kept from format 2 on, as
    many as runs of rollbacks (`rollbacks_kept`); of older ones `index` is 0 and `cause` is "".
    `submitted_index`: of the submission, while that is kept (`entries_kept`), else 0.
    """

    position: int
    fate: Fate
    reason: str = ""
    by: str = ""
    index: int = 0
    at_ms: int = 0
    cause: Cause | Literal[""] = ""
    upto: int = 0
    submitted_index: int = 0


def verdict_of(view: View, position: int) -> Verdict:
    """The verdict on a position."""
    found = fate(view, position)
    entry = entry_of(view, position)
    told = Verdict(position, found, submitted_index=0 if entry is None else entry.index)
    if found == "rolled back":
        run = rollback_of(view, position)
        assert run is not None
        return replace(told, reason=run.reason, by=run.node, index=run.index, at_ms=run.at_ms)
    done = confirmation_of(view, position) if found == "confirmed" else None
    if done is None:
        return told
    return replace(
        told, by=done.by, index=done.index, at_ms=done.at_ms, cause=done.cause, upto=done.upto
    )


class _Watch:
    """A question that is asked at every change, until there is an answer."""

    __slots__ = ("future", "judge")

    def __init__(self, judge: Callable[[View, State], Any], future: asyncio.Future[Any]) -> None:
        self.judge = judge
        self.future = future


class Waiting:
    """What waits on one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._own: deque[Submission] = deque()
        self._watches: dict[int, _Watch] = {}
        self._next = 0
        self._rollbacks = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._own) + len(self._watches)

    @property
    def own(self) -> Sequence[Submission]:
        """Transactions of this node that are in the queue, oldest first."""
        return self._own

    def begin(self) -> None:
        """The tables can be read: what was decided before is no news."""
        self._rollbacks = state_of(self._host.view()).rollbacks

    def add(self, submissions: Sequence[Submission]) -> None:
        """These have got their positions, higher than all before."""
        self._own.extend(submissions)
        # The log may have gone on since.
        self._judge_own(self._host.view())

    def look(self, view: View, state: State) -> None:
        """The queue has changed."""
        rolled = state.rollbacks != self._rollbacks
        self._rollbacks = state.rollbacks
        own = self._own
        if own:
            if rolled:
                self._judge_own(view)
            else:
                confirmed = state.confirmed
                while own and own[0].position <= confirmed:
                    own.popleft().confirm()
        if self._watches:
            self._ask(view, state)

    def look_at_all(self) -> None:
        """A snapshot has replaced the state."""
        view = self._host.view()
        state = state_of(view)
        self._rollbacks = state.rollbacks
        self._judge_own(view)
        self._ask(view, state)

    def _judge_own(self, view: View) -> None:
        left: list[Submission] = []
        undone: list[Submission] = []
        for submission in self._own:
            found = fate(view, submission.position)
            if found == "pending":
                left.append(submission)
            elif found == "confirmed":
                submission.confirm()
            else:
                undone.append(submission)
        self._own = deque(left)
        for submission in reversed(undone):
            submission.fail(error_of(view, submission.position))

    def _ask(self, view: View, state: State) -> None:
        for watch in list(self._watches.values()):
            if not watch.future.done():
                answer = watch.judge(view, state)
                if answer is not None:
                    watch.future.set_result(answer)

    async def until(
        self, judge: Callable[[View, State], T | None], deadline: float | None
    ) -> T | None:
        """Wait until `judge` has an answer for the tables; None at the deadline.

        Raises Stopped when the node stops.
        """
        if self._stopped:
            raise Stopped("this node stops")
        view = self._host.view()
        answer = judge(view, state_of(view))
        if answer is not None:
            return answer
        left_s = None
        if deadline is not None:
            left_s = deadline - self._host.runtime.monotonic()
            if left_s <= 0:
                return None
        future: asyncio.Future[T] = self._host.runtime.future()
        self._next += 1
        number = self._next
        self._watches[number] = _Watch(judge, future)
        try:
            await asyncio.wait((future,), timeout=left_s)
            return future.result() if future.done() else None
        finally:
            del self._watches[number]

    async def verdict(self, position: int, deadline: float | None) -> Verdict:
        """Wait for the verdict on a position. Raises StillPending at the deadline."""

        # How many were rolled back, ever, when it was last found to be pending.
        pending_at = -1

        def judge(view: View, state: State) -> Verdict | None:
            nonlocal pending_at
            if position > state.last or position == state.head:
                return None
            if 0 < state.head < position and state.rollbacks == pending_at:
                return None  # it waits behind the oldest one, as it did
            found = verdict_of(view, position)
            if found.fate not in ("pending", "unknown"):
                return found
            pending_at = state.rollbacks
            return None

        if position < 1:
            return Verdict(position, "unknown")
        found = await self.until(judge, deadline)
        if found is None:
            raise StillPending(position)
        return found

    async def confirmed(self, position: int, deadline: float | None) -> int:
        """Wait until everything up to a position is decided; the confirmed position then.

        Raises StillPending at the deadline.
        """

        def judge(view: View, state: State) -> int | None:
            decided = state.last >= position and not 0 < state.head <= position
            return state.confirmed if decided else None

        found = await self.until(judge, deadline)
        if found is None:
            raise StillPending(position)
        return found

    def stop(self) -> None:
        """The node stops: nothing is decided here any more, and this decides nothing."""
        self._stopped = True
        own, self._own = self._own, deque()
        for submission in own:
            submission.fail(submission.unknown())
        for watch in self._watches.values():
            if not watch.future.done():
                watch.future.set_exception(Stopped("this node stops"))


def error_of(view: View, position: int) -> Exception:
    """What a caller gets whose transaction was not confirmed."""
    run = rollback_of(view, position)
    if run is not None:
        return RolledBack(position, run.reason, run.node)
    return VerdictForgotten(position)
