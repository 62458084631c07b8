"""The limbo at the network door: `/v1/limbo/...`. Keys and values are base64, as everywhere there.

    GET    status               owner, queue, quorum, nodes, spaces: ?consistency=
    GET    queue                what is pending, in order: ?from= &limit= &consistency=
    GET    verdicts             runs of verdicts, newest first: ?limit= &consistency=
    GET    verdicts/{position}  one verdict: ?wait_s= &consistency=
    GET    quorum               the quorum, and what speaks against it: ?consistency=
    PUT    quorum               {"quorum": e, "over": o, "zones": {z: n}, "validators": {v: n}}
    GET    settings             the replicated settings: ?consistency=
    PUT    settings/{key}       {"value": json}, null: its default
    GET    spaces               all spaces: ?consistency=
    POST   spaces               {"name": s, "sync": bool}: create one
    PUT    spaces/{space}       {"sync": bool}
    DELETE spaces/{space}       drop it and its rows
    POST   submit               {"writes": [...], "conditions": [...], "order", "wait", "timeout_s"}
    POST   get                  {"space", "key", "view", "timeout_s"}
    POST   range                {"space", "start", "end", "limit", "reverse", "view", "timeout_s"}
    POST   promote              {"node", "rest", "timeout_s"}: the node that is asked owns the queue
    POST   demote               {"node", "timeout_s"}: nobody does
    POST   rollback             {"position", "term", "reason"}
    POST   flush                {"timeout_s"}: all that this node submitted before is in the queue

Rules of this file: keys and values come in bodies, since paths and queries end in the logs of
proxies; no message and no status shows them. A promotion is of the node that is asked: `node`, if
it is there, must be its name. An answer that is no result has the shape of the door's own errors
(docs/http-api.md), with what a program needs next in fields of its own: `owner`, `term`,
`position`. What has not happened in time, or is not known, is 504; it says which of the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from raftkv.errors import InvalidSetting, ReadTimeout, Refused
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
    query_number,
    query_seconds,
    settings_routes,
)

from .api import LimboApi
from .bodies import (
    LIST_DEFAULT,
    LIST_MAX,
    POSITION_MAX,
    TIMEOUT_MAX_S,
    TIMEOUT_S,
    WantedAlter,
    WantedCondition,
    WantedCreate,
    WantedFlush,
    WantedGet,
    WantedPromote,
    WantedQuorum,
    WantedRange,
    WantedRollBack,
    WantedSubmit,
)
from .commands import KEY_BYTES_MAX, Condition, Row, Write
from .errors import (
    InAnotherPromote,
    NotSubmitted,
    PromoteTimedOut,
    RolledBack,
    StillPending,
    SubmitUnknown,
    VerdictForgotten,
)
from .quorum_change import QuorumChange, set_quorum
from .refusals import (
    BadSpaceName,
    BatchTooLarge,
    DuplicateWrite,
    EmptyTransaction,
    IndependentSync,
    KeyTooLarge,
    TransactionTooLarge,
    UnknownPosition,
    UnknownSpace,
)
from .reports import advice, queue_report, quorum_report
from .submission import Submission
from .views import state_of, verdicts

__all__ = ["routes"]

# Bytes of keys and values of one answer to a range; one row is always there.
RANGE_BYTES_MAX: Final = 4 * 1024 * 1024

# What of an error a program may need: never a key.
_FIELDS: Final = ("owner", "term", "position", "head", "space", "limit", "validator", "by")
# The request itself is wrong, whatever the state.
_WRONG: Final = (
    BadSpaceName,
    BatchTooLarge,
    DuplicateWrite,
    EmptyTransaction,
    IndependentSync,
    InvalidSetting,
    KeyTooLarge,
    TransactionTooLarge,
)
_IN_VAIN: Final = (NotSubmitted, PromoteTimedOut, StillPending, SubmitUnknown, VerdictForgotten)


def routes(host: Host, api: LimboApi) -> Sequence[Route]:
    """The plugin's routes on this node."""
    door = _Door(host, api)
    made: tuple[tuple[Literal["GET", "PUT", "POST", "DELETE"], str, Handler, str], ...] = (
        ("GET", "status", door.status, "Owner, queue, quorum, nodes, spaces."),
        ("GET", "queue", door.queue, "What is pending, in order."),
        ("GET", "verdicts", door.verdicts, "Runs of verdicts, newest first."),
        ("GET", "verdicts/{position}", door.verdict, "One verdict; waits for it if asked to."),
        ("GET", "quorum", door.quorum, "The quorum, and what speaks against it."),
        ("PUT", "quorum", door.set_quorum, "Change the quorum."),
        ("GET", "spaces", door.spaces, "All spaces."),
        ("POST", "spaces", door.create_space, "Create a space."),
        ("PUT", "spaces/{space}", door.alter_space, "Make a space synchronous, or not."),
        ("DELETE", "spaces/{space}", door.drop_space, "Drop a space and its rows."),
        ("POST", "submit", door.submit, "Submit a transaction."),
        ("POST", "get", door.get, "One key."),
        ("POST", "range", door.range, "Keys in order."),
        ("POST", "promote", door.promote, "Make this node the owner of the queue."),
        ("POST", "demote", door.demote, "Let nobody own the queue."),
        ("POST", "rollback", door.rollback, "Roll back from a position on."),
        ("POST", "flush", door.flush, "Wait until what was submitted here is in the queue."),
    )
    return [
        *(
            Route(method, path, answered(handler, _answer_to), doc)
            for method, path, handler, doc in made
        ),
        *settings_routes(host),
    ]


