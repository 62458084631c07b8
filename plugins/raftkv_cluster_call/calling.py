"""One call on its initiator, from the question to the answer.

    1. look      the function is known, the arguments fit, the required nodes exist
    2. reserve   with the last id that this node has executed; queued first come, first served
    3. run       the worker does it, when the id's turn has come (`worker.py`)
    4. wait      until the required nodes have executed it, too

Up to the moment in which the worker takes it, the caller may give up: nothing ran, nothing will.
From then on the end is the log's: the caller learns it, or is told that it is not known yet.

**Falling behind.** A node that has not executed everything may not initiate at once: its function
might decide by a state of yesterday. While others run, it is queued and catches up meanwhile; where
nobody does, it waits for its own worker. If its cursor does not move in ten waits although nothing
runs here, the caller is told (`StaleView`), because then somebody has to look.

**Cancelling.** What waits is taken back in the background; what runs is finished, and committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from raftkv.errors import OutcomeUnknown, Refused, Stopped, Timeout
from raftkv.plugin import Host

from . import errors
from .commands import (
    STALE_TRIES,
    Acknowledge,
    ArgsTooLarge,
    Behind,
    Granted,
    Queued,
    Reserve,
    StaleView,
    Withdraw,
)
from .errors import DeadlinePassed, TooManyRequired
from .functions import CallError, Function, Functions, UnknownFunction, error_of
from .metrics import Counters
from .options import options_of
from .proposing import NotWanted, Proposer
from .reports import UnknownNode
from .views import (
    cursor_of,
    decided_id,
    granted_ticket,
    last_id,
    lost_effects,
    participants,
)
from .waiting import Done, Dropped, Failed, Initiation, Initiations, Reached, Waiting
from .worker import Worker

__all__ = ["CallResult", "Calling", "Required", "encode_args"]

Required = Literal["all"] | int | Sequence[str]
Reservation = Granted | Queued | StaleView | Behind

# The waits of a node that is behind: the first, then doubling up to the setting `retry_ms`.
WAIT_FIRST_S: Final = 0.02
TIMEOUT_MAX_S: Final = 86_400.0


class CallResult(msgspec.Struct, frozen=True):
    """What became of a call.

    "ok": the required nodes have executed it. "init_failure": it failed on the initiator, `error`
    says why, and no other node runs it; `id` is 0 if it had none yet. "peers_lagging": committed,
    `nodes` had not executed it at the deadline; they go on trying. "stopped_nodes": committed, and
    `nodes`, which are down, will execute it when they are back.

    `result` is what the function returned on the initiator (None with `effect`).
    """

    outcome: Literal["ok", "init_failure", "peers_lagging", "stopped_nodes"]
    id: int
    result: Any = None
    nodes: tuple[str, ...] = ()
    error: CallError | None = None


def encode_args(args: Any) -> bytes:
    """The arguments as they stand in the log. Raises TypeError for what msgspec cannot encode."""
    try:
        return msgspec.msgpack.encode(args)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # Without its text: it may show what was to be encoded.
        raise TypeError(
            f"the arguments cannot be encoded ({type(error).__name__}): pass a msgspec Struct, or "
            f"plain data"
        ) from None


class Calling:
    """Makes the calls of this node."""

    def __init__(
        self,
        host: Host,
        functions: Functions,
        proposer: Proposer,
        worker: Worker,
        initiations: Initiations,
        waiting: Waiting,
        counters: Counters,
    ) -> None:
        self._host = host
        self._functions = functions
        self._proposer = proposer
        self._worker = worker
        self._initiations = initiations
        self._waiting = waiting
        self._counters = counters
        self._options = options_of(host)
        self._stopped = False
        # Lost effects that are just being acknowledged, because nothing had run.
        self._acknowledging: set[int] = set()

    def stop(self) -> None:
        """The node stops: callers whose call has not begun are told so."""
        self._stopped = True
        self._initiations.stop("stopped")
        self._waiting.stop()

    async def call(
        self,
        name: str,
        args: Any,
        version: int | None,
        required: Required,
        timeout_s: float,
    ) -> CallResult:
        """See `CallsApi.call`, on a node that may initiate."""
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise ValueError(
                f"timeout_s is {timeout_s:g}: say more than 0, and at most {TIMEOUT_MAX_S:g} s"
            )
        self._counters.add("calls")
        deadline = self._host.runtime.monotonic() + timeout_s
        encoded = self._encoded(args)
        try:
            function = self._functions.get(name, version)
            decoded = function.decode(encoded)
        except (UnknownFunction, msgspec.MsgspecError) as error:
            self._counters.add("init_failures")
            return CallResult("init_failure", 0, error=error_of(error))
        self._check_required(required)
        end = await self._initiated(function, decoded, encoded, deadline)
        if isinstance(end, Failed):
            self._counters.add("init_failures")
            return CallResult("init_failure", end.id, error=end.error)
        names, need = _need(required, end.committed.nodes)
        reached = await self._waiting.reached(end.committed.id, names, need, deadline)
        return self._result(end, reached)

    def _result(self, end: Done, reached: Reached) -> CallResult:
        self._counters.add(reached.outcome)
        if reached.outcome != "ok":
            self._host.log.info(
                "calls: call %d was committed; %s: %s",
                end.committed.id,
                "behind are" if reached.outcome == "peers_lagging" else "down are",
                ", ".join(reached.missing),
            )
        return CallResult(reached.outcome, end.committed.id, end.result, reached.missing)

    # --- looking ---

    def _encoded(self, args: Any) -> bytes:
        encoded = encode_args(args)
        limit: int = self._host.settings["args_bytes_max"]
        if len(encoded) > limit:
            raise ArgsTooLarge(
                f"the arguments have {len(encoded)} bytes, the limit (args_bytes_max) is {limit}: "
                f"keep large data in the keyspace, and pass its key"
            )
        return encoded

    def _check_required(self, required: Required) -> None:
        """Raises ValueError, TooManyRequired, UnknownNode."""
        if required == "all":
            return
        if isinstance(required, str):
            raise ValueError(f'required is {required!r}: say "all", a number, or a list of nodes')
        view = self._host.view()
        partners = participants(view)
        if isinstance(required, int):
            if isinstance(required, bool) or required < 1:
                raise ValueError(f"required is {required}: say 1 (this node alone) or more")
            if required > max(1, len(partners)):
                raise TooManyRequired(
                    f"{required} nodes are required, and {len(partners)} take part: "
                    f"{', '.join(partners)}"
                )
            return
        for name in required:
            if name not in view.members:
                raise UnknownNode(f"{name!r} is no member: say some of {', '.join(partners)}")
            if name not in partners:
                row = cursor_of(view, name)
                state = "takes no part in the calls" if row is None else f"is {row.state}"
                raise UnknownNode(f"{name!r} {state}, and cannot be waited for")

    # --- reserving ---

    async def _initiated(
        self, function: Function, args: Any, encoded: bytes, deadline: float
    ) -> Done | Failed:
        """Have it run and decided. Raises as `call` does."""
        while True:
            reserved, until = await self._reserved(function, encoded, deadline)
            initiation = Initiation(
                reserved.ticket, function, args, until, self._host.runtime.future()
            )
            self._initiations.add(initiation)
            self._worker.wake()
            try:
                end = await self._ended(initiation)
            except asyncio.CancelledError:
                self._give_up(initiation)
                raise
            if not isinstance(end, Dropped):
                return end
            if end.reason == "stale_view":
                raise self._stale()
            if end.reason == "expired":
                raise self._deadline_passed()
            self._check_running()
            # This node began a new life, or left: nothing ran, so it may ask again.

    async def _ended(self, initiation: Initiation) -> Done | Failed | Dropped:
        """Wait for the end; at the deadline give up what has not begun."""
        await self._wait_until(initiation.done, initiation.deadline)
        if not initiation.done.done() and self._give_up(initiation):
            raise self._deadline_passed()
        if not initiation.done.done():
            grace_s = self._options.settle_grace_s
            await self._wait_until(initiation.done, initiation.deadline + grace_s)
        if initiation.done.cancelled():
            raise OutcomeUnknown(
                "the call ran on this node, which went down meanwhile, or its record is gone: look "
                "at `raftkv calls status` before it is made again"
            )
        if not initiation.done.done():
            raise Timeout(
                "the function has run on this node, and whether the call was committed is not "
                "known yet: look at `raftkv calls status` before it is made again"
            )
        return initiation.done.result()

    async def _wait_until(self, future: asyncio.Future[Any], deadline: float) -> None:
        left_s = deadline - self._host.runtime.monotonic()
        if left_s > 0 and not future.done():
            await asyncio.wait((future,), timeout=left_s)

    async def _reserved(
        self, function: Function, encoded: bytes, deadline: float
    ) -> tuple[Granted | Queued, float]:
        """A reservation of this node, and until when it may run.

        Raises DeadlinePassed, StaleView, refusals.
        """
        tries, pause_s = 0, WAIT_FIRST_S
        stood_at = self._position()
        while True:
            if tries:
                await self._progress(pause_s, deadline)
                pause_s = min(2 * pause_s, self._host.settings["retry_ms"] / 1000)
                if self._position() != stood_at or not self._worker.stands:
                    stood_at, tries, pause_s = self._position(), 0, WAIT_FIRST_S
                elif tries >= STALE_TRIES:
                    raise self._stale(tries)
            tries += 1
            if self._must_wait():
                continue
            answer, until = await self._reserve(function, encoded, deadline)
            if isinstance(answer, StaleView):
                self._counters.add("stale_views")
                raise errors.StaleView(answer.last, answer.cursor, answer.attempts)
            if isinstance(answer, Behind):
                self._counters.add("behind")
                continue
            if isinstance(answer, Queued):
                self._counters.add("queued")
            return answer, until

    def _must_wait(self) -> bool:
        """Whether a reservation would be answered `Behind`, as far as this node knows."""
        view = self._host.view()
        row = cursor_of(view, self._host.name)
        if row is None:
            # It has left, which the log says best, or is about to join.
            return self._host.name not in view.table("left")
        if row.state != "following":
            return True
        if granted_ticket(view) or len(view.table("queue")):
            return False
        return row.id < decided_id(view) and row.attempts < STALE_TRIES

    def _position(self) -> tuple[str, int]:
        row = cursor_of(self._host.view(), self._host.name)
        return ("", -1) if row is None else (row.state, row.id)

    async def _progress(self, pause_s: float, deadline: float) -> None:
        """Wait until this node's cursor moves, or the pause is over. Raises DeadlinePassed."""
        until = self._host.runtime.monotonic() + pause_s
        stood_at = self._position()
        while self._position() == stood_at:
            now = self._host.runtime.monotonic()
            self._check_running()
            if now >= deadline:
                raise self._deadline_passed()
            if now >= until:
                return
            await self._waiting.moved(min(until, deadline) - now)

    async def _reserve(
        self, function: Function, encoded: bytes, deadline: float
    ) -> tuple[Reservation, float]:
        """One reservation, which is taken back if the caller does not get to see the answer.

        And when its time is over, by this node's own clock. The log allows `deadline_max_ms` from
        the moment in which it takes the reservation, which is after it was asked. (Its deadline is
        of its own clock, and a node's idea of that may be ahead for ever, once a leader with a
        slower one has come.)
        """
        given_up, until = False, deadline

        async def propose() -> Reservation:
            nonlocal until
            while not given_up:
                now = self._host.runtime.monotonic()
                left_s = deadline - now
                if left_s < 0.001:
                    break
                until = min(deadline, now + self._host.settings["deadline_max_ms"] / 1000)
                command = Reserve(
                    function=function.name,
                    version=function.version,
                    args=encoded,
                    expected_last=last_id(self._host.view()),
                    ttl_ms=int(left_s * 1000),
                    created_ms=self._host.now_ms(),
                )
                # One proposal, settled; a further one is made with the time that is left then.
                asked = False

                def once() -> bool:
                    nonlocal asked
                    asked, again = True, asked
                    return not again and not given_up

                try:
                    answer: Reservation = await self._proposer.submit(command, once)
                    return answer
                except NotWanted:
                    continue
            raise NotWanted("Reserve")

        task: asyncio.Task[Reservation] = self._host.runtime.spawn(propose(), "calls: reserve")
        # A node that stops over a fault leaves nobody who would read how this ended.
        task.add_done_callback(_read)
        try:
            await self._wait_until(task, deadline)
            if not task.done():
                raise self._deadline_passed()
        except BaseException:
            # Also when the answer has come in this very moment: nobody gets to see it.
            given_up = True
            self._host.spawn(self._take_back(task), "take back")
            raise
        try:
            return task.result(), until
        except NotWanted:
            raise self._deadline_passed() from None

    # --- giving up ---

    def _give_up(self, initiation: Initiation) -> bool:
        """Take back what has not begun. False: it runs, or is over."""
        if not self._initiations.close(initiation):
            return False
        self._host.spawn(self._withdraw(initiation.ticket), "withdraw")
        return True

    async def _take_back(self, task: asyncio.Task[Reservation]) -> None:
        """The caller of a reservation has gone: withdraw it, should it be made."""
        await asyncio.wait((task,))
        if task.cancelled() or task.exception() is not None:
            return
        answer = task.result()
        if isinstance(answer, Granted | Queued):
            await self._withdraw(answer.ticket)

    async def _withdraw(self, ticket: int) -> None:
        self._counters.add("withdrawn")
        try:
            await self._proposer.submit(Withdraw(ticket, "withdrawn"))
        except (Refused, Stopped) as error:
            self._host.log.debug("calls: nothing to withdraw: %s", error)

    def look_at_lost(self) -> None:
        """The log cannot know whether what it aborted had run; where it had not, say so."""
        for _, id, _ in lost_effects(self._host.view(), self._host.name):
            if id not in self._acknowledging and self._initiations.ran_not(id):
                self._acknowledging.add(id)
                self._host.spawn(self._acknowledge(id), "acknowledge")

    async def _acknowledge(self, id: int) -> None:
        try:
            await self._proposer.submit(Acknowledge(id))
        except (Refused, Stopped) as error:
            self._host.log.debug("calls: acknowledging call %d failed: %s", id, error)
        finally:
            self._acknowledging.discard(id)

    # --- saying no ---

    def _check_running(self) -> None:
        if self._stopped:
            raise Stopped("this node stops: the call has not run, make it on another one")

    def _deadline_passed(self) -> DeadlinePassed:
        self._counters.add("deadlines_passed")
        return DeadlinePassed(
            "the time was over before it was this call's turn: nothing ran, it may be made again"
        )

    def _stale(self, tries: int = STALE_TRIES) -> errors.StaleView:
        self._counters.add("stale_views")
        view = self._host.view()
        row = cursor_of(view, self._host.name)
        return errors.StaleView(last_id(view), 0 if row is None else row.id, tries)


def _need(required: Required, nodes: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """(nodes, how many of them) to wait for; `nodes` are those that took part at the commit."""
    if required == "all":
        return nodes, len(nodes)
    if isinstance(required, int):
        return nodes, min(required, len(nodes))
    names = tuple(name for name in nodes if name in required)
    return names, len(names)


def _read(task: asyncio.Task[Any]) -> None:
    """Look at an end that nobody may await, so that asyncio does not complain of it."""
    if not task.cancelled():
        task.exception()
