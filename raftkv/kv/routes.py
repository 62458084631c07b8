"""The settings of the keyspace in the HTTP API: `/v1/kv/...`. The keys themselves are at `/v3/kv`.

GET    settings                  the replicated settings: ?consistency=
PUT    settings/{key}            {"value": json}, null: its default
"""

from __future__ import annotations

import msgspec

from raftkv.errors import InvalidSetting
from raftkv.plugin import (
    BadRequest,
    Host,
    Request,
    Response,
    Route,
    answered,
    body_of,
    error_response,
    fresh,
    only_query,
    value_of,
)

__all__ = ["routes"]


class _NewValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: msgspec.Raw


def routes(host: Host) -> list[Route]:
    """The routes of one node."""
    served = _Settings(host)
    return [
        Route("GET", "settings", answered(served.all, _known), "The replicated settings."),
        Route("PUT", "settings/{key}", answered(served.set, _known), "Change one of them."),
    ]


class _Settings:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def all(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        return self._answer()

    async def set(self, request: Request) -> Response:
        only_query(request)
        key, known = request.params["key"], self._host.settings
        if key not in known:
            raise BadRequest(f"there is no setting {key[:40]!r}, only {', '.join(known)}")
        value = value_of("value", body_of(request, _NewValue).value)
        try:
            await self._host.set_setting(key, value)
        except OverflowError:
            raise BadRequest(f"{key}: a number has more than 64 bits: send a smaller one") from None
        return self._answer()

    def _answer(self) -> Response:
        return Response({"settings": dict(self._host.settings)})


def _known(error: Exception) -> Response | None:
    if isinstance(error, InvalidSetting):
        return error_response(400, error.code, str(error))
    return None
