"""Small promises to programs that embed a node or a client (docs/embedding.md)."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import raftkv
from tests.client.doors import served
from tests.client.fake_door import in_loop


def test_d7_recipes_can_be_reached_from_the_package() -> None:
    check = "import raftkv; print(raftkv.recipes.Lock.__name__, raftkv.blocking.Node.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["Lock", "Node"]
    assert "recipes" in raftkv.__all__


@in_loop
async def test_d7_a_get_is_sent_again_when_its_connection_breaks() -> None:
    async with served(1) as cluster, raftkv.Client(cluster.urls) as client:
        (proxy,) = cluster.proxies.values()
        proxy.mode = "drop"
        asked = asyncio.create_task(client.call("GET", "/v1/status"))
        while not proxy.dropped:
            await asyncio.sleep(0)
        proxy.mode = "pass"
        assert (await asked).status == 200
