"""Transactional queues as a program sees them on one node: `txq = node.plugin(TxQueue)`.

    await txq.declare("orders", depth_max=100_000)
    await txq.publish("orders", b"first")                   # visible on all nodes from now on

    async with txq.session("tx") as session:
        got = await session.get("orders", wait_s=5.0)
        async with session.transaction() as tx:             # all of it, or none
            await tx.publish("invoices", b"for the first")
            await tx.accept(*got)
        (await txq.outcome(tx.txid)).state                  # "committed", on every node

This file only joins the parts and gives them their public names. `session.py` is a program's
session, with what it holds and its transactions; `dtx.py` decides distributed ones; `observing.py`
calls those who take part in all of them; `waiting.py` knows who waits for what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec

from raftkv.plugin import Consistency, Host, PluginSettings, Proposer, Under
from raftkv.validation import checked

from .commands import (
    FORMAT_ENSURE,
    Declared,
    DeclareQueue,
    Deleted,
    DeleteQueue,
    EndSession,
    EnsureQueue,
    Kind,
    Overflow,
    Publish,
    Published,
    Purge,
    Purged,
    SessionClosed,
)
from .dtx import Dtx
from .line import TIMEOUT_S
from .metrics import Counters
from .observers import ObserverFactory
from .observing import Observing
from .opening import Opening, Sessions
from .options import options_of
from .queues import check_messages, completed
from .reading import Reading, require_possible
from .refusals import BadQueueName, SessionEnded
from .status import QueueStatus, TxQueueStatus, status_of
from .times import require_format_of
from .transaction import Outgoing, messages_of
from .views import Browsed, Fate, session_ended
from .waiting import Waiting

__all__ = ["TxQueueApi"]


@checked
class TxQueueApi:
    """The queues on one node. All methods belong to the node's event loop. Times are seconds.

    What changes something raises, besides what it says itself, `NotApplied` kinds (nothing happened
    and nothing will) and OutcomeUnknown kinds after `timeout_s` (it may happen yet).
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        #: The replicated settings of the plugin.
        self.settings = PluginSettings(host)
        self.options = options_of(host)
        self.counters = Counters()
        self.proposer = Proposer(host, self.counters)
        self.waiting = Waiting(host, self.counters)
        self.sessions = Sessions(host, self.proposer, self.waiting, self.counters, self.options)
        self.reading = Reading(host)
        #: Decides distributed transactions: XA's prepare, commit, rollback, recover, forget, ...
        self.dtx = Dtx(host, self.proposer, self.waiting, self.counters)
        self.observing = Observing(host, self.counters)

    # --- queues ---

    async def declare(
        self,
        queue: str,
        *,
        depth_max: int | None = None,
        bytes_max: int | None = None,
        overflow: Overflow | None = None,
        deliveries_max: int | None = None,
        dead_letter: str | None = None,
        ack_timeout_ms: int | None = None,
        ttl_ms: int | None = None,
        change: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Declared:
        """Make a queue. One that exists keeps what is not named (None); what is named and differs
        is refused, unless `change`, which gives it these limits and touches nothing in it.

        `depth_max` messages and `bytes_max` bytes (0: no limit); beyond them a publication is
        refused, or (`overflow` "drop_oldest") the oldest available messages make room. A message
        that comes back after `deliveries_max` deliveries (0: no limit), or is rejected, goes to the
        queue `dead_letter` ("": away), which must exist. A session that holds a message for longer
        than `ack_timeout_ms` (0: no limit) is ended, by the log's clock. Messages that are
        published to it from now on live `ttl_ms` (0: no limit) or their own `ttl_s`, whichever is
        shorter. Without names: no limit, "refuse", away. Raises `QueueDiffers`,
        `UnknownDeadLetter`, `BadQueueName`, `BadDeadLetter`, `BadAckTimeout`, `BadQueueTtl`,
        `DeadLetterCycle`, `TooManyQueues`, ValueError for what is no limit; UnknownCommand for an
        `ack_timeout_ms` or a `ttl_ms` below format 2.
        """
        for name in (queue, dead_letter or ""):
            if not name.isascii():
                raise BadQueueName(name)
        command = EnsureQueue(
            queue,
            depth_max,
            bytes_max,
            overflow,
            deliveries_max,
            dead_letter,
            change,
            ack_timeout_ms,
            ttl_ms,
        )
        try:
            msgspec.convert(msgspec.to_builtins(command), EnsureQueue)
        except (msgspec.ValidationError, OverflowError) as error:
            raise ValueError(f"no such queue can be declared: {error}") from None
        deadline = self._deadline(timeout_s)
        done: Declared = await self.proposer.until_verdict(
            await self._declaration(command, timeout_s), deadline
        )
        return done

    async def _declaration(
        self, command: EnsureQueue, timeout_s: float
    ) -> EnsureQueue | DeclareQueue:
        """What is proposed. Below format 2 the node compares, and not the log."""
        if self.host.view().version >= FORMAT_ENSURE or command.ack_timeout_ms or command.ttl_ms:
            return command
        await self.host.barrier("linearizable", timeout_s=timeout_s)
        return completed(self.host.view(), command)

    async def delete(
        self,
        queue: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Deleted:
        """Delete a queue with its messages. Raises `UnknownQueue`, and `QueueInUse`: undecided
        transactions have content of it; `DeadLetterInUse`: other queues name it as their
        dead-letter queue (format 2); `QueueNotEmpty` (`if_empty`), `QueueAcquired` (`if_unused`:
        sessions hold messages of it)."""
        require_possible(queue)
        command = DeleteQueue(queue, if_empty, if_unused)
        done: Deleted = await self.proposer.until_verdict(command, self._deadline(timeout_s))
        return done

    async def purge(self, queue: str, *, timeout_s: float = TIMEOUT_S) -> int:
        """Remove the available messages that are in it now; how many there were.

        Large queues take several commands: after an error some may have been removed. Raises
        `UnknownQueue`, ReadTimeout.
        """
        deadline = self._deadline(timeout_s)
        status = await self.depth(queue, timeout_s=timeout_s)
        removed, more = 0, status.next_seq > 1
        while more:
            command = Purge(queue, status.next_seq - 1)
            purged: Purged = await self.proposer.until_verdict(command, deadline)
            removed += purged.messages
            more = purged.more
        return removed

    async def publish(
        self,
        queue: str,
        what: Outgoing,
        *,
        ttl_s: float | None = None,
        delay_s: float | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Published:
        """Publish a message or several, in this order, all or none; they are visible at once.

        `delay_s`: they are available after that time; `ttl_s`: once they have been available for
        that time they are dead. Seconds of the log's clock; None: what the headers of each message
        state, else none.
        Outside of any transaction and session. After OutcomeUnknown they may be in the queue: who
        must know publishes in a transaction, or over the door under a client's number. Raises
        `UnknownQueue`, `QueueFull`, `MessageTooLarge`, `BadHeaders`, `BadTime`, `TooManyTimed`,
        `EmptyBatch`, FormatRefused (times below format 2), and `BatchTooLarge`: a transaction takes
        more.
        """
        require_possible(queue)
        messages = messages_of(what, ttl_s, delay_s)
        require_format_of(self.host.view(), messages)
        check_messages(self.host.view(), messages)
        command = Publish(queue, messages)
        done: Published = await self.proposer.until_verdict(command, self._deadline(timeout_s))
        self.counters.add("published", len(messages))
        return done

    async def publish_under(
        self, under: Under, queue: str, what: Outgoing, *, timeout_s: float = TIMEOUT_S
    ) -> Published:
        """`publish` under a client's number: once, however often and at whichever node it is
        asked, with the first answer. Raises `SessionExpired`, `NumberReused` besides."""
        require_possible(queue)
        messages = messages_of(what)
        require_format_of(self.host.view(), messages)
        host = await under.host(self.host)
        done: Published = await host.propose(Publish(queue, messages), timeout_s=timeout_s)
        self.counters.add("published", len(messages))
        return done

    # --- sessions ---

    def session(self, kind: Kind = "plain", *, timeout_s: float | None = TIMEOUT_S) -> Opening:
        """Open a session: `session = await txq.session("tx")`, or `async with txq.session("tx")`.

        "plain": everything is done at once; "tx": publishing and accepting is done in local
        transactions; "dtx": in distributed ones, while the session is attached to a branch. Raises
        `TooManySessions`.
        """
        if kind not in get_args(Kind):
            raise ValueError(f"a session is one of {', '.join(get_args(Kind))}, not {kind!r}")
        return Opening(self.sessions, kind, timeout_s)

    async def end_session(
        self, session: int, reason: str = "", *, timeout_s: float = TIMEOUT_S
    ) -> SessionClosed:
        """End a session of whatever node, by its number, as an operator: it hangs, say.

        What it holds goes back and counts as delivered, its open transaction is rolled back, a
        branch that it works in can only be rolled back; what was prepared stands. Its program gets
        `SessionEnded` with the `reason`. Raises `SessionEnded` if it has ended before,
        UnknownCommand below format 2.
        """
        command = EndSession(session, reason)
        try:
            msgspec.convert(msgspec.to_builtins(command), EndSession)
        except (msgspec.ValidationError, OverflowError) as error:
            raise ValueError(f"no session can be ended so: {error}") from None
        try:
            done: SessionClosed = await self.proposer.until_verdict(
                command, self._deadline(timeout_s)
            )
        except SessionEnded:
            raise session_ended(self.host.view(), session) from None
        return done

    # --- reading ---

    def queues(self) -> tuple[QueueStatus, ...]:
        """All queues, by name, as this node's copy has them."""
        return self.reading.queues()

    async def depth(
        self,
        queue: str,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float = TIMEOUT_S,
    ) -> QueueStatus:
        """A queue's figures and limits. Raises `UnknownQueue`, ReadTimeout."""
        return await self.reading.depth(queue, consistency, timeout_s)

    async def browse(
        self,
        queue: str,
        *,
        first: int = 1,
        limit: int = 100,
        everything: bool = False,
        consistency: Consistency = "linearizable",
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[Browsed, ...]:
        """Look at messages from the seq `first` on, in order, without taking them.

        The available ones; `everything`: also those that sessions hold, or have accepted in
        transactions that are not decided, with their `holder`. Raises `UnknownQueue`, ReadTimeout.
        """
        return await self.reading.browse(queue, first, limit, everything, consistency, timeout_s)

    async def outcome(self, txid: str, *, timeout_s: float = TIMEOUT_S) -> Fate:
        """What became of a TX, asked on whichever node: see `Fate`. Of a branch: `dtx.outcome`.

        Final when it says "committed" or "rolled back". Raises `UnknownTransaction` for a text that
        is no txid, ReadTimeout.
        """
        return await self.reading.outcome(txid, timeout_s)

    # --- taking part ---

    def observe(self, factory: ObserverFactory) -> Callable[[], None]:
        """Take part in all transactions from now on; the result ends that. See `observers.py`."""
        return self.observing.observe(factory)

    # --- seeing ---

    def status(self) -> TxQueueStatus:
        """Queues, sessions and transactions at one look, as this node's copy has them."""
        return status_of(
            self.host,
            waiting=len(self.waiting),
            observers=len(self.observing),
            counters=self.counters.as_dict(),
        )

    # --- called by the service ---

    def start(self) -> None:
        """The tables can be read."""

    def on_progress(self, index: int) -> None:
        """Entries were applied."""
        self.sessions.look_at_endings()
        self.waiting.look()

    def on_restored(self, index: int) -> None:
        """A snapshot replaced the state."""
        self.sessions.look()
        self.waiting.look_at_all()

    def on_incarnation(self, incarnation: int) -> None:
        """This node has a new life: the sessions of the old one have ended."""
        self.sessions.look()
        self.waiting.look_at_all()

    def stop(self) -> None:
        """The node stops: end what callers wait for. May be called again."""
        self.sessions.stop()
        self.waiting.stop()

    def _deadline(self, timeout_s: float) -> float:
        return self.host.runtime.monotonic() + timeout_s
