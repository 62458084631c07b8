"""The settings of the keyspace in the HTTP API: `/v1/kv/...`. The keys are at `/v3/kv`."""

from __future__ import annotations

from raftkv.plugin import Host, Route, settings_routes

__all__ = ["routes"]


def routes(host: Host) -> list[Route]:
    """The routes of one node."""
    return list(settings_routes(host))
