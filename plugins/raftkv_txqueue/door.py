"""Transactional queues at the network door: `/v1/txqueue/...`. Bodies of messages are base64.

    GET    status                    queues, sessions, transactions, this node: ?consistency=
    GET    settings                  the replicated settings: ?consistency=
    PUT    settings/{key}            {"value": json}, null: its default
    GET    queues                    all queues with their figures: ?consistency=
    GET    queues/{queue}            one
    PUT    queues/{queue}            declare it: {"depth_max", "bytes_max", "overflow", ...}
    DELETE queues/{queue}            delete it: ?if_empty= &if_unused=
    POST   queues/{queue}/purge      remove what is available
    POST   queues/{queue}/publish    {"messages": [{"body", "headers", "ttl_s", "delay_s"}, ...]}
    GET    queues/{queue}/messages   look, and take nothing: ?from= &limit= &all= &consistency=
    POST   sessions                  {"kind": "plain" | "tx" | "dtx"}: open one at this node
    GET    sessions/{id}             what it is and holds
    DELETE sessions/{id}             close it: what it holds goes back
    POST   sessions/{id}/end         {"reason"}: an operator ends one, by its number, at any node
    POST   sessions/{id}/keepalive   it is used, although nothing is done
    POST   sessions/{id}/get         {"queue", "count", "wait_s"}: acquire messages
    POST   sessions/{id}/settle      {"queue", "seqs", "how": "accept" | "release" | "reject" | ...}
    POST   tx                        {"session"}: the id of its next transaction
    GET    tx/{txid}                 its outcome, definite; at any node
    POST   tx/{txid}/stage           {"operations": [...], "at"}
    POST   tx/{txid}/commit          {"operations": [...], "at", "timeout_s"}
    POST   tx/{txid}/rollback        {"timeout_s"}
    GET    dtx                       all branches: ?consistency=
    GET    dtx/recover               those that wait for their coordinator or were decided by hand
    GET    dtx/{xid}                 one, with its time-out, or what became of it
    POST   dtx/{xid}/start           {"session", "join", "resume", "timeout_s"}
    POST   dtx/{xid}/stage           {"session", "operations", "at"}
    POST   dtx/{xid}/end             {"session", "suspend", "fail"}
    POST   dtx/{xid}/prepare         {"timeout_s"}
    POST   dtx/{xid}/commit          {"one_phase", "timeout_s"}
    POST   dtx/{xid}/rollback        {"timeout_s"}
    POST   dtx/{xid}/forget          {"timeout_s"}
    POST   dtx/{xid}/timeout         {"seconds"}
    POST   dtx/{xid}/heuristic       {"decide": "commit" | "rollback", "reason"}

Rules of this file: what a session does is asked of the node that it was opened at (409
`txqueue_not_your_session` names it, with its address); what becomes of a transaction may be asked
anywhere, and a commit may be repeated: the same id is decided once. XA's statuses are results
(`status`, `name`); its errors have their code in `xa`. What is not known in time is 504. An answer
that is no result has the shape of the door's own errors (docs/http-api.md). None shows a body of a
message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec

from raftkv.errors import InvalidSetting, Refused
from raftkv.plugin import (
    BadRequest,
    Handler,
    Host,
    Request,
    Response,
    Route,
    answered,
    body_of,
    error_response,
    fresh,
    number_of,
    only_query,
    query_flag,
    query_number,
    read_handle,
    settings_routes,
)

from .api import TxQueueApi
from .bodies import (
    LIST_DEFAULT,
    LIST_MAX,
    NUMBER_MAX,
    WantedBegin,
    WantedCommit,
    WantedDeclare,
    WantedEndSession,
    WantedGet,
    WantedNothing,
    WantedOperation,
    WantedPublish,
    WantedRollback,
    WantedSession,
    WantedSettle,
    WantedStage,
    operation_of,
)
from .commands import Operation, SessionRow
from .door_branches import BranchDoor
from .door_sessions import DoorSessions, StageGap, TooManyDoorSessions
from .errors import TransactionAborted, TransactionUnknown
from .refusals import (
    BadAckTimeout,
    BadDeadLetter,
    BadHeaders,
    BadQueueName,
    BadQueueTtl,
    BadTime,
    BatchTooLarge,
    BranchRefused,
    EmptyBatch,
    MessageTooLarge,
    NotYourSession,
    TransactionOver,
    TransactionTooLarge,
    UnknownQueue,
    UnknownTransaction,
    WrongKind,
)
from .reports import (
    ANSWER_BYTES_MAX,
    browsed_report,
    committed_report,
    deliveries_report,
    fate_report,
    held_report,
)
from .session import Session
from .views import browse
from .xa import XaError

__all__ = ["routes"]

# What of an error a program may need: never a body or a header.
_FIELDS: Final = (
    "queue", "seq", "session", "node", "txid", "cause", "xid", "limit", "what", "at", "sent",
    "queues", "more",
)  # fmt: skip
# The request itself is wrong, whatever the state.
_WRONG: Final = (
    BadAckTimeout,
    BadDeadLetter,
    BadHeaders,
    BadQueueName,
    BadQueueTtl,
    BadTime,
    BatchTooLarge,
    EmptyBatch,
    InvalidSetting,
    MessageTooLarge,
    TransactionTooLarge,
)
_XA_STATUS: Final = {
    XaError.NOT_FOUND: 404,
    XaError.ILLEGAL_STATE: 409,
    XaError.COMMAND_INVALID: 400,
    XaError.NOT_ALLOWED: 409,
    XaError.NOT_IMPLEMENTED: 501,
    XaError.INVALID_ARGUMENT: 400,
}

# One command each, outside of sessions, and worth being sent until it is known to be done, once.
_NUMBERED: Final = frozenset(("queues/{queue}/publish",))

Method = Literal["GET", "PUT", "POST", "DELETE"]


def routes(host: Host, api: TxQueueApi, sessions: DoorSessions | None = None) -> Sequence[Route]:
    """The plugin's routes on this node. `sessions`: those of its doors, if there may be several."""
    sessions = sessions or DoorSessions(host, api)
    door, branches = _Door(host, api, sessions), BranchDoor(host, api, sessions)
    made: tuple[tuple[Method, str, Handler, str], ...] = (
        ("GET", "status", door.status, "Queues, sessions, transactions, this node."),
        ("GET", "queues", door.queues, "All queues with their figures."),
        ("GET", "queues/{queue}", door.queue, "One queue."),
        ("PUT", "queues/{queue}", door.declare, "Declare a queue, or change its limits."),
        ("DELETE", "queues/{queue}", door.delete, "Delete a queue with its messages."),
        ("POST", "queues/{queue}/purge", door.purge, "Remove what is available."),
        ("POST", "queues/{queue}/publish", door.publish, "Publish messages."),
        ("GET", "queues/{queue}/messages", door.messages, "Look at messages; take none."),
        ("POST", "sessions", door.open, "Open a session at this node."),
        ("GET", "sessions/{id}", door.session, "What a session is and holds."),
        ("DELETE", "sessions/{id}", door.close, "Close a session."),
        ("POST", "sessions/{id}/end", door.end, "End a session of whatever node, by its number."),
        ("POST", "sessions/{id}/keepalive", door.keepalive, "Keep a session."),
        ("POST", "sessions/{id}/get", door.get, "Acquire messages."),
        ("POST", "sessions/{id}/settle", door.settle, "Accept, release or reject messages."),
        ("POST", "tx", door.begin, "The id of a session's next transaction."),
        ("GET", "tx/{txid}", door.outcome, "What became of a transaction."),
        ("POST", "tx/{txid}/stage", door.stage, "Do operations in a transaction."),
        ("POST", "tx/{txid}/commit", door.commit, "Commit; the same id is decided once."),
        ("POST", "tx/{txid}/rollback", door.rollback, "Roll back."),
        *branches.routes(),
    )
    return [
        *(
            Route(
                method, path, answered(handler, partial(_answer_to, host)), doc, path in _NUMBERED
            )
            for method, path, handler, doc in made
        ),
        *settings_routes(host),
    ]


