"""The local options of the plugin, `[options.subscriptions]`: what is of one node only.

    [options.subscriptions]
    region = "eu"

    [options.subscriptions.links.us]
    endpoints = ["https://10.1.0.1:4001", "https://10.1.0.2:4001"]
    ca = "/etc/raftkv/us-doors.pem"
    cert = "/etc/raftkv/eu.pem"
    key = "/etc/raftkv/eu.key"

They say how this node, as leader, reaches the other regions; all cores of a region should have the
same. Which regions there are, and what their state is, stands in the log.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from raftkv.plugin import Host

from .rows import NAME_CHARS_MAX

__all__ = ["LinkOptions", "SubscriptionsOptions", "Want", "options_of"]

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: "own": every region fetches from every other one (a mesh). "all": the source also passes on what
#: it has of others (rings, chains); snapshot mode cannot go over such a link.
Want = Literal["own", "all"]


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach one other region.

    `endpoints`: doors of its nodes, in the order in which they are tried, replicants too. `ca`
    holds the authorities of these doors in PEM form (None: the system's); `cert` and `key` are
    shown to them. The files are read again for each connection.
    """

    endpoints: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=64)]
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    want: Want = "own"


class SubscriptionsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[options.subscriptions]`."""

    # The name of this region; the leader writes it into the log. "": whatever the log says.
    region: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)] = ""
    # The other regions, by their names.
    links: dict[str, LinkOptions] = {}
    # What was acknowledged goes to another region at most so often for each subscription. The first
    # acknowledgement after a rest goes at once.
    state_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 20
    # How often another region is told what this one has, if anything is new: its retention waits.
    report_s: Annotated[float, msgspec.Meta(ge=0.05, le=3_600)] = 1.0
    # What one link holds that is not in the log yet. Beyond it nothing more is read, which stops
    # the source. 8 MiB are a second and a half of 5,000 messages/s of 1 KiB.
    link_bytes_max: Annotated[int, msgspec.Meta(ge=MIB, le=1024 * MIB)] = 8 * MIB
    # A consumer that was opened over the door and not used for that long is closed, in seconds:
    # nobody tells a node that a program far away has gone.
    door_idle_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    # Consumers of this node's door. Each may hold messages until it is closed.
    door_consumers_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    # Messages that one consumer of this node reads ahead, in bytes.
    prefetch_bytes_max: Annotated[int, msgspec.Meta(ge=64 * KIB, le=1024 * MIB)] = 4 * MIB


def options_of(host: Host) -> SubscriptionsOptions:
    """The node's options, or the defaults."""
    options = host.options
    return options if isinstance(options, SubscriptionsOptions) else SubscriptionsOptions()
