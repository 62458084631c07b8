"""What a plugin's routes are made of: the request, the answer, and the reading of what was asked.

A handler gets a `Request` that nobody has looked into yet. What all of them do with it stands here
once: a body of JSON decoded into a Struct, parameters of the query read as what they mean, the
freshness that was asked for, and errors turned into answers of one shape.

Rules of this file: what is wrong with a request is a `BadRequest` whose text says what to send
instead, and quotes no more of it than a name, or a few letters of a number. A parameter that is not
known is refused, never passed over: it would change what is meant. Every answer that is no result
has the shape of the door's own errors (docs/http-api.md). `raftkv.plugin` gives these names to
plugins.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec

__all__ = [
    "BadRequest",
    "Handler",
    "Request",
    "Response",
    "Route",
    "Under",
    "answered",
    "body_of",
    "error_response",
    "fresh",
    "handle_of",
    "number_of",
    "only_query",
    "query_flag",
    "query_number",
    "query_seconds",
    "query_word",
    "read_handle",
    "value_of",
]

BodyT = TypeVar("BodyT")
HostT = TypeVar("HostT")

#: Objects and lists of one body: a transaction of 10,000 operations in each of its parts has them,
#: and 10,000 is the highest `txn_ops_max`. Made into requests they take about ten milliseconds.
JSON_OBJECTS_MAX: Final = 52_000

# The gRPC code that goes with a status, as in the door's own errors.
_GRPC_CODES: Final = {400: 3, 404: 5, 409: 9, 412: 9, 429: 8, 500: 13, 501: 12, 503: 14, 504: 4}
# Nineteen digits hold every id; longer ones could be slow to read.
_DIGITS_MAX: Final = 19
_HANDLE: Final = re.compile(r"([0-9]{1,19})-([0-9a-f]{16})")
# How much of a value that cannot be read is shown to whoever sent it.
_SHOWN_CHARS: Final = 20
# And of what the decoder says of it, which may name a field of a megabyte.
_ERROR_CHARS: Final = 300


class Under(Protocol):
    """A client session and one number of it: what a numbered request proposes under."""

    @property
    def seq(self) -> int:
        """The number. The door shows it with the answer (`Raftkv-Seq`), if that is its verdict."""

    async def host(self, host: HostT) -> HostT:
        """The host, but for one proposal under the number. Raises SessionExpired, ReadTimeout."""


class Request(msgspec.Struct, frozen=True):
    """A request at the node's door, its body within `command_bytes_max`.

    `under` is set if a route that may be numbered was asked with the headers of a client session.
    """

    params: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    peer: str
    under: Under | None = None


class Response(msgspec.Struct, frozen=True):
    """`body` is encoded as JSON, bytes go as they are. A `stream` is sent instead of a body."""

    body: Any = None
    status: int = 200
    stream: AsyncIterator[bytes] | None = None


#: What answers the requests of one route.
Handler = Callable[[Request], Awaitable[Response]]


class Route(msgspec.Struct, frozen=True):
    """One route below /v1/<plugin>/. "{word}" in the path captures one segment.

    `numbered`: it may be asked under a client session (docs/clients.md), so that it is done once
    however often it is asked. Then `Request.under` is set, and the handler makes its one proposal
    by `await request.under.host(host)`. Other routes refuse these headers.
    """

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    handler: Handler
    doc: str
    numbered: bool = False


class BadRequest(Exception):
    """The request cannot be done as it is. The text says what to send instead."""


class _Reads(Protocol):
    async def barrier(self, consistency: Literal["linearizable", "lease", "local"]) -> None: ...


# --- answering ------------------------------------------------------------------------------------


def answered(handler: Handler, known: Callable[[Exception], Response | None]) -> Handler:
    """`handler`, with a `BadRequest` answered 400 and what `known` knows answered as it says.

    What `known` gives None for is raised on: the door answers a `RaftkvError` by its family, and
    logs the rest.
    """

    async def checked(request: Request) -> Response:
        try:
            return await handler(request)
        except BadRequest as error:
            return error_response(400, "bad_request", str(error))
        except Exception as error:
            answer = known(error)
            if answer is None:
                raise
            return answer

    return checked


def error_response(status: int, reason: str, text: str, **more: Any) -> Response:
    """An error in the shape of the door's own: `text` for people, `reason` for programs.

    `reason` is a stable word; `more` are further fields. `status` is one of 400, 404, 409, 412,
    429, 500, 501, 503 and 504.
    """
    code = _GRPC_CODES[status]
    return Response(
        {"error": text, "message": text, "code": code, "reason": reason, **more}, status
    )


# --- reading --------------------------------------------------------------------------------------


async def fresh(host: _Reads, request: Request) -> None:
    """Wait until a read is as fresh as `?consistency=` asks: linearizable (default), or local.

    Raises NoLeader for local on a node that has applied nothing: its empty tables are no answer.
    """
    local = query_word(request, "consistency", "linearizable", ("local",)) == "local"
    await host.barrier("local" if local else "linearizable")


def only_query(request: Request, *known: str) -> None:
    """A misspelt parameter must not be passed over: it would change what is meant."""
    for name in request.query:
        if name not in known:
            what = f"only {', '.join(known)}" if known else "it takes none"
            raise BadRequest(f"there is no parameter {name!r} here: {what}")


def query_word(request: Request, name: str, default: str, others: tuple[str, ...]) -> str:
    """One of a few words."""
    text = request.query.get(name, default)
    if text != default and text not in others:
        *first, last = (default, *others)
        raise BadRequest(f"{name} is {text[:40]!r}: say {', '.join(first)}, or {last}")
    return text


def query_flag(request: Request, name: str) -> bool:
    """true or 1, false or 0; false where it is left out."""
    match request.query.get(name, "false"):
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case other:
            raise BadRequest(f"{name} is {other[:40]!r}: say true or false")


def query_number(request: Request, name: str, default: int, lowest: int, highest: int) -> int:
    """A whole number; `default`, which may lie outside the bounds, where it is left out."""
    text = request.query.get(name)
    return default if text is None else number_of(name, text, lowest, highest)


def query_seconds(request: Request, name: str, default: float, highest: float) -> float:
    """Seconds, more than none and at most `highest`."""
    text = request.query.get(name, str(default))
    try:
        # "nan" compares as false with everything.
        seconds = float(text) if len(text) <= _SHOWN_CHARS else 0.0
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= highest:
        shown = text[:_SHOWN_CHARS]
        raise BadRequest(f"{name} is {shown!r}: say more than 0 and at most {highest:g}")
    return seconds


def handle_of(number: int, nonce: int) -> str:
    """How a client names what was made for it: by a number, and a secret that only it knows."""
    return f"{number}-{nonce:016x}"


def read_handle(name: str, text: str) -> tuple[int, int]:
    """Number and secret of a handle of `handle_of`, which the client got for the thing `name`."""
    found = _HANDLE.fullmatch(text)
    if found is None:
        shown = text[:_SHOWN_CHARS]
        raise BadRequest(
            f"{name} is {shown!r}: name it as it was given when it was opened, NUMBER-SECRET"
        )
    return int(found[1]), int(found[2], 16)


def number_of(name: str, text: str, lowest: int, highest: int) -> int:
    """A whole number in a segment of the path, or in a parameter called `name`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        shown = text[:_SHOWN_CHARS]
        raise BadRequest(f"{name} is {shown!r}: say a number from {lowest} to {highest}")
    if not lowest <= int(text) <= highest:
        raise BadRequest(f"{name} is {text}: say {lowest} to {highest}")
    return int(text)


