"""Two regions, and a consumer that moves from one to the other.

    python docs/examples/subscriptions_move.py

Orders are published on both sides of an ocean. The billing program works in one region; when that
region is lost, it goes on in the other one, behind what it had done. (Clusters of one node each, in
one process. Otherwise everything is real: two logs, two doors, links over HTTP.)
"""

import asyncio
from collections.abc import Callable

import msgspec

from raftkv.server import door_of
from raftkv.testing import LocalCluster
from raftkv.testing.local_cluster import free_ports
from raftkv_subscriptions import Subscriptions, SubscriptionsApi, SubStatus


class Region:
    """A cluster with a door, and a link to the door of the other one."""

    def __init__(self, name: str, port: int, other: str, other_port: int) -> None:
        self.cluster = LocalCluster(cores=1, plugins=[Subscriptions()])
        links = {other: {"endpoints": [f"http://127.0.0.1:{other_port}"]}}
        self.cluster.configs["core1"] = msgspec.structs.replace(
            self.cluster.configs["core1"],
            http_address=f"127.0.0.1:{port}",
            options={"subscriptions": {"region": name, "links": links}},
        )

    async def start(self) -> SubscriptionsApi:
        await self.cluster.__aenter__()
        node = self.cluster.nodes[0]
        self.door = door_of(node)
        await self.door.start()
        return node.plugin(Subscriptions)

    async def lose(self) -> None:
        await self.door.stop()
        await self.cluster.close()


async def until(condition: Callable[[], bool]) -> None:
    """An example may poll."""
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


async def known_in(subs: SubscriptionsApi, backlog: int) -> SubStatus:
    """The subscription, once a link has told of it and so much is left to do."""
    async with asyncio.timeout(30):
        while True:
            for each in await subs.subscriptions("orders"):
                if each.backlog == backlog:
                    return each
            await asyncio.sleep(0.02)


async def main() -> None:
    ports = free_ports(2)
    eu, us = Region("eu", ports[0], "us", ports[1]), Region("us", ports[1], "eu", ports[0])
    here, there = await eu.start(), await us.start()

    await here.declare("orders")
    await until(lambda: bool(there.topics()))  # the link makes it there
    await here.publish("orders", [b"eu order 1", b"eu order 2", b"eu order 3"])
    await there.publish("orders", [b"us order 1", b"us order 2"])
    await until(lambda: all(each.topics()[0].messages == 5 for each in (here, there)))

    # The program works here. It is stuck with the first message, and goes on with others.
    consumer = await here.consumer("orders", "billing", initial="earliest", replicate=True)
    first, *others = await consumer.receive(5)
    await consumer.ack(*[each for each in others if each.origin == "eu"])
    print("done in eu:", [each.body.decode() for each in others if each.origin == "eu"])

    # What it acknowledged is known there, by origin and number, though positions differ.
    billing = await known_in(there, backlog=3)
    print("known in us:", billing.ranges, "to go:", billing.backlog)

    # The region is lost. Nobody tells anybody.
    await eu.lose()
    async with there.consumer("orders", "billing") as consumer:
        rest = await consumer.receive(5)
        print("goes on in us:", sorted(each.body.decode() for each in rest))
        await consumer.ack(*rest)
        await there.publish("orders", b"us order 3")
        (order,) = await consumer.receive()
        print("and:", order.body.decode())
    assert first.body in [each.body for each in rest]
    await us.lose()


asyncio.run(main())
