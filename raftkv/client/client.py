"""A client of a cluster, over the network door.

    async with raftkv.Client(["http://10.0.0.1:4001", "http://10.0.0.2:4001"]) as client:
        await client.kv.put(b"k", b"v")

It speaks etcd's words, and adds what makes a repeated write safe: an exactly-once session. What it
offers is what a node offers, by the same names and with the same results and errors, so a program
can be moved between embedding and the network, and the recipes work with either.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from raftkv.config import TlsFiles
from raftkv.errors import ConfigError, RaftkvError
from raftkv.plugin import Outcome
from raftkv.validation import checked, require, require_int64, require_timeout

from . import words
from .calls import CONNECTIONS_MAX, Caller, DoorAnswer, door_answer
from .failures import refusal_of
from .http import ANSWER_BYTES_MAX
from .kv import ClientKV
from .leases import ClientLeases
from .sessions import Session
from .streams import ClientStream
from .tls import ClientTls, context_of

if TYPE_CHECKING:
    from raftkv.membership import Listing
    from raftkv.status import Status

__all__ = ["Client", "DoorAnswer"]

_outcome = msgspec.json.Decoder(words.OutcomeAnswer).decode


@checked
class Client:
    """Calls to a cluster through the doors at `endpoints` (`http://host:port`, or https).

    `endpoints` are used in this order, the first that works. `tls` is what an https endpoint needs:
    files (`ClientTls`), or a context of the standard library; None trusts the system's authorities.
    `timeout_s` is the deadline of a call that gives none. `exactly_once` off sends writes without
    a session: one whose answer is lost is then not repeated, but raises `Timeout` at once. At most
    `connections_max` calls run at once, further ones wait; no answer may exceed `answer_bytes_max`.

    It belongs to the event loop of its first call: on another one, and in a forked child, every
    call raises Stopped. Nothing is sent before the first call. Raises ConfigError.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | str,
        *,
        tls: ClientTls | TlsFiles | ssl.SSLContext | None = None,
        timeout_s: float = 5.0,
        exactly_once: bool = True,
        connections_max: int = CONNECTIONS_MAX,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        try:
            require(str | Sequence[str], "endpoints", endpoints)
            require(bool, "exactly_once", exactly_once)
            require(float, "timeout_s", timeout_s)
            require_timeout(timeout_s)
            require_int64("connections_max", connections_max, 1)
            require_int64("answer_bytes_max", answer_bytes_max, 1)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None
        self.endpoints = (
            (endpoints,) if isinstance(endpoints, str) else tuple(dict.fromkeys(endpoints))
        )
        self._caller = Caller(
            self.endpoints,
            tls=context_of(tls),
            timeout_s=timeout_s,
            exactly_once=exactly_once,
            connections_max=connections_max,
            answer_bytes_max=answer_bytes_max,
        )
        self._kv = ClientKV(self._caller)
        self._leases = ClientLeases(self._caller)

    @property
    def kv(self) -> ClientKV:
        """The keyspace."""
        return self._kv

    @property
    def leases(self) -> ClientLeases:
        """Leases."""
        return self._leases

    @property
    def endpoint(self) -> str:
        """The endpoint that the next call goes to."""
        return self._caller.endpoint

    @property
    def retries(self) -> int:
        """How often an endpoint failed, and a call went on to the next one or tried again."""
        return self._caller.retries

    async def status(
        self, endpoint: str | None = None, *, timeout_s: float | None = None
    ) -> Status:
        """What a node tells of itself: the one at `endpoint`, or whichever answers."""
        # Imported late: the modules of a node are much to load for a client.
        from raftkv.status import Status

        deadline = self._caller.deadline(timeout_s)
        decode = msgspec.json.Decoder(Status).decode
        if endpoint is not None:
            return await self._caller.read_at(endpoint, b"/v1/status", decode, deadline=deadline)
        return await self._caller.read(b"/v1/status", b"", decode, method=b"GET", deadline=deadline)

    async def members(self, *, timeout_s: float | None = None) -> Listing:
        """Every node of the cluster, as the leader knows it."""
        from raftkv.membership import Listing

        deadline = self._caller.deadline(timeout_s)
        decode = msgspec.json.Decoder(Listing).decode
        return await self._caller.read(
            b"/v1/members", b"", decode, method=b"GET", deadline=deadline
        )

    async def call(
        self,
        method: Literal["GET", "PUT", "POST", "DELETE"],
        path: str,
        body: Any = None,
        *,
        at: str | None = None,
        repeat: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> DoorAnswer:
        """A request to a plugin's route (`/v1/<plugin>/...`): what a node answers, whatever it is.

        `path` is quoted, with its query; `body` is sent as JSON. `at` is the one endpoint that is
        asked, once, for what only that node can tell. Without `repeat` nothing but a GET is sent
        again that may have been carried out. `once`, for routes that take numbers: it goes under
        one of this client's sessions, so it is sent again as often as need be, and done once;
        `outcome` tells of a Timeout. A refusal, and an error of the plugin's own, is an answer.
        Raises NotApplied, or Timeout when it is not known what became of it; with `once` also
        Refused, when no session can be opened.
        """
        verb, target = method.encode("ascii"), _target(path)
        sent = b"" if body is None else msgspec.json.encode(body)
        deadline = self._caller.deadline(timeout_s)
        if not once:
            answer = await self._caller.ask(
                verb, target, sent, url=at, repeat=repeat or method == "GET", deadline=deadline
            )
            return door_answer(answer)
        if at is not None or repeat or method == "GET":
            raise ValueError("once is for what changes something, and knows itself where it goes")
        return await self._caller.ask_once(verb, target, sent, deadline=deadline)

    async def stream(
        self,
        method: Literal["GET", "PUT", "POST", "DELETE"],
        path: str,
        body: Any = None,
        *,
        at: str | None = None,
        repeat: bool = False,
        timeout_s: float | None = None,
    ) -> ClientStream:
        """A request to a plugin's route that is answered with lines, for as long as there are any.

        The arguments are those of `call`; the deadline is for the beginning. What is no stream of
        lines (a refusal) is the stream's `answer`. Close the stream, or use it as a block. Raises
        as `call` does. No line may exceed `answer_bytes_max`.
        """
        place, answer, lines = await self._caller.ask_stream(
            method.encode("ascii"),
            _target(path),
            b"" if body is None else msgspec.json.encode(body),
            url=at,
            repeat=repeat or method == "GET",
            deadline=self._caller.deadline(timeout_s),
        )
        if answer.status == 200:
            return ClientStream(place.http.url, lines, None)
        return ClientStream(place.http.url, lines, door_answer(answer))

    async def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        """What became of a write of this client that ended in `Timeout`.

        `session` and `seq` are the error's. After "not_applied" it never will be applied. An
        "applied" one has its result if it is asked for within 30 seconds. Raises what a read does.
        """
        known = self._caller.sessions.find(session)
        if known is None:
            return Outcome("expired")
        deadline = self._caller.deadline(timeout_s)
        target = f"/v1/outcome?session={known.handle}&seq={seq}".encode("ascii")
        answer = await self._caller.read(target, b"", _outcome, method=b"GET", deadline=deadline)
        try:
            if answer.verdict == "refused":
                return Outcome("refused", refusal_of(answer.reason, answer.args, answer.detail))
            if answer.verdict != "applied":
                return Outcome(answer.verdict)
            return Outcome("applied", await self._first_result(known, seq, deadline))
        finally:
            known.done(seq)

    async def _first_result(self, session: Session, seq: int, deadline: float) -> Any:
        """The result of an applied write, by sending it once more; None if it is not known."""
        given_up = session.given_up(seq)
        if given_up is None:
            return None
        request = given_up.request
        decode = words.RESULTS.get(request.path)
        try:
            return await self._caller.repeat(session, seq, request, decode, deadline=deadline)
        except RaftkvError:
            return None  # the verdict stands without it

    async def close(self) -> None:
        """Close the connections. Calls under way end with an error. Idempotent."""
        self._caller.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _target(path: str) -> bytes:
    """A path as it stands in a request. Raises ValueError for one that is not quoted."""
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError(f"{path!r} is no path: it begins with /, and needs urllib.parse.quote")
    return path.encode("ascii")
