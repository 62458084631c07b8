"""A session of a program with the queues: it holds messages, and it may be in a transaction.

    async with txq.session("tx") as session:
        got = await session.get("orders", count=10, wait_s=1.0)
        await session.publish("invoices", [bill(one.body) for one in got])
        await session.accept(*got)
        await session.commit()

What a session holds, and its transaction, end with it, and it ends with the life of its node; what
was prepared does not. In a session of the kind "tx" everything that is published and accepted is in
a transaction; one begins with the first operation after the last one ended. In one of the kind
"dtx" it is while the session is attached to a branch. Otherwise it is done at once.

Calls of one session are done in the order in which they were made (`line.py`), but for `get`, which
has an order of its own (`holding.py`). Operations of a
transaction are gathered here and sent in packs (`transaction.py`); how one ends is in
`committing.py`, what a distributed one needs besides in `attaching.py`.

A call may be cancelled, or may stop waiting (`timeout_s`, seconds): that decides nothing. What has
begun goes on, and what comes later comes after it. Messages that were acquired for a caller who had
left are given back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, get_args

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    Overloaded,
    RaftkvError,
    Stopped,
    again,
)
from raftkv.validation import checked as checked_arguments

from .attaching import Attaching
from .commands import (
    INT_MAX,
    ROWS_MAX,
    Kind,
    Message,
    Publish,
    Published,
    Select,
    Settled,
)
from .committing import SESSION_ENDED, Committing
from .consuming import PREFETCH, Delivery, Subscription
from .errors import NotSent, TransactionAborted, TransactionUnknown
from .holding import Holding, by_queue
from .line import TIMEOUT_S, Line, Share
from .queues import check_messages, checked
from .reading import require_possible, txid_parts
from .refusals import InTransaction, SessionEnded, WrongKind
from .rows import SettlingVerb
from .scope import Scope
from .times import require_format, require_format_of
from .transaction import Committed, Outgoing, Transaction, messages_of
from .xa import XaStatus, Xid

if TYPE_CHECKING:
    from .life import Life
    from .metrics import Counters
    from .options import TxQueueOptions
    from .waiting import Waiting

__all__ = ["Session"]


@checked_arguments
class Session:
    """A session. It belongs to the node's event loop. Get one from `txq.session(kind)`.

    Besides what is said there, every method raises SessionEnded once the session has ended, and
    TransactionAborted in a transaction that can only be rolled back.
    """

    def __init__(
        self, life: Life, waiting: Waiting, counters: Counters, options: TxQueueOptions
    ) -> None:
        self._life = life
        self._waiting = waiting
        self._counters = counters
        self._options = options
        self._line = Line(life.host, counters)
        self._holding = Holding(life, waiting, counters)
        self._committing = Committing(
            life, waiting, counters, self._line.later, self._holding.take_back
        )
        self._attaching = Attaching(life, self._committing)
        self._closing = False
        #: The running TX, if it has begun, and the counter and the transaction of the last.
        self._tx: Transaction | None = None
        self._last: Transaction | None = None
        self._counter = 0
        life.on_end = self._ended
        #: Called when it has ended, by whoever keeps the node's sessions.
        self.on_end: Callable[[], object] = lambda: None

    # --- what it is ---

    @property
    def id(self) -> int:
        """Its number, the same on all nodes."""
        return self._life.id

    @property
    def kind(self) -> Kind:
        return self._life.kind

    @property
    def ended(self) -> bool:
        """Whether it was closed, or its node's life has ended. Final."""
        return self._life.ended or self._closing

    @property
    def txid(self) -> str:
        """Of the running TX, else of the last one; "": there was none."""
        running = self._tx or self._last
        return running.txid if running is not None else ""

    @property
    def next_txid(self) -> str:
        """Of the running TX, else the one that the next will have."""
        running = self._tx.txid if self._tx is not None else ""
        return running or f"{self.id}.{self._counter + 1}"

    @property
    def branch(self) -> Xid | None:
        """The branch that it is attached to."""
        branch = self._attaching.branch
        return None if branch is None else branch.xid

    @property
    def aborted(self) -> TransactionAborted | None:
        """Why the running transaction, or else the last one, was or can only be rolled back."""
        running = self._tx or self._last or self._attaching.last
        return None if running is None else running.aborted

    @property
    def held(self) -> tuple[Delivery, ...]:
        """Messages that it has acquired and not settled, as far as this node knows."""
        return self._holding.held

    def holds(self, queue: str, seq: int) -> bool:
        """Whether it has this message, and has not settled it."""
        return self._holding.has(queue, seq)

    # --- publishing ---

    async def publish(
        self,
        queue: str,
        what: Outgoing,
        *,
        ttl_s: float | None = None,
        delay_s: float | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Published | None:
        """Publish a message or several, all or none. In a transaction: with it; the answer is None.

        `ttl_s`, `delay_s`: as in `TxQueueApi.publish`; in a transaction they begin with its commit.
        Raises `MessageTooLarge`, `BadHeaders`, `BadTime`, `EmptyBatch`; outside of a transaction
        also `UnknownQueue`, `QueueFull`, `TooManyTimed` and `BatchTooLarge`. In a transaction these
        end it, when it is staged or committed. FormatRefused: the cluster knows no times yet.
        """
        require_possible(queue)
        messages = messages_of(what, ttl_s, delay_s)
        require_format_of(self._life.host.view(), messages)
        transaction = self._running()
        if transaction is None and self.kind != "tx":
            check_messages(self._life.host.view(), messages)
            return await self._line.do(partial(self._publish, queue, messages), timeout_s)
        size = checked(self._life.host.view(), messages)
        transaction = self._number(transaction)
        transaction.content.publish(queue, messages, size)
        await self._stage_when_full(transaction, timeout_s)
        return None

    async def _publish(self, queue: str, messages: tuple[Message, ...]) -> Published:
        done: Published = await self._life.ask(Publish(queue, messages))
        self._counters.add("published", len(messages))
        return done

    # --- consuming ---

    async def get(
        self,
        queue: str,
        count: int = 1,
        *,
        wait_s: float | None = 0.0,
        bytes_max: int = 0,
        timeout_s: float | None = TIMEOUT_S,
    ) -> tuple[Delivery, ...]:
        """Acquire the oldest messages, `count` at most; they are the session's until it settles.

        Waits up to `wait_s` for the first one (None: for ever); () when there was none. `bytes_max`
        bounds what comes beyond the first, 0: it does not. `timeout_s` is for the log's answer.

        Raises `UnknownQueue`, `TooManyAcquired`.
        """
        require_possible(queue)
        self._require_life()
        if not 1 <= count <= ROWS_MAX:
            raise ValueError(f"count is 1 to {ROWS_MAX} messages")
        if not 0 <= bytes_max <= INT_MAX:
            raise ValueError("bytes_max is a number of bytes, or 0 for no limit")
        return await self._holding.get(queue, count, wait_s, bytes_max, timeout_s)

    def subscribe(self, queue: str, prefetch: int = PREFETCH) -> Subscription:
        """Messages of a queue without end, for `async for`.

        `prefetch`: how many it may have taken that are not settled yet. A larger one is quicker,
        and keeps more from other consumers.
        """
        self._require_life()
        return Subscription(self, queue, prefetch)

    # --- settling ---

    async def accept(
        self, *deliveries: Delivery, timeout_s: float | None = TIMEOUT_S
    ) -> dict[str, Settled]:
        """Done with these messages. In a transaction: with it; the answer is {}.

        Else what was done in each queue. Those that the session does not hold (any longer) are
        `missing`; in a transaction they end it.
        """
        return await self.settle("accept", by_queue(deliveries), timeout_s=timeout_s)

    async def release(
        self, *deliveries: Delivery, timeout_s: float | None = TIMEOUT_S
    ) -> dict[str, Settled]:
        """Give these back: each is available again, in its old place. Not part of a transaction."""
        return await self.settle("release", by_queue(deliveries), timeout_s=timeout_s)

    async def reject(
        self, *deliveries: Delivery, timeout_s: float | None = TIMEOUT_S
    ) -> dict[str, Settled]:
        """Refuse these: they go to the dead letters, or away. Not part of a transaction."""
        return await self.settle("reject", by_queue(deliveries), timeout_s=timeout_s)

    async def put_back(
        self, *deliveries: Delivery, timeout_s: float | None = TIMEOUT_S
    ) -> dict[str, Settled]:
        """As `release`, of messages that the program has not looked at: not counted as delivered.

        What a subscription has taken ahead is put back by itself. Below format 2 as `release`.
        """
        return await self.settle("put_back", by_queue(deliveries), timeout_s=timeout_s)

    async def to_back(
        self, *deliveries: Delivery, timeout_s: float | None = TIMEOUT_S
    ) -> dict[str, Settled]:
        """Return these to the back: each is the last message of its queue, under a new number, and
        its deliveries count. Not part of a transaction. Raises FormatRefused below format 2."""
        return await self.settle("to_back", by_queue(deliveries), timeout_s=timeout_s)

    async def settle(
        self,
        settling: SettlingVerb,
        seqs: Mapping[str, Sequence[int]],
        *,
        timeout_s: float | None = TIMEOUT_S,
    ) -> dict[str, Settled]:
        """The same by numbers, for each queue."""
        verbs = get_args(SettlingVerb)
        if settling not in verbs:
            raise ValueError(f"to settle is one of {', '.join(verbs)}: {settling!r}")
        for queue, numbers in seqs.items():
            require_possible(queue)
            if numbers and not 1 <= min(numbers) <= max(numbers) <= INT_MAX:
                raise ValueError("the numbers of messages begin with 1")
        if settling == "to_back":
            require_format(self._life.host.view())
        transaction = None
        if settling == "accept":
            transaction = self._running()
        else:
            self._require_life()
        if transaction is None and (settling != "accept" or self.kind != "tx"):
            return await self._line.do(
                partial(self._holding.settle, settling, seqs),
                timeout_s,
                share=Share(settling, seqs, partial(self._holding.settle_all, settling)),
            )
        for queue, numbers in seqs.items():
            if numbers:
                transaction = self._number(transaction)
                transaction.content.accept(queue, numbers)
                transaction.accepted.extend(self._holding.pass_on(queue, numbers))
        if transaction is not None:
            await self._stage_when_full(transaction, timeout_s)
        return {}

    def take_ahead(self, deliveries: Sequence[Delivery]) -> None:
        """A subscription keeps these; they are put back if the session ends in order."""
        self._holding.take_ahead(deliveries)

    def hand_out(self, delivery: Delivery) -> None:
        """The program gets this one from a subscription: from now on it is delivered."""
        self._holding.hand_out(delivery)

    async def settled_some(self) -> None:
        """Wait until it holds other messages than now."""
        self._require_life()
        await self._holding.change()

    async def pause(self, delay_s: float) -> None:
        """Sleep, by the clock of the node."""
        await self._life.host.runtime.sleep(delay_s)

    # --- transactions ---

    def begin(self) -> str:
        """Begin a TX now, if none is running; its txid. (The first operation begins one, too.)

        Raises `WrongKind`.
        """
        self._require_tx()
        self._require_life()
        return self._number(self._tx).txid

    async def flush(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Have everything of the transaction staged that was gathered: it is known to be possible.

        Raises TransactionAborted if it is not.
        """
        transaction = self._running()
        if transaction is not None:
            await self._stage(transaction, timeout_s)

    async def commit(
        self, txid: str | None = None, *, timeout_s: float | None = TIMEOUT_S
    ) -> Committed:
        """Make all of the TX visible, on every node in the same entry of the log.

        With the `txid` of an earlier one: answer as it was answered, and do nothing.

        Raises TransactionAborted: surely nothing was applied, the accepted messages are the
        session's again; and `TransactionUnknown` after `timeout_s`, when the commit goes on and
        `outcome(txid)` tells. Of an earlier one also `UnknownTransaction`, `OutcomeForgotten`.
        """
        self._require_tx()
        transaction = self._tx
        if txid and (transaction is None or transaction.txid != txid):
            return await self._repeat(txid, timeout_s)
        if transaction is None or not transaction.counter:
            self._tx = None
            self._require_life()
            return Committed("")
        self._tx, self._last = None, transaction
        if transaction.aborted is not None:
            raise again(transaction.aborted)
        unknown = partial(TransactionUnknown, transaction.txid)
        try:
            return await self._line.do(
                partial(self._committing.commit, transaction), timeout_s, must=True, late=unknown
            )
        except TransactionUnknown:
            self._counters.add("unknown")
            raise

    async def _repeat(self, txid: str, timeout_s: float | None) -> Committed:
        session, counter = txid_parts(txid)
        if session != self.id:
            raise SessionEnded(session)
        # In the line behind the commit itself, if that is still under way.
        try:
            return await self._line.do(
                partial(self._committing.repeat, txid, counter),
                timeout_s,
                late=partial(TransactionUnknown, txid),
            )
        except (NotSent, Overloaded, Stopped):
            # Of the question that is true; of the transaction nothing is known.
            raise TransactionUnknown(txid) from None

    async def rollback(self, reason: str = "", *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Undo all of the running TX; what it accepted is the session's again.

        It is decided with the call: a caller that leaves, or is late, changes nothing.
        """
        self._require_tx()
        transaction, self._tx = self._tx, None
        if transaction is None or not transaction.counter:
            return
        self._last = transaction
        work: Callable[[], Awaitable[None]]
        if transaction.aborted is None:
            work = partial(self._committing.roll_back, transaction, reason)
        else:
            work = _nothing  # behind the rollback that stands in line already
        await self._line.do(work, timeout_s, must=True)

    def transaction(self) -> Scope:
        """`async with session.transaction() as tx`: commits at the end, rolls back on an error.

        Raises `InTransaction` if one is running, `WrongKind`.
        """
        self._require_tx()
        self._require_life()
        if self._tx is not None:
            raise InTransaction(self.id)
        return Scope(self)

    def enter(self) -> Transaction:
        """Begin a TX that gets its counter later. Raises `InTransaction`."""
        self._require_life()
        if self._tx is not None:
            raise InTransaction(self.id)
        self._tx = Transaction(self.id)
        return self._tx

    def is_running(self, transaction: Transaction) -> bool:
        """Whether this is the transaction that the next operation would be part of."""
        return self._tx is transaction

    async def select(self, kind: Kind, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Make it a session of another kind. Raises `InTransaction`."""
        self._require_life()
        if self._tx is not None and not self._tx.counter:
            self._tx = None
        if self._tx is not None or self._attaching.branch is not None:
            raise InTransaction(self.id)
        await self._line.do(partial(self._select, kind), timeout_s)

    async def _select(self, kind: Kind) -> None:
        await self._life.ask(Select(self.id, kind))
        self._life.kind = kind

    # --- branches ---

    async def start(
        self,
        xid: Xid,
        *,
        join: bool = False,
        resume: bool = False,
        timeout_s: float | None = None,
        deadline_s: float | None = TIMEOUT_S,
    ) -> XaStatus:
        """Attach to a new branch, to one that others work in (`join`), or again (`resume`).

        OK, or RBROLLBACK or RBTIMEOUT: it has failed, and the session is not attached. `timeout_s`
        is the branch's, 0: none, None: the setting; `deadline_s` is how long this call waits. Who
        leaves before the answer looks at `branch`. Raises `BranchRefused` kinds.
        """
        self._require_life()
        work = partial(self._attaching.start, xid, join, resume, timeout_s)
        return await self._line.do(work, deadline_s)

    async def end(
        self,
        xid: Xid,
        *,
        suspend: bool = False,
        fail: bool = False,
        deadline_s: float | None = TIMEOUT_S,
    ) -> XaStatus:
        """Detach from a branch: for good, until it is resumed, or marking it as failed.

        Also RBROLLBACK: the branch can only be rolled back, because something of it could not be
        done (`aborted`), or as it was told to fail; RBTIMEOUT: it took too long. Raises
        `BranchRefused` kinds: the session is attached as before.
        """
        self._require_life()
        work = self._attaching.leave(xid, suspend, fail)
        return await self._line.do(work, deadline_s, must=True)

    # --- the end ---

    async def close(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """End it: what it holds goes back, and its open transaction is rolled back.

        What a subscription took ahead and did not hand out goes back uncounted. It is decided with
        the call. Earlier calls are finished before.
        """
        if self.ended:
            return
        self._closing = True
        if self._tx is not None:
            self._last, self._tx = self._tx, None
            self._last.abort("session", SESSION_ENDED)
        ahead = self._holding.ahead()
        self._holding.end(SessionEnded(self.id))
        await self._line.do(partial(self._close, ahead), timeout_s, must=True)

    async def _close(self, ahead: Mapping[str, Sequence[int]]) -> None:
        if ahead:
            with suppress(RaftkvError):  # then it goes back with the session
                await self._holding.settle("put_back", ahead, must=True)
        await self._life.close()
        self._life.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except (NotApplied, OutcomeUnknown) as late:
            # It goes on, and ends with this node at the latest.
            self._life.host.log.debug("txqueue: closing a session: %s", type(late).__name__)

    def look(self) -> None:
        """The node has a new life, or other tables: has it ended?"""
        if not self._life.ended and self._life.is_over:
            self._life.end()

    def stop(self) -> None:
        """The node stops."""
        self._line.stop()
        self._holding.stop()

    def _ended(self) -> None:
        """The session has ended, by whomever."""
        if not self._closing:
            self._counters.add("sessions_ended")
        error = self._life.error()
        for transaction in (self._tx, self._attaching.branch):
            if transaction is not None:
                transaction.abort("session", SESSION_ENDED)
        self._holding.end(error)
        self._line.fail_waiting(error)
        self._line.retire()
        self.on_end()

    # --- details ---

    def _require_life(self) -> None:
        if self.ended:
            raise self._life.error()

    def _require_tx(self) -> None:
        if self.kind != "tx":
            raise WrongKind(self.id, "tx")

    def _running(self) -> Transaction | None:
        """The branch or the TX that goes on, if there is one. Raises TransactionAborted."""
        transaction = self._attaching.branch or self._tx
        if transaction is not None and transaction.aborted is not None:
            raise again(transaction.aborted)
        self._require_life()
        return transaction

    def _number(self, transaction: Transaction | None) -> Transaction:
        """Begin a TX unless one goes on, and give it its counter, before its first operation."""
        if transaction is None:
            transaction = self._tx = Transaction(self.id)
        if transaction.xid is None and not transaction.counter:
            self._counter += 1
            transaction.counter = self._counter
        return transaction

    async def _stage_when_full(self, transaction: Transaction, timeout_s: float | None) -> None:
        if transaction.content.is_full(self._options):
            await self._stage(transaction, timeout_s)

    async def _stage(self, transaction: Transaction, timeout_s: float | None) -> None:
        work = partial(self._committing.stage, transaction)
        await self._line.do(work, timeout_s, must=True)


async def _nothing() -> None:
    pass
