"""How a transaction of a session reaches its end, and how its end is found out.

Theory. Only its session commits a TX, and one command does it. So as long as that command was not
sent, whatever goes wrong means that the transaction was not applied: `TransactionAborted`, surely.
Once it was sent, its outcome is settled before anything else is said. It may be lost: then the log
is asked, behind a barrier, for the fate that it keeps under the txid. Only who stops waiting before
that gets `TransactionUnknown`.

Rules of this file
1. What could not be staged ends the transaction: without it the rest is not what its user meant.
   Its rollback is next in the session's line, whoever still asks for anything else.
2. A commit that nothing happened to is sent again, as long as the session lives. That its caller
   has stopped waiting changes nothing: to be late is not to have changed one's mind.
3. A commit of a session that has ended is not sent again, and its fate is looked up: one that was
   closed before goes on, for the votes of its participants stand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    Refused,
    Stopped,
    TooLarge,
    again,
)
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Lost

from .commands import (
    REASON_CHARS_MAX,
    Commit,
    Decided,
    Operation,
    Rollback,
    SessionRow,
    Stage,
    Voting,
)
from .consuming import Delivery
from .errors import TransactionAborted, TransactionUnknown
from .life import Life
from .metrics import Counters
from .refusals import OutcomeForgotten, SessionEnded, UnknownTransaction
from .transaction import Committed, Transaction
from .views import outcome_of, session_live
from .waiting import Waiting

__all__ = ["NOT_ENCODABLE", "SESSION_ENDED", "Committing", "cause_of"]

#: The reason of a transaction that ended with its session.
SESSION_ENDED = "the session has ended"
#: What an encoder raises over a text that is none, or a value of another type than was declared.
NOT_ENCODABLE = (TypeError, ValueError, OverflowError)


def cause_of(error: Exception) -> tuple[str, str]:
    """An error as the cause and the reason of a transaction that it ended."""
    if isinstance(error, RaftkvError):
        return error.code, str(error)
    # The encoder's text might show what was to be sent.
    return "not_encodable", f"a message that cannot be sent ({type(error).__name__})"


class Committing:
    """The transactions of one session. Its methods are jobs of the session's line.

    `later` puts a job in front of the line; `returned` is told of the messages that a transaction
    had accepted which was rolled back: they are the session's again.
    """

    def __init__(
        self,
        life: Life,
        waiting: Waiting,
        counters: Counters,
        later: Callable[[Callable[[], Awaitable[Any]]], None],
        returned: Callable[[list[Delivery]], None],
    ) -> None:
        self._life = life
        self._waiting = waiting
        self._counters = counters
        self._later = later
        self._returned = returned

    # --- staging ---

    async def stage(self, transaction: Transaction) -> None:
        """Send what was gathered. Raises TransactionAborted."""
        for pack in transaction.content.take():
            await self.stage_pack(transaction, pack)

    async def stage_pack(self, transaction: Transaction, pack: tuple[Operation, ...]) -> None:
        """Send one command's worth. Raises TransactionAborted."""
        if transaction.aborted is not None:
            raise again(transaction.aborted)
        try:
            await self._life.ask(Stage(self._life.id, transaction.counter, pack), must=True)
        except (SessionEnded, OutcomeUnknown):
            raise transaction.abort("session", SESSION_ENDED) from None
        except (Refused, TooLarge, *NOT_ENCODABLE) as error:
            raise self.give_up(transaction, error) from None
        self._counters.add("stages")

    def give_up(self, transaction: Transaction, error: Exception) -> TransactionAborted:
        """What it met ends it: roll it back next. The error for its user."""
        cause, reason = cause_of(error)
        if transaction.counter:
            fate = outcome_of(self._life.host.view(), self._life.id, transaction.counter)
            if fate.state == "rolled back":
                # It was over already, by its time-out, and only this node did not know.
                self._counters.add("rolled_back")
                self._returned(transaction.accepted)
                return transaction.abort(fate.cause, fate.reason)
        aborted = transaction.abort(cause, reason)
        if transaction.counter:
            self._later(lambda: self.roll_back(transaction, reason))
        return aborted

    # --- the end ---

    async def roll_back(self, transaction: Transaction, reason: str) -> None:
        """Have it rolled back: at once, or by the end of its session."""
        # One that could not be sent would leave a gap: its session could commit nothing any more.
        reason = reason.encode("utf-8", "replace").decode("utf-8")[:REASON_CHARS_MAX]
        transaction.abort("rollback", reason)
        command = Rollback(self._life.id, transaction.counter, reason)
        try:
            await self._life.ask(command, must=True)
        except (SessionEnded, Lost):
            return  # the end of the session does it
        self._counters.add("rolled_back")
        self._returned(transaction.accepted)

    async def commit(self, transaction: Transaction) -> Committed:
        """Commit it. Raises TransactionAborted, and TransactionUnknown when the node stops."""
        packs = transaction.content.take()
        tail = packs.pop() if packs else ()
        for pack in packs:
            await self.stage_pack(transaction, pack)
        if transaction.aborted is not None:
            raise again(transaction.aborted)
        decided = await self._decided(transaction, Commit(self._life.id, transaction.counter, tail))
        if decided.verdict == "committed":
            self._counters.add("committed")
            return Committed(transaction.txid, decided.index, decided.spans)
        self._counters.add("rolled_back")
        error = transaction.abort(decided.cause, decided.reason)
        self._returned(transaction.accepted)
        raise error

    async def _decided(self, transaction: Transaction, command: Commit) -> Decided:
        delay_s = RETRY_FIRST_S
        while True:
            if self._life.ended:
                # What was sent is settled, and was not applied: nothing will commit it any more.
                raise transaction.abort("session", SESSION_ENDED)
            try:
                answer = await self._life.proposer.once(command)
            except SessionEnded:
                self._life.end()
                continue
            except Lost:
                fate = await self.fate(transaction.txid, command.counter)
                if fate is not None:
                    return fate
                continue
            except (Stopped, OutcomeUnknown):
                raise TransactionUnknown(transaction.txid) from None
            except (Refused, TooLarge, *NOT_ENCODABLE) as error:
                raise self.give_up(transaction, error) from None
            except NotApplied:
                if self._life.is_over:
                    self._life.end()
                    continue
                await self._life.host.runtime.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
                continue
            if isinstance(answer, Voting):
                return await self._voted(transaction.txid, command.counter, answer.number)
            decided: Decided = answer
            return decided

    async def _voted(self, txid: str, counter: int, number: int) -> Decided:
        """The participants are asked; their votes come through the log, as the verdict does."""
        try:
            await self._waiting.decided(number, None)
        except Stopped:
            raise TransactionUnknown(txid) from None
        return await self._kept(txid, counter)

    async def _kept(self, txid: str, counter: int) -> Decided:
        """The fate of one that cannot be open any more."""
        fate = await self.fate(txid, counter)
        if fate is None:
            raise TransactionUnknown(txid)
        return fate

    async def fate(self, txid: str, counter: int) -> Decided | None:
        """What the log keeps of it, waiting for votes; None: it is open, and its session lives.

        Raises `OutcomeForgotten`, and TransactionUnknown when the node stops.
        """
        host, session = self._life.host, self._life.id
        delay_s = RETRY_FIRST_S
        while True:
            try:
                await host.barrier()
                view = host.view()
                fate = outcome_of(view, session, counter)
                row: SessionRow | None = view.table("sessions").get(session)
                if fate.state == "preparing" and row is not None:
                    await self._waiting.decided(row.number, None)
                    continue
            except Stopped:
                raise TransactionUnknown(txid) from None
            except NotApplied:
                await host.runtime.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
                continue
            if fate.state == "committed":
                return Decided("committed", index=fate.index)
            if fate.state == "rolled back":
                return Decided("rolled back", fate.cause, fate.reason, fate.index)
            if fate.state == "forgotten":
                raise OutcomeForgotten(txid)
            if session_live(view, row):
                return None
            return Decided("rolled back", "session", SESSION_ENDED)

    async def repeat(self, txid: str, counter: int) -> Committed:
        """Answer a repeated commit of an earlier transaction as it was answered."""
        fate = await self.fate(txid, counter)
        if fate is None:
            raise UnknownTransaction(txid)
        if fate.verdict == "committed":
            return Committed(txid, fate.index)
        raise TransactionAborted(txid, fate.cause, fate.reason)
