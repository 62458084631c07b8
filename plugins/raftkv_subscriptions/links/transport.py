"""From one region to the other: opening a stream of lines, and saying what was fetched.

`LinkTransport` is what the target's leader needs; `DoorTransport` goes over the doors of the
source's nodes. A simulated world has another one.

Rules of this file: no policy but one. Which endpoint comes next is decided here (the one behind
that which failed last), when to try again is not. A client is made anew for each stream, so that
renewed certificates count from the next connection on; it holds one connection for the stream and
one for reports. No address, path of a file or text of the other side is a secret; keys are never
read here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from raftkv import Client, ClientStream, ClientTls, ConfigError, DoorAnswer, RaftkvError
from raftkv.plugin import Host
from raftkv_subscriptions.options import LinkOptions

from .errors import LinkBroken, LinkRefused
from .frames import LINE_BYTES_MAX, REQUEST_BYTES_MAX, LinkReport, LinkRequest

__all__ = ["DoorTransport", "LinkStream", "LinkTransport", "TransportFactory", "check_link"]

LINK_PATH: Final = "/v1/subscriptions/link"
REPORT_PATH: Final = "/v1/subscriptions/report"
# From the connection to the first line: two round trips, a handshake and a linearizable read.
OPEN_S: Final = 5.0
REPORT_S: Final = 5.0
# Reasons of one node that say nothing about the region: the next endpoint may do.
_OF_A_NODE: Final = frozenset(("overloaded", "not_ready", "stopped", "no_leader", "read_timeout"))


class LinkStream(Protocol):
    """Lines of one source, until it ends."""

    @property
    def endpoint(self) -> str:
        """Who serves, for people."""

    async def next(self) -> bytes:
        """The next line. May be cancelled. Raises LinkBroken when there are no more."""

    def close(self) -> None:
        """Hang up. Idempotent."""


class LinkTransport(Protocol):
    """The way to one source region."""

    async def open(self, request: LinkRequest) -> LinkStream:
        """Begin to fetch. Raises LinkRefused, or LinkBroken when nobody answers."""

    async def report(self, report: LinkReport) -> None:
        """Say what was fetched, to the node that serves the stream opened last.

        Raises as `open`, and LinkRefused with NOT_SENT for what is to be reported again.
        """

    async def close(self) -> None:
        """Hang up for good. Idempotent."""


#: Makes the transport of a host to a region of this name, with its options.
TransportFactory = Callable[[Host, str, LinkOptions], LinkTransport]


class _DoorStream:
    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self.endpoint = stream.endpoint

    async def next(self) -> bytes:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            raise LinkBroken(f"{self.endpoint} ended the stream") from None
        except RaftkvError as error:
            raise LinkBroken(str(error)) from None

    def close(self) -> None:
        self._stream.close()


class DoorTransport:
    """Over the doors at `link.endpoints`. Raises ConfigError for what cannot be used."""

    def __init__(self, link: LinkOptions) -> None:
        self._link = link
        self._turn = 0
        self._client: Client | None = None
        # Where the stream is served that was opened last.
        self._serves: str | None = None

    async def open(self, request: LinkRequest) -> LinkStream:
        body = msgspec.json.encode(request)
        if len(body) > REQUEST_BYTES_MAX:
            raise LinkRefused(
                "request_too_large",
                f"what this region has takes {len(body)} bytes to say, at most {REQUEST_BYTES_MAX} "
                f"can be: use fewer replicated topics, or shorter names",
            )
        client = await self._renew()
        try:
            stream = await client.stream(
                "POST", LINK_PATH, msgspec.Raw(body), timeout_s=OPEN_S, repeat=True
            )
        except RaftkvError as error:
            self._turn += 1
            raise LinkBroken(str(error)) from None
        # Whatever ends it, the next one is asked elsewhere first.
        self._turn = 1 + self._link.endpoints.index(stream.endpoint)
        if stream.answer is not None:
            stream.close()
            raise _refusal(stream.endpoint, stream.answer)
        self._serves = stream.endpoint
        return _DoorStream(stream)

    async def report(self, report: LinkReport) -> None:
        client = self._client or await self._renew()
        try:
            answer = await client.call(
                "POST", REPORT_PATH, report, repeat=True, timeout_s=REPORT_S, at=self._serves
            )
        except RaftkvError as error:
            raise LinkBroken(str(error)) from None
        if not answer.good:
            raise _refusal(self._serves or client.endpoint, answer)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _renew(self) -> Client:
        await self.close()
        try:
            self._client = _client_of(self._link, self._turn)
        except ConfigError as error:
            # Files that are being replaced at this moment, or that are gone.
            raise LinkBroken(str(error)) from None
        return self._client


def check_link(link: LinkOptions) -> None:
    """Raises ConfigError for endpoints, or files of certificates, that cannot be used."""
    _client_of(link, 0)


def _client_of(link: LinkOptions, turn: int) -> Client:
    split = turn % len(link.endpoints)
    endpoints = (*link.endpoints[split:], *link.endpoints[:split])
    tls = None
    if link.ca is not None:
        tls = ClientTls(ca=link.ca, certificate=link.cert, key=link.key)
    elif link.cert is not None or link.key is not None:
        raise ConfigError("a link with cert and key needs ca, the authorities of the doors there")
    if tls is not None and not any(urlsplit(each).scheme == "https" for each in endpoints):
        raise ConfigError("a link with certificates needs endpoints with https://")
    return Client(
        endpoints,
        tls=tls,
        timeout_s=OPEN_S,
        exactly_once=False,
        connections_max=2,
        answer_bytes_max=LINE_BYTES_MAX,
    )


def _refusal(endpoint: str, answer: DoorAnswer) -> LinkRefused | LinkBroken:
    body: Any = answer.body if isinstance(answer.body, dict) else {}
    reason = str(body.get("reason", ""))[:64]
    text = str(body.get("error", ""))[:500] or f"status {answer.status}"
    if answer.status >= 500 or answer.status == 429 or reason in _OF_A_NODE:
        return LinkBroken(f"{endpoint}: {text}")
    if answer.status == 404 and reason in ("", "not_found"):
        text = "the node there has no subscriptions: are its plugins the same?"
    return LinkRefused(reason or f"status_{answer.status}", f"{endpoint}: {text}")
