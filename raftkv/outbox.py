"""Commands of this node on their way into the log: sequence numbers, sending again, deadlines.

Theory. A node proposes under a session that was opened through the log. Every command gets the
next sequence number; the state machine applies each number once and keeps its outcome until the
*floor*, the lowest number still unanswered, passes it. So a command may be sent as often as one
likes: after a change of leader, after a reset connection, after silence. The answer to the caller
comes from this node's own apply, never from a message, and so the caller then reads its own write
on this node.

A deadline is never a decision: when it passes, the caller gets `Timeout` (unknown outcome), or
`NoLeader` if the command has provably never left this node. A number whose caller has given up
holds the floor for `ABANDONED_KEPT_S`, so that its outcome can still be asked for. The floor passes
it only once it is decided: applied here, or settled through the log as never to be applied.

A session judges numbers within a window above the floor. Once half of it is used, or half of the
commands that may wait, what is given up holds the floor only until it is decided, and the log is
also asked about what later numbers have overtaken: if that was not applied it goes on under a new
number (docs/internals/proposals.md). What is given up holds no bytes: it is never sent again.

Commands of the core, such as the verdict that a node is dead, do not wait for room behind those of
callers: `CORE_RESERVE` of them are taken beyond the limits. Questions about outcomes and settings
are callers'.

Sending is batched: what was submitted during one turn of the loop leaves as one message.

When the session ends under a running node (it was declared dead while it could not speak), a
command that was sent once and refused as SessionExpired is known not to have been applied, and is
sent again under the new session; one that was sent more often may have been applied by an earlier
attempt, and its caller gets `Timeout`. So does one whose fate lies in entries that a snapshot has
jumped over.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .config import Limits, RaftTimes
from .deadlines import ALARM_GRAIN_S, Deadlines, require_seconds
from .errors import (
    NotApplied,
    OutcomeExpired,
    Overloaded,
    RaftkvError,
    Refused,
    SequenceTooFar,
    SessionExpired,
    Stopped,
    cut_off,
    cut_off_unknown,
)
from .fates import Fates
from .flight_times import FlightTimes
from .kept_outcomes import KeptOutcomes
from .resending import NOT_SENT, Resending
from .runtime import Runtime, Timer
from .state import sessions
from .state.core import CORE, SetSetting, SettleOutcome
from .waiter import (
    Waiter,
    is_over,
    is_wanted,
    late,
    no_leader,
    queue_full,
    session_ended,
    too_large,
    window_full,
)

__all__ = ["Fates", "Outbox"]

ABANDONED_KEPT_S = 30.0
# Numbers of the window that are kept for settling others, and so many are settled at one time.
SETTLING_MAX = 256
# A number that could not be settled now is looked at again after so long.
SETTLE_AGAIN_S = 1.0
# How often unanswered commands are looked at, to send them again.
SWEEP_S = 0.05
# Commands of the core that are taken beyond the limits, and their bytes: a few for each node of a
# cluster, of some hundred bytes.
CORE_RESERVE = 256
CORE_RESERVE_BYTES = 256 * 1024
# What callers and plugins propose under the core's name, as many as they like: not of the reserve.
OF_CALLERS = (SettleOutcome, SetSetting)
# Room for session, number, floor and plugin name around an encoded command.
ENVELOPE_BYTES = 320

_encode = msgspec.msgpack.Encoder().encode


class Outbox:
    """The outbox of one node. `send` hands encoded commands towards the leader, or says no."""

    def __init__(
        self,
        runtime: Runtime,
        limits: Limits,
        times: RaftTimes,
        send: Callable[[Sequence[bytes]], bool],
        window: int | None = None,
    ) -> None:
        """`window` of the sessions; None: sessions.SESSION_WINDOW."""
        self._window = sessions.SESSION_WINDOW if window is None else window
        self._settling_max = min(SETTLING_MAX, self._window // 8)
        # Numbers above the floor that commands of callers may use.
        self._numbers_max = self._window - self._settling_max
        # Numbers that the log is being asked about.
        self._settling = 0
        self._floor = 1
        # The highest number that was answered: the streams keep the order, so it has overtaken
        # those below it that were not.
        self._highest = 0
        self._kept = KeptOutcomes()
        self._runtime = runtime
        self._limits = limits
        self._resending = Resending(
            runtime, times.resend_ms / 1000, limits.batch_bytes_max, send, is_wanted
        )
        self.session = 0
        self._next_seq = 1
        self._sent: dict[int, Waiter] = {}
        # In the order in which they were submitted; a dict, so that any of them can leave.
        self._unsent: dict[Waiter, None] = {}
        # Those of this turn, whose deadlines are noted at its end.
        self._submitted: list[Waiter] = []
        self._deadlines: Deadlines[Waiter] = Deadlines(runtime, is_over, self._expire_due)
        self._bytes = 0
        # When it was last searched for cancelled calls.
        self._looked_at = -math.inf
        self._flushing = False
        self._timer: Timer | None = None
        self._stopped = False
        self.submitted = 0
        # Commands whose callers were told that time is up, and that still hold the floor.
        self._abandoned = 0
        self.fates = Fates()
        self._flights = FlightTimes(runtime.monotonic)
        self.latency_s = self._flights.latency_s

    def __len__(self) -> int:
        return len(self._sent) + len(self._unsent)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def resends(self) -> int:
        return self._resending.resends

    @property
    def applied(self) -> int:
        """Commands that ended with a result: all that have no other fate, so none is counted."""
        return self.submitted - self.fates.failures - (len(self) - self._abandoned)

    def submit(self, plugin: str, command: msgspec.Struct, timeout_s: float) -> asyncio.Future[Any]:
        """The future of the command's outcome. Raises Overloaded, TooLarge or Stopped at once."""
        if self._stopped:
            raise Stopped("this node has stopped")
        if timeout_s != timeout_s:  # for every command: without a call
            require_seconds(timeout_s)
        body = _encode(command)
        if len(body) + ENVELOPE_BYTES > self._limits.command_bytes_max:
            self.fates.too_large += 1
            raise too_large(len(body), self._limits.command_bytes_max)
        unsent = self._unsent
        if (
            self._next_seq + len(unsent) - self._floor >= self._numbers_max
            and self._window_is_full()
        ):
            self.fates.over_window += 1
            raise window_full(self._next_seq - self._floor, self._window, self._floor)
        self._bytes += len(body)
        if (
            len(self._sent) + len(unsent) >= self._limits.outbox_commands_max
            or self._bytes > self._limits.outbox_bytes_max
        ) and not self._finds_room(plugin, type(command)):
            self._bytes -= len(body)
            if len(self) >= self._limits.outbox_commands_max:
                self.fates.over_commands_max += 1
            else:
                self.fates.over_bytes_max += 1
            raise queue_full(len(self), self._bytes)
        future = self._runtime.future()
        deadline = self._runtime.monotonic() + timeout_s
        waiter = Waiter(plugin, type(command), body, future, deadline)
        self._submitted.append(waiter)
        # As `_take` does it, without the calls.
        self.submitted += 1
        unsent[waiter] = None
        if not self._flushing or self._timer is None:
            self._schedule()
        return future

    def _finds_room(self, plugin: str, kind: type[msgspec.Struct]) -> bool:
        """The queue is full: whether one more may come all the same. Its bytes are counted already.

        The questions of this queue are no callers', so they do not take the place of the core's.
        """
        self._drop_cancelled()
        count, size = len(self), self._bytes
        if plugin == CORE and kind not in OF_CALLERS:
            count -= self._settling + CORE_RESERVE
            size -= CORE_RESERVE_BYTES
        return count < self._limits.outbox_commands_max and size <= self._limits.outbox_bytes_max

    def _drop_cancelled(self) -> None:
        """Forget those whose callers have left before the deadline; of what was sent, the bytes.

        It looks at all that wait, so it does that once in a while.
        """
        now = self._runtime.monotonic()
        if now < self._looked_at + SETTLE_AGAIN_S:
            return
        self._looked_at = now
        for waiter in [*self._sent.values(), *self._unsent]:
            if not waiter.future.done():
                continue
            if waiter.sends:
                self._empty(waiter)
                continue
            # No copy of it has left.
            self._unsent.pop(waiter, None)
            self._sent.pop(waiter.seq, None)
            self._gone(waiter)

    def _empty(self, waiter: Waiter) -> None:
        """It is never sent again; its number stays."""
        self._bytes -= waiter.size
        waiter.size = 0
        waiter.command = waiter.encoded = b""

    def _take(self, waiter: Waiter) -> None:
        """It leaves at the end of this turn."""
        self.submitted += 1
        self._unsent[waiter] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._runtime.call_soon(self._flush)
        self._sweep_later()

    def _sweep_later(self) -> None:
        if self._timer is None:  # a question that began in a sweep has set it
            self._timer = self._runtime.call_later(SWEEP_S, self._sweep)

    def _window_is_full(self) -> bool:
        """Whether one more command would get a number that the session does not judge yet."""
        self._raise_floor()
        self._make_room()
        return self._next_seq + len(self._unsent) - self._floor >= self._numbers_max

    def _raise_floor(self) -> None:
        """To the lowest number that is held: each number is passed once."""
        floor, sent = self._floor, self._sent
        if not sent:
            self._floor = self._next_seq
            return
        while floor < self._next_seq and floor not in sent:
            floor += 1
        self._floor = floor

    def open(self, session: int) -> None:
        """A session was opened. Commands of an earlier one are settled by its refusals."""
        if session != self.session:
            ended, orphans, self._sent = self.session, self._sent, {}
            self.session = session
            self._next_seq = self._floor = 1
            self._highest = 0
            self._kept.restart()
            self._resending.clear()
            self._flights.clear()
            for seq, waiter in orphans.items():
                self._orphaned(waiter, ended, seq)
        self._flush()

    def _orphaned(self, waiter: Waiter, session: int, seq: int) -> None:
        if waiter.future.done():
            self._gone(waiter)
        elif waiter.sends == 0:
            self._wait_again(waiter)
        else:
            self._finish(waiter, session_ended(session, seq))

    def _wait_again(self, waiter: Waiter) -> None:
        """It was not applied, and no copy of it can be: it goes once more, under a new number."""
        waiter.seq = waiter.sends = waiter.tries = 0
        waiter.sent_at = NOT_SENT
        self._unsent[waiter] = None

    # -- sending

    def _flush(self) -> None:
        self._flushing = False
        if self._submitted:
            submitted, self._submitted = self._submitted, []
            self._deadlines.add_all([waiter.deadline for waiter in submitted], submitted)
        if not self._unsent or not self.session or self._stopped:
            return
        waiters: list[Waiter] = []
        sent, session = self._sent, self.session
        unsent, self._unsent = self._unsent, {}
        self._raise_floor()
        seq, floor = self._next_seq, self._floor
        if seq - floor >= self._window // 2 or self._kept.full:
            self._make_room()
            floor = self._floor
        for waiter in unsent:
            if waiter.future.done():
                self._gone(waiter)
                continue
            if seq - floor >= self._window:
                # Those of an ended session may be too many. They leave with a later sweep.
                self._unsent[waiter] = None
                continue
            waiter.seq = seq
            waiter.encoded = _encode((session, seq, floor, waiter.plugin, waiter.command))
            sent[seq] = waiter
            seq += 1
            waiters.append(waiter)
        self._next_seq = seq
        if waiters:
            self._flights.left(seq - 1, len(waiters))
        self._resending.transmit(waiters)

    def office_changed(self) -> None:
        """Another leader, or the way to it has changed: what was sent may be lost."""
        self._resending.restart(waiter for waiter in self._sent.values() if is_wanted(waiter))
        self._flush()

    # -- answers

    def settle(self, seq: int, outcome: Any, *, jumped: bool = False) -> None:
        """This node has applied its number `seq` of the current session.

        `jumped`: no, a snapshot says so. If the session has ended there, the command may have been
        applied before that, in the entries that were jumped over.
        """
        waiter = self._sent.get(seq)
        if waiter is None:
            return
        refused = isinstance(outcome, Refused)
        if refused and type(outcome) is SequenceTooFar and waiter.kind is not SettleOutcome:
            return  # that is no verdict: the number was not judged, and is sent again
        if seq > self._highest:
            self._highest = seq
        if self._kept.held:
            self._kept.add(seq, outcome)
        if waiter.abandoned:
            waiter.decided = True
            return  # it goes on holding the floor, so that its outcome can be asked for
        if refused:
            self._refused(waiter, outcome, jumped=jumped)
            return
        del self._sent[seq]
        self._bytes -= waiter.size
        future = waiter.future
        if not future.done():
            future.set_result(outcome)
        else:
            self.fates.cancelled += 1
        # As `Waiter.end` does it, without the call.
        waiter.over, waiter.sent_at = True, NOT_SENT
        waiter.command = waiter.encoded = b""
        del waiter.future

    def _refused(self, waiter: Waiter, outcome: Refused, *, jumped: bool) -> None:
        """The log has answered a command with a refusal."""
        if waiter.asked and type(outcome) is OutcomeExpired:
            return  # a copy that came behind the question: the answer to that counts
        del self._sent[waiter.seq]
        if type(outcome) is SessionExpired and not waiter.future.done():
            if waiter.sends <= (0 if jumped else 1):
                self._wait_again(waiter)
            else:
                self._finish(waiter, session_ended(self.session, waiter.seq))
            return
        if waiter.future.done():
            self._gone(waiter)
            return
        self._bytes -= waiter.size
        self.fates.refused += 1
        # One refusal may be kept and raised more than once; each raise gets its own.
        waiter.future.set_exception(type(outcome)(*outcome.args))
        waiter.end()

    def rejected(self, seq: int, error: NotApplied) -> None:
        """A core has left out one copy of a command of the current session.

        If it was the only one, nothing was applied: its caller gets `error` now, or, for a leader
        that is overloaded, at its deadline unless a later copy is taken. Else the log decides.
        """
        waiter = self._sent.get(seq)
        if waiter is None:
            return
        waiter.why = error
        waiter.barred = waiter.barred or not isinstance(error, Overloaded)
        if waiter.sends > 1:
            if waiter.barred:
                self._ask_log(waiter)
        elif waiter.barred or waiter.future.done():
            del self._sent[seq]
            self._finish(waiter, error)
        else:
            waiter.sends = 0

    def landed(self) -> None:
        """An entry was applied here: note how long what it has answered was on its way."""
        self._flights.landed(self._sent)

    def _gone(self, waiter: Waiter) -> None:
        """Forget a command whose caller has left, or has been told that time is up."""
        self._bytes -= waiter.size
        if waiter.abandoned:
            self._abandoned -= 1
        else:
            self.fates.cancelled += 1
        waiter.end()

    def waiting(self) -> list[int]:
        """The unanswered numbers of the current session."""
        return list(self._sent)

    def kind_of(self, seq: int) -> type[msgspec.Struct] | None:
        """The class of a command that is unanswered, or was not long ago when it timed out."""
        waiter = self._sent.get(seq)
        return None if waiter is None else waiter.kind

    def _finish(self, waiter: Waiter, error: Exception) -> None:
        if waiter.future.done():
            self._gone(waiter)
            return
        self._bytes -= waiter.size
        self.fates.failed(error)
        waiter.future.set_exception(error)
        waiter.end()

    def _sweep(self) -> None:
        self._timer = None
        if self._stopped:
            return
        self._resending.retry_stalled()
        self._resending.transmit(self._resending.due())
        self._raise_floor()
        self._relieve()
        self._kept.look(self._floor, waits=bool(self._sent))
        self._flush()
        if self._sent or self._unsent:
            self._sweep_later()

    def _expire_due(self, due: list[Waiter], now: float) -> None:
        """Answer the callers whose deadline has passed."""
        for waiter in due:
            if not waiter.sends:
                # It waits for a session, or has a number and could not leave.
                self._unsent.pop(waiter, None)
                self._sent.pop(waiter.seq, None)
                self._finish(waiter, waiter.why or no_leader())
            elif now < waiter.deadline + ABANDONED_KEPT_S or not waiter.future.done():
                self._abandon(waiter)  # the latter if this process stood still for that long
            elif waiter.decided:
                self._let_go(waiter)
            elif not self._ask_log(waiter):
                self._deadlines.add(now + SETTLE_AGAIN_S, waiter)

    def _abandon(self, waiter: Waiter) -> None:
        """Its caller goes, or has gone; the number stays, and so holds the floor."""
        if not waiter.future.done():
            waiter.abandoned = True
            self._abandoned += 1
            self.fates.unknown += 1
            waiter.future.set_exception(late(self.session, waiter.seq))
        self._empty(waiter)
        # Behind the grain of the alarm, so that it is not taken for the first deadline.
        self._deadlines.add(waiter.deadline + ABANDONED_KEPT_S + ALARM_GRAIN_S, waiter)

    # -- numbers that are given up

    def _relieve(self) -> None:
        """What is given up must not fill the queue for as long as it may be asked for."""
        if 2 * len(self) >= self._limits.outbox_commands_max:
            self._make_room()

    def _make_room(self) -> None:
        """Half of what may wait is used: what is given up holds the floor until it is decided.

        So does what was overtaken, of which a copy may be on its way.
        """
        sent = self._sent
        while (lowest := sent.get(self._floor)) is not None and lowest.decided:
            self._let_go(lowest)
            self._raise_floor()
        for seq in range(self._floor, self._floor + self._settling_max):
            waiter = sent.get(seq)
            if waiter is None:
                continue
            if not waiter.future.done() and seq > self._highest:
                return  # it is on its way, as those behind it are
            if not self._resolve(waiter):
                return

    def _resolve(self, waiter: Waiter) -> bool:
        """Let the floor pass the number soon. False if too many are being settled already."""
        if waiter.sends or waiter.future.done():
            return self._ask_log(waiter)
        self._renumber(waiter)  # no copy of it has left
        return True

    def _renumber(self, waiter: Waiter) -> None:
        """The number was not applied and never will be: the command goes on under a new one."""
        del self._sent[waiter.seq]
        if waiter.barred:
            self._finish(waiter, waiter.why or no_leader())
            return
        self._wait_again(waiter)
        self._schedule()

    def _let_go(self, waiter: Waiter) -> None:
        """The floor may pass this number."""
        del self._sent[waiter.seq]
        self._gone(waiter)

    def _ask_log(self, waiter: Waiter) -> bool:
        """Settle a number through the log: if its command has not come, it never will.

        Without a deadline, for it must end. False if too many are being settled already.
        """
        if waiter.asked or waiter.decided:
            return True
        if self._settling >= self._settling_max:
            return False
        self._raise_floor()
        used = self._next_seq + len(self._unsent) - self._floor
        if used >= self._numbers_max and waiter.seq >= self._floor + self._settling_max:
            return False  # the last numbers of the window are for what holds the floor
        self._settling += 1
        waiter.asked = True
        asked = (self.session, waiter.seq)
        command = SettleOutcome(*asked)
        future = self._runtime.future()
        future.add_done_callback(lambda future: self._log_answered(waiter, asked, future))
        body = _encode(command)
        self._bytes += len(body)
        self._take(Waiter(CORE, SettleOutcome, body, future, math.inf))
        return True

    def _log_answered(
        self, waiter: Waiter, asked: tuple[int, int], future: asyncio.Future[Any]
    ) -> None:
        self._settling -= 1
        answered = not future.cancelled() and future.exception() is None
        if waiter.over or self._stopped:
            return
        waiter.asked = False
        if not waiter.future.done():
            # What was applied has been answered before: its entry comes first.
            known = answered and asked == (self.session, waiter.seq)
            if known and future.result().verdict == "not_applied":
                self._renumber(waiter)
            return
        waiter.decided = waiter.decided or answered
        now = self._runtime.monotonic()
        if now < waiter.deadline + ABANDONED_KEPT_S:
            return  # it can still be asked for, unless the window is short
        if waiter.decided:
            self._let_go(waiter)
        else:
            self._deadlines.add(now + SETTLE_AGAIN_S, waiter)

    def stop(self, fault: RaftkvError | None = None) -> None:
        """Nothing more is sent. What was sent is unknown, the rest was not applied.

        `fault` is why the node has stopped itself.
        """
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._deadlines.stop()
        for seq, waiter in list(self._sent.items()):
            unknown = cut_off_unknown(fault, session=self.session, seq=seq)
            self._finish(waiter, unknown if waiter.sends else cut_off(fault))
        for waiter in self._unsent:
            self._finish(waiter, cut_off(fault))
        self._sent.clear()
        self._unsent.clear()