class _Door:
    def __init__(self, host: Host, api: LimboApi) -> None:
        self._host = host
        self._api = api

    # --- looking ---

    async def status(self, request: Request) -> Response:
        await self._look(request)
        found = self._api.status()
        view = self._host.view()
        told = advice(view, owner_lives=found.live)
        return Response({**msgspec.structs.asdict(found), "advice": told})

    async def queue(self, request: Request) -> Response:
        first = query_number(request, "from", 0, 1, POSITION_MAX)
        limit = query_number(request, "limit", LIST_DEFAULT, 1, LIST_MAX)
        await self._look(request, "from", "limit")
        return Response(queue_report(self._host.view(), first, limit, self._host.now_ms()))

    async def verdicts(self, request: Request) -> Response:
        limit = query_number(request, "limit", LIST_DEFAULT, 1, LIST_MAX)
        await self._look(request, "limit")
        view = self._host.view()
        state = state_of(view)
        return Response(
            {
                "verdicts": verdicts(view, limit),
                "last": state.last,
                "forgotten": state.forgotten,
                "now_ms": self._host.now_ms(),
            }
        )

    async def verdict(self, request: Request) -> Response:
        position = number_of("position", request.params["position"], 1, POSITION_MAX)
        patient = "wait_s" in request.query
        wait_s = query_seconds(request, "wait_s", TIMEOUT_S, TIMEOUT_MAX_S)
        await self._look(request, "wait_s")
        if patient:
            return Response(await self._api.wait_verdict(position, timeout_s=wait_s))
        return Response(self._api.verdict(position))

    async def quorum(self, request: Request) -> Response:
        await self._look(request)
        return Response(quorum_report(self._host.view()))

    async def spaces(self, request: Request) -> Response:
        await self._look(request)
        return Response({"spaces": self._api.spaces()})

    # --- data ---

    async def submit(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedSubmit)
        writes = [Write(each.space, each.key, each.value) for each in asked.writes]
        conditions = [_condition(each) for each in asked.conditions]
        with _checked():
            done = await self._api.submit(
                writes,
                conditions,
                order=asked.order,
                wait=asked.wait,
                timeout_s=asked.timeout_s,
            )
        if isinstance(done, Submission):
            return Response(done.now, 202)
        return Response(done, 200 if done.state == "confirmed" else 202)

    async def get(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedGet)
        with _checked():
            row = await self._api.get(
                asked.space, asked.key, view=asked.view, timeout_s=asked.timeout_s
            )
        return Response({"row": None if row is None else _shown(asked.key, row)})

    async def range(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedRange)
        with _checked():
            found = await self._api.range(
                asked.space,
                asked.start,
                asked.end,
                limit=asked.limit + 1,
                reverse=asked.reverse,
                view=asked.view,
                timeout_s=asked.timeout_s,
            )
        count = _that_fit(found[: asked.limit])
        after: bytes | None = None
        if count < len(found):
            last = found[count - 1][0]
            # Where to go on: the next `start`, or the next `end` of one that goes back.
            after = last if asked.reverse else _behind(last)
        return Response({"rows": [_shown(*each) for each in found[:count]], "next": after})

    # --- who owns the queue ---

    async def promote(self, request: Request) -> Response:
        asked = self._this_node(request)
        done = await self._api.promote(timeout_s=asked.timeout_s, rest=asked.rest)
        return Response({"node": self._host.name, **msgspec.structs.asdict(done)})

    async def demote(self, request: Request) -> Response:
        asked = self._this_node(request)
        done = await self._api.demote(timeout_s=asked.timeout_s, rest=asked.rest)
        return Response({"node": self._host.name, **msgspec.structs.asdict(done)})

    async def rollback(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedRollBack)
        done = await self._api.rollback(
            asked.position, asked.reason, term=asked.term, timeout_s=asked.timeout_s
        )
        return Response(msgspec.structs.asdict(done))

    async def flush(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedFlush)
        try:
            await self._api.flush(timeout_s=asked.timeout_s)
        except ReadTimeout as error:
            # Not 503: whoever asks again asks this node, and for a longer time.
            return error_response(504, "limbo_not_flushed", f"{error}: they go on; ask again")
        return Response({"node": self._host.name, "flushed": True})

    # --- what everything follows ---

    async def set_quorum(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedQuorum)
        quorum = str(asked.quorum) if isinstance(asked.quorum, int) else asked.quorum
        change = QuorumChange(quorum, asked.over, asked.zones, asked.validators)
        if not change.settings:
            raise BadRequest("say what changes: quorum, over, zones, or validators")
        await set_quorum(self._host, change)
        return Response(quorum_report(self._host.view()))

    async def create_space(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedCreate)
        await self._api.create_space(asked.name, sync=asked.sync)
        return Response({"name": asked.name, "sync": asked.sync})

    async def alter_space(self, request: Request) -> Response:
        only_query(request)
        name, sync = request.params["space"], body_of(request, WantedAlter).sync
        await self._api.alter_space(name, sync=sync)
        return Response({"name": name, "sync": sync})

    async def drop_space(self, request: Request) -> Response:
        only_query(request)
        await self._api.drop_space(request.params["space"])
        return Response({"name": request.params["space"], "dropped": True})

    # --- inside ---

    async def _look(self, request: Request, *known: str) -> None:
        only_query(request, "consistency", *known)
        await fresh(self._host, request)

    def _this_node(self, request: Request) -> WantedPromote:
        only_query(request)
        asked = body_of(request, WantedPromote)
        if asked.node not in (None, self._host.name):
            raise BadRequest(
                f"this is {self._host.name}, and a node is promoted and demoted by itself: "
                f"ask {asked.node}"
            )
        return asked


