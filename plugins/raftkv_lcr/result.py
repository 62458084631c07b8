"""What a connection is told, by either registry."""

from __future__ import annotations

import msgspec

from .commands import Channel

__all__ = ["ConnectResult"]


class ConnectResult(msgspec.Struct, frozen=True):
    """The answer to one connect.

    `outcome` is "ok" or the reason for a no: "outdated_early", "outdated_late", "in_progress",
    "ahead", "retries_exhausted"; "timeout" for the old registry's lock. `owner` is the registered
    channel as far as this connect learnt it: its own after "ok", else the one in its way.
    `predecessor` is the channel whose session it continues. `index` is the log index of the
    verdict; None where the log was not asked.
    """

    outcome: str
    session_present: bool
    owner: Channel | None
    predecessor: Channel | None
    index: int | None
    attempts: int
