"""What an operator does with the calls: look, pass what is stuck, make the nodes equal, take leave.

    operator = calls.operator                       # on CallsApi; the door and the CLI use it too
    operator.status()
    await operator.skip("n2")                       # once more, then past it, whatever comes out
    await operator.fast_forward("n2", 17)
    await operator.fix()                            # fixing.py

Rules of this file:

1. Nothing here runs a function or moves a cursor by itself. A skip is done by the worker of the
   node that is stuck, between two of its own attempts (RPC "operate.step"): its cursor is its own.
2. Every request between nodes can be sent twice. A step names the cursor that it starts from.
3. What is asked of another node and fails there comes back as an error with that node's own text:
   an operator needs the reason, not the news that there was one.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    RemoteFailed,
)
from raftkv.plugin import Host, View

from .causes import without_place
from .commands import Acknowledge, Cursor, Leave, Rejoin, Reset
from .fixing import Copies, fix
from .reports import (
    Attempt,
    CallStatus,
    ClusterStatus,
    Failed,
    FixReport,
    LostRow,
    NodeIsDown,
    NodeStatus,
    NotFollowing,
    Operated,
    OperationFailed,
    SkipReport,
    StepAsked,
    Stepped,
    UnknownCall,
    UnknownNode,
    VerbAsked,
    VerbDone,
)
from .views import (
    CallRow,
    NodeRow,
    call_row,
    call_rows,
    cursor_of,
    last_id,
    lost_effects,
    oldest_id,
    reserved,
    status_rows,
)

__all__ = ["Operator", "Steps"]

# Calls that a status shows unless it is asked for more, and at most: 1,000 are some 200 KB of JSON.
STATUS_CALLS = 20
STATUS_CALLS_MAX = 1_000
# A step waits for the attempt that is running, which may take `run_timeout_s` (60), then runs once.
STEP_TIMEOUT_S = 120.0
# Proposals of another node: an election may lie in between.
VERB_TIMEOUT_S = 30.0

Answer = TypeVar("Answer")


class Steps(Protocol):
    """What an operator asks of this node's worker. Both wait for a running attempt to end."""

    async def step_over(self, after: int, upto: int) -> Attempt | None:
        """Run the next committed call behind the cursor once, then pass it, whatever came out.

        Success: Advance, with the effect; failure: Skip. None, and nothing is done, if the cursor
        is not `after` any more, or there is no such call with an id up to `upto`.
        """

    async def jump(self, as_of: int) -> None:
        """From "gap" or "joining" to following at `as_of` (Sync) with the data that is here."""