# --- what a request may say, and is told ----------------------------------------------------------


@contextlib.contextmanager
def _checked() -> Iterator[None]:
    """What the API finds wrong with a call before it does anything is wrong with the request."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error)) from None


def _condition(asked: WantedCondition) -> Condition:
    said = [
        name
        for name in ("value", "position", "exists")
        if getattr(asked, name) is not msgspec.UNSET
    ]
    match said:
        case ["value"]:
            assert not isinstance(asked.value, msgspec.UnsetType)
            return Condition(asked.space, asked.key, "value", asked.value)
        case ["position"]:
            assert not isinstance(asked.position, msgspec.UnsetType)
            return Condition(asked.space, asked.key, "position", None, asked.position)
        case ["exists"]:
            return Condition(asked.space, asked.key, "exists", None, int(asked.exists is True))
        case _:
            raise BadRequest("a condition has one of value, position and exists")


def _that_fit(rows: Sequence[tuple[bytes, Row]]) -> int:
    size = 0
    for count, (key, row) in enumerate(rows):
        size += len(key) + len(row.value)
        if size > RANGE_BYTES_MAX and count:
            return count
    return len(rows)


def _behind(key: bytes) -> bytes:
    """The lowest key that may come after this one: there are more, so it is not the last of all."""
    if len(key) < KEY_BYTES_MAX:
        return key + b"\0"
    low = key.rstrip(b"\xff")
    return low[:-1] + bytes([low[-1] + 1])


def _shown(key: bytes, row: Row) -> dict[str, Any]:
    return {"key": key, "value": row.value, "position": row.position}


def _answer_to(error: Exception) -> Response | None:
    """The limbo's own kinds of errors, answered as what they are; the door knows the others."""
    match error:
        case UnknownSpace() | UnknownPosition():
            status = 404
        case InAnotherPromote():
            # Not 503: to ask another node would promote that one.
            status = 409
        case Refused() if isinstance(error, _WRONG):
            status = 400
        case _ if isinstance(error, _IN_VAIN):
            status = 504
        case Refused():
            status = 409
        case _:
            return None
    assert isinstance(error, (Refused, InAnotherPromote, *_IN_VAIN))
    more = {name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}
    if isinstance(error, RolledBack):
        more["why"] = error.reason
    return error_response(status, error.code, str(error), **more)
