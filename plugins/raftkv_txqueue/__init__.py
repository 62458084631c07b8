"""Transactional queues: replicated on the log, with local and distributed transactions over them.

    from raftkv_txqueue import TxQueue

    txq = node.plugin(TxQueue)                        # on every node, right after it has started
    await txq.declare("orders", depth_max=100_000)
    await txq.publish("orders", b"a book")

    async with txq.session("tx") as session:
        async for order in session.subscribe("orders"):
            async with session.transaction() as tx:   # both, or none, on all nodes at once
                await tx.publish("invoices", b"for " + order.body)
                await tx.accept(order)

What is done in a transaction is staged in the log, seen by nobody, and becomes visible by one
entry: there is no index at which any node shows a part of it. Its outcome can always be asked:
`TransactionAborted` says that surely nothing was applied, `TransactionUnknown` that one has to ask
(`txq.outcome(txid)`). A *prepared* branch of a distributed transaction (`txq.dtx`, XA's verbs) is a
promise: it stands until it is decided, whatever dies meanwhile.

`commands.py` has the words of the log and what is kept, `views.py` what the tables mean;
`api.py` and `session.py` are a program's side, `observers.py` that of those who take part in the
transactions of others. docs/txqueue.md is for users, docs/internals/txqueue.md for whoever changes
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.late_names import late_names

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:
    __getattr__ = late_names(__name__)
