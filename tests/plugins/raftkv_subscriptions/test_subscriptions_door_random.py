"""Clients at the doors of a region, drawn from a seed, while nodes restart and answers get lost.

Each client does what docs/subscriptions.md tells it to: it opens a consumer, asks the node that an
error names, and opens another one when its own has ended or an answer was lost. What must hold for
every subscription in the end: each published message was received (none is passed), and none was
received after its acknowledgement had been answered.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from random import Random
from typing import Any

import msgspec
import pytest

from raftkv.errors import RaftkvError
from raftkv.plugin import Request, Response
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import FakeCluster, FakeHost
from raftkv_subscriptions import Subscriptions, SubscriptionsApi, SubscriptionsOptions

SEEDS = 12
MESSAGES = 60
KINDS = ("exclusive", "failover", "shared")

Cluster = FakeCluster[FakeHost[SubscriptionsApi]]


class Lost(Exception):
    """The node of the door died under the request, or the answer says that nothing is known."""


class World:
    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.published: set[str] = set()
        #: Published, or not: nobody knows.
        self.perhaps: set[str] = set()
        self.received: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self.acked: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self.done = False

    async def ask(self, node: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Raises Lost."""
        host = self.cluster.nodes[node]
        if not host.alive:
            raise Lost
        parts = path.split("/")
        for route in host.service.routes():
            pieces = route.path.split("/")
            if route.method == method and len(pieces) == len(parts):
                pairs = list(zip(pieces, parts, strict=True))
                if all(piece[0] == "{" or piece == part for piece, part in pairs):
                    params = {piece[1:-1]: part for piece, part in pairs if piece[0] == "{"}
                    break
        request = Request(params, {}, json.dumps(body or {}).encode(), "")
        try:
            response: Response = await route.handler(request)
        except RaftkvError:
            raise Lost from None
        if not host.alive or response.status >= 500:
            raise Lost
        return response.status, json.loads(msgspec.json.encode(response.body))

    def somewhere(self) -> str:
        return self.chance.choice([n for n, each in self.cluster.nodes.items() if each.alive])

    # --- clients ---

    async def publish(self) -> None:
        for number in range(MESSAGES):
            text = f"m{number}"
            body = base64.b64encode(text.encode()).decode()
            self.perhaps.add(text)
            try:
                status, answer = await self.ask(
                    self.somewhere(), "POST", "topics/t/publish", {"messages": [{"body": body}]}
                )
            except Lost:
                continue
            assert status == 200, answer
            self.published.add(text)
            await asyncio.sleep(self.chance.random())

    async def consume(self, kind: str) -> None:
        """One consumer after the other, each until something happens to it."""
        while not self.done:
            # After that another one, elsewhere.
            with contextlib.suppress(Lost):
                await self.consume_once(kind)
            await asyncio.sleep(self.chance.random())

    async def consume_once(self, kind: str) -> None:
        node = self.somewhere()
        wanted = {"topic": "t", "sub": kind, "kind": kind, "initial": "earliest"}
        status, opened = await self.ask(node, "POST", "consumers", wanted)
        if status == 409:
            assert opened["reason"] == "subscriptions_subscription_busy"
            return
        assert status == 200, opened
        place = f"consumers/{opened['consumer']}"
        for _ in range(self.chance.randint(1, 20)):
            asked = {"count": self.chance.randint(1, 8), "wait_s": self.chance.random()}
            status, answer = await self.ask(node, "POST", f"{place}/receive", asked)
            if status == 409:
                assert answer["reason"] == "subscriptions_consumer_ended", answer
                return
            texts = {
                each["position"]: base64.b64decode(each["body"]).decode()
                for each in answer["messages"]
            }
            again = self.acked[kind] & set(texts.values())
            assert not again, f"{kind}: {again} came again"
            self.received[kind] |= set(texts.values())
            if texts and not await self.settle(node, place, kind, texts):
                return
        await self.ask(node, "DELETE", place)

    async def settle(self, node: str, place: str, kind: str, texts: dict[int, str]) -> bool:
        """Acknowledge some, give back the others; whether the consumer goes on."""
        positions = list(texts)
        self.chance.shuffle(positions)
        kept = positions[: self.chance.randint(0, len(positions))]
        for verb, which in (("ack", kept), ("nack", [p for p in positions if p not in kept])):
            if not which:
                continue
            status, answer = await self.ask(node, "POST", f"{place}/{verb}", {"positions": which})
            if status == 409:
                assert answer["reason"] == "subscriptions_consumer_ended", answer
                return False
            assert status == 200, answer
            if verb == "ack":
                self.acked[kind] |= {texts[position] for position in which}
        return True

    async def trouble(self) -> None:
        """A node dies and comes back; sometimes the log takes nothing for a while."""
        while not self.done:
            await asyncio.sleep(self.chance.uniform(2, 8))
            if self.chance.random() < 0.5:
                self.cluster.filter = lambda node, envelope: False
                await asyncio.sleep(self.chance.uniform(0.1, 7))
                self.cluster.filter = lambda node, envelope: True
                continue
            name = self.chance.choice([n for n in self.cluster.nodes if n != self.cluster.leader])
            self.cluster.kill(name)
            await asyncio.sleep(self.chance.uniform(0.1, 5))
            await self.cluster.restart(name)

    async def drain(self, kind: str) -> None:
        """All is well: a last consumer gets what is left."""
        node = self.somewhere()
        wanted = {"topic": "t", "sub": kind, "kind": kind, "initial": "earliest"}
        while True:
            status, opened = await self.ask(node, "POST", "consumers", wanted)
            if status == 200:
                break
            # One whose client is gone is closed when it has been idle.
            await asyncio.sleep(1)
        place = f"consumers/{opened['consumer']}"
        while True:
            found = await self.ask(node, "POST", f"{place}/receive", {"count": 50, "wait_s": 30})
            if not found[1]["messages"]:
                return
            for each in found[1]["messages"]:
                self.received[kind].add(base64.b64decode(each["body"]).decode())
            positions = [each["position"] for each in found[1]["messages"]]
            await self.ask(node, "POST", f"{place}/ack", {"positions": positions})


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_passed_and_nothing_comes_again(seed: int) -> None:
    async def whole() -> None:
        cluster: Cluster = FakeCluster(
            Subscriptions, 3, options=SubscriptionsOptions(door_idle_s=8.0)
        )
        await cluster.start()
        world = World(cluster, Random(seed))
        status, _ = await world.ask("core1", "PUT", "topics/t", {})
        assert status == 200
        clients = [asyncio.create_task(world.consume(kind)) for kind in KINDS for _ in range(2)]
        clients.append(asyncio.create_task(world.trouble()))
        await world.publish()
        await asyncio.sleep(20)
        world.done = True
        await asyncio.gather(*clients)
        for kind in KINDS:
            await world.drain(kind)
            missing = world.published - world.received[kind]
            assert not missing, f"seed {seed}: {kind} never got {missing}"
            assert world.received[kind] <= world.perhaps
        assert len(world.published) > MESSAGES / 2
        assert all(world.acked.values())
        cluster.check()

    run(whole())
