"""Transactions on their way into the queue: gathered by the turn of the loop, written in order.

Theory. A transaction costs a round through the log, and a round costs the same for one transaction
as for two hundred. So what callers submit in one turn of the loop goes into one `Submit`, and while
that one is under way the next gathers: the slower the log, the larger the batch. One Submit of a
node is in flight at a time. That keeps the order of the calls without a word about it in the log,
and it means that between two Submits this node's tables hold all that it has written: so it can
tell beforehand what would find no room (`room.py`), and a promotion can be fitted in between.

Rules of this file
1. On the fast path a transaction has no task, no timer and no entry in any table of this node: an
   object, a future, an append. One task writes, one timer watches the deadlines of all.
2. A deadline decides nothing. What was not written is withdrawn (`NotSubmitted`), what was is left
   alone: its caller is told that it is unknown or pending, and gets the handle to go on.
3. A batch whose outcome is unknown is asked after until it is known, before the next goes. Only
   after the end of this node's life may the answer be gone. Then the last position tells: positions
   are never used twice, so if it has not moved, nothing was applied.
4. A transaction that spoils its batch (it cannot be encoded, it makes the command too large) is
   found by sending each on its own. No caller suffers from another's mistake.

What is not pretty: `_land` and `enter` are written out, where functions of their own would read
better, because they run once per transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from raftkv.errors import (
    NoSpace,
    NotApplied,
    Overloaded,
    PluginFault,
    RaftkvError,
    Refused,
    Stopped,
    TooLarge,
    UnknownCommand,
)
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Host, Lost, Proposer

from .checking import Order, checked
from .commands import (
    Condition,
    Rejected,
    Submit,
    Submitted,
    Write,
)
from .errors import NotSubmitted, SubmitUnknown, refusal
from .gathering import NEVER, Gathering
from .metrics import Counters
from .options import LimboOptions
from .quota import adds
from .refusals import BatchTooLarge, QueueFull
from .room import Load, Room
from .status import owns
from .submission import CONFIRMED, GATHERED, SENT, Receipt, Submission, Wait
from .views import state_of
from .waiting import Waiting

__all__ = ["Submitting"]

# Deadlines are looked at in steps of this, so that a thousand of them do not make a thousand looks.
SWEEP_S: Final = 0.01


class Submitting:
    """The way into the queue on one node."""

    def __init__(
        self,
        host: Host,
        options: LimboOptions,
        proposer: Proposer,
        waiting: Waiting,
        counters: Counters,
    ) -> None:
        self._host = host
        self._runtime = host.runtime
        self._options = options
        self._proposer = proposer
        self._waiting = waiting
        self._counters = counters
        self._gathering = Gathering(counters)
        # The batch that is under way, and the last position before it.
        self._flying: Sequence[Submission] = ()
        self._flying_behind = 0
        self._number = 0
        # The sender, while it has nothing to do.
        self._sleeping: asyncio.Future[None] | None = None
        self._held = False
        self._stopped = False
        # What the queue will hold when all that is here has entered; None: to be counted anew.
        self._ahead: Load | None = None
        self._landings: list[asyncio.Future[None]] = []
        self._timer_at = NEVER

    def __len__(self) -> int:
        """Transactions that are not in the queue yet."""
        return len(self._gathering) + len(self._flying)

    @property
    def room(self) -> Room:
        """Who waits for room."""
        return self._gathering.room

    # --- entering ---

    def enter(
        self,
        writes: Iterable[Write],
        conditions: Sequence[Condition],
        order: Order,
        wait: Wait,
        timeout_s: float | None,
    ) -> Submission:
        """Take a transaction in. With `wait` "none" nobody waits, else `future` is there to.

        Raises refusals that need no log, `QueueFull` (wait "none"), `Overloaded`, `Stopped`.
        """
        transaction, size = checked(writes, conditions, order)
        if self._stopped:
            raise Stopped("this node stops")
        if self._is_over():
            self._gathering.forget_left()
            if self._is_over():
                raise self._overloaded()
        deadline = NEVER
        if timeout_s is not None:
            deadline = self._runtime.monotonic() + timeout_s
            if deadline < self._timer_at:
                self._watch(deadline)
        self._number += 1
        submission = Submission(
            transaction,
            size,
            len(transaction.writes) + len(transaction.conditions),
            wait,
            deadline,
            self._number,
            None if wait == "none" else self._runtime.future(),
        )
        if wait == "none":
            self._admit(submission)
        elif self._ahead is not None:
            self._ahead.refuse(submission)
        self._gathering.add(submission)
        if self._sleeping is not None:
            self.wake()
        return submission

    def _admit(self, submission: Submission) -> None:
        """Whether one that does not wait finds room behind all that is here. Raises QueueFull."""
        if submission.transaction.independent:
            return
        first = self.room.first()
        if first is not None:
            load = self._load()
            raise load.refuse(first) or load.full()
        if self._ahead is None:
            self._ahead = self._load()
            if not self._ahead.free:
                for other in (*self._not_applied(), *self._gathering):
                    self._ahead.refuse(other)
        full = self._ahead.refuse(submission)
        if full is not None:
            raise full

    def _not_applied(self) -> Sequence[Submission]:
        """What is under way and not in the tables yet: its answer may come a turn after its entry.

        Nobody else writes to the queue that this node owns, so the last position tells.
        """
        if state_of(self._host.view()).last != self._flying_behind:
            return ()
        return [one for one in self._flying if one.stage == SENT]

    def _load(self) -> Load:
        view = self._host.view()
        return Load(view, mine=owns(self._host, state_of(view)))

    def _is_over(self) -> bool:
        gathering, options = self._gathering, self._options
        return (
            len(gathering) >= options.waiting_max
            or gathering.held_bytes > options.waiting_bytes_max
        )

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"{len(self)} transactions already wait in this node to be written "
            f"(options.limbo.waiting_max, waiting_bytes_max): wait for some of them"
        )

    def leave(self, submission: Submission) -> None:
        """Its caller was cancelled. What was not written is withdrawn, the rest goes on."""
        if submission.stage == GATHERED:
            self._counters.add("withdrawn")
            submission.fail(NotSubmitted("its caller has left"))
            self._gathering.left()
            self.wake()  # it may have stood in the way of others
        else:
            self._counters.add("detached")

    # --- the sender ---

    def wake(self) -> None:
        """There may be something to write."""
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None and not sleeping.done():
            sleeping.set_result(None)

    def moved(self) -> None:
        """The queue has changed: there may be room."""
        self._ahead = None
        if self.room.waiting:
            self.wake()

    async def run(self) -> None:
        """Write, batch after batch, as long as the node runs."""
        while not self._stopped:
            batch = self._next_batch()
            if not batch:
                self._sleeping = self._runtime.future()
                await self._sleeping
                continue
            self._flying = batch
            try:
                await self._write(batch)
            finally:
                self._flying = ()
                self._landed()

    def _next_batch(self) -> list[Submission]:
        if self._held or not len(self._gathering):
            return []
        batch = self._gathering.next_batch(self._load())
        if not batch:
            # Those at the front may have left.
            self._landed()
        return batch

    # --- writing one batch ---

    async def _write(self, batch: Sequence[Submission]) -> None:
        delay_s = RETRY_FIRST_S
        while batch:
            view = self._host.view()
            state = state_of(view)
            command = Submit(tuple([one.transaction for one in batch]), state.term)
            self._flying_behind = state.last
            try:
                result: Submitted = await self._proposer.once(command)
            except Lost:
                if state_of(self._host.view()).last != state.last:
                    self._lose(batch)
                    return
            except Stopped as error:
                self._fail(batch, error)
                return
            except (TooLarge, BatchTooLarge, PluginFault, UnknownCommand) as error:
                await self._each_alone(batch, error)
                return
            except NoSpace as error:
                # What only deletes is never refused for that: it shared a command with what adds.
                adding = [one for one in batch if adds(one.transaction)]
                if not adding:
                    self._fail(batch, error)
                    return
                self._fail(adding, error)
                batch = [one for one in batch if one not in adding]
                continue
            except Refused as error:
                self._fail(batch, error)
                return
            except NotApplied as error:
                # No leader, or a new life of this node: what is still wanted goes again.
                self._host.log.debug("limbo: a batch waits: %s", type(error).__name__)
            except RaftkvError as error:
                # The node stops over it: `stop` tells the callers.
                self._host.log.debug("limbo: a batch has no answer: %s", type(error).__name__)
                self._lose(batch)
                return
            except Exception as error:
                await self._each_alone(batch, error)
                return
            else:
                if not self._stopped:  # else they have been told
                    self._land(batch, result)
                return
            await self._runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
            batch = self._still_wanted(batch)

    def _still_wanted(self, batch: Sequence[Submission]) -> list[Submission]:
        """Nothing of it was applied: whose caller has gone meanwhile is not written any more."""
        if self._stopped:
            return []
        wanted = []
        for submission in batch:
            if submission.abandoned or submission.deadline <= self._runtime.monotonic():
                self._counters.add("withdrawn")
                submission.fail(NotSubmitted("its time was over, and nothing was written"))
            else:
                wanted.append(submission)
        return wanted

    async def _each_alone(self, batch: Sequence[Submission], error: Exception) -> None:
        if len(batch) == 1:
            batch[0].fail(error)
            return
        back: list[Submission] = []
        for submission in batch:
            if not back or submission.transaction.independent:
                await self._write([submission])
                if submission.stage == GATHERED:
                    # It found no room after all, and nothing behind it is to overtake it.
                    self.room.take()
                    back.append(submission)
            elif self._waits_for_room(submission):
                submission.stage = GATHERED
                back.append(submission)
            else:
                submission.fail(self._load().full())
        self.room.put_back(back)

    def _fail(self, batch: Sequence[Submission], error: RaftkvError) -> None:
        for submission in batch:
            # One exception that is raised in many tasks would collect their tracebacks.
            submission.fail(type(error)(*error.args))

    def _lose(self, batch: Sequence[Submission]) -> None:
        self._counters.add("lost", len(batch))
        for submission in batch:
            submission.fail(
                SubmitUnknown(
                    "this node was declared dead, or stopped, while the transaction was on its "
                    "way, and nobody remembers whether it was applied: look at what it writes",
                    submission,
                )
            )

    def _land(self, batch: Sequence[Submission], result: Submitted) -> None:
        """The batch was applied, here too: everybody gets a position, or the refusal."""
        self._counters.add("batches")
        self._counters.add("submitted", len(batch))
        if result.rejected:
            batch = list(self._accepted(batch, result.rejected))
        position, index, term = result.first, result.index, result.term
        confirmed = result.confirmed
        pending: list[Submission] = []
        for submission in batch:
            submission.position = position
            submission.index = index
            submission.term = term
            if position <= confirmed or submission.transaction.independent:
                # As `confirm` does.
                submission.stage = CONFIRMED
                future = submission.future
                if future is not None and not future.done():
                    future.set_result(Receipt(position, "confirmed", index, term))
                if submission._watchers is not None:
                    submission.tell()
            else:
                submission.place(position, index, term)
                pending.append(submission)
            position += 1
        if pending:
            self._waiting.add(pending)
        self._ahead = None

    def _accepted(
        self, batch: Sequence[Submission], rejected: Sequence[Rejected]
    ) -> Iterator[Submission]:
        """Tell those that were refused; the others."""
        refused = {one.at: one for one in rejected}
        back: list[Submission] = []
        for at, submission in enumerate(batch):
            one = refused.get(at)
            if one is None:
                yield submission
                continue
            error = refusal(one)
            if isinstance(error, QueueFull) and self._waits_for_room(submission):
                # A limit was lowered while it was under way. Its caller waits for room, then.
                submission.stage = GATHERED
                back.append(submission)
                continue
            self._counters.add("rejected")
            submission.fail(error)
        if back:
            self._counters.add("waited_for_room", len(back))
            self.room.put_back(back)

    @staticmethod
    def _waits_for_room(submission: Submission) -> bool:
        """Whether somebody waits until there is. What is independent never does: it would be
        refused again at once, for it passes all that wait."""
        return (
            submission.future is not None
            and not submission.abandoned
            and not submission.transaction.independent
        )

    # --- holding, flushing ---

    def hold(self) -> None:
        """Write nothing until `release`."""
        self._held = True

    async def landed(self, deadline: float) -> bool:
        """Whether what is under way has got its answer by the deadline."""
        while self._flying:
            if not await self._landing(deadline):
                return False
        return True

    def release(self) -> None:
        self._held = False
        self.wake()

    async def flush(self, deadline: float) -> bool:
        """Whether all that was submitted before is in the queue, or refused, by the deadline."""
        number = self._number
        while self._outstanding() <= number:
            if not await self._landing(deadline):
                return False
        return True

    def _outstanding(self) -> float:
        """The number of the oldest submission that is not in the queue yet."""
        oldest = self._gathering.oldest()
        return min(oldest, self._flying[0].number) if self._flying else oldest

    async def _landing(self, deadline: float) -> bool:
        if self._stopped:
            raise Stopped("this node stops")
        left_s = deadline - self._runtime.monotonic()
        if left_s <= 0:
            return False
        landing: asyncio.Future[None] = self._runtime.future()
        self._landings.append(landing)
        try:
            await asyncio.wait((landing,), timeout=None if left_s == NEVER else left_s)
        finally:
            if not landing.done():
                self._landings.remove(landing)
        return landing.done()

    def _landed(self) -> None:
        landings, self._landings = self._landings, []
        for landing in landings:
            if not landing.done():
                landing.set_result(None)

    # --- deadlines ---

    def _watch(self, deadline: float) -> None:
        self._timer_at = deadline
        delay_s = max(SWEEP_S, deadline - self._runtime.monotonic())
        self._runtime.call_later(delay_s, self._sweep, deadline)

    def _sweep(self, due: float) -> None:
        """Tell the callers whose time is over. An older timer that was overtaken does nothing."""
        if due != self._timer_at or self._stopped:
            return
        self._timer_at = NEVER
        now = self._runtime.monotonic()
        following = NEVER
        for submission in (*self._gathering, *self.room.waiting, *self._flying, *self._waiting.own):
            if submission.deadline > now:
                following = min(following, submission.deadline)
            elif not submission.abandoned:
                self._expire(submission)
        self._gathering.forget_unwanted()
        self.wake()
        self._landed()
        if following < NEVER:
            self._watch(following)

    def _expire(self, submission: Submission) -> None:
        if submission.stage == GATHERED:
            self._counters.add("withdrawn")
            submission.fail(
                NotSubmitted(
                    "its time was over before it was written: it waited for room in the queue, for "
                    "its turn, or for a promotion. Nothing happened; try again"
                )
            )
        elif submission.future is not None:
            self._counters.add("detached")
            submission.detach(submission.unknown())

    def stop(self) -> None:
        """The node stops. What was not written never will be, the rest is unknown."""
        self._stopped = True
        for submission in (*self._gathering, *self.room.waiting):
            submission.fail(Stopped("this node stops; nothing was written"))
        for submission in self._flying:
            if submission.stage == SENT:
                submission.fail(
                    SubmitUnknown(
                        "this node stops, and the transaction is on its way: it may still be "
                        "applied. Look at what it writes",
                        submission,
                    )
                )
        self._gathering.clear()
        self.wake()
        self._landed()
