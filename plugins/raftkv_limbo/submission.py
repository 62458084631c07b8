"""One transaction of this node, from the call until its verdict, and what its caller is told.

Stages only go forward:

    GATHERED   here, not written: it waits for its turn, or for room
    SENT       in the Submit that is under way; its position is not known
    PENDING    in the queue, at `position`
    CONFIRMED  visible to all
    FAILED     `error` says why: refused, rolled back, withdrawn, or unknown for good

A caller that waits has `future`; who holds the handle may wait as well (`receipt`, `verdict`), as
often as he likes. What was decided is kept in the handle, so nobody can come too late.

There is one object per transaction on the fastest path of the plugin. So it has slots, and makes
nothing that is not asked for.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import msgspec

from .commands import Transaction
from .errors import StillPending, SubmitUnknown

__all__ = ["CONFIRMED", "FAILED", "GATHERED", "PENDING", "SENT", "Receipt", "Submission", "Wait"]

GATHERED: Final = 0
SENT: Final = 1
PENDING: Final = 2
CONFIRMED: Final = 3
FAILED: Final = 4

Wait = Literal["complete", "submit", "none"]


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a transaction stands.

    `position` is 0 while it is being submitted. `index` is the log's entry that brought it into the
    queue, `term` the owner's term it was submitted under; both 0 before that.
    """

    position: int
    state: Literal["confirmed", "pending", "submitting"]
    index: int
    term: int


class Submission:
    """The handle of one transaction. Made by `submit` only."""

    __slots__ = (
        "_watchers",
        "bytes",
        "deadline",
        "error",
        "future",
        "index",
        "number",
        "parts",
        "position",
        "stage",
        "term",
        "transaction",
        "wait",
    )

    def __init__(
        self,
        transaction: Transaction,
        bytes_: int,
        parts: int,
        wait: Wait,
        deadline: float,
        number: int,
        future: asyncio.Future[Receipt] | None,
    ) -> None:
        self.transaction = transaction
        #: Bytes of keys and values; writes and conditions.
        self.bytes = bytes_
        self.parts = parts
        self.wait = wait
        #: Of the runtime's monotonic clock.
        self.deadline = deadline
        #: Counts the submissions of this node, in the order of the calls.
        self.number = number
        self.future = future
        self.stage = GATHERED
        self.position = 0
        self.index = 0
        self.term = 0
        self.error: Exception | None = None
        self._watchers: list[asyncio.Future[None]] | None = None

    @property
    def now(self) -> Receipt:
        """Where it stands, without waiting. Raises what it has failed with."""
        if self.error is not None:
            # It may be asked for often, and every raise would add to the traceback.
            raise self.error.with_traceback(None)
        if self.stage < PENDING:
            return Receipt(0, "submitting", 0, 0)
        state: Literal["confirmed", "pending"] = "pending" if self.stage == PENDING else "confirmed"
        return Receipt(self.position, state, self.index, self.term)

    async def receipt(self, timeout_s: float | None = None) -> Receipt:
        """Wait until it is in the queue. After `timeout_s` seconds raises `SubmitUnknown`.

        Raises what it was refused with.
        """
        return await self._reach(PENDING, timeout_s)

    async def verdict(self, timeout_s: float | None = None) -> Receipt:
        """Wait until it is confirmed. Raises `RolledBack`, or what it was refused with.

        After `timeout_s` seconds raises `StillPending`, or `SubmitUnknown` before it is in the
        queue; it goes on nevertheless.
        """
        return await self._reach(CONFIRMED, timeout_s)

    async def _reach(self, stage: int, timeout_s: float | None) -> Receipt:
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        while self.stage < stage:
            left_s = None if until is None else until - loop.time()
            if left_s is not None and left_s <= 0:
                raise self.unknown()
            watcher: asyncio.Future[None] = loop.create_future()
            watchers = self._watchers
            if watchers is None:
                watchers = self._watchers = []
            watchers.append(watcher)
            try:
                await asyncio.wait((watcher,), timeout=left_s)
            finally:
                # Who gives up may ask again, for as long as it takes.
                if not watcher.done():
                    watchers.remove(watcher)
        return self.now

    def unknown(self) -> StillPending | SubmitUnknown:
        """What a caller gets whose time is over, or whose node stops, while it is under way."""
        if self.position:
            return StillPending(self.position, self)
        return SubmitUnknown(submission=self)

    # --- what happens to it; called by the submitting and the waiting side only ---

    @property
    def abandoned(self) -> bool:
        """Its caller has left, or was told that its time is over."""
        return self.future is not None and self.future.done()

    def place(self, position: int, index: int, term: int) -> None:
        """It is in the queue."""
        self.position = position
        self.index = index
        self.term = term
        self.stage = PENDING
        future = self.future
        if self.wait == "submit" and future is not None and not future.done():
            future.set_result(Receipt(position, "pending", index, term))
        if self._watchers is not None:
            self.tell()

    def confirm(self) -> None:
        """It is confirmed; `position`, `index` and `term` are set."""
        self.stage = CONFIRMED
        future = self.future
        if future is not None and not future.done():
            future.set_result(Receipt(self.position, "confirmed", self.index, self.term))
        if self._watchers is not None:
            self.tell()

    def fail(self, error: Exception) -> None:
        self.stage = FAILED
        self.error = error
        future = self.future
        if future is not None and not future.done():
            future.set_exception(error)
        if self._watchers is not None:
            self.tell()

    def detach(self, error: Exception) -> None:
        """Tell its caller so; the transaction goes on."""
        future = self.future
        if future is not None and not future.done():
            future.set_exception(error)

    def tell(self) -> None:
        watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            if not watcher.done():
                watcher.set_result(None)