def body_of(request: Request, kind: type[BodyT], hint: str = "") -> BodyT:
    """The body, JSON, as a `kind`; no body is one with every field left out.

    `hint` stands in an error behind the names of the fields.
    """
    _require_few_objects(request.body)
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        names = ", ".join(getattr(kind, "__struct_fields__", ())) or "nothing"
        text = str(error)[:_ERROR_CHARS]
        raise BadRequest(
            f"the body is not what is asked for: {text}. It is JSON with {names}{hint}"
        ) from None
    except RecursionError:
        raise BadRequest("the body is nested too deep: say it flatter") from None


def _require_few_objects(body: bytes) -> None:
    """Counted before anything is built: a body of nothing else would hold the node's loop."""
    # Fewer bytes cannot hold them.
    if len(body) > JSON_OBJECTS_MAX:
        found = body.count(b"{") + body.count(b"[")
        if found > JSON_OBJECTS_MAX:
            raise BadRequest(
                f"the body has {found} objects and lists, and {JSON_OBJECTS_MAX} is the limit: "
                f"send it in parts"
            )


def value_of(name: str, raw: msgspec.Raw) -> Any:
    """The JSON of one field that `body_of` left as it came; the error quotes nothing of it."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{name} cannot be read as JSON: {type(error).__name__}") from None
