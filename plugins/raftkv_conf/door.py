"""The configuration at the network door: `/v1/conf/...`.

    GET    values         every path that this node knows, with what is in effect here
    GET    values/{path}  one path
    PUT    values/{path}  {"value": json, "required": r, "timeout_s": s}: set it on all nodes
    DELETE values/{path}  ?required= &timeout_s=: let it have its default again
    GET    diff           what is not the same on all nodes
    POST   sync           {"timeout_s": s}: mend the nodes that differ from the most advanced one

Rules of this file: what is read is in effect on the node that is asked, and may be behind the
others; `diff` asks them all. The value of a secret is shown nowhere, so it cannot be read here. No
message quotes a value. Errors have the shape of the door's own (docs/door.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from raftkv.plugin import Host, Request, Response, Route
from raftkv_cluster_call import (
    CallResult,
    Calls,
    DeadlinePassed,
    StaleView,
    TooManyRequired,
    UnknownNode,
)

from .api import ConfApi
from .diff import DiffReport
from .errors import ConfError, InvalidValue, NotSet, TooMuchConf, UnknownPath

__all__ = ["routes"]

# How long a request may wait, and does if it says nothing: that of a cluster call.
TIMEOUT_S: Final = 120.0
TIMEOUT_MAX_S: Final = 600.0

Body = TypeVar("Body")
Handler = Callable[[Request], Awaitable[Response]]
Required = Literal["all"] | int | tuple[str, ...]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MAX_S)]

# gRPC's numbers, which the door gives with every error.
_INVALID_ARGUMENT: Final = 3
_NOT_FOUND: Final = 5
_FAILED_PRECONDITION: Final = 9


def routes(host: Host, api: ConfApi) -> Sequence[Route]:
    """The plugin's routes on this node."""
    door = _Door(host, api)
    return (
        Route("GET", "values", _checked(door.every), "All paths, and what is in effect here."),
        Route("GET", "values/{path}", _checked(door.one), "One path."),
        Route("PUT", "values/{path}", _checked(door.put), "Set a path on all nodes."),
        Route("DELETE", "values/{path}", _checked(door.unset), "Let a path have its default."),
        Route("GET", "diff", _checked(door.diff), "What is not the same on all nodes."),
        Route("POST", "sync", _checked(door.sync), "Mend the nodes that differ."),
    )


class _Bad(Exception):
    """The request cannot be done as it is. The text says what to send instead."""


class _Set(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: msgspec.Raw
    required: str | int | tuple[str, ...] = "all"
    timeout_s: Seconds = TIMEOUT_S


class _Sync(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    timeout_s: Seconds = TIMEOUT_S


class _Door:
    def __init__(self, host: Host, api: ConfApi) -> None:
        self._host = host
        self._api = api

    async def every(self, request: Request) -> Response:
        _only(request)
        return Response({"node": self._host.name, "values": self._api.all()})

    async def one(self, request: Request) -> Response:
        _only(request)
        entry = self._api.entry(request.params["path"])
        return Response({"node": self._host.name, **msgspec.structs.asdict(entry)})

    async def put(self, request: Request) -> Response:
        _only(request)
        asked = _body(request, _Set)
        done = await self._api.set(
            request.params["path"],
            _json(asked.value),
            required=_required(asked.required),
            timeout_s=asked.timeout_s,
        )
        return _done(done)

    async def unset(self, request: Request) -> Response:
        _only(request, "required", "timeout_s")
        done = await self._api.unset(
            request.params["path"],
            required=_required_words(request.query.get("required", "all")),
            timeout_s=_seconds(request),
        )
        return _done(done)

    async def diff(self, request: Request) -> Response:
        _only(request)
        report: DiffReport = await self._api.diff()
        shown = msgspec.structs.asdict(report)
        return Response({"consistent": report.consistent, **shown})

    async def sync(self, request: Request) -> Response:
        timeout_s = _body(request, _Sync).timeout_s
        # `ConfApi.sync`, with the patience of whoever asks.
        return Response(await self._host.api(Calls).fix(timeout_s=timeout_s))


def _done(done: CallResult) -> Response:
    return Response({"outcome": done.outcome, "id": done.id, "nodes": done.nodes})


# --- what a request may say -----------------------------------------------------------------------


def _checked(handler: Handler) -> Handler:
    """`handler`, with its own kinds of errors answered as what they are."""

    async def checked(request: Request) -> Response:
        try:
            return await handler(request)
        except _Bad as error:
            return _error(400, _INVALID_ARGUMENT, "bad_request", str(error))
        except (InvalidValue, TooMuchConf, TooManyRequired) as error:
            return _error(400, _INVALID_ARGUMENT, error.code, str(error))
        except (UnknownPath, UnknownNode) as error:
            return _error(404, _NOT_FOUND, error.code, str(error))
        except (NotSet, ConfError, StaleView, DeadlinePassed) as error:
            # 409, not 503: nothing was changed, and asking the next node at once would not help.
            return _error(409, _FAILED_PRECONDITION, error.code, str(error))

    return checked


def _only(request: Request, *known: str) -> None:
    """A misspelt parameter must not be passed over: it would change what is meant."""
    for name in request.query:
        if name not in known:
            what = f"only {', '.join(known)}" if known else "it takes none"
            raise _Bad(f"there is no parameter {name!r} here: {what}")


def _required(given: str | int | tuple[str, ...]) -> Required:
    match given:
        case "all":
            return "all"
        case str():
            raise _Bad(
                f'required is {given!r}: say "all", how many nodes, or a list of their names'
            )
        case int() if given < 1:
            raise _Bad(f"required is {given}: the initiator itself counts, so say 1 or more")
        case ():
            raise _Bad('required is empty: say "all", how many nodes, or a list of their names')
        case _:
            return given


def _required_words(text: str) -> Required:
    """The same as one word of a query: all, a number, or names with commas."""
    if text == "all":
        return "all"
    if text.isascii() and text.isdecimal() and len(text) <= 6:
        return _required(int(text))
    names = tuple(text.split(","))
    if not all(names):
        raise _Bad(f"required is {text!r}: say all, a number, or names with commas")
    return names


def _seconds(request: Request) -> float:
    text = request.query.get("timeout_s", str(TIMEOUT_S))
    try:
        # "nan" compares as false with everything.
        seconds = float(text) if len(text) <= 20 else 0.0
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= TIMEOUT_MAX_S:
        raise _Bad(f"timeout_s is {text[:20]!r}: say more than 0 and at most {TIMEOUT_MAX_S:g}")
    return seconds


def _body(request: Request, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        names = ", ".join(getattr(kind, "__struct_fields__", ())) or "nothing"
        raise _Bad(f"the body is not what is asked for: {error}. It is JSON with {names}") from None
    except RecursionError:
        raise _Bad("the body is nested too deep: say it flatter") from None


def _json(value: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Bad(f"the value cannot be read as JSON: {type(error).__name__}") from None


def _error(status: int, code: int, reason: str, text: str) -> Response:
    body: dict[str, Any] = {"error": text, "message": text, "code": code, "reason": reason}
    return Response(body, status)