class Operator:
    """Looking at the calls of the cluster, and mending them, from any node.

    Methods that take `node` mean this one if it is None. Beside what each says, they raise
    `UnknownNode`, `PeerUnreachable` (nothing was done), kinds of `NotApplied` and `OutcomeUnknown`
    (look at `status` first), and `OperationFailed`, with the reason of the other node.
    """

    def __init__(self, host: Host, worker: Steps, copies: Copies) -> None:
        self._host = host
        self._worker = worker
        self._copies = copies

    def register(self) -> None:
        """Answer the requests of other nodes. Once, when the service starts."""
        self._host.rpc.register("operate.step", self._answer_step)
        self._host.rpc.register("operate.verb", self._answer_verb)

    # --- looking ---

    def status(
        self, *, every: bool = False, limit: int = STATUS_CALLS, below: int = 0
    ) -> ClusterStatus:
        """The log and everybody's place in it, from this node's copy: at once, maybe stale.

        `calls` has the newest `limit` (at most STATUS_CALLS_MAX) with ids below `below` (0: all);
        aborted ones only if `every`. For a fresh view call `host.barrier` first, as the door does.
        """
        view = self._host.view()
        rows = call_rows(view, all=every, limit=max(1, min(limit, STATUS_CALLS_MAX)), before=below)
        running = reserved(view)
        return ClusterStatus(
            index=view.index,
            last=last_id(view),
            oldest=oldest_id(view),
            granted=0 if running is None else running[0],
            queue=len(view.table("queue")),
            nodes=tuple(_node(row) for row in status_rows(view, self._host.name)),
            calls=tuple(_call(row) for row in rows),
            lost=tuple(
                LostRow(
                    node,
                    id,
                    lost.function,
                    lost.version,
                    without_place(lost.cause),
                    lost.created_ms,
                )
                for node, id, lost in lost_effects(view)
            ),
        )

    def query(self, id: int) -> CallStatus:
        """One call. Raises `UnknownCall` if it has not been made yet, or is trimmed."""
        view = self._host.view()
        row = call_row(view, id)
        if row is None:
            last, oldest = last_id(view), oldest_id(view)
            kept = f"kept are {oldest} to {last}" if oldest <= last else "none is kept"
            raise UnknownCall(f"there is no call {id}: " + (kept if last else "none was ever made"))
        return _call(row)

    # --- passing what is stuck ---

    async def skip(
        self, node: str | None = None, *, timeout_s: float = STEP_TIMEOUT_S
    ) -> SkipReport:
        """Run the node's next call once more, then go past it, whatever came out.

        The node's data may differ from the others' afterwards: `fix` tells. No attempt in the
        report: there was nothing to skip. Raises `NotFollowing` for a node that copies state.
        """
        name, after, last = await self._standing(node)
        stepped = await self._ask_step(name, StepAsked(after, last, False), timeout_s)
        attempts = () if stepped.attempt is None else (stepped.attempt,)
        return SkipReport(name, stepped.cursor, stepped.last, attempts)

    async def fast_forward(
        self, node: str | None, id: int, *, timeout_s: float = STEP_TIMEOUT_S
    ) -> SkipReport:
        """Skip until the node's cursor is `id`, or the last id there is; nothing if it is there.

        `timeout_s` bounds each step, not their sum. If a step fails, those before it stand: asking
        again goes on. A node in state "gap" or "joining" is taken to `id` in one jump, with the
        data that it has; raises `NotFollowing` if the log needs it further on than that.
        """
        name, after, last = await self._standing(node)
        target = min(id, last)
        attempts: list[Attempt] = []
        while True:
            # Even when this node's copy says that all is done: the other one knows.
            stepped = await self._ask_step(name, StepAsked(after, target, True), timeout_s)
            if stepped.attempt is not None:
                attempts.append(stepped.attempt)
            done = stepped.cursor >= target
            # No step, and the cursor is where it was: what comes next is no committed call.
            stands = stepped.attempt is None and stepped.cursor == after
            if done or stands:
                return SkipReport(name, stepped.cursor, stepped.last, tuple(attempts))
            after = stepped.cursor

    async def _standing(self, node: str | None) -> tuple[str, int, int]:
        """The node's name and cursor, and the last id, all fresh."""
        await self._host.barrier("linearizable")
        view = self._host.view()
        name = self._member(view, node)
        row: Cursor | None = cursor_of(view, name)
        return name, 0 if row is None else row.id, last_id(view)

    async def _step(self, asked: StepAsked) -> Stepped:
        await self._host.barrier("linearizable")
        view, name = self._host.view(), self._host.name
        row = _following(view, name)
        attempt = None
        if row.state == "following":
            attempt = await self._worker.step_over(asked.after, asked.upto)
        elif not asked.jump:
            raise NotFollowing(
                f"{name} is in state {row.state}: there is no next call to skip. It copies the "
                f"others' state by itself; to go on with the data it has, fast-forward it to "
                f"{max(row.as_of, row.id)} or more"
            )
        elif asked.upto < row.as_of:
            raise NotFollowing(
                f"{name} is in state {row.state}, and calls up to {row.as_of} cannot be had any "
                f"more: fast-forward it to {row.as_of} or more"
            )
        else:
            await self._worker.jump(asked.upto)
        view = self._host.view()
        return Stepped(_following(view, name).id, last_id(view), attempt)

    # --- making equal, starting anew ---

    async def fix(self, *, timeout_s: float = 120.0) -> FixReport:
        """Compare the state of all nodes and give all the most advanced one's (fixing.py).

        Never raises for a node that does not answer, nor for a log that moves: that is a verdict,
        and then nothing was changed. A second one right behind it finds all consistent.
        """
        return await fix(self._host, self._copies, timeout_s)

    async def reset(self, *, timeout_s: float | None = None) -> Operated:
        """Forget all records and let every cursor stand at the last id; ids go on from there.

        What had not been executed never will be. Raises `Moved` if a call was made meanwhile.
        """
        await self._host.barrier("linearizable", timeout_s=timeout_s)
        last = last_id(self._host.view())
        await self._host.propose(Reset(last), timeout_s=timeout_s)
        return Operated("reset", "", True, last)

    # --- coming and going ---

    async def leave(
        self, node: str | None = None, *, timeout_s: float = VERB_TIMEOUT_S
    ) -> Operated:
        """The node executes no calls any more, nor makes any, until `rejoin`. It stays a member."""
        return await self._ask_verb(node, VerbAsked("leave"), timeout_s)

    async def rejoin(
        self, node: str | None = None, *, timeout_s: float = VERB_TIMEOUT_S
    ) -> Operated:
        """A node that has left takes part again: as a new one, with a copy of the others' state."""
        return await self._ask_verb(node, VerbAsked("rejoin"), timeout_s)

    async def acknowledge(
        self, id: int, node: str | None = None, *, timeout_s: float = VERB_TIMEOUT_S
    ) -> Operated:
        """Somebody has looked after the aborted call that this node may have run: alarm off.

        The node need not be up: it may be gone for good.
        """
        await self._host.barrier("linearizable")
        view = self._host.view()
        name = self._member(view, node)
        done = (name, id) in view.table("lost")
        if done:
            await self._host.propose(Acknowledge(id, name), timeout_s=timeout_s)
        return Operated("acknowledge", name, done, last_id(self._host.view()))

    async def force_leave(self, node: str) -> Operated:
        """Take the cursor from a node that is down and will not come back soon.

        Nobody waits for it any more, and the history can be trimmed. Should it come back, it joins
        as a new node. Raises `NodeIsUp` while it is up.
        """
        await self._host.barrier("linearizable")
        view = self._host.view()
        self._member(view, node)
        had = cursor_of(view, node) is not None
        await self._host.propose(Leave(node, True))
        return Operated("force-leave", node, had, last_id(self._host.view()))

    async def _verb(self, asked: VerbAsked) -> Operated:
        await self._host.barrier("linearizable")
        view, name = self._host.view(), self._host.name
        done = _would_change(view, name, asked)
        if done:
            match asked.verb:
                case "leave":
                    await self._host.propose(Leave(name, False))
                case "rejoin":
                    await self._host.propose(Rejoin())
        return Operated(asked.verb, name, done, last_id(self._host.view()))

    # --- between nodes ---

    async def _ask_step(self, node: str, asked: StepAsked, timeout_s: float) -> Stepped:
        if node == self._host.name:
            return await self._step(asked)
        return await self._ask(node, "operate.step", asked, Stepped, timeout_s)

    async def _ask_verb(self, node: str | None, asked: VerbAsked, timeout_s: float) -> Operated:
        name = self._member(self._host.view(), node)
        if name == self._host.name:
            return await self._verb(asked)
        answer = await self._ask(name, "operate.verb", asked, VerbDone, timeout_s)
        return answer.operated

    async def _ask(
        self, node: str, method: str, asked: msgspec.Struct, kind: type[Answer], timeout_s: float
    ) -> Answer:
        member = self._host.members.get(node)
        if member is not None and not member.up:
            raise NodeIsDown(
                f"{node} is down: start it and ask again; if it is lost, force it to leave the "
                f"calls (force-leave)"
            )
        payload = msgspec.msgpack.encode(asked)
        reply = await self._host.rpc.call(node, method, payload, timeout_s)
        try:
            answer: Answer | Failed = msgspec.msgpack.decode(reply, type=kind | Failed)
        except msgspec.DecodeError:
            raise RemoteFailed(f"{node} answered in words that this node does not know") from None
        if isinstance(answer, Failed):
            raise _revived(node, answer)
        return answer

    async def _answer_step(self, sender: str, payload: bytes) -> bytes:
        try:
            asked = msgspec.msgpack.decode(payload, type=StepAsked)
            return msgspec.msgpack.encode(await self._step(asked))
        except RaftkvError as error:
            return msgspec.msgpack.encode(_failed(error))

    async def _answer_verb(self, sender: str, payload: bytes) -> bytes:
        try:
            asked = msgspec.msgpack.decode(payload, type=VerbAsked)
            return msgspec.msgpack.encode(VerbDone(await self._verb(asked)))
        except RaftkvError as error:
            return msgspec.msgpack.encode(_failed(error))

    def _member(self, view: View, node: str | None) -> str:
        name = self._host.name if node is None else node
        if name not in view.members:
            known = ", ".join(view.members) or "none"
            raise UnknownNode(f"the cluster has no node {name!r}: its members are {known}")
        return name


