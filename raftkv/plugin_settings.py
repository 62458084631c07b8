"""The replicated settings of a plugin, for programs and in the HTTP API: one place for all plugins.

GET    settings                  the replicated settings: ?consistency=
PUT    settings/{key}            {"value": json}, null: its default

The command line has `raftkv.cli.kit.add_setting`. A setting's type and bounds are checked by the
log (`Setting.check`), so all three ways refuse the same values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .errors import InvalidSetting
from .plugin_door import (
    BadRequest,
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

if TYPE_CHECKING:
    from .plugin import Host

__all__ = ["PluginSettings", "settings_routes"]

# How long a change waits for the log by default, in seconds.
TIMEOUT_S = 5.0


class PluginSettings:
    """The replicated settings of one plugin, as a program on this node has them."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def all(self) -> dict[str, Any]:
        """Every setting with its value, as this node's copy has it."""
        return dict(self._host.settings)

    async def set(self, key: str, value: Any, *, timeout_s: float = TIMEOUT_S) -> None:
        """Change one on all nodes. None: its default.

        Raises InvalidSetting for a key that does not exist and a value that its check refuses,
        NotApplied kinds, and OutcomeUnknown kinds after `timeout_s` seconds.
        """
        if key not in self._host.settings:
            raise InvalidSetting(self.unknown(key))
        try:
            await self._host.set_setting(key, value, timeout_s=timeout_s)
        except OverflowError:
            raise InvalidSetting(
                f"{key}: a number has more than 64 bits: send a smaller one"
            ) from None

    def unknown(self, key: str) -> str:
        """What is wrong with a key that is none of these."""
        return f"there is no setting {key[:40]!r}, only {', '.join(self._host.settings)}"


def settings_routes(host: Host) -> tuple[Route, ...]:
    """The two routes of one node, below `/v1/<plugin>/`."""
    served = _Served(host)
    return (
        Route("GET", "settings", answered(served.all, _known), "The replicated settings."),
        Route("PUT", "settings/{key}", answered(served.set, _known), "Change one of them."),
    )


class _NewValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: msgspec.Raw


class _Served:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._settings = PluginSettings(host)

    async def all(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        return Response({"settings": self._settings.all()})

    async def set(self, request: Request) -> Response:
        only_query(request)
        key = request.params["key"]
        if key not in self._host.settings:
            raise BadRequest(self._settings.unknown(key))
        value = value_of("value", body_of(request, _NewValue).value)
        try:
            await self._host.set_setting(key, value)
        except OverflowError:
            raise BadRequest(f"{key}: a number has more than 64 bits: send a smaller one") from None
        return Response({"settings": self._settings.all()})


def _known(error: Exception) -> Response | None:
    if isinstance(error, InvalidSetting):
        return error_response(400, error.code, str(error))
    return None
