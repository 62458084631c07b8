"""From the options of a command to the cluster: endpoints, TLS, a client, one run of a loop.

Every command that speaks to the keyspace is a coroutine over `raftkv.Client`, run once. A client
with a session may repeat a write whose answer was lost; a command that writes once goes without,
because a session is an entry in the log and a row in every copy. Then the outcome of a lost answer
is unknown, and the command says so.
"""

from __future__ import annotations

import contextlib
import re
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from raftkv.errors import CertificateError, ConfigError, RaftkvError

if TYPE_CHECKING:
    import ssl

    from raftkv.client import Client

    from .options import At

__all__ = ["check_endpoint", "client_of", "endpoints_of", "run", "tls_context"]

T = TypeVar("T")

# What is left of --timeout after the search for an endpoint that works, at least.
LEFT_S_MIN: Final = 0.05


def endpoints_of(at: At) -> list[str]:
    """The endpoints to try in this order, each once; of a directory's nodes those that run come
    first."""
    if at.directory is None:
        return list(dict.fromkeys(check_endpoint(endpoint) for endpoint in at.endpoints))
    from .devcluster import DevCluster

    dev = DevCluster(at.directory)
    return [dev.endpoint(name) for name in sorted(dev.names, key=lambda n: dev.pid(n) is None)]


def check_endpoint(endpoint: str) -> str:
    """The endpoint without a trailing slash; `ConfigError` unless it is http(s)://HOST:PORT."""
    try:
        parts = urllib.parse.urlsplit(endpoint)
        valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port or 80) > 0
            and not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
        )
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{endpoint!r} is not an endpoint: write http://HOST:PORT")
    return endpoint.rstrip("/")


def tls_context(at: At) -> ssl.SSLContext | None:
    """The context for https endpoints; None, which trusts the system's authorities, if nothing
    was said about it. Raises `CertificateError`."""
    tls = at.tls
    if not tls.given:
        return None
    if tls.ca is None:
        raise ConfigError("--cert is shown to servers that --cacert trusts: give both")
    return context_from(tls.ca, tls.certificate, tls.key)


def context_from(ca: str, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """A client's context from files. Raises `CertificateError`."""
    import ssl

    from raftkv.pem import load_pair, reason_of

    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"--cacert {ca} cannot be used for TLS: {reason_of(error)}. Name a file with the "
            f"certificates of authorities in PEM form"
        ) from None
    if certificate is not None:
        load_pair(context, certificate, key, "--cert and --key")
    return context


@contextlib.asynccontextmanager
async def client_of(at: At, *, exactly_once: bool = False) -> AsyncIterator[Client]:
    """A client for the command."""
    # Imported late: the other commands start faster without it.
    from raftkv.client import Client

    tls, began = tls_context(at), time.monotonic()
    endpoints = await _working_first(endpoints_of(at), tls, at.timeout_s)
    left_s = max(at.timeout_s - (time.monotonic() - began), LEFT_S_MIN)
    async with Client(endpoints, tls=tls, timeout_s=left_s, exactly_once=exactly_once) as client:
        yield client


async def _working_first(
    endpoints: list[str], tls: ssl.SSLContext | None, timeout_s: float
) -> list[str]:
    """The endpoints, beginning with the first whose node knows a leader; as they are if none does.

    A node that hangs or is cut off would take a write, and with it all the time that there is: a
    write cannot be sent to another node once it may have been applied.
    """
    if len(endpoints) == 1:
        return endpoints
    import asyncio

    from raftkv.client import Client

    share_s = timeout_s / len(endpoints)
    async with Client(endpoints, tls=tls, timeout_s=share_s, exactly_once=False) as prober:

        async def works(endpoint: str) -> bool:
            try:
                answer = await prober.call("GET", "/health", at=endpoint, timeout_s=share_s)
            except RaftkvError:
                return False
            return answer.good

        looks = [asyncio.ensure_future(works(endpoint)) for endpoint in endpoints]
        try:
            for position, look in enumerate(looks):
                if await look:
                    return endpoints[position:] + endpoints[:position]
        finally:
            for look in looks:
                look.cancel()
            await asyncio.wait(looks)
    return endpoints


def run(at: At, act: Callable[[Client], Awaitable[T]], *, exactly_once: bool = False) -> T:
    """Run `act` with a client, on a loop of its own, and return what it gives."""
    import asyncio

    from raftkv.kv.commands import LeaseExists, LeaseNotFound

    async def whole() -> T:
        async with client_of(at, exactly_once=exactly_once) as client:
            return await act(client)

    try:
        return asyncio.run(whole())
    except (LeaseExists, LeaseNotFound) as error:
        raise type(error)(_in_hexadecimals(str(error))) from None


def _in_hexadecimals(text: str) -> str:
    """A refusal of the keyspace names a lease by a plain number; this command line never does."""
    from .requests import lease_text

    return re.sub(r"(?<=\blease )\d+", lambda found: lease_text(int(found.group())), text)
