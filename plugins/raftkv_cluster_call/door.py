"""Cluster calls at the network door: `/v1/calls/...`.

    GET  status        log, nodes, newest calls, alarms: ?consistency= &all= &limit= &below=
    GET  calls/{id}    one call, and who has yet to execute it
    GET  functions     what is registered on this node
    POST call          {"function": f, "args": json, "version": n, "required": r, "timeout_s": s}
    POST skip          {"node": n}: run its next call once more, then pass it
    POST fast-forward  {"node": n, "id": i}: the same up to that id
    POST fix           {"timeout_s": s}: compare all nodes, make them equal
    POST reset         {}: forget all records; every node follows from the last id on
    POST leave         {"node": n}: out of the calls, until rejoin
    POST rejoin        {"node": n}
    POST force-leave   {"node": n}: take the cursor from a node that is down
    POST acknowledge   {"id": i, "node": n}: the alarm of a lost effect off

Rules of this file: where `node` may be left out, it is the node that is asked. Every answer that is
no result is an error in the door's own shape (docs/http-api.md). A call whose function failed on
its initiator is a result (200, "init_failure"), and so is a `fix` that changed nothing: whoever
asked was answered. Arguments go in, results come out; neither stands in a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

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
    fresh,
    number_of,
    only_query,
    query_flag,
    query_number,
    settings_routes,
    value_of,
)

from .api import CallsApi
from .errors import DeadlinePassed, StaleView, TooManyRequired
from .functions import CallError, UnknownFunction
from .operating import STATUS_CALLS, STATUS_CALLS_MAX
from .reports import NodeIsDown, NotFollowing, OperationFailed, UnknownCall, UnknownNode

__all__ = ["routes"]

# How long a request may wait, and does if it says nothing: that of `calls.call`.
TIMEOUT_S: Final = 120.0
TIMEOUT_MAX_S: Final = 600.0

Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Id = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MAX_S)]


def routes(host: Host, api: CallsApi) -> Sequence[Route]:
    """The plugin's routes on this node."""
    door = _Door(host, api)

    def get(path: str, handler: Handler, doc: str) -> Route:
        return Route("GET", path, answered(handler, _answer_to), doc)

    def post(path: str, handler: Handler, doc: str) -> Route:
        return Route("POST", path, answered(handler, _answer_to), doc)

    return (
        get("status", door.status, "The log, every node's place in it, the newest calls."),
        get("calls/{id}", door.query, "One call, and who has yet to execute it."),
        get("functions", door.functions, "What is registered on this node."),
        post("call", door.call, "Call a function on all nodes."),
        post("skip", door.skip, "Let a node pass its next call."),
        post("fast-forward", door.fast_forward, "Let a node pass calls up to an id."),
        post("fix", door.fix, "Compare all nodes, make them equal."),
        post("reset", door.reset, "Forget all records, let all follow from the last id."),
        post("leave", door.leave, "Take a node out of the calls."),
        post("rejoin", door.rejoin, "Let a node that has left take part again."),
        *settings_routes(host),
        post("force-leave", door.force_leave, "Take the cursor from a node that is down."),
        post("acknowledge", door.acknowledge, "Somebody looked after a lost effect."),
    )


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: str
    args: msgspec.Raw = msgspec.Raw(b"null")
    version: Version | None = None
    required: str | int | tuple[str, ...] = "all"
    timeout_s: Seconds = TIMEOUT_S


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str | None = None


class _NamedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str


class _Skip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str | None = None
    timeout_s: Seconds = TIMEOUT_S


class _Forward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id
    node: str | None = None
    timeout_s: Seconds = TIMEOUT_S


class _Acknowledge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id
    node: str | None = None


