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

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:

    def __getattr__(name: str) -> Any:
        """A public name. A command of the command line uses none, and imports no plugin."""
        if find_spec(f"{__name__}.{name}") is not None:
            raise AttributeError(name)  # a module of the package, which Python imports then
        return getattr(import_module(f"{__name__}.public"), name)
