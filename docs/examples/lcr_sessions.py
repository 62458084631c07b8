"""Sessions that follow their clients from node to node, with a broker that lives in memory.

    python docs/examples/lcr_sessions.py

A broker of your own takes the place of `MemoryBroker`: it implements `ChannelOwner`, as
mqtt_broker.py does.
"""

import asyncio

from raftkv.testing import LocalCluster
from raftkv_lcr import LCR, Message
from raftkv_lcr.testing import MemoryBroker


async def main() -> None:
    async with LocalCluster(cores=3, plugins=[LCR()]) as cluster:
        brokers = [MemoryBroker(node.name) for node in cluster.nodes]
        for broker, node in zip(brokers, cluster.nodes, strict=True):
            broker.attach(node.plugin(LCR))
        await cluster.nodes[0].plugin(LCR).switch_mode("enabled", timeout_s=30)
        await brokers[0].connect("me", "connection-1")
        brokers[0].publish("me", Message("1", b"hello"))
        opened = await brokers[2].connect("me", "connection-2")
        print(opened.outcome, opened.present, brokers[2].sessions["me", "connection-2"].content)


asyncio.run(main())
