"""The routes of a region as a whole: its status, its settings, and the other regions (door.py)."""

from __future__ import annotations

from raftkv.plugin import BadRequest, Host, Request, Response, body_of, fresh, only_query

from .api import SubscriptionsApi
from .bodies import WantedMode, WantedRegion, WantedRegionName
from .door_consumers import DoorConsumers
from .reports import plain

__all__ = ["RegionDoor"]


class RegionDoor:
    def __init__(self, host: Host, api: SubscriptionsApi, consumers: DoorConsumers) -> None:
        self._host = host
        self._api = api
        self._consumers = consumers

    async def status(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        found = plain(await self._api.status())
        return Response({**found, "door_consumers": len(self._consumers)})

    async def regions(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        return Response({"regions": [plain(each) for each in await self._api.regions()]})

    async def put(self, request: Request) -> Response:
        """A new region is added; excluding one that nobody knows is a typing error."""
        only_query(request)
        name, asked = request.params["region"], body_of(request, WantedRegion)
        if asked.state == "excluded":
            if asked.fetches is not None:
                raise BadRequest("fetches is for active regions: leave it out")
            done = await self._api.exclude_region(name)
        else:
            done = await self._api.add_region(name, fetches=asked.fetches)
        more = {"created": done.created, "changed": done.changed}
        return Response({"region": name, "state": asked.state, **more})

    async def remove(self, request: Request) -> Response:
        only_query(request)
        name = request.params["region"]
        await self._api.remove_region(name)
        return Response({"region": name, "removed": True})

    async def name(self, request: Request) -> Response:
        only_query(request)
        name = body_of(request, WantedRegionName).region
        await self._api.set_region(name)
        return Response({"region": name})

    async def mode(self, request: Request) -> Response:
        only_query(request)
        mode = body_of(request, WantedMode).mode
        await self._api.set_mode(mode)
        return Response({"mode": mode})
