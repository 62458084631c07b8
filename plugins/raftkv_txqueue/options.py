"""The local options of the plugin, `[options.txqueue]`: what is of one node only.

None of them influences a verdict. When operations are staged changes how many commands a
transaction takes, and how much of it a node's memory holds, never what it means.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from raftkv.plugin import Host

__all__ = ["TxQueueOptions", "options_of"]


class TxQueueOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[options.txqueue]`."""

    # Messages published and accepted in a transaction that a node gathers before it stages them.
    # A transaction that has no more is one entry of the log.
    stage_operations: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 128
    # The same in bytes of messages. What is staged early is off the node's memory, and the commit
    # is quick; what is staged late costs fewer entries.
    stage_bytes: Annotated[int, msgspec.Meta(ge=1, le=512 * 1024)] = 64 * 1024
    # A session that was opened over the door and not used for that long is closed, in seconds:
    # nobody tells a node that a program far away has gone.
    door_idle_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    # Sessions of this node's door. Each may hold messages until it is closed.
    door_sessions_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    # Transactions whose observers prepare at the same time; the others wait for their turn.
    prepares_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 256


def options_of(host: Host) -> TxQueueOptions:
    """The node's options, or the defaults."""
    options = host.options
    return options if isinstance(options, TxQueueOptions) else TxQueueOptions()
