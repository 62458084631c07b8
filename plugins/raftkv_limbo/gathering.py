"""What waits on this node to be written, and whose turn it is.

Transactions wait in the order of their calls, in two lines. Those that find no room in the queue
stand in `room` (room.py); all others, and independent ones in any case, have *gathered*. A batch is
made of both: first who waits for room and finds it now, then the others in their order. One that
finds no room goes into the other line, or is refused if it does not want to wait. So nothing that
is ordered overtakes another, and what need not wait is not held up.

A batch has limits, and something always fits: a transaction that is larger than that goes alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from .commands import BATCH_PARTS_MAX, BATCH_TRANSACTIONS_MAX
from .metrics import Counters
from .refusals import QueueFull
from .room import Load, Room, is_wanted
from .submission import GATHERED, SENT, Submission

__all__ = ["BATCH_BYTES_MAX", "NEVER", "Gathering"]

# Bytes of keys and values in one Submit: half of a default command limit, a fraction of what the
# log writes at once. A larger transaction goes alone.
BATCH_BYTES_MAX: Final = 512 * 1024
NEVER: Final = float("inf")


class Gathering:
    """Both lines of one node."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._gathered: deque[Submission] = deque()
        #: Bytes of keys and values in `gathered`; writes and conditions.
        self.bytes = 0
        self._parts = 0
        self.room = Room()
        # Those that have left since they were last looked for.
        self._left = 0

    def __len__(self) -> int:
        return len(self._gathered) + len(self.room.waiting)

    def __iter__(self) -> Iterator[Submission]:
        """Those that do not wait for room, oldest first."""
        return iter(self._gathered)

    @property
    def held_bytes(self) -> int:
        """Bytes of keys and values of all that is here."""
        return self.bytes + self.room.bytes

    def add(self, submission: Submission) -> None:
        self._gathered.append(submission)
        self.bytes += submission.bytes
        self._parts += submission.parts

    def oldest(self) -> float:
        """The number of the oldest one that is still wanted; NEVER: there is none."""
        first = self.room.first()
        number = NEVER if first is None else first.number
        for submission in self._gathered:
            if is_wanted(submission):
                return min(number, submission.number)
        return number

    # --- making a batch ---

    def next_batch(self, load: Load) -> list[Submission]:
        """Whose turn it is, as far as one Submit goes."""
        if load.free and not self.room.waiting and self._all_fit():
            return self._whole()
        batch = _Batch()
        room = self.room
        # Why there is no room for whoever is next, and so not for those behind.
        full: QueueFull | None = None
        while (first := room.first()) is not None:
            full = load.refuse(first)
            if full is not None:
                break
            if not batch.fits(first):
                return batch.taken
            room.take()
            batch.take(first)
        while self._gathered:
            submission = self._gathered[0]
            if not is_wanted(submission):
                self._pop(submission)
                continue
            if not batch.fits(submission):
                break
            self._pop(submission)
            if not submission.transaction.independent:
                refused = full or load.refuse(submission)
                if refused is not None:
                    if self._wait_for_room(submission, refused):
                        full = refused
                    continue
            batch.take(submission)
        return batch.taken

    def _all_fit(self) -> bool:
        return (
            len(self._gathered) <= BATCH_TRANSACTIONS_MAX
            and self._parts <= BATCH_PARTS_MAX
            and self.bytes <= BATCH_BYTES_MAX
        )

    def _whole(self) -> list[Submission]:
        """All that has gathered: mostly so, and nothing then has to be counted."""
        batch = []
        for submission in self._gathered:
            future = submission.future
            # As `is_wanted`.
            if submission.stage == GATHERED and (future is None or not future.done()):
                submission.stage = SENT
                batch.append(submission)
        self._gathered.clear()
        self.bytes = self._parts = 0
        return batch

    def _pop(self, submission: Submission) -> None:
        self._gathered.popleft()
        self.bytes -= submission.bytes
        self._parts -= submission.parts

    def _wait_for_room(self, submission: Submission, full: QueueFull) -> bool:
        """Whether it waits now; who does not want to is refused."""
        if submission.wait == "none":
            self._counters.add("rejected")
            submission.fail(QueueFull(full.what, full.limit))
            return False
        self._counters.add("waited_for_room")
        self.room.add(submission)
        return True

    # --- leaving ---

    def left(self) -> None:
        """One was withdrawn. It keeps its place until they are half of all that is here."""
        self._left += 1
        if 2 * self._left > len(self):
            self.forget_unwanted()

    def forget_left(self) -> None:
        """The same now, if there are any."""
        if self._left:
            self.forget_unwanted()

    def forget_unwanted(self) -> None:
        """Those that were withdrawn make way."""
        self._left = 0
        gathered = deque(one for one in self._gathered if is_wanted(one))
        if len(gathered) < len(self._gathered):
            self._gathered = gathered
            self.bytes = sum(one.bytes for one in gathered)
            self._parts = sum(one.parts for one in gathered)
        self.room.forget()

    def clear(self) -> None:
        self._gathered.clear()
        self.room.clear()
        self.bytes = self._parts = 0


class _Batch:
    """A batch while it is put together."""

    def __init__(self) -> None:
        self.taken: list[Submission] = []
        self._parts = 0
        self._bytes = 0

    def fits(self, submission: Submission) -> bool:
        return not self.taken or (
            len(self.taken) < BATCH_TRANSACTIONS_MAX
            and self._parts + submission.parts <= BATCH_PARTS_MAX
            and self._bytes + submission.bytes <= BATCH_BYTES_MAX
        )

    def take(self, submission: Submission) -> None:
        submission.stage = SENT
        self.taken.append(submission)
        self._parts += submission.parts
        self._bytes += submission.bytes
