"""Quotas of a cluster, through its nodes and its HTTP API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from raftkv.errors import FormatRefused, InvalidSetting, NoSpace
from raftkv.plugin import Request, Response
from raftkv.server.quota_routes import quota_routes
from raftkv.testing import LocalCluster

VALUE = b"v" * 1024
QUOTA = 32 * 1024


async def asked(cluster: LocalCluster, method: str, path: str, **params: Any) -> Response:
    """What the route of a replicant answers; `params`: of the path, and the body."""
    [route] = [
        each
        for each in quota_routes(cluster.replicants[0])
        if (each.method, each.path) == (method, path)
    ]
    body = params.pop("body", None)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await route.handler(Request(params, {}, data, "test"))


def test_the_quota_is_set_met_and_disarmed_on_any_node_and_kept_over_a_restart() -> None:
    async def play() -> None:
        async with LocalCluster(3, 1) as cluster:
            await cluster.converge()
            answer = await asked(
                cluster, "PUT", "{plugin}", plugin="kv", body={"quota_bytes": QUOTA}
            )
            assert answer.status == 200
            kv = cluster.replicants[0].kv
            await asyncio.gather(
                *(kv.put(b"k%d" % number, VALUE) for number in range(100)), return_exceptions=True
            )
            with pytest.raises(NoSpace, match="raftkv alarm disarm"):
                await kv.put(b"k", b"")
            await cluster.converge()
            await cluster.restart("core1")
            await cluster.converge()
            for node in cluster.nodes:
                status = node.status()
                [usage] = status.quotas
                assert (usage.plugin, usage.quota_bytes, usage.nospace) == ("kv", QUOTA, True)
                assert QUOTA - 4 * len(VALUE) < usage.logical_bytes <= QUOTA
                assert status.alarms == ["NOSPACE"]
            deleted = await kv.delete(b"k", b"l")
            await kv.compact(deleted.revision)
            assert await cluster.nodes[0].quotas.disarm() == ("kv",)
            await kv.put(b"a", VALUE)
            found = (await asked(cluster, "GET", "")).body["quotas"]
            assert [(each.plugin, each.nospace) for each in found] == [("kv", False)]

    asyncio.run(play())


def test_a_wrong_quota_is_refused_by_name() -> None:
    async def play() -> None:
        async with LocalCluster(1, 1) as cluster:
            await cluster.converge()
            for body in (b"", b"[]", {"quota_bytes": "2G"}, {"quota_bytes": 1 << 70}, {}):
                answer = await asked(cluster, "PUT", "{plugin}", plugin="kv", body=body)
                assert answer.status == 400
                assert b"quota_bytes" in answer.body
            with pytest.raises(InvalidSetting, match="between 16384 and"):
                await asked(cluster, "PUT", "{plugin}", plugin="kv", body={"quota_bytes": 1})
            with pytest.raises(
                InvalidSetting, match=r"no setting lcr\.quota_bytes: name one of kv$"
            ):
                await cluster.nodes[0].quotas.set_quota("lcr", QUOTA)

    asyncio.run(play())


def test_at_core_format_1_there_are_no_quotas() -> None:
    async def play() -> None:
        cluster = LocalCluster(1)
        cluster.core_formats = {"core1": 1}
        async with cluster:
            await cluster.converge()
            node = cluster.nodes[0]
            assert node.status().quotas == []
            with pytest.raises(
                InvalidSetting, match=r"no setting kv\.quota_bytes.*raftkv format raise"
            ):
                await node.quotas.set_quota("kv", QUOTA)
            with pytest.raises(FormatRefused, match="raftkv format raise"):
                await node.quotas.disarm()

    asyncio.run(play())