class _Door:
    def __init__(self, host: Host, api: TxQueueApi, sessions: DoorSessions) -> None:
        self._host = host
        self._api = api
        self._sessions = sessions

    # --- looking, and settings ---

    async def status(self, request: Request) -> Response:
        await self._look(request)
        found = msgspec.to_builtins(self._api.status())
        return Response({"node": self._host.name, **found, "door_sessions": len(self._sessions)})

    # --- queues ---

    async def queues(self, request: Request) -> Response:
        await self._look(request)
        return Response({"queues": self._api.queues()})

    async def queue(self, request: Request) -> Response:
        await self._look(request)
        name = request.params["queue"]
        return Response(await self._api.depth(name, consistency="local"))

    async def declare(self, request: Request) -> Response:
        only_query(request)
        name, asked = request.params["queue"], body_of(request, WantedDeclare)
        done = await self._api.declare(
            name,
            depth_max=asked.depth_max,
            bytes_max=asked.bytes_max,
            overflow=asked.overflow,
            deliveries_max=asked.deliveries_max,
            dead_letter=asked.dead_letter,
            ack_timeout_ms=asked.ack_timeout_ms,
            ttl_ms=asked.ttl_ms,
            change=asked.change,
        )
        return Response({"queue": name, "created": done.created, "changed": done.changed})

    async def delete(self, request: Request) -> Response:
        only_query(request, "if_empty", "if_unused")
        name = request.params["queue"]
        done = await self._api.delete(
            name,
            if_empty=query_flag(request, "if_empty"),
            if_unused=query_flag(request, "if_unused"),
        )
        return Response({"queue": name, "deleted": True, "messages": done.messages})

    async def purge(self, request: Request) -> Response:
        only_query(request)
        body_of(request, WantedNothing)
        name = request.params["queue"]
        return Response({"queue": name, "purged": await self._api.purge(name)})

    async def publish(self, request: Request) -> Response:
        only_query(request)
        name, asked = request.params["queue"], body_of(request, WantedPublish)
        messages = [each.message for each in asked.messages]
        with _checked():
            if request.under is not None:
                done = await self._api.publish_under(
                    request.under, name, messages, timeout_s=asked.timeout_s
                )
            else:
                done = await self._api.publish(name, messages, timeout_s=asked.timeout_s)
        return Response({"queue": name, **_fields(done)})

    async def messages(self, request: Request) -> Response:
        first = query_number(request, "from", 1, 1, NUMBER_MAX)
        limit = query_number(request, "limit", LIST_DEFAULT, 1, LIST_MAX)
        everything = query_flag(request, "all")
        await self._look(request, "from", "limit", "all")
        name = request.params["queue"]
        # One more than asked for says where to go on.
        found = browse(self._host.view(), name, first, limit + 1, everything)
        report = browsed_report(found, limit)
        return Response({"queue": name, **report, "now_ms": self._host.now_ms()})

    # --- sessions ---

    async def open(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedSession)
        opened = await self._sessions.open(asked.kind, asked.timeout_s)
        kind = opened.session.kind
        return Response(
            {
                "session": opened.handle,
                "kind": kind,
                "node": self._host.name,
                "idle_s": self._sessions.idle_s,
                "txid": opened.next_txid if kind == "tx" else "",
            }
        )

    async def session(self, request: Request) -> Response:
        only_query(request)
        handle = request.params["id"]
        async with self._sessions.using(handle, together=True) as used:
            found = held_report(self._host.view(), used.session.id, LIST_MAX)
            return Response({**found, "session": handle})

    async def close(self, request: Request) -> Response:
        only_query(request)
        handle = request.params["id"]
        await self._sessions.close(handle)
        return Response({"session": handle, "closed": True})

    async def end(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedEndSession)
        number = number_of("the session", request.params["id"], 1, NUMBER_MAX)
        done = await self._api.end_session(number, asked.reason, timeout_s=asked.timeout_s)
        return Response({"session": number, "ended": True, **_fields(done)})

    async def keepalive(self, request: Request) -> Response:
        only_query(request)
        body_of(request, WantedNothing)
        async with self._sessions.using(request.params["id"], together=True) as used:
            return Response({"session": used.handle, "idle_s": self._sessions.idle_s})

    async def get(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedGet)
        async with self._sessions.using(request.params["id"], together=True) as used:
            found = await used.session.get(
                asked.queue, asked.count, wait_s=asked.wait_s, bytes_max=ANSWER_BYTES_MAX
            )
        return Response({"queue": asked.queue, "messages": deliveries_report(found)})

    async def settle(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedSettle)
        async with self._sessions.using(request.params["id"]) as used:
            with _checked():
                done = await used.session.settle(asked.how, {asked.queue: asked.seqs})
        settled = done.get(asked.queue)
        if settled is None:
            # In a transaction: it is done when that is committed.
            return Response({"queue": asked.queue, "staged": len(asked.seqs)}, 202)
        return Response({"queue": asked.queue, **_fields(settled)})

    # --- local transactions ---

    async def begin(self, request: Request) -> Response:
        only_query(request)
        handle = body_of(request, WantedBegin).session
        async with self._sessions.using(handle) as used:
            self._check_kind(used.session)
            txid = await self._begun(used.session)
            return Response({"txid": used.next_txid, "operations": used.sent(txid)})

    async def outcome(self, request: Request) -> Response:
        only_query(request)
        given = request.params["txid"]
        txid = _plain(given)
        return Response({**fate_report(txid, await self._api.outcome(txid)), "txid": given})

    async def stage(self, request: Request) -> Response:
        only_query(request)
        given, asked = request.params["txid"], body_of(request, WantedStage)
        operations, txid = _operations(asked.operations), _plain(given)
        async with self._sessions.using(_session_of(given)) as used:
            self._check_kind(used.session)
            if txid != used.session.next_txid:
                over = txid == used.session.txid or self._is_over(txid)
                raise TransactionOver(txid) if over else UnknownTransaction(txid)
            with _checked():
                sent = await used.take(txid, operations, asked.at)
        return Response({"txid": given, "operations": sent})

    async def commit(self, request: Request) -> Response:
        only_query(request)
        given, asked = request.params["txid"], body_of(request, WantedCommit)
        operations, handle, txid = _operations(asked.operations), _session_of(given), _plain(given)
        if not self._sessions.is_here(handle):
            return await self._decided_elsewhere(given)
        async with self._sessions.using(handle) as used:
            self._check_kind(used.session)
            if self._goes_on(used.session, txid):
                used.session.begin()
                try:
                    with _checked():
                        await used.take(txid, operations, asked.at)
                except TransactionAborted:
                    await used.session.rollback()
                    raise
            done = await used.session.commit(txid, timeout_s=asked.timeout_s)
            told = {**committed_report(done), "txid": given, "next": used.next_txid}
            return Response(told)

    async def rollback(self, request: Request) -> Response:
        only_query(request)
        given, asked = request.params["txid"], body_of(request, WantedRollback)
        txid = _plain(given)
        async with self._sessions.using(_session_of(given)) as used:
            self._check_kind(used.session)
            if txid == used.session.next_txid and not self._is_over(txid):
                if self._goes_on(used.session, txid):
                    used.session.begin()
                await used.session.rollback(timeout_s=asked.timeout_s)
            fate = await self._api.outcome(txid)
            told = {**fate_report(txid, fate), "txid": given, "next": used.next_txid}
            return Response(told)

    async def _decided_elsewhere(self, given: str) -> Response:
        """A commit at a node that does not have the session: only the answer to a decided one."""
        txid = _plain(given)
        fate = await self._api.outcome(txid)
        if fate.state == "committed":
            return Response({**fate_report(txid, fate), "txid": given})
        if fate.state == "rolled back":
            raise TransactionAborted(txid, fate.cause, fate.reason)
        # It names the node that has it; or the session has ended, and another look tells.
        async with self._sessions.using(_session_of(given)):
            raise UnknownTransaction(txid)

    @staticmethod
    async def _begun(session: Session) -> str:
        """Its running transaction, or the next one, begun now."""
        if session.aborted is not None:
            # The last one was rolled back, and whoever names the next one knows that.
            await session.rollback()
        return session.begin()

    def _goes_on(self, session: Session, txid: str) -> bool:
        """Whether operations can be added to it: it runs, or it is the next one."""
        if txid != session.next_txid or self._is_over(txid):
            return False
        # What is said of an aborted one that runs is not meant for the one after it.
        return session.aborted is None or session.txid != txid

    def _is_over(self, txid: str) -> bool:
        number, _, counter = txid.partition(".")
        row: SessionRow | None = self._host.view().table("sessions").get(int(number))
        return row is not None and int(counter) <= row.decided

    @staticmethod
    def _check_kind(session: Session) -> None:
        if session.kind != "tx":
            raise WrongKind(session.id, "tx")

    # --- inside ---

    async def _look(self, request: Request, *known: str) -> None:
        only_query(request, "consistency", *known)
        await fresh(self._host, request)


