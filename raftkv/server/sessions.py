"""Exactly-once writes at the door: sessions, the headers of a write, what became of a number.

    POST /v1/sessions                          {"session": "<number>-<secret>"}
    a write word, or a numbered route of a plugin, with
                        Raftkv-Session: <number>-<secret>
                        Raftkv-Seq: <n>        1, 2, 3, ...: one number a write, for good
                        Raftkv-Floor: <n>      no answer below it is needed any more; optional
    GET /v1/outcome?session=...&seq=...        {"verdict": "applied" | "refused" | ...}

A write with these headers is applied once, however often and at however many nodes it is asked for;
a repetition gets the first answer. `outcome` settles a number: after "not_applied" it never will be
applied. A session ends when it was not used for an hour of the log's clock, or to make room when
the cluster has CLIENTS_MAX (raftkv/state/sessions.py): first one that never wrote, never one within
ten minutes of its last write. A write under an ended one is refused as `session_expired`. An
address may open `http.sessions_per_s_max` a second; beyond that, and without room, it gets 429.

How a word proposes under the client's number is told in raftkv/foreign.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from raftkv.errors import Refused, SessionExpired, TooManySessions
from raftkv.foreign import Foreign, Ticket, TicketHost
from raftkv.kv import (
    CompactResult,
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    GrantResult,
    Operation,
    PutResult,
    RevokeResult,
    TxnResult,
)
from raftkv.kv.arguments import reads_only
from raftkv.plugin import Consistency, Host, Outcome, Request, Response, Route

from .answers import INVALID_ARGUMENT, BadRequest, Busy, failure_body
from .peer_rate import PeerRate
from .ports import KeyspaceWriter, LeaseWriter

__all__ = ["NUMBER_MAX", "SessionWriter", "Sessions", "SessionsNode"]

HostT = TypeVar("HostT")

# What a number may be at most: it travels as a 64-bit integer.
NUMBER_MAX: Final = 2**62
# Longer values are no handle or number of ours.
_CHARS_MAX: Final = 64

# int() would take signs, blanks, underscores and 0x as well.
_HANDLE: Final = re.compile(r"([0-9]{1,20})-([0-9a-fA-F]{1,16})")
_SESSION: Final = b"raftkv-session"
_SEQ: Final = b"raftkv-seq"
_FLOOR: Final = b"raftkv-floor"
_NAMES: Final = frozenset((_SESSION, _SEQ, _FLOOR))


class BoundKeyspace(KeyspaceWriter, Protocol):
    """The keyspace and its leases, for one write."""

    @property
    def leases(self) -> LeaseWriter: ...


class SessionsNode(Protocol):
    """What is needed of a node."""

    def kv_under(self, ticket: Ticket) -> BoundKeyspace: ...

    @property
    def kv(self) -> KeyspaceWriter: ...

    @property
    def foreign(self) -> Foreign: ...

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None: ...

    async def outcome(
        self, session: int, seq: int, *, timeout_s: float | None = None
    ) -> Outcome: ...


class Sessions:
    """The client sessions at a node's door: the `SessionBinder` of the gateway, and two routes."""

    def __init__(
        self, node: SessionsNode, *, timeout_s: float = 5.0, rate: PeerRate | None = None
    ) -> None:
        self._node = node
        self._rate = rate
        self._timeout_s = timeout_s

    def bind(self, headers: Mapping[bytes, bytes]) -> SessionWriter:
        """A writer for one write of one request. Raises BadRequest for headers that are not ours.

        Whether the session exists is found out when it writes.
        """
        ticket, nonce = _ticket(headers)
        return SessionWriter(self, ticket, nonce)

    def bind_known(self, headers: Mapping[bytes, bytes]) -> SessionWriter | None:
        """`bind` for a session that this node knows; None for any other, and for bad headers."""
        try:
            writer = self.bind(headers)
        except BadRequest:
            return None
        return writer if writer.is_known else None

    def under(self, headers: Mapping[bytes, bytes], plugin: str) -> SessionHost:
        """What one request of a plugin's route proposes under. Raises BadRequest as `bind`."""
        ticket, nonce = _ticket(headers)
        return SessionHost(self, ticket, nonce, plugin)

    async def require(self, session: int, nonce: int) -> None:
        """Raises SessionExpired unless there is such a session, ReadTimeout if none can tell."""
        foreign = self._node.foreign
        if not foreign.knows(session, nonce):
            await self._node.barrier()  # this node may lag behind the session's opening
            if not foreign.knows(session, nonce):
                raise SessionExpired(
                    f"session {session} is not open: it ended, or was never opened like this"
                )

    @property
    def node(self) -> SessionsNode:
        """The node that proposes."""
        return self._node

    def routes(self) -> dict[str, Sequence[Route]]:
        """The routes below /v1, by the name that stands for a plugin's."""
        return {
            "sessions": (Route("POST", "", self._open, "Open a session for exactly-once writes."),),
            "outcome": (Route("GET", "", self._outcome, "What became of a numbered write."),),
        }

    async def _open(self, request: Request) -> Response:
        host = request.peer.rpartition(":")[0]
        if self._rate is not None and not self._rate.take(host):
            raise Busy(
                f"{host} has opened too many client sessions (http.sessions_per_s_max): use the "
                f"ones that are open, or try again later"
            )
        try:
            return Response({"session": await self._node.foreign.open_session(self._timeout_s)})
        except TooManySessions as refusal:
            raise Busy(str(refusal)) from None

    async def _outcome(self, request: Request) -> Response:
        try:
            seq = _number(request.query.get("seq", "").encode("latin-1", "replace"), "seq")
            session, nonce = _parts(request.query.get("session", ""))
        except BadRequest as error:
            return Response(failure_body(INVALID_ARGUMENT, str(error), "bad_request"), 400)
        try:
            await self.require(session, nonce)
        except SessionExpired:
            return Response({"verdict": "expired"})
        return Response(_report(await self._node.outcome(session, seq)))


