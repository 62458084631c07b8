"""The configuration at the network door: `/v1/conf/...`.

    GET    values         every path that this node knows, with what is in effect here
    GET    values/{path}  one path
    PUT    values/{path}  {"value": json, "required": r, "timeout_s": s}: set it on all nodes
    DELETE values/{path}  ?required= &timeout_s=: let it have its default again
    GET    diff           what is not the same on all nodes
    POST   sync           {"timeout_s": s}: mend the nodes that differ from the most advanced one

Rules of this file: what is read is in effect on the node that is asked, and may be behind the
others; `diff` asks them all. The value of a secret is shown nowhere, so it cannot be read here. No
message quotes a value. Errors have the shape of the door's own (docs/http-api.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

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
    only_query,
    query_seconds,
    value_of,
)
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

Required = Literal["all"] | int | tuple[str, ...]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MAX_S)]


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
        only_query(request)
        await self._host.barrier("local")
        return Response({"node": self._host.name, "values": self._api.all()})

    async def one(self, request: Request) -> Response:
        only_query(request)
        await self._host.barrier("local")
        entry = self._api.entry(request.params["path"])
        return Response({"node": self._host.name, **msgspec.structs.asdict(entry)})

    async def put(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, _Set)
        done = await self._api.set(
            request.params["path"],
            value_of("the value", asked.value),
            required=_required(asked.required),
            timeout_s=asked.timeout_s,
        )
        return _done(done)

    async def unset(self, request: Request) -> Response:
        only_query(request, "required", "timeout_s")
        done = await self._api.unset(
            request.params["path"],
            required=_required_words(request.query.get("required", "all")),
            timeout_s=query_seconds(request, "timeout_s", TIMEOUT_S, TIMEOUT_MAX_S),
        )
        return _done(done)

    async def diff(self, request: Request) -> Response:
        only_query(request)
        await self._host.barrier("local")
        report: DiffReport = await self._api.diff()
        shown = msgspec.structs.asdict(report)
        return Response({"consistent": report.consistent, **shown})

    async def sync(self, request: Request) -> Response:
        timeout_s = body_of(request, _Sync).timeout_s
        # `ConfApi.sync`, with the patience of whoever asks.
        return Response(await self._host.api(Calls).fix(timeout_s=timeout_s))


def _done(done: CallResult) -> Response:
    return Response({"outcome": done.outcome, "id": done.id, "nodes": done.nodes})


# --- what a request may say -----------------------------------------------------------------------


def _checked(handler: Handler) -> Handler:
    return answered(handler, _answer_to)


def _answer_to(error: Exception) -> Response | None:
    """This plugin's own kinds of errors, answered as what they are."""
    match error:
        case InvalidValue() | TooMuchConf() | TooManyRequired():
            return error_response(400, error.code, str(error))
        case UnknownPath() | UnknownNode():
            return error_response(404, error.code, str(error))
        case NotSet() | ConfError() | StaleView() | DeadlinePassed():
            # 409, not 503: nothing was changed, and asking the next node at once would not help.
            return error_response(409, error.code, str(error))
        case _:
            return None


def _required(given: str | int | tuple[str, ...]) -> Required:
    match given:
        case "all":
            return "all"
        case str():
            raise BadRequest(
                f'required is {given!r}: say "all", how many nodes, or a list of their names'
            )
        case int() if given < 1:
            raise BadRequest(f"required is {given}: the initiator itself counts, so say 1 or more")
        case ():
            raise BadRequest(
                'required is empty: say "all", how many nodes, or a list of their names'
            )
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
        raise BadRequest(f"required is {text!r}: say all, a number, or names with commas")
    return names