# --- reading rows ---------------------------------------------------------------------------------


def _node(row: NodeRow) -> NodeStatus:
    known = row.state in ("following", "joining", "gap")
    state: Any = "apart" if row.state == "none" else row.state
    return NodeStatus(
        name=row.name,
        role=row.role,
        up=row.up,
        state=state,
        cursor=row.cursor if known else None,
        lag=row.lag if known else None,
        as_of=row.as_of,
        failing=row.failing,
        attempts=row.attempts,
        cause=row.cause,
        skipped=row.skipped,
    )


def _call(row: CallRow) -> CallStatus:
    return msgspec.convert(msgspec.structs.asdict(row), CallStatus)


def _following(view: View, name: str) -> Cursor:
    row: Cursor | None = cursor_of(view, name)
    if row is None:
        raise NotFollowing(
            f"{name} takes no part in the calls, so it has no cursor: `raftkv calls rejoin {name}` "
            f"if it has left; a replicant takes part only with the setting replicants_take_part"
        )
    return row


def _would_change(view: View, name: str, asked: VerbAsked) -> bool:
    """Whether there is anything to do. What follows is checked by the log once more."""
    match asked.verb:
        case "leave":
            return name not in view.table("left")
        case "rejoin":
            return name in view.table("left")


# --- errors on their way --------------------------------------------------------------------------


def _failed(error: RaftkvError) -> Failed:
    match error:
        case NotApplied():
            return Failed("not_applied", error.code, str(error))
        case OutcomeUnknown():
            return Failed("outcome_unknown", error.code, str(error))
        case _:
            return Failed("refused", error.code, str(error))


def _revived(node: str, failed: Failed) -> RaftkvError:
    text = failed.text if failed.text.startswith(node) else f"{node}: {failed.text}"
    match failed.kind:
        case "not_applied":
            return NotApplied(text)
        case "outcome_unknown":
            return OutcomeUnknown(f"{text}; see where it stands (status) first")
        case "refused":
            return OperationFailed(text, remote_code=failed.code)