# --- what a request may say, and is told ----------------------------------------------------------


@contextlib.contextmanager
def _checked() -> Iterator[None]:
    """What the API finds wrong with a call before it does anything is wrong with the request."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error)) from None


def _operations(asked: Sequence[WantedOperation]) -> list[Operation]:
    return [operation_of(each) for each in asked]


def _session_of(given: str) -> str:
    """The handle of the session of a transaction's id. Raises BadRequest."""
    handle, _, _ = given.partition(".")
    read_handle("the transaction's session", handle)
    return handle


def _plain(given: str) -> str:
    """The id as all nodes know it, "12.7", with or without the session's secret. BadRequest."""
    session, dot, counter = given.partition(".")
    if not dot:
        raise BadRequest(f"{given[:40]!r} is no transaction: say SESSION.COUNTER, like 12.7")
    number_of("the transaction", counter, 1, NUMBER_MAX)
    number = session.partition("-")[0]
    return f"{number_of('its session', number, 1, NUMBER_MAX)}.{int(counter)}"


def _fields(done: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(done)


def _answer_to(host: Host, error: Exception) -> Response | None:
    """The plugin's own kinds of errors, as what they are; the door knows the others."""
    more: dict[str, Any] = {}
    match error:
        case BranchRefused():
            status = _XA_STATUS[error.xa]
            more["xa"] = int(error.xa)
        case UnknownQueue() | UnknownTransaction():
            status = 404
        case TooManyDoorSessions():
            status = 429
        case TransactionAborted() | StageGap() | NotYourSession():
            # Aborted: not 503, for to send it again is what the client has to decide.
            status = 409
        case TransactionUnknown():
            status = 504
        case Refused() if isinstance(error, _WRONG):
            status = 400
        case Refused():
            status = 409
        case _:
            return None
    assert isinstance(error, (Refused, TransactionAborted, TransactionUnknown))
    more |= {name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}
    if isinstance(error, TransactionAborted):
        more["why"] = error.reason
    if isinstance(error, NotYourSession):
        member = host.members.get(error.node)
        more["http_address"] = None if member is None else member.http_address
    return error_response(status, error.code, str(error), **more)
