"""Commands of clients that have no node of their own, proposed by this node under their sessions.

Theory. A client of the network door opens a session through the log and numbers its writes. The
node that it asks proposes the command under the client's session and number, not under its own, and
answers from its own apply, as it does for its own callers (outbox.py). A client that hears nothing
may ask any other node with the same number: whichever proposal comes first in the log is applied,
the others get its outcome (state/sessions.py).

Rules of this file
1. The numbers are the client's. This node keeps no floor and no order for them, and holds nothing
   about a command once its callers are answered or gone, but for a while how many copies have left:
   the exactly-once table is the memory.
2. Who uses a session shows its handle, `<number>-<nonce>`. A session's number is easy to guess and
   easier to mistake; the nonce is 63 random bits that the log keeps beside it. So no program writes
   under the numbers of another by mistake. (It is no substitute for TLS: who may speak to the door
   at all is settled there.)
3. A node that lags may not know a session yet: it first catches up with a majority, and only then
   says that there is none. `SessionExpired` therefore always means: this proposal was not applied.
   Where that is not certain, because a snapshot has jumped over entries, the answer is `Timeout`.
4. A number that is asked for again is one command, with all copies that ever left for it
   (former_copies.py).
5. A ticket is the right to one proposal. The HTTP API gets one for each request; a second command
   under one number would get the first one's answer as its own.

`TicketHost` is what the keyspace's API gets for such a request in place of its own host: the API
knows nothing of sessions and proposes as it always does. (A context variable would do without the
second API object, but what runs in reaction to a proposal, a timer or a service that wakes up,
inherits the context, and would then propose in the client's name.)
"""

from __future__ import annotations

import asyncio
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from .config import Limits, RaftTimes
from .deadlines import Deadlines, require_seconds
from .errors import (
    NoLeader,
    NotApplied,
    NumberReused,
    Overloaded,
    RaftkvError,
    Refused,
    SequenceTooFar,
    SessionExpired,
    Stopped,
    Timeout,
    TooLarge,
    cut_off,
    cut_off_unknown,
)
from .former_copies import FormerCopies
from .outbox import ENVELOPE_BYTES, SWEEP_S, Fates
from .plugin import Host
from .resending import NOT_SENT, Resending
from .runtime import Runtime, Timer
from .state.core import OpenSession
from .state.machine import StateMachine
from .state.tables import ABSENT

__all__ = ["Foreign", "Ticket", "TicketHost"]

# Waiting commands that are looked up in one turn after a snapshot: about 4 ms.
SETTLED_PER_TURN: Final = 2_000
MAYBE_APPLIED: Final = "; the command may have been applied"

_encode = msgspec.msgpack.Encoder().encode


class Ticket:
    """The right to propose one command as number `seq` of a client's session."""

    __slots__ = ("floor", "seq", "session", "used")

    def __init__(self, session: int, seq: int, floor: int) -> None:
        self.session = session
        self.seq = seq
        self.floor = floor
        self.used = False


class TicketHost:
    """A plugin's host whose proposals go under a ticket; all else is the plugin's own host."""

    def __init__(self, host: Host, foreign: Foreign, ticket: Ticket, plugin: str) -> None:
        self._host = host
        self._foreign = foreign
        self._ticket = ticket
        self._plugin = plugin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        """As `Host.propose`, but once."""
        return await self._foreign.propose(self._ticket, self._plugin, command, timeout_s)


class _Caller:
    """One that waits for a command."""

    __slots__ = ("future", "waiter")

    def __init__(self, waiter: _Waiter, future: asyncio.Future[Any]) -> None:
        self.waiter = waiter
        self.future = future


