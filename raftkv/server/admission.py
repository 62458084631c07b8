"""Which requests the HTTP API takes at all: by the host that they name and the origin they have.

A web page can make a browser send requests to any address that the browser's machine reaches, also
to a node on loopback. Two checks stand against that, the class of etcd's CVE-2018-1098 and -1099:

- *Host.* A page whose name its owner lets point to the node's address ("DNS rebinding") counts as
  of the node's own origin, so that it could even read answers. But its requests name that host. A
  host that is an IP literal or loopback cannot be rebound; a name is known if it is one of the
  node's: of its addresses, of its certificate, or of the setting `host_whitelist`. Any other one
  is answered with 421. `*` in the setting knows every host, as etcd does by default.
  A request of HTTP/1.1 without a host, or with two, is malformed (400), whatever the setting.
- *Origin.* Browsers name the page's origin with every request across origins that could change
  something, a form's included. One that the setting `cors` does not name is answered with 403.
  Programs that are no browsers name none, and are not touched.

An origin that is named gets the headers that let its pages read answers, and answers to the
questions that browsers ask beforehand (preflight requests).

The verdict follows from the head of a request, the settings and the certificate alone. So hot.py
may keep it with a head; it forgets its heads when the certificate's names change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from raftkv.hostnames import host_of, is_address, normal_name, normal_origin

from .answers import INVALID_ARGUMENT, PERMISSION_DENIED, Failure

__all__ = ["TARGET", "Admission", "is_preflight", "preflight_headers", "with_cors"]

#: In a scope: the target of the request line, if it is not a path.
TARGET: Final = "raftkv.target"

#: The reasons in the answers.
UNKNOWN_HOST: Final = "unknown_host"
UNKNOWN_ORIGIN: Final = "unknown_origin"
_SETTINGS: Final = {UNKNOWN_HOST: "host_whitelist", UNKNOWN_ORIGIN: "cors"}

_ALWAYS: Final = frozenset(("localhost",))
_ALL: Final = "*"

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Admission:
    """The rules of one node.

    `names` are the node's own: those of the addresses that it tells others. `host_whitelist` and
    `cors` are the settings of these names. `refused` counts what was turned away, by setting.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        host_whitelist: Iterable[str] = (),
        cors: Iterable[str] = (),
    ) -> None:
        whitelist, origins = tuple(host_whitelist), tuple(cors)
        self._every_host = _ALL in whitelist
        self._every_origin = _ALL in origins
        known = (normal_name(name) for name in (*names, *whitelist))
        self._names = _ALWAYS | {name for name in known if name is not None}
        self._origins = frozenset(normal_origin(origin) for origin in origins)
        #: Names of the certificate in force; a first label may be `*`.
        self.certified: frozenset[str] = frozenset()
        self.refused = {"host_whitelist": 0, "cors": 0}

    def judge(self, scope: Message) -> Failure | None:
        """Why a request is not taken; None if it is."""
        hosts: list[bytes] = []
        origins: list[bytes] = []
        failure: Failure | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"expect" and value.strip().lower() != b"100-continue":
                failure = _unknown_expectation(value)
        failure = failure or self._judge_hosts(scope, hosts)
        if failure is None and not all(self._knows_origin(origin) for origin in origins):
            failure = _unknown_origin(origins[0])
        return failure

    def count(self, failure: Failure) -> None:
        """Count a request that was turned away because of a setting."""
        setting = _SETTINGS.get(failure.reason)
        if setting is not None:
            self.refused[setting] += 1

    def _judge_hosts(self, scope: Message, hosts: list[bytes]) -> Failure | None:
        if len(hosts) > 1:
            return _malformed("the request has more than one Host header")
        if not hosts and scope["http_version"] != "1.0":
            return _malformed("the request has no Host header, which HTTP/1.1 requires")
        if self._every_host:
            return None
        # One without a host, as HTTP/1.0 allows, comes from no browser.
        named = [value.decode("latin-1") for value in hosts if value]
        target: bytes | None = scope.get(TARGET)
        if target is not None and b"://" in target:
            authority = target.decode("latin-1").partition("://")[2]
            named.append(authority.partition("/")[0].partition("?")[0].rpartition("@")[2])
        for authority in named:
            host = host_of(authority)
            if host is None:
                return _malformed("the Host of the request is not of the form host:port")
            if not self._knows_host(host):
                return _unknown_host(host)
        return None

    def _knows_host(self, host: str) -> bool:
        if host in self._names or host in self.certified or is_address(host):
            return True
        # A wildcard stands for one label, as in a certificate.
        wild = "*." + host.partition(".")[2]
        return wild in self._names or wild in self.certified

    def _knows_origin(self, origin: bytes) -> bool:
        return self._every_origin or (
            (normal := normal_origin(origin.decode("latin-1"))) is not None
            and normal in self._origins
        )

    def allowed_origin(self, scope: Message) -> bytes | None:
        """What to name as the allowed origin in the answer to a request that was taken, if any."""
        for name, value in scope["headers"]:
            if name == b"origin":
                return b"*" if self._every_origin else bytes(value)
        return None


def with_cors(send: Send, origin: bytes) -> Send:
    """`send`, with the headers in the answer that let a page of `origin` read it."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
            message = {**message, "headers": [*message.get("headers", ()), *allowed]}
        await send(message)

    return sending


def is_preflight(scope: Message) -> bool:
    """Whether a browser asks what it may send from another origin."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def preflight_headers() -> list[tuple[bytes, bytes]]:
    """The answer to that: the methods and headers that the HTTP API knows."""
    return [
        (b"access-control-allow-methods", b"POST, GET, OPTIONS, PUT, DELETE"),
        (
            b"access-control-allow-headers",
            b"accept, content-type, authorization, raftkv-session, raftkv-seq, raftkv-floor",
        ),
    ]


def _malformed(text: str) -> Failure:
    return Failure(400, INVALID_ARGUMENT, text, "bad_request")


def _unknown_expectation(value: bytes) -> Failure:
    shown = value[:64].decode("latin-1")
    text = f"the expectation {shown!r} cannot be met: only 100-continue is known"
    return Failure(417, INVALID_ARGUMENT, text, "expectation_failed")


def _unknown_host(host: str) -> Failure:
    detail = (
        f"this node is not known as {host!r}: add the name to host_whitelist in the node's "
        f"configuration, or use the node's IP address or the name in its http_address"
    )
    return Failure(421, PERMISSION_DENIED, f"the host {host!r} is not known", UNKNOWN_HOST, detail)


def _unknown_origin(origin: bytes) -> Failure:
    shown = origin[:256].decode("latin-1")
    detail = (
        f"web pages of {shown!r} may not use this node: add the origin to cors in the node's "
        f"configuration if they are to"
    )
    text = f"the origin {shown!r} is not allowed"
    return Failure(403, PERMISSION_DENIED, text, UNKNOWN_ORIGIN, detail)
