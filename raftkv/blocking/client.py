"""`raftkv.blocking.Client`."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from raftkv.client import Client as AsyncClient
from raftkv.client import ClientTls, DoorAnswer
from raftkv.client.calls import CONNECTIONS_MAX
from raftkv.client.http import ANSWER_BYTES_MAX
from raftkv.config import TlsFiles
from raftkv.plugin import Outcome

from .kv import KV
from .leases import Leases
from .portal import Portal
from .streams import Stream

if TYPE_CHECKING:
    from raftkv.membership import Listing
    from raftkv.status import Status

__all__ = ["Client"]


class Client:
    """`raftkv.Client` without asyncio: every call waits for its answer, any thread may call.

        with raftkv.blocking.Client("http://127.0.0.1:4001") as client:
            client.kv.put(b"k", b"v")

    The arguments are those of `raftkv.Client`. After a fork the child makes one of its own.
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
        made: list[AsyncClient] = []

        async def ending() -> None:
            for client in made:
                await client.close()

        portal = self._portal = Portal("raftkv client", ending)
        try:
            self._client = portal.run(
                lambda: AsyncClient(
                    endpoints,
                    tls=tls,
                    timeout_s=timeout_s,
                    exactly_once=exactly_once,
                    connections_max=connections_max,
                    answer_bytes_max=answer_bytes_max,
                )
            )
        except BaseException:
            portal.close()
            raise
        made.append(self._client)
        self._kv = KV(portal, self._client.kv)
        self._leases = Leases(portal, self._client.leases)

    @property
    def kv(self) -> KV:
        """The keyspace."""
        return self._kv

    @property
    def leases(self) -> Leases:
        """Leases."""
        return self._leases

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints that were given."""
        return self._client.endpoints

    @property
    def endpoint(self) -> str:
        """The endpoint that the next call goes to."""
        return self._client.endpoint

    @property
    def retries(self) -> int:
        """How often an endpoint failed, and a call went on to the next one or tried again."""
        return self._client.retries

    def status(self, endpoint: str | None = None, *, timeout_s: float | None = None) -> Status:
        """What a node tells of itself: the one at `endpoint`, or whichever answers."""
        return self._portal.call(self._client.status(endpoint, timeout_s=timeout_s))

    def members(self, *, timeout_s: float | None = None) -> Listing:
        """Every node of the cluster, as the leader knows it."""
        return self._portal.call(self._client.members(timeout_s=timeout_s))

    def call(
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
        asked, once. Without `repeat` nothing but a GET is sent again that may have been carried
        out; with `once`, for routes that take numbers, it is done once, however often it was sent.
        Raises NotApplied, or Timeout when it is not known what became of it.
        """
        return self._portal.call(
            self._client.call(
                method, path, body, at=at, repeat=repeat, once=once, timeout_s=timeout_s
            )
        )

    def stream(
        self,
        method: Literal["GET", "PUT", "POST", "DELETE"],
        path: str,
        body: Any = None,
        *,
        at: str | None = None,
        repeat: bool = False,
        timeout_s: float | None = None,
    ) -> Stream:
        """A request to a plugin's route that is answered with lines, for as long as there are any.

        The arguments are those of `call`; the deadline is for the beginning. What is no stream of
        lines (a refusal) is the stream's `answer`. Close the stream, or use it as a block.
        """
        made = self._portal.call(
            self._client.stream(method, path, body, at=at, repeat=repeat, timeout_s=timeout_s)
        )
        return Stream(self._portal, made)

    def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        """What became of a write of this client that ended in `Timeout`.

        `session` and `seq` are the error's. After "not_applied" it never will be applied. An
        "applied" one has its result if it is asked for within 30 seconds. Raises what a read does.
        """
        return self._portal.call(self._client.outcome(session, seq, timeout_s=timeout_s))

    def _behind(self) -> tuple[Portal, AsyncClient]:
        """For raftkv.blocking.recipes."""
        return self._portal, self._client

    def close(self) -> None:
        """Close the connections and end the thread. Calls of other threads end with `Stopped`
        or `Timeout`. Idempotent."""
        self._portal.finish(self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
