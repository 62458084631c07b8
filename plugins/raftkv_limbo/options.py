"""The local options of the plugin, `[options.limbo]`: what is of one node only.

None of them influences a verdict by itself: the zone does once it is declared, through the log.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from raftkv.plugin import Host

__all__ = ["LimboOptions", "options_of"]


class LimboOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[options.limbo]`."""

    # Where this node stands, for quorums by zones ("eu", "rack7"); "" is in no zone.
    zone: Annotated[str, msgspec.Meta(max_length=64)] = ""
    # Submissions of this node that wait to be written, or for room. Beyond it callers get
    # Overloaded. It bounds memory, and callers that do not wait.
    waiting_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 20_000
    # The same in bytes of keys and values.
    waiting_bytes_max: Annotated[int, msgspec.Meta(ge=1)] = 64 * 1024 * 1024


def options_of(host: Host) -> LimboOptions:
    """The node's options, or the defaults."""
    options = host.options
    return options if isinstance(options, LimboOptions) else LimboOptions()