class _Waiter:
    """A command on its way, and who waits for it."""

    __slots__ = ("callers", "encoded", "key", "kind", "sends", "sent_at", "tries", "why")

    def __init__(self, key: tuple[int, int], kind: type[msgspec.Struct], encoded: bytes) -> None:
        self.key = key
        self.kind = kind
        self.encoded = encoded
        self.callers: list[_Caller] = []
        # Copies that have left, and attempts to send it (resending.py).
        self.sends = self.tries = 0
        self.sent_at = NOT_SENT
        # Why the leader has not taken it.
        self.why: NotApplied | None = None

    def end(self) -> None:
        """Answered or given up. Deadlines and flights hold it for a while, so drop the rest."""
        for caller in self.callers:
            del caller.future
        self.callers = []
        self.encoded = b""

    @property
    def wanted(self) -> bool:
        """Whether a caller waits for the answer."""
        return any(not caller.future.done() for caller in self.callers)

    def require_same(self, command: msgspec.Struct, seq: int) -> None:
        """Raise NumberReused for another command, or its caller would get this one's answer."""
        # The command stands at the end of what is sent.
        if type(command) is not self.kind or not self.encoded.endswith(_encode(command)):
            raise NumberReused(f"seq {seq} of the session is being used for another command")


class Foreign:
    """The commands of clients at one node. `send` hands them towards the leader, or says no.

    Bounded by the limits of the outbox, counted apart from it: `outbox_commands_max` and
    `outbox_bytes_max`. `waiting` is looked at by the replica for every command that is applied.
    """

    def __init__(
        self,
        runtime: Runtime,
        limits: Limits,
        times: RaftTimes,
        machine: StateMachine,
        send: Callable[[Sequence[bytes]], bool],
        timeout_s: float = 5.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._runtime = runtime
        self._limits = limits
        self._resending = Resending(
            runtime, times.resend_ms / 1000, limits.batch_bytes_max, send, self._is_wanted
        )
        self._deadlines: Deadlines[_Caller] = Deadlines(runtime, _is_over, self._expire)
        self._machine = machine
        self.waiting: dict[tuple[int, int], _Waiter] = {}
        self._former = FormerCopies(runtime.monotonic)
        self._unsent: list[_Waiter] = []
        self._bytes = 0
        self._flushing = False
        self._timer: Timer | None = None
        self._stopped = False
        # Snapshots of which not all waiting commands have been looked up.
        self._lookups = 0
        self.submitted = 0
        self.sessions_opened = 0
        self.applied = 0
        self.fates = Fates()

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def resends(self) -> int:
        return self._resending.resends

    # -- sessions

    async def open_session(self, timeout_s: float | None = None) -> str:
        """Open a client's session through the log; its handle. Raises NotApplied or Timeout."""
        nonce = int.from_bytes(self._runtime.token(8), "big") >> 1
        # A session is opened without one: under session 0, with the nonce as number.
        ticket = Ticket(0, nonce, 0)
        opened = await self.propose(ticket, "core", OpenSession(nonce), timeout_s)
        self.sessions_opened += 1
        return f"{opened.session}-{nonce:016x}"

    def knows(self, session: int, nonce: int) -> bool:
        """Whether this node's copy has the session, and under this nonce."""
        return self._machine.client_nonce(session) == nonce

    # -- commands

    async def propose(
        self, ticket: Ticket, plugin: str, command: msgspec.Struct, timeout_s: float | None = None
    ) -> Any:
        """As `Node.propose`, under a ticket. `timeout_s` None takes the node's."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return await self.submit(ticket, plugin, command, limit_s)

    def submit(
        self, ticket: Ticket, plugin: str, command: msgspec.Struct, timeout_s: float
    ) -> asyncio.Future[Any]:
        """The future of the command's outcome. Raises NotApplied or NumberReused at once."""
        require_seconds(timeout_s)
        if ticket.used:
            raise RuntimeError("a request with a session number proposed more than one command")
        ticket.used = True
        if self._stopped:
            raise Stopped("this node has stopped")
        key = (ticket.session, ticket.seq)
        waiter = self.waiting.get(key)
        if waiter is not None:
            waiter.require_same(command, ticket.seq)
        else:
            waiter = self._taken(key, ticket, plugin, command)
            self.waiting[key] = waiter
            self._unsent.append(waiter)
            if not self._flushing:
                self._flushing = True
                self._runtime.call_soon(self._flush)
        self.submitted += 1
        future = self._runtime.future()
        caller = _Caller(waiter, future)
        waiter.callers.append(caller)
        self._deadlines.add(self._runtime.monotonic() + timeout_s, caller)
        if self._timer is None:
            self._timer = self._runtime.call_later(SWEEP_S, self._sweep)
        return future

    def _taken(
        self, key: tuple[int, int], ticket: Ticket, plugin: str, command: msgspec.Struct
    ) -> _Waiter:
        body = _encode(command)
        limits = self._limits
        if len(body) + ENVELOPE_BYTES > limits.command_bytes_max:
            self.fates.too_large += 1
            raise TooLarge(
                f"the command has {len(body)} bytes; limits.command_bytes_max is "
                f"{limits.command_bytes_max}"
            )
        encoded = _encode((ticket.session, ticket.seq, ticket.floor, plugin, body))
        full = len(self.waiting) >= limits.outbox_commands_max
        if full or self._bytes + len(encoded) > limits.outbox_bytes_max:
            if full:
                self.fates.over_commands_max += 1
            else:
                self.fates.over_bytes_max += 1
            raise Overloaded(
                f"{len(self.waiting)} commands of {self._bytes} bytes of clients already wait in "
                f"this node (limits.outbox_commands_max, limits.outbox_bytes_max)"
            )
        self._bytes += len(encoded)
        waiter = _Waiter(key, type(command), encoded)
        # As if it had been sent so often by this request: what is rejected may be one of those.
        waiter.sends = waiter.tries = self._former.of(key)
        return waiter

    def _flush(self) -> None:
        self._flushing = False
        unsent, self._unsent = self._unsent, []
        if not self._stopped:
            self._resending.transmit(self._still_wanted(unsent))

    def _still_wanted(self, waiters: Sequence[_Waiter]) -> list[_Waiter]:
        """Those that a caller waits for; the others are forgotten."""
        wanted = []
        for waiter in waiters:
            if waiter.wanted:
                wanted.append(waiter)
            elif self.waiting.get(waiter.key) is waiter:
                self._forget(waiter)
        return wanted

    def _forget(self, waiter: _Waiter) -> None:
        """Those of its callers that have no answer have left."""
        del self.waiting[waiter.key]
        self._former.leave(waiter.key, waiter.sends)
        self._bytes -= len(waiter.encoded)
        self.fates.cancelled += len(waiter.callers)
        waiter.end()

    def office_changed(self) -> None:
        """Another leader, or the way to it has changed: what was sent may be lost."""
        self._unsent = []
        self._resending.restart(self._still_wanted(list(self.waiting.values())))

    def _is_wanted(self, waiter: _Waiter) -> bool:
        return self.waiting.get(waiter.key) is waiter

    # -- answers

    def settle(self, session: int, seq: int, outcome: Any, *, jumped: bool = False) -> None:
        """This node has applied the number, or (`jumped`) a snapshot says what became of it."""
        waiter = self.waiting.pop((session, seq), None)
        if waiter is None:
            return
        if waiter.sends > 1 or jumped:
            # The log has judged one copy.
            self._former.leave(waiter.key, waiter.sends if jumped else waiter.sends - 1)
        self._bytes -= len(waiter.encoded)
        # Another copy may be in what a snapshot has jumped over, if that was not looked up yet.
        unsure = waiter.sends > 0 if jumped else waiter.sends > 1 and self._lookups > 0
        if unsure and isinstance(outcome, SessionExpired):
            self._fail(waiter, _unknown("the session ended while the command was on its way"))
            return
        if not isinstance(outcome, Refused) and not _fits(waiter.kind, outcome):
            outcome = NumberReused(f"seq {seq} of the session was used for another command before")
        for caller in waiter.callers:
            future = caller.future
            if future.done():
                self.fates.cancelled += 1
            elif isinstance(outcome, Refused):
                self.fates.refused += 1
                # One refusal may be kept and raised more than once; each raise gets its own.
                future.set_exception(type(outcome)(*outcome.args))
            else:
                self.applied += 1
                future.set_result(outcome)
        waiter.end()

    def rejected(self, session: int, seq: int, error: NotApplied) -> None:
        """A core has left out one copy of a command; see `Outbox.rejected`.

        Of a number of which another copy may be applied nothing is known: its client may ask.
        """
        waiter = self.waiting.get((session, seq))
        if waiter is None:
            return
        if isinstance(error, Overloaded):
            if waiter.sends == 1:
                waiter.sends, waiter.why = 0, error
            return
        only = waiter.sends == 1
        del self.waiting[(session, seq)]
        self._former.leave(waiter.key, waiter.sends - 1)
        self._bytes -= len(waiter.encoded)
        self._fail(waiter, error if only else _unknown(f"a copy of it was left out ({error})"))

    def restored(self) -> None:
        """The state is that of a snapshot: answer those whose entries it has jumped over."""
        self._lookups += 1
        self._settle_jumped(list(self.waiting))

    def _settle_jumped(self, keys: list[tuple[int, int]]) -> None:
        """Some at a time. Whoever is settled by an entry meanwhile is not waiting any more."""
        for session, seq in keys[:SETTLED_PER_TURN]:
            waiter = self.waiting.get((session, seq))
            if waiter is None:
                continue
            if session == 0:
                opened = self._machine.client_session(seq)
                if opened is not None:
                    self.settle(session, seq, opened)
                continue
            outcome = self._machine.recall(session, seq, waiter.kind)
            # A number beyond the window of the older state was not judged by it either.
            if outcome is not ABSENT and type(outcome) is not SequenceTooFar:
                self.settle(session, seq, outcome, jumped=True)
        if len(keys) > SETTLED_PER_TURN:
            self._runtime.call_soon(self._settle_jumped, keys[SETTLED_PER_TURN:])
        else:
            self._lookups -= 1

    def _fail(self, waiter: _Waiter, error: Exception) -> None:
        for caller in waiter.callers:
            if not caller.future.done():
                self.fates.failed(error)
                caller.future.set_exception(type(error)(*error.args))
        waiter.end()

    # -- deadlines and the end

    def _sweep(self) -> None:
        self._timer = None
        if self._stopped:
            return
        self._resending.retry_stalled()
        self._resending.transmit(self._still_wanted(self._resending.due()))
        if self.waiting:
            self._timer = self._runtime.call_later(SWEEP_S, self._sweep)

    def _expire(self, due: list[_Caller], now: float) -> None:
        """Answer the callers whose deadline has passed; some may have left before."""
        for caller in due:
            waiter = caller.waiter
            if caller.future.done():
                self.fates.cancelled += 1
            else:
                error = _late(sent=waiter.sends > 0, why=waiter.why)
                self.fates.failed(error)
                caller.future.set_exception(error)
            waiter.callers.remove(caller)
            if not waiter.callers:
                self._forget(waiter)

    def history_ended(self) -> None:
        """The history that the commands were sent into was given up: nobody can tell."""
        for waiter in self.waiting.values():
            self._fail(waiter, _unknown("the cluster was recovered by force"))
        self.waiting.clear()
        self._former.clear()
        self._unsent, self._bytes = [], 0

    def stop(self, fault: RaftkvError | None = None) -> None:
        """Nothing more is sent. What was sent is unknown, the rest was not applied.

        `fault` is why the node has stopped itself.
        """
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._deadlines.stop()
        for waiter in self.waiting.values():
            unknown = cut_off_unknown(fault, MAYBE_APPLIED)
            self._fail(waiter, unknown if waiter.sends else cut_off(fault))
        self.waiting.clear()
        self._unsent, self._bytes = [], 0


def _is_over(caller: _Caller) -> bool:
    """Whether its deadline means nothing any more: the command has an answer."""
    return not caller.waiter.callers


def _fits(kind: type[msgspec.Struct], outcome: Any) -> bool:
    """Whether the outcome can be the result of such a command."""
    result: Any = getattr(kind, "Result", None)
    if result is None:
        return outcome is None
    is_union = typing.get_origin(result) in (typing.Union, types.UnionType)
    options = typing.get_args(result) if is_union else (result,)
    if not all(isinstance(each, type) for each in options):
        return True  # no class of its own to compare with
    return isinstance(outcome, options)


def _unknown(text: str) -> Timeout:
    return Timeout(f"{text}{MAYBE_APPLIED}")


def _late(*, sent: bool, why: NotApplied | None) -> Exception:
    if sent:
        return Timeout(
            "the deadline passed while the command was on its way; it may still be applied"
        )
    if why is not None:
        return type(why)(*why.args)
    return NoLeader(
        "no leader could be reached before the deadline; the command has not left this node. "
        "If this lasts, fewer than a majority of the cores are running"
    )
