"""Calls of a node that may not initiate them: taken to a core, which makes them in its stead.

A replicant has no cursor (unless replicants take part), so it cannot know what has been executed.
It asks one core: the leader if it knows one, else any that is up. The function runs on that core,
and the call is that core's own in every respect.

The way there is a call between nodes, of which request and answer may be lost. It must not happen
twice because of that. So:

1. A request that was certainly not delivered goes to another core.
2. Any other is this core's, in this life of it, under this token, for good. The replicant only
   *asks* from then on. A core that does not know the token answers "never", and from then on
   refuses it, should it still arrive: then the replicant may begin anew.
3. When the core's life ends first, or it has dropped the answer by the time it is asked again,
   nobody knows: the caller gets `OutcomeUnknown`, and looks at the status. It may have been
   committed.

A caller who goes away tells the core, which takes back what has not begun.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final, TypeVar

import msgspec

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    PeerUnreachable,
    RemoteFailed,
    Stopped,
    Timeout,
)
from raftkv.plugin import Host, Member

from .calling import TIMEOUT_MAX_S, Calling, CallResult, Required, encode_args
from .commands import ArgsTooLarge
from .errors import CannotForward, DeadlinePassed
from .functions import CallError
from .metrics import Counters
from .options import options_of
from .views import may_take_part
from .wire import (
    ASK,
    CANCEL,
    START,
    Answer,
    AskRequest,
    Ended,
    StartRequest,
    Token,
    pack,
    pack_error,
    pack_result,
    unpack,
    unpack_error,
)

__all__ = ["Forwarding"]

# Calls that a core makes for others at once, and answers that it keeps: bounded by the queue of the
# log anyhow, and by the time that they are kept.
SERVED_MAX: Final = 10_000
# The result of a forwarded call has to fit into one message between nodes.
RESULT_BYTES_MAX: Final = 1 << 20
# On top of the time that the core is to wait, for the way there and back.
WAY_S: Final = 2.0
# Between two looks for a core that could be asked, and two questions to one that did not answer.
RETRY_S: Final = 0.1
# After the deadline the answer of the core is waited for so long: it knows its own deadline.
LATE_S: Final = 10.0

Request = TypeVar("Request", StartRequest, AskRequest)


class _Served:
    """A call that this core makes for another node. `task` None: it was asked for and refused."""

    __slots__ = ("ended_at", "task")

    def __init__(self, task: asyncio.Task[Answer] | None) -> None:
        self.task = task
        self.ended_at = 0.0


class Forwarding:
    """Both sides: asking a core, and being asked."""

    def __init__(self, host: Host, calling: Calling, counters: Counters) -> None:
        self._host = host
        self._calling = calling
        self._counters = counters
        self._options = options_of(host)
        self._numbers = itertools.count(1)
        self._served: dict[Token, _Served] = {}
        # Of each node the newest token that is known no more: its life and number.
        self._forgotten: dict[str, tuple[int, int]] = {}

    @property
    def needed(self) -> bool:
        """Whether this node may not initiate calls itself."""
        return self._host.role != "core" and not may_take_part(self._host.view(), self._host.name)

    def serve(self) -> None:
        """Answer other nodes. Once, when the service starts."""
        self._host.rpc.register(START, self._on_start)
        self._host.rpc.register(ASK, self._on_ask)
        self._host.rpc.register(CANCEL, self._on_cancel)

    # --- asking ---

    async def call(
        self,
        function: str,
        args: Any,
        version: int | None,
        required: Required,
        timeout_s: float,
    ) -> CallResult:
        """See `CallsApi.call`."""
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise ValueError(
                f"timeout_s is {timeout_s:g}: say more than 0, and at most {TIMEOUT_MAX_S:g} s"
            )
        deadline = self._host.runtime.monotonic() + timeout_s
        encoded = encode_args(args)
        limit: int = self._host.settings["args_bytes_max"]
        if len(encoded) > limit:
            raise ArgsTooLarge(
                f"the arguments have {len(encoded)} bytes, the limit (args_bytes_max) is {limit}"
            )
        wanted = required if isinstance(required, str | int) else tuple(required)
        self._counters.add("forwarded")
        refused: set[str] = set()
        while True:
            core = await self._core(refused, deadline)
            token = Token(
                self._host.name, self._host.incarnation, next(self._numbers), core.incarnation
            )
            left_s = deadline - self._host.runtime.monotonic()
            request = StartRequest(
                token, function, version or 0, encoded, wanted, int(left_s * 1000), 0
            )
            answer = await self._asked(core, request, deadline)
            if answer is not None:
                return self._read(answer)
            # It has not begun there, and never will.
            refused.add(core.name)

    async def _core(self, refused: set[str], deadline: float) -> Member:
        """The leader if it is known, else the first core that is up. Raises CannotForward."""
        while True:
            members = self._host.members
            cores = [member for member in members.values() if member.role == "core" and member.up]
            cores.sort(key=lambda member: (member.name != self._host.leader, member.name))
            for member in cores:
                if member.name not in refused:
                    return member
            # Once around: a core that could not be reached may be reached now.
            refused.clear()
            if self._host.runtime.monotonic() + RETRY_S >= deadline:
                raise CannotForward(
                    f"{self._host.name} is a {self._host.role} and calls are initiated by cores, "
                    f"of which none could be reached in time: nothing ran"
                )
            await self._host.runtime.sleep(RETRY_S)

    async def _asked(self, core: Member, start: StartRequest, deadline: float) -> Answer | None:
        """The core's answer; None if the call has certainly not begun there, nor will."""
        try:
            try:
                answer = await self._send(core.name, START, start, deadline)
            except PeerUnreachable:
                return None
            except (OutcomeUnknown, RemoteFailed):
                answer = None
            while answer is None or answer.status == "busy":
                self._check_life(core)
                if self._host.runtime.monotonic() >= deadline + LATE_S:
                    raise self._unknown(core.name)
                try:
                    ask = AskRequest(start.token, 0)
                    answer = await self._send(core.name, ASK, ask, deadline + LATE_S)
                except Stopped:
                    # This node stops. The question was not asked, but the call was begun before it.
                    raise self._unknown(core.name) from None
                except (NotApplied, OutcomeUnknown, RemoteFailed):
                    answer = None
                    await self._host.runtime.sleep(RETRY_S)
        except asyncio.CancelledError:
            self._host.spawn(self._cancel(core.name, start.token), "cancel")
            raise
        if answer.status == "never":
            return None
        if answer.status == "other_life":
            raise self._unknown(core.name)
        return answer

    async def _send(self, core: str, method: str, request: Request, deadline: float) -> Answer:
        left_s = max(deadline - self._host.runtime.monotonic(), RETRY_S)
        wait_s = min(left_s, self._options.forward_wait_s)
        asked = msgspec.structs.replace(request, wait_ms=int(wait_s * 1000))
        reply = await self._host.rpc.call(core, method, pack(asked), wait_s + WAY_S)
        return unpack(reply, Answer)

    async def _cancel(self, core: str, token: Token) -> None:
        try:
            await self._host.rpc.call(core, CANCEL, pack(token), WAY_S)
        except (NotApplied, OutcomeUnknown, RemoteFailed) as error:
            # Then it goes on there, as if nobody had gone away.
            self._host.log.debug("calls: could not cancel at %s: %s", core, type(error).__name__)

    def _check_life(self, core: Member) -> None:
        """Raises OutcomeUnknown when the core that was asked is down."""
        now = self._host.members.get(core.name)
        if now is None or not now.up:
            raise self._unknown(core.name)

    def _unknown(self, core: str) -> Timeout:
        self._counters.add("forwarded_unknown")
        return Timeout(
            f"{core} was asked to make this call, and did not say what became of it: look at "
            f"`raftkv calls status` before it is made again"
        )

    def _read(self, answer: Answer) -> CallResult:
        if answer.raised is not None:
            raise unpack_error(answer.raised)
        ended = answer.ended
        assert ended is not None
        error = ended.error
        if error is None and ended.lost:
            error = CallError("ResultLost", ended.lost)
        result = msgspec.msgpack.decode(ended.result)
        return CallResult(ended.outcome, ended.id, result, ended.nodes, error)

    # --- being asked ---

    async def _on_start(self, sender: str, payload: bytes) -> bytes:
        request = unpack(payload, StartRequest)
        self._forget_old()
        served = self._served.get(request.token)
        if served is None:
            if self._may_have_served(request.token):
                return pack(Answer("other_life"))
            # Sent to a former life, it is not begun by this one.
            former = request.token.core_incarnation != self._host.incarnation
            if former or len(self._served) >= SERVED_MAX or self.needed:
                return pack(Answer("never"))
            self._counters.add("served")
            task = self._host.runtime.spawn(self._make(request), "calls: forwarded")
            served = self._served[request.token] = _Served(task)
        return pack(await self._answer(served, request.wait_ms))

    async def _on_ask(self, sender: str, payload: bytes) -> bytes:
        request = unpack(payload, AskRequest)
        self._forget_old()
        served = self._served.get(request.token)
        if served is None:
            former = request.token.core_incarnation != self._host.incarnation
            if former or self._may_have_served(request.token):
                return pack(Answer("other_life"))
            # Should the request still be on its way, it comes too late.
            served = self._served[request.token] = _Served(None)
            served.ended_at = self._host.runtime.monotonic()
        return pack(await self._answer(served, request.wait_ms))

    async def _on_cancel(self, sender: str, payload: bytes) -> bytes:
        token = unpack(payload, Token)
        served = self._served.get(token)
        if served is None:
            served = self._served[token] = _Served(None)
            served.ended_at = self._host.runtime.monotonic()
        elif served.task is not None:
            served.task.cancel()
        return b""

    async def _answer(self, served: _Served, wait_ms: int) -> Answer:
        if served.task is None:
            return Answer("never")
        await asyncio.wait((served.task,), timeout=wait_ms / 1000)
        if not served.task.done():
            return Answer("busy")
        if served.task.cancelled():
            return Answer("raised", raised=pack_error(OutcomeUnknown("it was cancelled")))
        return served.task.result()

    async def _make(self, request: StartRequest) -> Answer:
        """Make the call; what it came to."""
        try:
            return await self._made(request)
        finally:
            served = self._served.get(request.token)
            if served is not None:
                served.ended_at = self._host.runtime.monotonic()

    async def _made(self, request: StartRequest) -> Answer:
        if request.timeout_ms < 1:
            return Answer("raised", raised=pack_error(DeadlinePassed("the time is over")))
        try:
            found = await self._calling.call(
                request.function,
                msgspec.Raw(request.args),
                request.version or None,
                request.required,
                request.timeout_ms / 1000,
            )
        except Exception as error:
            return Answer("raised", raised=pack_error(error))
        result, lost = pack_result(found.result, RESULT_BYTES_MAX)
        ended = Ended(found.outcome, found.id, result, lost, found.nodes, found.error)
        return Answer("ended", ended=ended)

    def _forget_old(self) -> None:
        """Answers that nobody will ask for any more. They stand in the order of their coming."""
        now, keep_s = self._host.runtime.monotonic(), self._options.forward_keep_s
        old = [
            token
            for token, served in itertools.islice(self._served.items(), 100)
            if served.ended_at and now - served.ended_at > keep_s
        ]
        for token in old:
            del self._served[token]
            number = (token.incarnation, token.number)
            self._forgotten[token.node] = max(number, self._forgotten.get(token.node, number))

    def _may_have_served(self, token: Token) -> bool:
        """Of a token that is not known: whether it may be one that was forgotten.

        A node's numbers rise, so whatever it sent before the newest of these is doubted. Else a
        question that comes after so long a time would be told that the call was never begun.
        """
        newest = self._forgotten.get(token.node)
        return newest is not None and (token.incarnation, token.number) <= newest
