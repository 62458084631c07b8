"""The plugin as raftkv sees it. It has no tables and no commands: all of it is cluster calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from raftkv.plugin import Host, Metric, Plugin, Route, Service

from . import levels
from .options import ConfOptions

if TYPE_CHECKING:
    import typer

    from .api import ConfApi

__all__ = ["Conf"]


class Conf(Plugin["ConfApi"]):
    """Cluster-wide configuration: checked on one node, in effect on all."""

    name: ClassVar[str] = "conf"
    version: ClassVar[int] = 1
    uses: ClassVar[tuple[str, ...]] = ("calls",)
    options: ClassVar[type[msgspec.Struct] | None] = ConfOptions

    def open(self, host: Host) -> ConfApi:
        from .api import ConfApi

        api = ConfApi(host)
        levels.register(api)
        return api

    def service(self, host: Host, api: ConfApi) -> Service:
        return ConfService(host, api)

    def cli(self) -> typer.Typer:
        # A node has no use for the command line's modules.
        from .cli import app

        return app


class ConfService(Service):
    """One per node."""

    def __init__(self, host: Host, api: ConfApi) -> None:
        self._host = host
        self._api = api

    async def start(self) -> None:
        await self._api.begin()

    def routes(self) -> Sequence[Route]:
        from . import door

        return door.routes(self._host, self._api)

    def metrics(self) -> Sequence[Metric]:
        return self._api.metrics()

    def status(self) -> Mapping[str, Any]:
        return self._api.status()
