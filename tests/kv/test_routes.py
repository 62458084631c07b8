"""The settings of the keyspace in the HTTP API."""

from __future__ import annotations

import asyncio

import pytest

from raftkv import Client
from raftkv.kv import KV, Compare, PutOp, TxnTooCostly
from tests.client.doors import served

ANY = Compare(b"\0", "version", ">", 0, b"\0")


def test_a_setting_is_changed_on_all_nodes_and_back_to_its_default() -> None:
    async def story() -> None:
        async with served(1, 1) as doors, Client(doors.urls, timeout_s=10) as client:
            found = (await client.call("GET", "/v1/kv/settings")).body["settings"]
            assert found["rows_max"] == 100_000
            assert {setting.key for setting in KV.settings} <= found.keys()
            node = doors.cluster.nodes[0]
            async with asyncio.timeout(20):
                while node.machine.active_versions["kv"] < KV.version:
                    await asyncio.sleep(0.01)
            for number in range(4):
                await client.kv.put(b"%d" % number, b"")
            path = "/v1/kv/settings/rows_max"
            changed = await client.call("PUT", path, {"value": 3}, at=doors.urls[1])
            assert changed.body["settings"]["rows_max"] == 3
            with pytest.raises(TxnTooCostly, match="PUT /v1/kv/settings/rows_max"):
                await client.kv.txn([ANY], [PutOp(b"a", b"")], [])
            assert (await client.call("PUT", path, {"value": None})).good
            assert (await client.kv.txn([ANY], [PutOp(b"a", b"")], [])).succeeded

    asyncio.run(story())


def test_wrong_settings_are_refused_with_what_is_possible() -> None:
    async def story() -> None:
        async with served(1) as doors, Client(doors.urls, timeout_s=10) as client:
            for key, body, text in (
                ("rows", {"value": 3}, "rows_max"),
                ("rows_max", {"value": 0}, "between 1 and 1000000"),
                ("rows_max", {"value": "many"}, "type"),
                ("rows_max", {"value": 2**70}, "smaller"),
                ("rows_max", {}, "value"),
                ("rows_max", {"value": 3, "more": 1}, "more"),
            ):
                answer = await client.call("PUT", f"/v1/kv/settings/{key}", body)
                assert answer.status == 400, body
                assert text in answer.body["error"], answer.body
            assert (await client.call("GET", "/v1/kv/settings?what=1")).status == 400

    asyncio.run(story())
