"""How this node, as a participant, prepares and votes.

The log tells whom it asks: a transaction is "preparing", and this node in its present life is among
its participants and has not voted. Then `prepare` of its observers is run, outside apply, in a task
of its own, so that one slow store never blocks another transaction (up to the option prepares_max
of them at a time); and then a `Vote` is proposed.

Rules of this file
1. A vote's answer does not matter: whether it was counted stands in the table. It is said again as
   long as it is asked for, so that a lost answer needs no code of its own.
2. A new life was not asked: it is no participant, so it does not vote. A transaction that is
   decided meanwhile does not ask any more; the task is cancelled.
3. Observers of one transaction prepare one after the other; the first no is the node's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from raftkv.errors import RaftkvError, Stopped
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Host, View

from .commands import REASON_CHARS_MAX, TransactionRow, Vote
from .metrics import Counters
from .observers import Observation, PrepareFailed

__all__ = ["Voting"]

# How long a vote waits for its answer before it is said again: others wait for it.
VOTE_S: Final = 1.0


class Voting:
    """The votes of one node."""

    def __init__(
        self,
        host: Host,
        counters: Counters,
        failed: Callable[[Exception], None],
        prepares_max: int,
    ) -> None:
        self._host = host
        self._counters = counters
        self._failed = failed
        self._turns = asyncio.Semaphore(prepares_max)
        # By number: the task that prepares or votes.
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Those that prepare. What was said of them is in `_reasons`: "" is yes.
        self._preparing: dict[int, Sequence[Observation]] = {}
        self._reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def is_asked(self, view: View, number: int) -> bool:
        """Whether the log waits for a vote of this node on the transaction."""
        row: TransactionRow | None = view.table("transactions").get(number)
        return row is not None and self.is_asked_by(row)

    def is_asked_by(self, row: TransactionRow) -> bool:
        if row.state != "preparing":
            return False
        name, incarnation = self._host.name, self._host.incarnation
        return any(
            one.node == name and one.incarnation == incarnation and not one.voted
            for one in row.participants
        )

    def begin(self, number: int, observations: Sequence[Observation]) -> None:
        """Prepare and vote, unless that is under way."""
        if number in self._tasks:
            return
        for observation in observations:
            observation.hold()
        self._preparing[number] = observations
        task = self._host.spawn(self._prepare(number, observations), "txqueue prepare")
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._prepared(number))

    def end(self, number: int) -> None:
        """The transaction asks no more: it was decided, or is gone."""
        if number in self._preparing:
            self._tasks[number].cancel()

    def stop(self) -> None:
        """The node stops."""
        for task in list(self._tasks.values()):
            task.cancel()

    async def _prepare(self, number: int, observations: Sequence[Observation]) -> None:
        reason = ""
        async with self._turns:
            for observation in observations:
                reason = observation.broken or await self._ask(observation)
                if reason:
                    break
        # What could not be written into the log would never be heard.
        reason = reason.encode("utf-8", "replace").decode("utf-8")
        self._reasons[number] = reason[:REASON_CHARS_MAX]

    async def _ask(self, observation: Observation) -> str:
        try:
            await observation.observer.prepare()
        except PrepareFailed as error:
            return str(error.reason) or "it cannot prepare"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something that it waited for was cancelled, and nobody cancelled this task.
            return "preparing was cancelled"
        except Exception as error:
            self._failed(error)
            # Its text may show what users have written.
            return f"preparing raised {type(error).__name__}"
        return ""

    def _prepared(self, number: int) -> None:
        """The prepare is over: it said something, or was cancelled."""
        for observation in self._preparing.pop(number):
            observation.release()
        del self._tasks[number]
        reason = self._reasons.pop(number, None)
        if reason is None:
            return
        task = self._host.spawn(self._say(number, reason), "txqueue vote")
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number))

    async def _say(self, number: int, reason: str) -> None:
        delay_s = RETRY_FIRST_S
        if self.is_asked(self._host.view(), number):
            self._counters.add("votes_no" if reason else "votes_yes")
        while self.is_asked(self._host.view(), number):
            try:
                await self._host.propose(Vote(number, not reason, reason), timeout_s=VOTE_S)
            except Stopped:
                return
            except RaftkvError as error:
                self._host.log.debug("txqueue: a vote waits: %s", type(error).__name__)
                await self._host.runtime.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
