"""The door's verbs on members: `/v1/members`.

    GET  /v1/members            every node, with what the leader knows of it
    POST /v1/members/add        {"name": ..., "address": ..., "timeout_s": ...}
    POST /v1/members/promote    {"name": ..., "timeout_s": ...}
    POST /v1/members/forget     {"name": ..., "timeout_s": ...}
    POST /v1/members/remove     {"name": ..., "force": ..., "timeout_s": ...}

A verb answers once the change is committed; every verb may be repeated. A change that is in the log
and not committed when the time is up is 504 with the reason `change_pending`: it may yet be undone.
What the cluster will not do is 409 with the reason `membership_refused` and a sentence that tells
what to do; the other errors are those of the whole HTTP API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from raftkv.errors import ChangePending, FormatRefused, MembershipRefused
from raftkv.plugin import Request, Response, Route

from .answers import DEADLINE_EXCEEDED, FAILED_PRECONDITION, INVALID_ARGUMENT, failure_body

__all__ = ["MembersNode", "member_routes"]

# Nobody waits longer for a copy to catch up over one connection; the verb may be repeated.
TIMEOUT_S_MAX = 3600.0


class Verbs(Protocol):
    """The part of `raftkv.membership.Membership` that the door uses."""

    async def survey(self) -> msgspec.Struct: ...

    async def add(
        self, name: str, *, address: str | None = None, timeout_s: float = 60.0
    ) -> None: ...

    async def promote(self, name: str, *, timeout_s: float = 60.0) -> None: ...

    async def remove(self, name: str, *, force: bool = False, timeout_s: float = 60.0) -> None: ...

    async def forget(self, name: str, *, timeout_s: float = 60.0) -> None: ...


class MembersNode(Protocol):
    """What these routes need of a node."""

    @property
    def membership(self) -> Verbs: ...


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    address: str | None = None
    force: bool = False
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_S_MAX)] = 60.0


_decode = msgspec.json.Decoder(_Body).decode


def member_routes(node: MembersNode) -> Sequence[Route]:
    """The routes, to be given to the door under the name `members`."""

    async def survey(request: Request) -> Response:
        return Response(await node.membership.survey())

    async def add(body: _Body) -> None:
        await node.membership.add(body.name, address=body.address, timeout_s=body.timeout_s)

    async def promote(body: _Body) -> None:
        await node.membership.promote(body.name, timeout_s=body.timeout_s)

    async def remove(body: _Body) -> None:
        await node.membership.remove(body.name, force=body.force, timeout_s=body.timeout_s)

    async def forget(body: _Body) -> None:
        await node.membership.forget(body.name, timeout_s=body.timeout_s)

    return (
        Route("GET", "", survey, "Every node of the cluster."),
        Route("POST", "add", _verb(add), "Make a started core a copy, then a voter."),
        Route("POST", "promote", _verb(promote), "Make a copy or a replicant a voter."),
        Route("POST", "remove", _verb(remove), "Take a core out."),
        Route("POST", "forget", _verb(forget), "Let a member that is down hold no format up."),
    )


def _verb(act: Callable[[_Body], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            body = _decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"the body must be a JSON object with the node's name: {error}"
            return Response(failure_body(INVALID_ARGUMENT, text, "bad_request"), 400)
        try:
            await act(body)
        except (MembershipRefused, FormatRefused) as refusal:
            return Response(failure_body(FAILED_PRECONDITION, str(refusal), refusal.code), 409)
        except ChangePending as pending:
            return Response(failure_body(DEADLINE_EXCEEDED, str(pending), pending.code), 504)
        return Response({"name": body.name})

    return answer
