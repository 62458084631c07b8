"""One transaction over two clusters, and what is left of one whose coordinator died.

    python docs/examples/txqueue_transfer.py

The stock of two shops is in two clusters. Moving goods takes a message from a queue of the one and
puts it into a queue of the other: in both, or in neither. (Clusters of one node each, in one
process; a shop far away would be a `DoorResource`.)
"""

import asyncio

from raftkv.testing import LocalCluster
from raftkv_txqueue import (
    Coordinator,
    GlobalTransaction,
    MemoryJournal,
    NodeResource,
    TxQueue,
    TxQueueApi,
)


async def stock(txq: TxQueueApi) -> list[str]:
    return [each.message.body.decode() for each in await txq.browse("stock")]


async def move(gt: GlobalTransaction, here: TxQueueApi, there: TxQueueApi) -> None:
    """Take the oldest goods of one shop and put them into the other."""
    async with here.session("dtx") as taking, there.session("dtx") as giving:
        await gt.enlist("here", taking)
        await gt.enlist("there", giving)
        (goods,) = await taking.get("stock")
        await giving.publish("stock", goods.body)
        await taking.accept(goods)
        await gt.commit()


async def main() -> None:
    async with (
        LocalCluster(cores=1, plugins=[TxQueue()]) as east,
        LocalCluster(cores=1, plugins=[TxQueue()]) as west,
    ):
        here, there = (each.nodes[0].plugin(TxQueue) for each in (east, west))
        for txq in (here, there):
            await txq.declare("stock")
        for name in (b"apples", b"pears", b"plums"):
            await here.publish("stock", name)

        resources = {"here": NodeResource(here), "there": NodeResource(there)}
        runtime = east.nodes[0].runtime
        # A FileJournal, outside of examples: it must outlive the process.
        journal = MemoryJournal()
        coordinator = Coordinator("transfers", journal, resources, runtime=runtime)
        await move(coordinator.new(), here, there)
        print(await stock(here), await stock(there))

        # A coordinator dies after both have promised, before it has written a decision.
        xids = {shop: coordinator.xid(b"transfers/lost", shop) for shop in resources}
        async with here.session("dtx") as taking, there.session("dtx") as giving:
            await taking.start(xids["here"])
            await giving.start(xids["there"])
            (goods,) = await taking.get("stock")
            await giving.publish("stock", goods.body)
            await taking.accept(goods)
            await taking.end(xids["here"])
            await giving.end(xids["there"])
        for shop, resource in resources.items():
            print(shop, (await resource.prepare(xids[shop])).name)
        # Nothing ends a promise but a decision: neither shop shows the pears.
        print(await stock(here), await stock(there), len(await here.dtx.recover()))

        # The next one finds no decision in the journal: it was not committed.
        again = Coordinator("transfers", journal, resources, runtime=runtime)
        done = await again.recover()
        print("rolled back:", done.rolled_back, "left:", done.left)
        print(await stock(here), await stock(there))


asyncio.run(main())
