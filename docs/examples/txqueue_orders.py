"""Orders become invoices, each exactly once: transactions, their outcomes, and a node that dies.

    python docs/examples/txqueue_orders.py

Three nodes in one process; in a deployment each is a process of its own (docs/operations.md).
"""

import asyncio

from raftkv.testing import LocalCluster
from raftkv_txqueue import (
    Message,
    Opened,
    PrepareFailed,
    Session,
    TransactionAborted,
    TransactionObserver,
    TxQueue,
    TxQueueApi,
)


class Limit(TransactionObserver):
    """Takes part in all transactions, and says no to large ones."""

    def __init__(self, opened: Opened) -> None:
        self.messages = 0

    def publish(self, queue: str, messages: tuple[Message, ...]) -> None:
        self.messages += len(messages)

    async def prepare(self) -> None:
        if self.messages > 3:
            raise PrepareFailed(f"{self.messages} messages at once are too many")


async def bodies(txq: TxQueueApi, queue: str) -> list[str]:
    return [each.message.body.decode() for each in await txq.browse(queue)]


async def bill(session: Session, count: int) -> str:
    """Take orders and publish their invoices: both, or nothing."""
    orders = await session.get("orders", count, wait_s=30)
    async with session.transaction() as tx:
        for order in orders:
            await tx.publish("invoices", b"bill for " + order.body)
        await tx.accept(*orders)
    return tx.txid


async def main() -> None:
    async with LocalCluster(cores=3, plugins=[TxQueue()]) as cluster:
        first, second, third = (node.plugin(TxQueue) for node in cluster.nodes)
        await first.declare("invoices")
        await first.declare("orders", depth_max=1_000)
        await first.publish("orders", [Message(b"17 apples"), Message(b"3 pears")])

        async with second.session("tx") as session:
            txid = await bill(session, count=1)
            # Whoever asks, and wherever: there is one answer.
            fate = await third.outcome(txid)
            print(fate.state, await bodies(first, "orders"), await bodies(third, "invoices"))

            # An exception leaves nothing, and the order is where it was.
            try:
                async with session.transaction() as tx:
                    await tx.publish("invoices", b"bill for nothing")
                    raise RuntimeError("the printer is out of paper")
            except RuntimeError as error:
                fate = await first.outcome(tx.txid)
                print(error, "->", fate.state, await bodies(first, "invoices"))

            # A participant on one node may say no for all of them.
            remove = third.observe(Limit)
            await third.observing.taking_part()
            try:
                async with session.transaction() as tx:
                    await tx.publish("invoices", [Message(b"spam")] * 100)
            except TransactionAborted as error:
                print(error.cause, "->", error.reason)
            remove()

        # A consumer's node dies with a message that it has not settled.
        lost = await third.session()
        (held,) = await lost.get("orders")
        print(held.body, held.deliveries, await bodies(first, "orders"))
        await cluster.kill("core3")
        async with first.session() as session:
            (again,) = await session.get("orders", wait_s=60)
            print(again.body, again.deliveries)
            await session.accept(again)
        print(await bodies(second, "orders"))


asyncio.run(main())
