"""Replicated subscriptions: topics in several regions, and consumers that move between them.

    from raftkv_subscriptions import Subscriptions

    subs = node.plugin(Subscriptions)                 # on every node, right after it has started
    await subs.declare("orders")
    await subs.publish("orders", b"a book")

    async with subs.consumer("orders", "billing", kind="failover", replicate=True) as consumer:
        async for order in consumer:
            ...
            await consumer.ack(order)

Each region is a cluster of its own, with its own log; messages go to the others behind it, in the
order of each region, once. Every message keeps the region where it was published and its number
there, so what was acknowledged means the same everywhere: a consumer that is opened in another
region goes on where this one left off, and never passes a message that nobody has acknowledged.

`rows.py` and `commands.py` have what is kept and the words of the log, `views.py` what the tables
mean; `api.py` is a program's side, `service.py` with `links/` what goes between regions.
docs/subscriptions.md is for users, docs/internals/subscriptions.md for whoever changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.late_names import late_names

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:
    __getattr__ = late_names(__name__)