class SessionWriter:
    """What a writing word works on when its request names a session: a `Writer` of the gateway.

    It stands for itself as `kv` and `leases`. One write; a second one is a mistake of the door.
    """

    def __init__(self, sessions: Sessions, ticket: Ticket, nonce: int) -> None:
        self._sessions = sessions
        self._ticket = ticket
        self._nonce = nonce

    @property
    def kv(self) -> SessionWriter:
        """The keyspace, under the session."""
        return self

    @property
    def leases(self) -> SessionWriter:
        """Leases, under the session."""
        return self

    @property
    def is_known(self) -> bool:
        """Whether this node's copy has the session: then writing waits for nothing else."""
        return self._sessions.node.foreign.knows(self._ticket.session, self._nonce)

    async def _bound(self) -> BoundKeyspace:
        await self._sessions.require(self._ticket.session, self._nonce)
        return self._sessions.node.kv_under(self._ticket)

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        lease: int = 0,
        prev_kv: bool = False,
        ignore_value: bool = False,
        ignore_lease: bool = False,
    ) -> PutResult:
        """As `KVApi.put`; the others likewise."""
        kv = await self._bound()
        return await kv.put(
            key,
            value,
            lease=lease,
            prev_kv=prev_kv,
            ignore_value=ignore_value,
            ignore_lease=ignore_lease,
        )

    async def delete_range(self, operation: DeleteRangeOp) -> DeleteRangeResult:
        kv = await self._bound()
        return await kv.delete_range(operation)

    async def txn(
        self,
        compare: Iterable[Compare] = (),
        success: Iterable[Operation] = (),
        failure: Iterable[Operation] = (),
    ) -> TxnResult:
        success, failure = tuple(success), tuple(failure)
        if reads_only(success, failure):
            # A read needs neither the session nor the number.
            return await self._sessions.node.kv.txn(compare, success, failure)
        kv = await self._bound()
        return await kv.txn(compare, success, failure)

    async def compact(self, revision: int) -> CompactResult:
        kv = await self._bound()
        return await kv.compact(revision)

    async def grant(self, ttl_s: int, *, id: int = 0) -> GrantResult:
        kv = await self._bound()
        return await kv.leases.grant(ttl_s, id=id)

    async def revoke(self, id: int) -> RevokeResult:
        kv = await self._bound()
        return await kv.leases.revoke(id)


class SessionHost:
    """The `Request.under` of a plugin's route: a client session, a number, and for which plugin."""

    def __init__(self, sessions: Sessions, ticket: Ticket, nonce: int, plugin: str) -> None:
        self._sessions = sessions
        self._ticket = ticket
        self._nonce = nonce
        self._plugin = plugin

    @property
    def seq(self) -> int:
        """The client's number."""
        return self._ticket.seq

    async def host(self, host: HostT) -> HostT:
        """See `raftkv.plugin_door.Under`."""
        await self._sessions.require(self._ticket.session, self._nonce)
        foreign = self._sessions.node.foreign
        # It passes everything but `propose` on to the plugin's own host.
        bound: Any = TicketHost(cast(Host, host), foreign, self._ticket, self._plugin)
        return cast(HostT, bound)


def _ticket(headers: Mapping[bytes, bytes]) -> tuple[Ticket, int]:
    """The right to one proposal that the headers give, and the nonce that they show for it."""
    unknown = [n for n in headers if n.startswith(b"raftkv-") and n not in _NAMES]
    if unknown:
        raise BadRequest(f"there is no header {unknown[0].decode('latin-1')}")
    session, nonce = _parts(headers.get(_SESSION, b"").decode("latin-1"))
    seq = _number(headers.get(_SEQ), "Raftkv-Seq")
    floor = _number(headers.get(_FLOOR, b"0"), "Raftkv-Floor")
    if seq < 1 or floor > seq:
        raise BadRequest("Raftkv-Seq must be 1 or more, and Raftkv-Floor at most Raftkv-Seq")
    return Ticket(session, seq, floor), nonce


def _report(outcome: Outcome) -> dict[str, Any]:
    report: dict[str, Any] = {"verdict": outcome.verdict}
    if isinstance(outcome.result, Refused):
        refusal = outcome.result
        report |= {"reason": refusal.code, "detail": str(refusal), "args": list(refusal.args)}
    return report


def _parts(handle: str) -> tuple[int, int]:
    found = _HANDLE.fullmatch(handle)
    if found is not None:
        return int(found[1]), int(found[2], 16)
    raise BadRequest("a session is named as POST /v1/sessions has given it: <number>-<secret>")


def _number(given: bytes | None, name: str) -> int:
    if given is not None and given.isdigit() and len(given) <= _CHARS_MAX:
        number = int(given)
        if number <= NUMBER_MAX:
            return number
    raise BadRequest(f"{name} must be a whole number from 0 to {NUMBER_MAX}")
