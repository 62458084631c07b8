"""The limbo: transactions that wait in one queue until a quorum of your choice has them.

    from raftkv_limbo import Limbo, Write

    limbo = node.plugin(Limbo)                        # on every node, right after it has started
    await limbo.create_space("accounts", sync=True)
    await limbo.set_quorum("N")                       # all cores; the default is their majority
    await limbo.promote()                             # this node owns the queue now

    done = await limbo.submit([Write("accounts", b"ann", b"10"), Write("accounts", b"bob", b"5")])
    done.state        # "confirmed"; a rolled back one raises RolledBack, a time-out decides nothing
    row = await limbo.get("accounts", b"ann")         # what is confirmed; or view="pending"

Raft stores an entry on a majority of the cores. Here an application says what it means by
*confirmed*: on all nodes, on replicants too, in named zones, approved by validators. Each
transaction gets one verdict, the same on every node, at one place of the log.

`commands.py` has the words of the log, `queue.py` the queue, `entering.py` what may enter it,
`quorum.py` who counts, `ownership.py` who submits. docs/limbo.md is for users,
docs/internals/limbo.md for whoever changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.late_names import late_names

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:
    __getattr__ = late_names(__name__)
