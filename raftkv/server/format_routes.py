"""The core format over the HTTP API: `/v1/format`.

    GET  /v1/format          what every member knows, and what is active
    POST /v1/format/raise    {"timeout_s": ...}

Raising answers once it is committed and may be repeated. What hinders it is 409 with the reason
`format_refused` and a sentence that names the members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

from raftkv.errors import FormatRefused
from raftkv.plugin import Request, Response, Route

from .answers import FAILED_PRECONDITION, INVALID_ARGUMENT, failure_body

__all__ = ["FormatNode", "format_routes"]

# The longest that one connection waits for the entry to be committed; the verb may be repeated.
TIMEOUT_S_MAX = 3600.0


class Verbs(Protocol):
    """The part of `raftkv.core_format.CoreFormat` that the HTTP API uses."""

    async def survey(self) -> msgspec.Struct: ...

    async def raise_to_newest(self, *, timeout_s: float = 30.0) -> int: ...


class FormatNode(Protocol):
    """What these routes need of a node."""

    @property
    def format(self) -> Verbs: ...


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_S_MAX)] = 30.0


_decode = msgspec.json.Decoder(_Body).decode


def format_routes(node: FormatNode) -> Sequence[Route]:
    """The routes, to be served under the name `format`."""

    async def survey(request: Request) -> Response:
        return Response(await node.format.survey())

    async def raise_format(request: Request) -> Response:
        try:
            body = _decode(request.body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"the body must be a JSON object, with timeout_s at most: {error}"
            return Response(failure_body(INVALID_ARGUMENT, text, "bad_request"), 400)
        try:
            active = await node.format.raise_to_newest(timeout_s=body.timeout_s)
        except FormatRefused as refusal:
            return Response(failure_body(FAILED_PRECONDITION, str(refusal), refusal.code), 409)
        return Response({"active": active})

    return (
        Route("GET", "", survey, "The core format, and what every member knows."),
        Route("POST", "raise", raise_format, "Raise the core format; there is no way back."),
    )