class _Fix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    timeout_s: Seconds = TIMEOUT_S


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Door:
    def __init__(self, host: Host, api: CallsApi) -> None:
        self._host = host
        self._api = api

    # --- looking ---

    async def status(self, request: Request) -> Response:
        only_query(request, "consistency", "all", "limit", "below")
        every = query_flag(request, "all")
        limit = query_number(request, "limit", STATUS_CALLS, 1, STATUS_CALLS_MAX)
        below = query_number(request, "below", 0, 1, 2**63 - 1)
        await fresh(self._host, request)
        found = self._api.status(every=every, limit=limit, below=below)
        return Response(
            {
                **msgspec.structs.asdict(found),
                "alarms": self._api.alarms(),
                # So that a reader can tell ages: the log's clock, which stamped the times.
                "now_ms": self._host.now_ms(),
            }
        )

    async def query(self, request: Request) -> Response:
        only_query(request, "consistency")
        id = number_of("id", request.params["id"], 1, 2**63 - 1)
        await fresh(self._host, request)
        return Response(self._api.query(id))

    async def functions(self, request: Request) -> Response:
        only_query(request)
        return Response({"node": self._host.name, "functions": self._api.functions()})

    # --- calling ---

    async def call(self, request: Request) -> Response:
        asked = body_of(request, _Call)
        required = _required(asked.required)
        args = self._typed(asked)
        try:
            done = await self._api.call(
                asked.function,
                args,
                version=asked.version,
                required=required,
                timeout_s=asked.timeout_s,
            )
        except (TypeError, ValueError) as error:
            raise BadRequest(str(error)) from None
        return Response(
            {
                "outcome": done.outcome,
                "id": done.id,
                "result": _showable(done.result),
                "nodes": done.nodes,
                "error": _without_places(done.error),
            }
        )

    def _typed(self, asked: _Call) -> Any:
        """The arguments as the function's type, where this node knows the function.

        JSON alone cannot say bytes, or a Struct that is an array. Where the function is not known
        the call itself finds out, and says so.
        """
        try:
            function = self._api.registry.get(asked.function, asked.version)
        except UnknownFunction:
            return value_of("args", asked.args)
        try:
            return msgspec.json.decode(asked.args, type=function.type)
        except msgspec.DecodeError as error:
            expected = getattr(function.type, "__name__", str(function.type))
            raise BadRequest(
                f"args is not what {asked.function!r} version {function.version} takes "
                f"({expected}): {error}"
            ) from None
        except RecursionError:
            raise BadRequest("args is nested too deep: say it flatter") from None

    # --- mending ---

    async def skip(self, request: Request) -> Response:
        asked = body_of(request, _Skip)
        return Response(await self._api.skip(asked.node, timeout_s=asked.timeout_s))

    async def fast_forward(self, request: Request) -> Response:
        asked = body_of(request, _Forward)
        report = await self._api.fast_forward(asked.node, asked.id, timeout_s=asked.timeout_s)
        return Response(report)

    async def fix(self, request: Request) -> Response:
        return Response(await self._api.fix(timeout_s=body_of(request, _Fix).timeout_s))

    async def reset(self, request: Request) -> Response:
        body_of(request, _Nothing)
        return Response(await self._api.reset())

    async def leave(self, request: Request) -> Response:
        return Response(await self._api.leave(body_of(request, _Node).node))

    async def rejoin(self, request: Request) -> Response:
        return Response(await self._api.rejoin(body_of(request, _Node).node))

    async def force_leave(self, request: Request) -> Response:
        return Response(await self._api.force_leave(body_of(request, _NamedNode).node))

    async def acknowledge(self, request: Request) -> Response:
        asked = body_of(request, _Acknowledge)
        return Response(await self._api.acknowledge(asked.id, asked.node))


# --- what a request may say -----------------------------------------------------------------------


def _without_places(error: CallError | None) -> dict[str, str] | None:
    """An error without its stack: files and lines of the server are for its log alone."""
    return None if error is None else {"kind": error.kind, "reason": error.reason}


def _answer_to(error: Exception) -> Response | None:
    """This plugin's own kinds of errors, answered as what they are.

    Those of a call that has run nowhere are 409, not 503: it is this cluster's state that has to
    change, and asking the next node at once would not help.
    """
    match error:
        case TooManyRequired():
            return error_response(400, error.code, str(error))
        case UnknownCall() | UnknownNode():
            return error_response(404, error.code, str(error))
        case StaleView():
            more = {
                "cluster_id": error.cluster_id,
                "own_id": error.own_id,
                "attempts": error.attempts,
            }
            return error_response(409, error.code, str(error), **more)
        case DeadlinePassed() | NodeIsDown() | NotFollowing():
            return error_response(409, error.code, str(error))
        case OperationFailed():
            return error_response(409, error.remote_code, str(error))
        case _:
            return None


def _required(given: str | int | tuple[str, ...]) -> Literal["all"] | int | tuple[str, ...]:
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


def _showable(result: Any) -> Any:
    """What a function returned, as JSON; where that cannot be, its class in "not_json"."""
    try:
        return msgspec.Raw(msgspec.json.encode(result))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {"not_json": type(result).__name__}
