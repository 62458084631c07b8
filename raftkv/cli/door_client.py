"""A small blocking client of the network door: for development clusters, and for tests.

Users take `raftkv.Client` or `raftkv.blocking.Client`. This one has no loop, no session and no
pool, which is what a test wants that looks at one door at a time; `request` is also how the command
line asks single nodes.

It speaks etcd's JSON gateway through the standard library, one connection per request, and maps
the door's errors back to raftkv's. With several endpoints it goes on to the next one when a node
does not answer or says that it could not apply the call; it never repeats a write whose outcome is
unknown, because without an exactly-once session a repeated write may be applied twice.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NoReturn

import msgspec

from raftkv.errors import (
    ChangePending,
    ConfigError,
    FormatRefused,
    MembershipRefused,
    NoLeader,
    NotApplied,
    Overloaded,
    RaftkvError,
    ReadTimeout,
    Refused,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv.read_errors import ReadErrors

from .connecting import check_endpoint
from .saying import ADVICE

__all__ = ["Consistency", "DoorClient", "Found", "of_a_change", "request", "working_first"]

Consistency = Literal["linearizable", "local"]

# After every endpoint has failed once, wait this long before the next round.
ROUND_PAUSE_S: Final = 0.1

# How the reason of a plugin ends if nothing happened in time: no refusal, and not to be repeated.
_IN_VAIN: Final = ("_deadline_passed", "_timed_out")
_BY_REASON: Final[dict[str, type[RaftkvError]]] = {
    error.code: error
    for error in (
        Overloaded,
        NoLeader,
        TooLarge,
        Stopped,
        ReadTimeout,
        MembershipRefused,
        ChangePending,
        FormatRefused,
        NotApplied,
    )
}


class Found(msgspec.Struct, frozen=True):
    """One key as it was read. Revisions are the cluster's."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int


class _Unreachable(NotApplied):
    """The node could not be connected to: nothing was sent."""

    code = "unreachable"


class NotServed(NotApplied):
    """The node does not serve the request, as one of a former release, or not under that host."""

    code = "not_served"


class DoorClient:
    """Calls to the first endpoint that can take them, all within `timeout_s` per call.

    Raises `NotApplied` when no endpoint could take the call in time, `OutcomeUnknown` when the
    connection or the deadline was lost after a write had been sent, `Refused` for a verdict.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float = 5.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        if not endpoints:
            raise ConfigError("no endpoint is known: name one with --endpoint http://HOST:PORT")
        self._endpoints = list(dict.fromkeys(map(check_endpoint, endpoints)))
        self._timeout_s = timeout_s
        self._context = context

    def put(self, key: bytes, value: bytes) -> int:
        """Write and return the cluster's revision of the write."""
        answer = self._write("/v3/kv/put", {"key": _b64(key), "value": _b64(value)})
        return int(answer["header"]["revision"])

    def get(self, key: bytes, consistency: Consistency = "linearizable") -> Found | None:
        """Read one key; None if it does not exist. `local` may be stale."""
        body = {"key": _b64(key), "serializable": consistency == "local"}
        kvs = self._call("/v3/kv/range", body, repeat=True).get("kvs", [])
        if not kvs:
            return None
        return Found(
            key=base64.b64decode(kvs[0]["key"]),
            value=base64.b64decode(kvs[0].get("value", "")),
            create_revision=int(kvs[0]["create_revision"]),
            mod_revision=int(kvs[0]["mod_revision"]),
            version=int(kvs[0]["version"]),
        )

    def delete(self, key: bytes) -> int:
        """Delete one key and return how many there were: 0 or 1."""
        return int(self._write("/v3/kv/deleterange", {"key": _b64(key)}).get("deleted", "0"))

    def _write(self, path: str, body: dict[str, Any]) -> Any:
        return self._call(path, body, repeat=False)

    def _call(self, path: str, body: dict[str, Any], *, repeat: bool) -> Any:
        """Go round the endpoints until one answers or the deadline passes.

        `repeat` allows another attempt after an unknown outcome: for reads.
        """
        return in_turn(
            self._endpoints,
            self._timeout_s,
            lambda endpoint, left_s: request(
                endpoint, "POST", path, body, timeout_s=left_s, context=self._context
            ),
            repeat=repeat,
            read=repeat,
        )


