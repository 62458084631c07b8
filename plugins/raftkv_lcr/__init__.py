"""The Linear Channel Registry: which connection of a client is the one, decided in a log.

A broker whose sessions shall move with their clients, from node to node:

    from raftkv_lcr import LCR

    manager = node.plugin(LCR).sessions(broker)     # a ChannelOwner: begin, end, discard, kick, ...
    opened = await manager.open_session("client-1", False, "connection-17")
    opened.outcome, opened.present, opened.session, opened.pendings
    await manager.close(opened.channel)

A program that only wants to know who is registered:

    lcr = node.plugin(LCR)
    result = await lcr.connect("client-1", "connection-17")
    result.session_present        # whether a predecessor's session was taken over
    await lcr.unregister(result.owner)

`commands.py` has the words, `registry.py` the decision, `api.py` what a program calls, `manager.py`
the session flow and `owner.py` what a broker implements for it. The registry that it replaces, for
comparison and for the way from there to here, is `lcr.legacy`; `modes.py` says how to move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.late_names import late_names

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:
    __getattr__ = late_names(__name__)
