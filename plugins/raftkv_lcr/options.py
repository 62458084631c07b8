"""The local options of the plugin, `[options.lcr]`: times and sizes of the session flow on a node.

None of them influences a verdict; those are settings, the same on all nodes (`settings.py`). Two
nodes may have different ones: each is used by the node that waits, keeps or sends.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from raftkv.plugin import Host

__all__ = ["LcrOptions", "options_of"]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Bytes = Annotated[int, msgspec.Meta(ge=1024, le=2**40)]


class LcrOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[options.lcr]`. Seconds and bytes."""

    # How long one call to the owner of a channel may take, as upstream. Afterwards it has failed
    # with "timeout", and the connection goes on without the predecessor's session.
    begin_timeout_s: Seconds = 5.0
    end_timeout_s: Seconds = 5.0
    discard_timeout_s: Seconds = 5.0
    kick_timeout_s: Seconds = 5.0
    # A whole open_session whose caller names no time: a begin that times out, the log through an
    # election, an end whose replies are lost, and some seconds of reserve.
    open_timeout_s: Seconds = 20.0
    # A freeze that no contender renewed ends after this time, for then all of them have gone. It
    # is longer than the way from a begin through the log to its end usually is.
    begin_ttl_s: Seconds = 10.0
    # What `end` gave is kept for its winner this long, should the reply be lost. Longer than any
    # open_session that may still ask.
    handover_keep_s: Seconds = 60.0
    # A session whose connection went away while it was being opened waits this long for its client
    # to come back, unless the broker keeps it itself. Longer than clients pause between attempts.
    parked_keep_s: Seconds = 300.0
    # A channel that lost its row is ended by its successor. When none comes, it is ended here: the
    # successor's connection or node failed between its registration and its `end`.
    lost_grace_s: Seconds = 15.0
    # After so long an alarm is raised: this node is still entering its channels again (a switch of
    # the mode, a new incarnation), or still cleaning up after dead nodes. A sweep may take as long
    # as its interval, `sweep_interval_s`, if that is longer.
    slow_after_s: Seconds = 60.0
    # One session's content with its pendings. What is larger is not handed over ("lost").
    session_bytes_max: Bytes = 64 * 2**20
    # All contents that this node keeps for others: of frozen channels, and of ended ones until
    # they are acknowledged. Beyond it the oldest acknowledgements are no longer waited for, and
    # further begins wait for their turn.
    handover_bytes_max: Bytes = 512 * 2**20
    # Content travels in pages of this size: far below a frame, so that heartbeats get through.
    page_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 20)] = 256 * 1024


def options_of(host: Host) -> LcrOptions:
    """The options of this node; the defaults if it has none."""
    return host.options if isinstance(host.options, LcrOptions) else LcrOptions()
