"""The two routes that other regions use: `POST link` (a stream of lines) and `POST report`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from raftkv.plugin import (
    Handler,
    Host,
    Request,
    Response,
    Route,
    answered,
    body_of,
    error_response,
    only_query,
)

from .errors import LinkRefused
from .frames import LinkReport, LinkRequest
from .serving import Serving

__all__ = ["link_routes"]


def link_routes(host: Host, serving: Serving) -> tuple[Route, ...]:
    """For the plugin's other routes to be put beside."""

    async def link(request: Request) -> Response:
        only_query(request)
        return Response(stream=await serving.open(body_of(request, LinkRequest)))

    async def report(request: Request) -> Response:
        only_query(request)
        await serving.report(body_of(request, LinkReport))
        return Response({})

    return (
        Route(
            "POST",
            "link",
            _answered(link),
            "what another region lacks: a stream of JSON lines, for links",
        ),
        Route("POST", "report", _answered(report), "what another region has, said by its link"),
    )


def _answered(handler: Callable[[Request], Awaitable[Response]]) -> Handler:
    def known(error: Exception) -> Response | None:
        if isinstance(error, LinkRefused):
            return error_response(_status(error.reason), error.reason, str(error))
        return None

    return answered(handler, known)


def _status(reason: str) -> int:
    return {"overloaded": 429}.get(reason, 409)
