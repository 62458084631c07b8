"""The MQTT broker of docs/examples when one of its nodes dies. All nodes share this process."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amqtt", reason="amqtt is not installed (the extra `dev` names it)")
pytest.importorskip("paho.mqtt", reason="paho-mqtt is not installed (the extra `dev` names it)")

from tests.examples.paho_client import Paho

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "docs" / "examples"
SERVER_SHUTTING_DOWN = 0x8B
DEADLINE_S = 60.0


def test_a_client_of_a_node_that_died_gets_in_elsewhere(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        broker = importlib.import_module("mqtt_broker")
        try:
            asyncio.run(_story(broker, str(tmp_path)))
        finally:
            for name in ("mqtt_broker", "mqtt_session", "mqtt_wire"):
                sys.modules.pop(name, None)


async def _story(broker: Any, directory: str) -> None:
    async with asyncio.timeout(DEADLINE_S), broker.cluster(3, directory) as nodes:
        ports = [await node.plugin(broker.Broker).listen("127.0.0.1", 0) for node in nodes]
        leader = next(place for place, node in enumerate(nodes) if node.status().role == "leader")
        dying, other, third = (leader + 1) % 3, leader, (leader + 2) % 3
        with Paho("orphan", five=True) as client, Paho("sender", clean=True) as sender:
            assert await asyncio.to_thread(client.connect, ports[dying]) is False
            assert await asyncio.to_thread(client.subscribe, "orphan/#") == [1]
            await nodes[dying].stop(hand_over=False)
            code, _ = await asyncio.to_thread(client.closed)
            assert code.value == SERVER_SHUTTING_DOWN
            # The session is gone with its node, and the client is told so.
            assert await asyncio.to_thread(client.connect, ports[other]) is False
            await asyncio.to_thread(client.subscribe, "orphan/#")
            await asyncio.to_thread(sender.connect, ports[third])
            await asyncio.to_thread(sender.publish, "orphan/x", "found you")
            assert await asyncio.to_thread(client.message) == ("orphan/x", "found you")
            # What the former session subscribed to is deleted, behind.
            while len(_sessions(nodes[other], "orphan")) > 1:
                await asyncio.sleep(0.01)


def _sessions(node: Any, client_id: str) -> set[int]:
    """The sessions of the client that have subscriptions."""
    table = node.machine.view("mqtt").table("subscriptions")
    return {key[1] for key, _ in table.scan(prefix=(client_id,))}
