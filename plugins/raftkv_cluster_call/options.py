"""The local options of the plugin, `[options.calls]`: patience and sizes on one node.

None of them influences a verdict; what does is a setting, the same on all nodes (`settings.py`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from raftkv.plugin import Host

__all__ = ["CallsOptions", "options_of"]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class CallsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[options.calls]`. Seconds."""

    # One attempt of a function on a replica. Longer than a function should take, short enough that
    # one which hangs is reported while the caller of a call (120 s) still waits. On the initiator
    # the limit is the call's own deadline.
    run_timeout_s: Seconds = 60.0
    # A function whose time is up is cancelled, and given this long to end. One that goes on all the
    # same is waited for before anything else runs: two calls never run at once on a node.
    cancel_grace_s: Seconds = 1.0
    # After the deadline of a call whose function has run, the log is given this long to say what
    # became of it, before the caller is told that it is unknown. An election fits into it.
    settle_grace_s: Seconds = 5.0
    # A replicant asks its core again in such steps, so that a lost answer costs one of them.
    forward_wait_s: Seconds = 5.0
    # A core keeps the answer to a forwarded call this long for the replicant that asks again.
    # Several steps of the above.
    forward_keep_s: Seconds = 60.0
    # A node that still joins after this time is an alarm: copying its state takes seconds.
    joining_stuck_s: Seconds = 30.0


def options_of(host: Host) -> CallsOptions:
    """The node's options, or the defaults."""
    options = host.options
    return options if isinstance(options, CallsOptions) else CallsOptions()
