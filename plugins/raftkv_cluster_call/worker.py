"""The worker of a node: it executes the calls, one at a time, in the order of their ids.

Rules of this file
1. Before an id runs, everything before it has been executed here. So a call of this node's own
   waits until the worker has come to it, behind the calls of others that were committed before.
2. A call that fails is tried again, for ever, with growing pauses. Nothing overtakes it. An
   operator may let the node pass it (`step_over`).
3. A call of this node's own runs once: whatever comes of it is put into the log, and if the answer
   is lost it is found out, not repeated. It is committed, or aborted and then run by nobody else.
4. The lock of the states is held from the start of a run until the cursor has moved. The states are
   told before it moves (`states.py`).
5. No two functions run at once on a node (`running.py`).

What a crash leaves: a function that has run, and a cursor that has not moved. It runs again after
the restart: at least once, which is what `Call.token` is for. Only the effect of a function that is
registered with `effect=True` stands in the same entry of the log as the cursor: exactly once.

An initiator that crashes between its run and the commit leaves an id that the log aborts. Nobody
else has run it; that it may have happened here is noted as a lost effect, and raised as an alarm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final, Literal

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, Refused, Stopped, TooLarge
from raftkv.kv import DeleteRange, Put, PutWith, Txn
from raftkv.plugin import Host

from .commands import (
    STALE_TRIES,
    Abort,
    Advance,
    BadCursor,
    Commit,
    Committed,
    Effect,
    Failing,
    NotReserved,
    NotTakingPart,
    Record,
    Skip,
    Sync,
    Withdraw,
)
from .functions import (
    Call,
    CallError,
    Function,
    Functions,
    UnknownFunction,
    cause_of,
    error_of,
    logged_cause,
    raised_in,
)
from .metrics import Counters
from .options import options_of
from .proposing import NotWanted, Proposer
from .reports import Attempt
from .running import Runner
from .states import States
from .views import cursor_of, next_for, own_turn, participants, record_of
from .waiting import Done, Failed, Initiation, Initiations, is_decided

__all__ = ["NoEffect", "Worker"]

# The pause after the first failure; it doubles up to the setting `retry_ms`.
BACK_OFF_FIRST_S: Final = 0.02
# The pause after an error that nobody has foreseen.
MISHAP_S: Final = 1.0
# Functions are registered right after a node has started: before that, unknown is no failure yet.
REGISTER_GRACE_S: Final = 1.0
# An id of this node's that nobody here knows of (the answer to its reservation was lost, and is no
# longer kept) is given back after this time: longer than a proposal's time-out (5 s), and finding
# out what became of it, take. Meanwhile the whole cluster waits, but less than for the deadline.
ORPHAN_S: Final = 20.0
_EFFECTS: Final[msgspec.msgpack.Decoder[Effect]] = msgspec.msgpack.Decoder(Effect)


class NoEffect(TypeError):
    """What a function registered with `effect` returned is no kv command, or cannot be sent."""


class Worker:
    """One per node."""

    def __init__(
        self,
        host: Host,
        functions: Functions,
        states: States,
        proposer: Proposer,
        initiations: Initiations,
        counters: Counters,
    ) -> None:
        self._host = host
        self._functions = functions
        self._states = states
        self._proposer = proposer
        self._initiations = initiations
        self._counters = counters
        self._options = options_of(host)
        #: Held while a call runs, until the cursor has moved; and by who dumps or loads the states.
        self.lock = states.lock
        #: While True nothing is begun; `wake` after it was set to False. For tests and tools.
        self.paused = False
        self._runner = Runner(host, counters)
        #: The id that fails here, and how often it has since this node started. 0: none.
        self.failing = 0
        self.attempts = 0
        self._retry_at = 0.0
        self._woken = asyncio.Event()
        self._started_at = host.runtime.monotonic()
        # (id, since when): granted to this node, and unknown to it.
        self._orphan = (0, 0.0)

    # --- for the others ---

    def wake(self) -> None:
        """Something may have become this node's turn."""
        self._woken.set()

    def retry_now(self) -> None:
        """What failed may succeed now: do not wait for its next attempt."""
        self._retry_at = 0.0
        self._woken.set()

    @property
    def attempts_now(self) -> int:
        """How often the next call has failed here; 0 also where an operator let the node pass."""
        found = next_for(self._host.view(), self._host.name)
        return self.attempts if found is not None and found[0] == self.failing else 0

    @property
    def stands(self) -> bool:
        """It waits: it is between two attempts, or cannot begin. Not while a function runs."""
        return self._runner.running is None

    async def run(self) -> None:
        """Execute until the node stops."""
        self._started_at = self._host.runtime.monotonic()
        while True:
            self._woken.clear()
            try:
                pause_s = await self._turn()
            except Stopped:
                return
            except Exception as error:
                # The log's refusals and users' errors are dealt with where they come. Whatever this
                # is, it must not be the end of all calls on this node.
                self._host.log.error("calls: the worker tries again after %s", logged_cause(error))
                pause_s = MISHAP_S
            if pause_s is None:
                await self._woken.wait()
            elif pause_s > 0:
                await self._sleep(pause_s)

    async def step_over(self, after: int, upto: int) -> Attempt | None:
        """Run the next committed call behind the cursor once more, then pass it, whatever comes.

        Success: Advance, with the effect; failure: Skip. None, and nothing is done, if the cursor
        is not `after` any more, or there is no such call with an id up to `upto`. Waits for a
        running attempt to end first. Raises `Refused` and `NotApplied` kinds.
        """
        async with self.lock:
            view = self._host.view()
            row, found = cursor_of(view, self._host.name), next_for(view, self._host.name)
            if row is None or found is None or row.id != after or found[0] > upto:
                return None
            id, record = found
            self._count_attempt(id)
            error = await self._attempt(id, record)
            if error is None:
                return Attempt(id, record.function, True)
            await self._states.passed(id)
            try:
                await self._proposer.submit(Skip(id), lambda: self._is_next(id))
            except NotWanted:
                return None
            self._counters.add("skips")
            self._log_skipped(id, record, error)
            self._succeeded()
        self.wake()
        return Attempt(id, record.function, False, type(error).__name__, raised_in(error))

    async def jump(self, as_of: int) -> None:
        """From a gap, or from joining, to following at `as_of`, with the data that is here.

        Raises `TooOld`, `BadCursor` and other `Refused` and `NotApplied` kinds.
        """
        async with self.lock:
            await self._proposer.submit(Sync(as_of))
            await self._states.passed(as_of)
        self.wake()

    # --- one turn ---

    async def _turn(self) -> float | None:
        """Do what is next; how long to wait then: None, until something wakes the worker."""
        if not self._may_begin():
            return None
        async with self.lock:
            if not self._may_begin():
                return None
            view, name = self._host.view(), self._host.name
            found = next_for(view, name)
            if found is not None:
                return await self._replicate(*found)
            mine = own_turn(view, name)
            if mine is not None:
                return await self._own(*mine)
        return None

    def _may_begin(self) -> bool:
        return not self.paused and self._host.incarnation > 0

    async def _sleep(self, seconds: float) -> None:
        """Until the time is over or something wakes the worker."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    # --- a call of another node ---

    async def _replicate(self, id: int, record: Record) -> float:
        now = self._host.runtime.monotonic()
        if id == self.failing and now < self._retry_at:
            return self._retry_at - now
        grace_s = self._started_at + REGISTER_GRACE_S - now
        if grace_s > 0 and record.kind == "call" and not self._knows(record):
            return grace_s
        self._count_attempt(id)
        error = await self._attempt(id, record)
        if error is None:
            self._succeeded()
            return 0.0
        return await self._failed(id, record, error)

    async def _attempt(self, id: int, record: Record) -> Exception | None:
        """Run the call and move the cursor behind it; the error if the function failed.

        None, too, if the cursor was moved behind it by somebody else meanwhile.
        """
        effect: Effect | None = None
        try:
            if record.kind == "call":
                function = self._functions.get(record.function, record.version)
                value = await self._runner.run(
                    function,
                    lambda: function.decode(record.args),
                    self._call(id, record, "replicate", self.attempts),
                    self._options.run_timeout_s,
                )
                effect = _effect_of(function, value)
            await self._states.passed(id)
        except Exception as error:
            return error
        try:
            await self._proposer.submit(Advance(id, effect), lambda: self._is_next(id))
        except NotWanted:
            return None
        except (BadCursor, NotTakingPart) as error:
            self._host.log.info("calls: call %d ran, but is not this node's turn: %s", id, error)
            return None
        except (Refused, TooLarge) as error:
            # The keyspace's verdict on the effect: the function's failure like any other.
            return error
        self._counters.add("executed")
        return None

    def _knows(self, record: Record) -> bool:
        try:
            self._functions.get(record.function, record.version)
        except UnknownFunction:
            return False
        return True

    def _is_next(self, id: int) -> bool:
        found = next_for(self._host.view(), self._host.name)
        return found is not None and found[0] == id

    def _count_attempt(self, id: int) -> None:
        self.attempts = self.attempts + 1 if id == self.failing else 1

    def _succeeded(self) -> None:
        if self.failing:
            self._host.log.debug("calls: call %d fails here no more", self.failing)
        self.failing = self.attempts = 0
        self._retry_at = 0.0

    async def _failed(self, id: int, record: Record, error: Exception) -> float:
        """Tell the cluster, at the first failure and when the node counts as stuck; the pause."""
        self.failing = id
        self._counters.add("failures")
        pause_s = min(
            BACK_OFF_FIRST_S * 2 ** min(self.attempts - 1, 40),
            self._host.settings["retry_ms"] / 1000,
        )
        self._retry_at = self._host.runtime.monotonic() + pause_s
        row = cursor_of(self._host.view(), self._host.name)
        told = 0 if row is None or row.failing != id else row.attempts
        due = STALE_TRIES if self.attempts >= STALE_TRIES else 1
        self._host.log.log(
            # The cause in the state has no file and line: they are here.
            logging.WARNING if told < due else logging.DEBUG,
            "calls: attempt %d at call %d (%s version %d) failed: %s",
            self.attempts,
            id,
            record.function,
            record.version,
            logged_cause(error),
        )
        if told < due:
            try:
                await self._host.propose(Failing(id, due, cause_of(error)))
            except (NotApplied, OutcomeUnknown, Refused) as lost:
                # The next failure tells it again.
                self._host.log.debug("calls: could not tell of a failure: %s", lost)
        return max(0.0, self._retry_at - self._host.runtime.monotonic())

    def _log_skipped(self, id: int, record: Record, error: Exception) -> None:
        self._host.log.warning(
            "calls: call %d (%s version %d) was skipped on %s after it failed once more: %s",
            id,
            record.function,
            record.version,
            self._host.name,
            logged_cause(error),
        )

    # --- a call of this node ---

    async def _own(self, id: int, record: Record) -> float | None:
        initiation = self._initiations.take(id, record.ticket)
        if initiation is None:
            return await self._give_back(id, record)
        try:
            await self._initiate(id, record, initiation)
        finally:
            if initiation.state == "running":
                # The node stops, or worse: what became of it is for the log to say.
                self._initiations.lose(initiation)
        return 0.0

    async def _initiate(self, id: int, record: Record, initiation: Initiation) -> None:
        """Run it, then commit or abort. Its `end` is the answer."""
        function = initiation.function
        left_s = initiation.deadline - self._host.runtime.monotonic()
        try:
            value = await self._runner.run(
                function,
                lambda: initiation.args,
                self._call(id, record, "initiate", 1),
                max(left_s, 0.0),
            )
            effect = _effect_of(function, value)
            await self._states.passed(id)
        except Exception as error:
            await self._abort(id, initiation, error)
            return

        def wanted() -> bool:
            return not is_decided(self._host.view(), id, initiation.ticket)

        try:
            committed: Committed = await self._proposer.submit(
                Commit(id, initiation.ticket, effect), wanted
            )
        except (NotReserved, NotWanted):
            found = self._found_committed(id, initiation)
            if found is None and record_of(self._host.view(), id) is None:
                return  # Trimmed long since: nobody can say any more what became of it.
            if found is None:
                self._too_late(id, record, initiation)
                return
            committed = found
        except Stopped:
            raise
        except Exception as error:
            # The verdict of the keyspace mostly. Also what nobody has foreseen: all wait for this.
            await self._abort(id, initiation, error)
            return
        self._counters.add("committed")
        result = None if function.effect else value
        self._initiations.end(initiation, Done(committed, result))

    def _found_committed(self, id: int, initiation: Initiation) -> Committed | None:
        """The answer to a Commit that was applied, and whose own answer ended with a life.

        Of the nodes that took part then, those count that still do: no others are waited for.
        """
        view = self._host.view()
        record = record_of(view, id)
        if record is None or record.ticket != initiation.ticket or record.state != "committed":
            return None
        return Committed(id, participants(view), view.index)

    async def _abort(self, id: int, initiation: Initiation, error: Exception) -> None:
        """It failed here: let nobody run it, and the next one have its turn."""
        self._host.log.info(
            "calls: call %d (%s version %d) failed on its initiator: %s",
            id,
            initiation.function.name,
            initiation.function.version,
            logged_cause(error),
        )
        # It may have been aborted already, because its time was up.
        with contextlib.suppress(NotWanted, NotReserved):
            await self._proposer.submit(
                Abort(id, initiation.ticket, cause_of(error)),
                lambda: not is_decided(self._host.view(), id, initiation.ticket),
            )
        self._initiations.end(initiation, Failed(id, error_of(error)))

    def _too_late(self, id: int, record: Record, initiation: Initiation) -> None:
        """It ran here, but the log has aborted it: nobody else will run it."""
        self._counters.add("too_late")
        decided = self._host.view().table("records").get(id)
        why = decided.cause if isinstance(decided, Record) and decided.cause else "decided"
        self._host.log.warning(
            "calls: call %d (%s version %d) ran on %s, but was aborted before it was committed "
            "(%s): no other node runs it",
            id,
            record.function,
            record.version,
            self._host.name,
            why,
        )
        reason = (
            f"call {id} ran on {self._host.name}, but was aborted before it could be committed "
            f"({why}): undo its effect there, then acknowledge it"
        )
        self._initiations.end(initiation, Failed(id, CallError("Expired", reason)))

    async def _give_back(self, id: int, record: Record) -> float | None:
        """An id of this node that no caller here waits for: closed ones withdraw by themselves."""
        now = self._host.runtime.monotonic()
        if self._orphan[0] != id:
            self._orphan = (id, now)
        left_s = self._orphan[1] + ORPHAN_S - now
        if left_s > 0:
            return left_s
        try:
            await self._proposer.submit(
                Withdraw(record.ticket, "withdrawn"),
                lambda: not is_decided(self._host.view(), id, record.ticket),
            )
        except (NotWanted, Refused) as error:
            self._host.log.debug("calls: call %d is gone already: %s", id, type(error).__name__)
        return 0.0

    def _call(
        self, id: int, record: Record, kind: Literal["initiate", "replicate"], attempt: int
    ) -> Call:
        name = self._host.name
        return Call(id, kind, name, record.initiator, record.created_ms, attempt)


def _effect_of(function: Function, value: Any) -> Effect | None:
    """The kv command that an effect function returned. Raises NoEffect."""
    if not function.effect or value is None:
        return None
    if not isinstance(value, Put | PutWith | DeleteRange | Txn):
        raise NoEffect(
            f"{function.name} is registered with effect=True: it returns Put, PutWith, "
            f"DeleteRange, Txn or None, not {type(value).__name__}"
        )
    try:
        # As every node will read it, or refuse the command that it is in, whatever else is right.
        _EFFECTS.decode(msgspec.msgpack.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        # Without its text: it may show what was to be encoded.
        raise NoEffect(
            f"the {type(value).__name__} that {function.name} returned cannot be sent "
            f"({type(error).__name__}): keys and values are bytes"
        ) from None
    return value