def in_turn(
    endpoints: Sequence[str],
    timeout_s: float,
    ask: Callable[[str, float], Any],
    *,
    repeat: bool,
    read: bool = False,
) -> Any:
    """Go round the endpoints until one answers or the time is up; then the last one's error.

    `ask` gets an endpoint and the seconds it may take. `repeat` allows another attempt after an
    unknown outcome. `read`: it changes nothing, so its error is that of `ReadErrors`.
    """
    deadline = time.monotonic() + timeout_s
    errors = ReadErrors()
    while True:
        for endpoint in endpoints:
            left_s = max(deadline - time.monotonic(), 0.05)
            if repeat and len(endpoints) > 1:
                # A node that hangs must leave time for the others.
                left_s = min(left_s, max(0.05, timeout_s / len(endpoints)))
            try:
                return ask(endpoint, left_s)
            except TooLarge:
                raise
            except (NotApplied, Timeout) as error:
                if isinstance(error, Timeout) and not repeat:
                    raise
                last = errors.latest(endpoint, error) if read else error
        if time.monotonic() + ROUND_PAUSE_S >= deadline:
            if len(endpoints) == 1:
                raise last
            raise type(last)(f"no endpoint could do it in time; the last: {last}") from None
        time.sleep(ROUND_PAUSE_S)


@contextlib.contextmanager
def of_a_change(*, repeat: bool) -> Iterator[None]:
    """For requests that change something: a `Timeout` has it that they may still take effect.

    `repeat`: another try does no harm.
    """
    try:
        yield
    except Timeout as error:
        said = str(error)
        if "outcome is unknown" not in said:
            said = f"the outcome is unknown, it may still take effect: {said}"
        raise type(error)(said if repeat else f"{said}. {ADVICE}") from None


def working_first(
    endpoints: Sequence[str], timeout_s: float, context: ssl.SSLContext | None
) -> tuple[list[str], bool]:
    """The endpoints, beginning with the first whose node knows a leader, and whether there is one.

    A node that hangs or is cut off may take a request and keep it until its time is up, or answer
    from an old state. The nodes are asked in turn, `timeout_s` in all at most.
    """
    for position, endpoint in enumerate(endpoints):
        try:
            share_s = timeout_s / len(endpoints)
            request(endpoint, "GET", "/health", timeout_s=share_s, context=context)
        except RaftkvError:
            continue  # it is down, hangs, or knows no leader
        return [*endpoints[position:], *endpoints[:position]], True
    return list(endpoints), False


def _encoded(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        # The shell gives any bytes; a key or a value was made base64 before.
        raise ConfigError(
            "an argument is no valid UTF-8: keys and values may be any bytes, names and reasons not"
        ) from None


def request(
    endpoint: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout_s: float = 5.0,
    context: ssl.SSLContext | None = None,
) -> Any:
    """One request to one endpoint: the decoded JSON answer, or the raftkv error it stands for.

    `context` is for https; None trusts the system's authorities.
    """
    payload = None if body is None else _encoded(body)
    connection = _connection(check_endpoint(endpoint), timeout_s, context)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise _Unreachable(f"{endpoint} cannot be reached: {error}") from None
        try:
            connection.request(method, path, payload, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            what = type(error).__name__ if not str(error) else str(error)
            raise Timeout(f"{endpoint} did not answer: {what}") from None
    finally:
        connection.close()
    try:
        decoded = msgspec.json.decode(answer) if answer else {}
    except msgspec.DecodeError:
        decoded = {"error": answer[:200].decode("utf-8", "replace")}
    if response.status >= 400:
        _raise(endpoint, response.status, decoded)
    return decoded


def _connection(
    endpoint: str, timeout_s: float, context: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    address = urllib.parse.urlsplit(endpoint)
    host = address.hostname or ""
    if address.scheme == "https":
        return http.client.HTTPSConnection(
            host, address.port or 443, timeout=timeout_s, context=context
        )
    return http.client.HTTPConnection(host, address.port or 80, timeout=timeout_s)


def _raise(endpoint: str, status: int, decoded: Any) -> NoReturn:
    fields = decoded if isinstance(decoded, dict) else {}
    text = f"{endpoint}: {fields.get('error') or fields.get('reason') or f'status {status}'}"
    if fields.get("detail"):
        text += f" ({fields['detail']})"
    known = _BY_REASON.get(str(fields.get("reason")))
    if known is not None:
        raise known(text)
    if str(fields.get("reason")).endswith(_IN_VAIN):
        raise RaftkvError(text)
    if status == 421 or (status == 404 and f"{fields.get('error')}".startswith("there is no /")):
        raise NotServed(text)
    if status == 413:
        raise TooLarge(text)
    if status in (408, 502, 503, 504):
        # A proxy's word. Some say 503 when the connection behind them breaks.
        raise Timeout(text)
    if status >= 500:
        raise RaftkvError(text)
    raise Refused(text)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
