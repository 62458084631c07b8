"""The quotas over the HTTP API: `/v1/quotas`.

    GET /v1/quotas             what each plugin uses of its quota, as this node has it
    PUT /v1/quotas/{plugin}    {"quota_bytes": ...}, null: its default

The alarm NOSPACE is ended as in etcd: `POST /v3/maintenance/alarm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from raftkv.plugin import Request, Response, Route
from raftkv.quotas import QuotaStatus

from .answers import INVALID_ARGUMENT, failure_body

__all__ = ["QuotaNode", "quota_routes"]


class Verbs(Protocol):
    """The part of `raftkv.quotas.Quotas` that these routes use."""

    def usage(self) -> list[QuotaStatus]: ...

    async def set_quota(self, plugin: str, quota_bytes: int | None) -> None: ...


class QuotaNode(Protocol):
    """What these routes need of a node."""

    @property
    def quotas(self) -> Verbs: ...

    async def barrier(self, consistency: Literal["linearizable"]) -> None: ...


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    # More than 64 bits could not be sent on.
    quota_bytes: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None


_decode = msgspec.json.Decoder(_Body).decode


def quota_routes(node: QuotaNode) -> Sequence[Route]:
    """The routes, to be served under the name `quotas`."""

    async def usage(request: Request) -> Response:
        # Without state a node knows no quota, and a stale one old figures.
        await node.barrier("linearizable")
        return Response({"quotas": node.quotas.usage()})

    async def change(request: Request) -> Response:
        try:
            body = _decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"the body must be a JSON object with quota_bytes, a number or null: {error}"
            return Response(failure_body(INVALID_ARGUMENT, text, "bad_request"), 400)
        plugin = request.params["plugin"]
        await node.quotas.set_quota(plugin, body.quota_bytes)
        return Response({"plugin": plugin, "quota_bytes": body.quota_bytes})

    return (
        Route("GET", "", usage, "What each plugin uses of its quota."),
        Route("PUT", "{plugin}", change, "Change the quota of one plugin."),
    )
