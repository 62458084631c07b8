"""A table that is written in one region and read in all nodes of another: a compacted topic.

    python docs/examples/subscriptions_prices.py

The last message of each key stays, however old it is, so whoever starts reads the whole table and
then what changes. (One cluster of three nodes in one process; links would carry the topic on.)
"""

import asyncio

from raftkv.testing import LocalCluster
from raftkv_subscriptions import Message, Subscriptions


async def main() -> None:
    async with LocalCluster(cores=3, plugins=[Subscriptions()]) as cluster:
        writer, other = (node.plugin(Subscriptions) for node in cluster.nodes[:2])
        await writer.declare("prices", compacted=True, retention_s=3600)
        for name, price in (("apples", b"3"), ("pears", b"4"), ("apples", b"5"), ("plums", b"2")):
            await writer.publish("prices", Message(price, name))
        await writer.publish("prices", Message(b"", "pears"))  # an empty body: no pears any more

        # At another node: first the table, then the changes.
        reader = await other.reader("prices", start="earliest", compacted=True)
        table = {}
        while await reader.has_more():
            each = await reader.next()
            assert each is not None
            table[each.key] = each.body
        print(table)

        await writer.publish("prices", Message(b"6", "apples"))
        changed = await reader.next(timeout_s=5.0)
        assert changed is not None
        print(changed.key, changed.body, "at position", changed.position)

        # A reader that sees all of them, superseded ones too: nothing is removed for an hour.
        everything = await other.read("prices", first=1)
        print([(each.key, each.body) for each in everything])


asyncio.run(main())
