"""The replicated settings of every plugin: changed by programs and over HTTP, from one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftkv.errors import InvalidSetting
from raftkv.plugin import PluginSettings, Request, settings_routes
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import FakeCluster
from raftkv_lcr import LCR
from raftkv_limbo import Limbo
from raftkv_subscriptions import Subscriptions
from raftkv_txqueue import TxQueue
from tests.plugins.raftkv_cluster_call.fakes import Cluster as CallsCluster
from tests.plugins.raftkv_cluster_call.fakes import tell

# A plugin, one of its settings, and a value that is not its default.
PLUGINS = [
    (LCR, "claim_ms", 20_000),
    (Limbo, "queue_entries_max", 77),
    (TxQueue, "message_bytes_max", 70_000),
    (Subscriptions, "ranges_max", 5_000),
]


@pytest.mark.parametrize(("plugin", "key", "value"), PLUGINS)
def test_a_program_changes_a_setting(plugin: Callable[[], Any], key: str, value: int) -> None:
    async def body() -> None:
        cluster: FakeCluster[Any] = FakeCluster(plugin, 3, 0)
        await cluster.start()
        settings: PluginSettings = cluster.nodes["core1"].opened.settings
        before = settings.all()
        assert before[key] != value
        await settings.set(key, value)
        assert cluster.nodes["core2"].opened.settings.all() == {**before, key: value}
        await settings.set(key, None)
        assert settings.all() == before
        for wrong_key, wrong in ((key, -1), (key, "x"), (key, 2**70), ("nosuch", 1)):
            with pytest.raises(InvalidSetting):
                await settings.set(wrong_key, wrong)
        assert settings.all() == before

    run(body())


@pytest.mark.parametrize(("plugin", "key", "value"), PLUGINS)
def test_the_http_api_changes_a_setting(plugin: Callable[[], Any], key: str, value: int) -> None:
    async def body() -> None:
        cluster: FakeCluster[Any] = FakeCluster(plugin, 3, 0)
        await cluster.start()
        node = cluster.nodes["core1"]
        served = {(route.method, route.path): route for route in node.service.routes()}
        for route in settings_routes(node):
            assert (route.method, route.path) in served
        show, change = served["GET", "settings"], served["PUT", "settings/{key}"]

        async def put(name: str, text: bytes) -> Any:
            return await change.handler(Request({"key": name}, {}, text, "test"))

        changed = await put(key, b'{"value": %d}' % value)
        assert (changed.status, changed.body["settings"][key]) == (200, value)
        shown = await show.handler(Request({}, {}, b"", "test"))
        assert shown.body == changed.body
        for name, text in ((key, b'{"value": -1}'), ("nosuch", b'{"value": 1}')):
            refused = await put(name, text)
            assert refused.status == 400
            assert refused.body["error"]

    run(body())


def test_a_program_changes_a_setting_of_the_calls() -> None:
    async def body(cluster: CallsCluster) -> None:
        settings = cluster.calls("core1").settings
        await settings.set("history_max", 7)
        assert cluster.calls("core2").settings.all()["history_max"] == 7
        with pytest.raises(InvalidSetting):
            await settings.set("history_max", 0)

    tell(body)
